"""A benchmark as text: what was measured where, a table with the fastest cell marked, advice."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from paceline.benchmark.advice import Advice, explain, fastest, way
from paceline.benchmark.records import Measurement, Run
from paceline.report import formats
from paceline.report.tables import render

_KEY = (
    "* the most examples per second. step: of all trials at once, the median; ± half the distance "
    "of its quartiles. examples/s: of all trials together. peak: share of the device's measured "
    "peak."
)


def result_text(
    runs: Sequence[Run],
    advice: Sequence[Advice],
    width: int | None = None,
    outlook: Sequence[str] = (),
) -> str:
    """Return a whole result as text.

    Args:
        runs: The runs to show.
        advice: The findings to show.
        width: Columns of the terminal; None: lines are as long as the tables need.
        outlook: Sentences on the time of a planned search.

    Returns:
        Lines without colours, the last one without a line end.
    """
    winner = fastest(runs)
    blocks = []
    for run in runs:
        best = winner[1] if winner is not None and winner[0] is run else None
        blocks.append("\n".join(_facts(run, width)))
        if run.cells:
            blocks.append(_table(run, best, width))
        absent = [line for text in missing(run) for line in _wrap(text, width)]
        if absent:
            blocks.append("\n".join(absent))
        if run.first_epoch is not None:
            head, *lines = explain(run.first_epoch, run.n_examples)
            *parts, last = lines
            parts = [line for part in parts for line in _wrap(part, width, " " * 17)]
            blocks.append("\n".join([*_wrap(head, width), *parts, *_wrap(last, width)]))
    blocks.append("\n".join(line for each in advice for line in _wrap(each.text, width, "- ")))
    blocks.append("\n".join(line for text in outlook for line in _wrap(text, width, "- ")))
    return "\n\n".join(block for block in blocks if block)


def facts(run: Run) -> list[str]:
    """Return lines that say what was measured, on which device, with which versions and when."""
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


def _facts(run: Run, width: int | None) -> Iterator[str]:
    for line in facts(run):
        yield from _wrap(line, width)
    for note in run.notes:
        yield from _wrap(f"Note: {note}", width)
    if run.interrupted:
        yield "Interrupted: what had been measured until then."


def _table(run: Run, best: Measurement | None, width: int | None) -> str:
    if not run.measured:
        return ""
    spare = [name for name in _SPARE if name != "fits" or not _some_do_not_fit(run)]
    left_out: list[str] = []
    text = render(_build(run, best, COLUMNS), None)
    while width is not None and spare and max(map(len, text.splitlines())) > width:
        left_out.append(spare.pop(0))
        columns = [column for column in COLUMNS if column[0] not in left_out]
        text = render(_build(run, best, columns), None if spare else width)
    key = _KEY
    if left_out:
        key += f" No room here for: {', '.join(left_out)}; a page (-o bench.html) has all."
    return "\n".join([text.rstrip("\n"), *_wrap(key, width)])


def _some_do_not_fit(run: Run) -> bool:
    return any(measurement.fits is False for measurement in run.measured)


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


def _build(
    run: Run,
    best: Measurement | None,
    columns: Sequence[tuple[str, Callable[[Run, Measurement], str]]],
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name, _ in columns:
        table.add_column(_title(name), justify="left" if name == "plan" else "right", no_wrap=True)
    measurements = sorted(
        run.measured, key=lambda measurement: (measurement.config.batch_size, -measurement.rate)
    )
    before: int | None = None
    for measurement in measurements:
        texts = [value(run, measurement) for _, value in columns]
        if measurement is best:
            texts[0] = f"* {texts[0]}"
        if before is not None and measurement.config.batch_size != before:
            table.add_section()
        before = measurement.config.batch_size
        table.add_row(*map(Text, texts))
    return table


def _title(name: str) -> str:
    """A title on two lines if it has two words: the figures below it are short."""
    return "\n".join(name.rsplit(" ", 1))


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
    """Yield sentences on what was not measured, or not to its end: one sentence for each reason."""
    for state, word in (("failed", "Failed"), ("skipped", "Not measured")):
        reasons: dict[str, list[Measurement]] = {}
        for measurement in run.cells:
            if measurement.state == state:
                reasons.setdefault(measurement.reason or "no reason is known", []).append(
                    measurement
                )
        for reason, measurements in reasons.items():
            yield f"{word}: {_named(measurements)}: {reason}."
    yield from _curves_missing(run)


def _curves_missing(run: Run) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for curve in run.curves:
        if curve.reason:
            reasons.setdefault(curve.reason, []).append(str(curve.batch_size))
    for reason, sizes in reasons.items():
        yield f"Accuracy at batch {', '.join(sizes)}: {reason}."


def _named(measurements: Sequence[Measurement]) -> str:
    """The cells by name, such as ``stacked, 4 trials at once (batch 32, 64)``."""
    ways: dict[str, list[int]] = {}
    for measurement in measurements:
        ways.setdefault(way(measurement.config), []).append(measurement.config.batch_size)
    return "; ".join(
        f"{name} (batch {', '.join(map(str, sorted(sizes)))})" for name, sizes in ways.items()
    )


def _wrap(text: str, width: int | None, bullet: str = "") -> list[str]:
    """The lines of a paragraph; all but the first are indented by the width of the bullet."""
    first = "" if bullet.isspace() else bullet
    return textwrap.wrap(
        text,
        min(width or formats.READABLE, formats.READABLE),
        initial_indent=first,
        subsequent_indent=" " * len(bullet),
        break_on_hyphens=False,
    )
