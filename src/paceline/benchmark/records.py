"""What a benchmark measured: plain records, JSON in and out. Needs no device.

Notation
    S: slots of a pack. B: examples per trial and step. A round: one step of everything that trains
    at once, lanes x S trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

from paceline.errors import DataError

#: Of the JSON; another one is another layout.
FORMAT = "paceline-bench-1"

State = Literal["measured", "skipped", "failed"]
T = TypeVar("T")


@dataclass(frozen=True)
class Config:
    """Where a cell stands in the grid of one run.

    Attributes:
        batch_size: B.
        slots: S of each lane's pack.
        plan: stacked, mapped, sequential or fit (Keras' own).
        lanes: Packs that train at the same time, each from a thread of its own.
        trial_devices: Devices that slots are spread over.
        data_devices: Devices that each batch is split over.
        usual: It is what a search does when nothing is asked of it.
    """

    batch_size: int
    slots: int = 1
    plan: str = "sequential"
    lanes: int = 1
    trial_devices: int = 1
    data_devices: int = 1
    usual: bool = False

    @property
    def at_once(self) -> int:
        """Trials that train at the same time."""
        return self.slots * self.lanes

    @property
    def devices(self) -> int:
        """Devices that take part."""
        return self.trial_devices * self.data_devices

    @property
    def way(self) -> tuple[str, int, int, int, int]:
        """What is left of the spot without the batch size."""
        return self.plan, self.slots, self.lanes, self.trial_devices, self.data_devices


@dataclass(frozen=True)
class Measurement:
    """One spot measured, or why it was not.

    Attributes:
        spot: Where it stands.
        state: measured, skipped or failed.
        reason: Why it is not measured; None where it is.
        build, trace, compile: Seconds to build the model, to trace its steps, to compile the
            training step, nothing taken from a cache.
        first: Seconds of the first round, everything compiled and on the device.
        step: Median seconds of a round.
        low, high: Quartiles of the same.
        runs: Timed runs that these are of, each of ``steps`` rounds.
        steps: See ``runs``.
        flops: Floating-point operations of one trial's step.
        flops_from: Who counted them: ``xla``, or ``trace`` where the step holds loops, whose passes
            XLA's cost analysis counts once.
        peak_share: Share of the device's measured peak; None where either is unknown.
        memory: Bytes on each device at most, data included, as XLA planned them; None if unknown.
        fits: Whether that is free; None if unknown.
    """

    spot: Config
    state: State
    reason: str | None = None
    build: float | None = None
    trace: float | None = None
    compile: float | None = None
    first: float | None = None
    step: float | None = None
    low: float | None = None
    high: float | None = None
    runs: int = 0
    steps: int = 0
    flops: float | None = None
    flops_from: str | None = None
    peak_share: float | None = None
    memory: float | None = None
    fits: bool | None = None

    @property
    def rate(self) -> float:
        """Examples per second, all trials together; 0 where it is not measured."""
        if self.state != "measured" or not self.step:
            return 0.0
        return self.spot.batch_size * self.spot.at_once / self.step

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, as a share of the median; 0 where unknown."""
        if not self.step or self.low is None or self.high is None:
            return 0.0
        return (self.high - self.low) / 2 / self.step

    def epoch(self, n_examples: int) -> float | None:
        """Seconds of one trial's epoch: its share of those that train at once; None if unknown."""
        return n_examples / self.rate if self.rate else None


@dataclass(frozen=True)
class Device:
    """Where a run measured.

    Attributes:
        platform: cpu, gpu or tpu.
        kind: The device's own name; a CPU's model.
        count: Devices there are.
        cores: Of the host, for this process.
        memory: Bytes of one device; None if nobody says.
        peak_flops: Floating-point operations per second of one large matrix product in the run's
            precision, on one device; None if it was not probed.
        peak_bytes: Bytes per second, read and written, of one large copy; likewise.
    """

    platform: str
    kind: str
    count: int = 1
    cores: int | None = None
    memory: int | None = None
    peak_flops: float | None = None
    peak_bytes: float | None = None


@dataclass(frozen=True)
class Curve:
    """One trial trained at one batch size.

    Attributes:
        batch_size: B.
        metric: Name of what was validated.
        direction: maximize or minimize.
        values: It, after each epoch.
        seconds: Until the end of each epoch: training and validation, nothing else.
        learning_rate: The optimizer's at the start; None where a schedule decides it.
        scale: What it was multiplied by, for the batch size.
        plan: How it trained.
        reason: Why there are no values, or fewer than were asked for; None otherwise.
    """

    batch_size: int
    metric: str
    direction: str
    values: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    learning_rate: float | None = None
    scale: float = 1.0
    plan: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class FirstEpoch:
    """Why the first epoch of Keras' ``fit`` is slower than the others; seconds.

    Attributes:
        batch_size: B.
        steps: Steps of an epoch as it was timed: all of the data, or so many of its batches as take
            a few seconds.
        first: The first epoch, everything in it.
        later: The median of the epochs after it.
        epochs: How many those are.
        trace: Tracing: Keras' Python code runs once, to be recorded.
        lower: Turning what was recorded into XLA's language.
        compile: XLA compiles it.
        programs: How many programs that were. JAX says these four; None with another backend,
            where they are in ``startup``.
        startup: The first step beyond all of these: Keras prepares the training, memory is
            taken, the data begin to flow.
    """

    batch_size: int
    steps: int
    first: float
    later: float
    epochs: int
    trace: float | None
    lower: float | None
    compile: float | None
    programs: int | None
    startup: float

    @property
    def extra(self) -> float:
        """What the first epoch takes beyond a later one."""
        return self.first - self.later

    @property
    def explained(self) -> float:
        """Seconds of ``extra`` that the parts make up."""
        parts = (self.trace, self.lower, self.compile, self.startup)
        return sum(part for part in parts if part is not None)


@dataclass(frozen=True)
class Run:
    """What one process measured on one kind of device, with one Keras backend.

    Attributes:
        device: Where.
        backend: Keras' backend.
        precision: Keras' dtype policy.
        date: When it began, ISO 8601 with a time zone.
        versions: Package -> version.
        model: name, digest (of the file), hparams, variables (their number).
        n_examples: Training examples.
        n_validation: Validation examples; 0 without.
        cells: In the order they were measured.
        curves: One per batch size, where accuracy was asked for.
        first_epoch: None where it was not measured.
        costs: What a search costs here, as ``forecast.Costs``; None where it was not measured.
        notes: What else one must know to read the numbers.
        interrupted: It was stopped before its end.
    """

    device: Device
    backend: str
    precision: str
    date: str
    versions: Mapping[str, str]
    model: Mapping[str, Any]
    n_examples: int
    n_validation: int = 0
    cells: list[Measurement] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    first_epoch: FirstEpoch | None = None
    costs: Mapping[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def measured(self) -> list[Measurement]:
        """Cells that were measured."""
        return [cell for cell in self.cells if cell.state == "measured"]

    @property
    def name(self) -> str:
        """The device in a word, with the backend where it is not JAX."""
        backend = "" if self.backend == "jax" else f" {self.backend}"
        return f"{self.device.platform}{backend}"


def labels(runs: Sequence[Run]) -> list[str]:
    """A short name for each run that tells it from the others: device, backend, and what differs.

    Two runs on GPUs are named by their kinds, or by their precisions, or else by their dates.
    """
    found = [run.name for run in runs]
    for more in (
        lambda run: run.device.kind,
        lambda run: run.precision,
        lambda run: run.date[:16].replace("T", " "),
    ):
        again = {name for name in found if found.count(name) > 1}
        for name in again:
            same = [i for i, each in enumerate(found) if each == name]
            if len({more(runs[i]) for i in same}) > 1:
                for i in same:
                    found[i] = f"{name} ({more(runs[i])})"
    return found


def to_json(runs: list[Run]) -> list[dict[str, Any]]:
    """Runs as JSON values; what can be worked out of a cell stands beside it."""
    found = []
    for run in runs:
        value = asdict(run)
        for record, cell in zip(value["cells"], run.cells, strict=True):
            more = {"examples_per_second": cell.rate or None, "at_once": cell.spot.at_once}
            record |= {**more, "epoch_seconds": cell.epoch(run.n_examples)}
        found.append(value)
    return found


def from_json(value: Any, where: str) -> list[Run]:
    """The inverse of ``to_json``; what is not known is left out.

    Args:
        value: What a JSON file holds.
        where: Its name, for errors.

    Raises:
        DataError: It is no result of a benchmark.
    """
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        found = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise DataError(
            f"{where} is no result of `paceline bench --json` (format {found!r}, not {FORMAT!r})"
        )
    try:
        return [_run(run) for run in value["runs"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{where} is damaged: {type(error).__name__}: {error}") from error


def _run(value: Mapping[str, Any]) -> Run:
    first = value.get("first_epoch")
    run = _only(Run, value)
    return replace(
        run,
        device=_only(Device, value["device"]),
        cells=[
            replace(_only(Measurement, cell), spot=_only(Config, cell["spot"]))
            for cell in value["cells"]
        ],
        curves=[_only(Curve, curve) for curve in value.get("curves", [])],
        first_epoch=None if first is None else _only(FirstEpoch, first),
    )


def _only(kind: type[T], value: Mapping[str, Any]) -> T:
    names = {each.name for each in fields(kind)}  # pyright: ignore[reportArgumentType]
    return kind(**{name: part for name, part in value.items() if name in names})
