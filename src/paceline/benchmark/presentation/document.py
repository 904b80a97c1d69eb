"""What a result says, as a list of parts; ``text`` and ``html`` write the parts down.

The parts stand in the order of the text. The page puts them into its sections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from paceline.benchmark.presentation.advice import Advice, explain, fastest, way
from paceline.benchmark.records import Measurement, Run, labels
from paceline.report import formats

#: The sections of the page, in their order.
Section = IntEnum("Section", "FACTS ADVICE OUTLOOK PICTURES FIRST_EPOCH MEASURED")


@dataclass(frozen=True)
class DocumentPart:
    """A part under a heading, which only the page shows; one heading serves parts in a row."""

    section: Section
    title: str


@dataclass(frozen=True)
class Sentences(DocumentPart):
    """Sentences, each a paragraph or an item of a list."""

    sentences: Sequence[str]
    listed: bool = False


@dataclass(frozen=True)
class Table(DocumentPart):
    """A table. Rows whose first cells are the same belong together."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: int | None  # the row that is marked
    words: Sequence[str]  # names of the columns that hold no numbers
    spare: Sequence[str]  # names of the columns to leave out if there is no room, first to last
    key: str


@dataclass(frozen=True)
class TimeShares(DocumentPart):
    """A number of seconds in parts: the seconds of each, their share, and what they are."""

    first: str
    shares: Sequence[tuple[str, str, str]]
    last: str


def document(
    runs: Sequence[Run], advice: Sequence[Advice], outlook: Sequence[str] = ()
) -> list[DocumentPart]:
    """Returns all parts of a result; ``outlook`` is about the time of a planned search."""
    best = fastest(runs)
    parts: list[DocumentPart] = []
    for label, run in zip(labels(runs), runs, strict=True):
        of = f" ({label})" if len(runs) > 1 else ""
        notes = [f"Note: {note}" for note in run.notes]
        if run.interrupted:
            notes.append("Interrupted: these are the measurements up to the interruption.")
        parts.append(Sentences(Section.FACTS, "", [*facts(run), *notes]))
        measured = f"All measurements{of}"
        if run.measured:
            parts.append(_table(run, best[1] if best else None, measured))
        parts.append(Sentences(Section.MEASURED, measured, list(missing(run))))
        if run.first_epoch is not None:
            why = f"Why the first epoch is slow{of}"
            shares = explain(run.first_epoch, run.n_examples)
            parts.append(TimeShares(Section.FIRST_EPOCH, why, *shares))
    texts = [each.text for each in advice]
    parts.append(Sentences(Section.ADVICE, "What follows", texts, listed=True))
    parts.append(Sentences(Section.OUTLOOK, "How long the search will take", outlook, listed=True))
    return [part for part in parts if not isinstance(part, Sentences) or part.sentences]


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
    "* the most examples per second. step: median of a step of all trials at once, ± half the "
    "interquartile range. examples/s: of all trials together. peak: share of the device's "
    "measured peak."
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
    return f"{config.packs}x{config.slots}" if config.packs > 1 else f"{config.slots}"


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
    """The cells by name, such as ``vectorized, 4 trials at once (batch 32, 64)``."""
    ways: dict[str, list[int]] = {}
    for measurement in measurements:
        ways.setdefault(way(measurement.config), []).append(measurement.config.batch_size)
    return "; ".join(
        f"{name} (batch {', '.join(map(str, sorted(sizes)))})" for name, sizes in ways.items()
    )
