"""What a result says, as a list of parts; ``text`` and ``html`` write the parts down.

The parts stand in the order of the text. The page puts them into its sections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from paceline.benchmark.advice import Advice, explain, fastest, way
from paceline.benchmark.records import Curve, Measurement, Run, labels
from paceline.report import formats


class Section(IntEnum):
    """The sections of the page, in their order."""

    FACTS = 0
    ADVICE = 1
    OUTLOOK = 2
    BARS = 3
    CURVES = 4
    FIRST_EPOCH = 5
    MEASURED = 6


@dataclass(frozen=True)
class Part:
    """A part under a heading, which only the page shows; one heading serves parts in a row."""

    section: Section
    title: str


@dataclass(frozen=True)
class Sentences(Part):
    """Sentences, each a paragraph or an item of a list."""

    sentences: Sequence[str]
    listed: bool = False


@dataclass(frozen=True)
class Table(Part):
    """A table. Rows whose first cells are the same belong together."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: int | None  # the row that is marked
    words: Sequence[str]  # names of the columns that hold no numbers
    spare: Sequence[str]  # names of the columns to leave out if there is no room, first to last
    key: str


@dataclass(frozen=True)
class Shares(Part):
    """A number of seconds in parts: the seconds of each, their share, and what they are."""

    first: str
    shares: Sequence[tuple[str, str, str]]
    last: str


@dataclass(frozen=True)
class Bar:
    """A bar of a group; equal names have equal patterns."""

    group: str
    name: str
    seconds: float
    hint: str


@dataclass(frozen=True)
class Bars(Part):
    """Bars, which the text leaves out."""

    sentence: str
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Curves(Part):
    """Curves of one metric, which the text leaves out."""

    curves: Sequence[Curve]
    target: float | None  # a value to mark


def document(
    runs: Sequence[Run],
    advice: Sequence[Advice],
    outlook: Sequence[str] = (),
    target: float | None = None,
) -> list[Part]:
    """Returns all parts of a result.

    Args:
        runs: The runs.
        advice: The findings.
        outlook: Sentences on the time of a planned search.
        target: A value of the metric to mark in the curves; None: nothing is marked.
    """
    winner = fastest(runs)
    best = None if winner is None else winner[1]
    several = len(runs) > 1
    parts: list[Part] = []
    pictures: list[Part] = [*_bars(runs)]
    for label, run in zip(labels(runs), runs, strict=True):
        of = f" ({label})" if several else ""
        notes = [f"Note: {note}" for note in run.notes]
        if run.interrupted:
            notes.append("Interrupted: what had been measured until then.")
        parts.append(Sentences(Section.FACTS, "", [*facts(run), *notes]))
        measured = f"All that was measured{of}"
        if run.measured:
            parts.append(_table(run, best, measured))
        parts.append(Sentences(Section.MEASURED, measured, list(missing(run))))
        if run.first_epoch is not None:
            why = f"Why the first epoch is slow{of}"
            shares = explain(run.first_epoch, run.n_examples)
            parts.append(Shares(Section.FIRST_EPOCH, why, *shares))
        curves = [curve for curve in run.curves if curve.values]
        if curves:
            title = f"{curves[0].metric} by batch size{f' on {label}' if several else ''}"
            pictures.append(Curves(Section.CURVES, title, curves, target))
    texts = [each.text for each in advice]
    parts.append(Sentences(Section.ADVICE, "What follows", texts, listed=True))
    parts.append(Sentences(Section.OUTLOOK, "Will it be done?", outlook, listed=True))
    said = [each for each in parts if not isinstance(each, Sentences) or each.sentences]
    return said + pictures


def facts(run: Run) -> list[str]:
    """Returns lines that say what was measured, on which device, with which versions and when."""
    device, model = run.device, run.model
    what = str(model.get("name", "model"))
    if model.get("hparams"):
        what += f" ({formats.hparams(model['hparams'])})"
    where = f"{device.platform}: {device.kind}"
    if device.count > 1:
        where = f"{device.count} x {where}"
    details = [f"{device.cores} cores"] if device.platform == "cpu" and device.cores else []
    if device.memory:
        details.append(f"{device.memory / 2**30:.1f} GiB")
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    lines = [
        f"{what}: {run.n_examples:,} training examples, Keras on {run.backend}, {run.precision}",
        f"{', '.join([where, *details])}; {versions}; {run.date[:16].replace('T', ' ')}",
    ]
    if device.peak_flops and device.peak_bytes:
        lines.append(
            f"Measured peak: {formats.amount(device.peak_flops)}FLOP/s in a large matrix product, "
            f"{formats.amount(device.peak_bytes)}B/s in a large copy"
        )
    return lines


_KEY = (
    "* the most examples per second. step: of all trials at once, the median; ± half the distance "
    "of its quartiles. examples/s: of all trials together. peak: share of the device's measured "
    "peak."
)
#: Title of each column, and the function that gives its text for a measurement.
COLUMNS: list[tuple[str, Callable[[Run, Measurement], str]]] = [
    ("batch", lambda run, measurement: f"{measurement.config.batch_size:,}"),
    ("trials", lambda run, measurement: _trials(measurement)),
    ("plan", lambda run, measurement: _plan(measurement)),
    ("build", lambda run, measurement: formats.fine(measurement.build)),
    ("trace", lambda run, measurement: formats.fine(measurement.trace)),
    ("compile", lambda run, measurement: formats.fine(measurement.compile)),
    ("first step", lambda run, measurement: formats.fine(measurement.first)),
    ("step", lambda run, measurement: formats.fine(measurement.step)),
    ("±", lambda run, measurement: f"{measurement.spread:.0%}"),
    ("examples/s", lambda run, measurement: f"{measurement.rate:,.0f}"),
    ("a trial's epoch", lambda run, measurement: formats.fine(measurement.epoch(run.n_examples))),
    (
        "peak",
        lambda run, measurement: (
            "-" if measurement.peak_share is None else f"{measurement.peak_share:.0%}"
        ),
    ),
    ("memory", lambda run, measurement: formats.size(measurement.memory)),
    ("fits", lambda run, measurement: {True: "yes", False: "no", None: "-"}[measurement.fits]),
]
#: Columns that are left out, in this order, if the terminal is too narrow for all.
_SPARE = ("fits", "build", "trace", "first step", "a trial's epoch", "memory", "peak", "±")


def _table(run: Run, best: Measurement | None, title: str) -> Table:
    measurements = sorted(run.measured, key=lambda each: (each.config.batch_size, -each.rate))
    all_fit = all(measurement.fits is not False for measurement in measurements)
    return Table(
        Section.MEASURED,
        title,
        head=[name for name, _ in COLUMNS],
        rows=[[value(run, each) for _, value in COLUMNS] for each in measurements],
        best=next((i for i, each in enumerate(measurements) if each is best), None),
        words=["plan"],
        spare=[name for name in _SPARE if name != "fits" or all_fit],
        key=_KEY,
    )


def _trials(measurement: Measurement) -> str:
    config = measurement.config
    return f"{config.lanes}x{config.slots}" if config.lanes > 1 else f"{config.slots}"


def _plan(measurement: Measurement) -> str:
    config = measurement.config
    text = config.plan
    if config.devices > 1:
        text += f" {config.trial_devices}x{config.data_devices}"
    return text


def missing(run: Run) -> Iterator[str]:
    """Yields sentences on what was not measured, or not to its end: one for each reason."""
    reasons: dict[tuple[str, str], list[Measurement]] = {}
    for state, word in (("failed", "Failed"), ("skipped", "Not measured")):
        for measurement in run.cells:
            if measurement.state == state:
                reason = measurement.reason or "no reason is known"
                reasons.setdefault((word, reason), []).append(measurement)
    for (word, reason), measurements in reasons.items():
        yield f"{word}: {_named(measurements)}: {reason}."
    sizes: dict[str, list[str]] = {}
    for curve in run.curves:
        if curve.reason:
            sizes.setdefault(curve.reason, []).append(str(curve.batch_size))
    for reason, each in sizes.items():
        yield f"Accuracy at batch {', '.join(each)}: {reason}."


def _named(measurements: Sequence[Measurement]) -> str:
    """The cells by name, such as ``stacked, 4 trials at once (batch 32, 64)``."""
    ways: dict[str, list[int]] = {}
    for measurement in measurements:
        ways.setdefault(way(measurement.config), []).append(measurement.config.batch_size)
    return "; ".join(
        f"{name} (batch {', '.join(map(str, sorted(sizes)))})" for name, sizes in ways.items()
    )


def _bars(runs: Sequence[Run]) -> Iterator[Bars]:
    """The seconds of a trial's epoch: a bar for each batch size, device and way to train."""
    sizes = sorted({measurement.config.batch_size for run in runs for measurement in run.measured})
    bars = []
    for size in sizes:
        for label, run in zip(labels(runs), runs, strict=True):
            name = f"{label}, " if len(runs) > 1 else ""
            for kind, each in _kinds(run, size):
                seconds = each.epoch(run.n_examples)
                if seconds is not None:
                    hint = way(each.config)
                    bars.append(Bar(f"batch {size:,}", f"{name}{kind}", seconds, hint))
    if bars:
        sentence = (
            "Seconds of one trial's epoch, steady: what it takes on its own, or its share where "
            "several train at once. Shorter is better."
        )
        yield Bars(Section.BARS, "Training time by batch size", sentence, bars)


def _kinds(run: Run, size: int) -> Iterator[tuple[str, Measurement]]:
    """Keras' fit, the fastest way for one trial, and the fastest way for several at once."""
    measurements = [each for each in run.measured if each.config.batch_size == size]
    groups = {
        "Keras' fit": [c for c in measurements if c.config.plan == "fit"],
        "one trial": [c for c in measurements if c.config.plan != "fit" and c.config.at_once == 1],
        "several trials at once": [c for c in measurements if c.config.at_once > 1],
    }
    for kind, found in groups.items():
        if found:
            yield kind, max(found, key=lambda measurement: measurement.rate)
