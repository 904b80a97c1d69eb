"""The records of a benchmark, and their JSON. Needs no device.

Notation
    S: slots of a pack. B: examples per trial and step. A cell: a ``CellConfig`` and its
        ``Measurement``.
    A round: one step of all trials that train at once, packs x S of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from paceline.errors import DataError
from paceline.report import formats
from paceline.report.forecast import Costs, asha_share
from paceline.study.storage.schema import UNREADABLE, Count, Scalar, why

#: Names the layout of the JSON; a file with another name cannot be read.
FORMAT = "paceline-bench-2"

#: Trials, or epochs of each, and workers of a planned search at most; and seconds of a quota.
MOST_PLANNED, MOST_WORKERS, LONGEST = 10**9, 10**6, 1e12
# asha[:MIN_EPOCHS[:FACTOR]]; a factor of 1 would have rungs without end.
_ASHA = re.compile(r"asha(?::([1-9]\d{0,8})?(?::([2-9]|[1-9]\d{1,8})?)?)?")

State = Literal["measured", "skipped", "failed"]
T = TypeVar("T")
# What a file may hold; ``from_json`` checks it. Larger numbers could not be counted or shown.
Size = Annotated[int, Meta(ge=1, le=2**40)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Amount = Annotated[float, Meta(ge=0, le=1e30)]
Value = Annotated[float, Meta(ge=-1e30, le=1e30)]


class CellConfig(msgspec.Struct, frozen=True):
    """One way to train at one batch size: a place in the grid of a run."""

    batch_size: Size  # B
    slots: Size = 1  # S of each pack
    plan: str = "sequential"  # or "vectorized", "looped", or "fit" for Keras' own ``fit``
    packs: Size = 1  # packs that train at the same time, each from a thread of its own
    trial_devices: Size = 1  # devices that slots are spread over
    data_devices: Size = 1  # devices that each batch is split over
    usual: bool = False  # whether a search chooses this way by itself

    @property
    def at_once(self) -> int:
        """Trials that train at the same time."""
        return self.slots * self.packs

    @property
    def devices(self) -> int:
        """Number of devices that train."""
        return self.trial_devices * self.data_devices

    @property
    def way(self) -> tuple[str, int, int, int, int]:
        """How trials train, whatever the batch size."""
        return self.plan, self.slots, self.packs, self.trial_devices, self.data_devices


class Measurement(msgspec.Struct, frozen=True):
    """The figures of one cell, or the reason why there are none.

    A figure that is unknown is None.

    Attributes:
        config: The cell.
        state: "measured", "skipped" or "failed".
        reason: Why the cell was skipped or failed; None if it was measured.
        build, trace, compile: Seconds to build the model, to trace its steps, and to compile the
            training step without a cache.
        first: Seconds of the first round, after compiling, with the data on the device.
        step: Median seconds of a round.
        low, high: Lower and upper quartile of the seconds of a round.
        runs: Number of timed runs behind ``step``, ``low`` and ``high``.
        steps: Rounds of each timed run.
        flops: Floating-point operations of one step of one trial.
        flops_from: Who counted ``flops``: "xla", or "trace" if the step holds loops, of which XLA's
            cost analysis counts one pass only.
        peak_share: Share of the measured peak of the device that ``flops`` and ``step`` make up.
        memory: Bytes needed on each device, data included, as XLA planned them.
        fits: Whether ``memory`` bytes are free on the device.
    """

    config: CellConfig = msgspec.field(name="spot")  # the key in files
    state: State
    reason: str | None = None
    build: Seconds | None = None
    trace: Seconds | None = None
    compile: Seconds | None = None
    first: Seconds | None = None
    step: Annotated[float, Meta(gt=1e-12, le=1e12)] | None = None
    low: Seconds | None = None
    high: Seconds | None = None
    runs: Count = 0
    steps: Count = 0
    flops: Amount | None = None
    flops_from: str | None = None
    peak_share: Amount | None = None
    memory: Amount | None = None
    fits: bool | None = None

    @property
    def rate(self) -> float:
        """Examples per second of all trials together; 0 if nothing was measured."""
        if self.state != "measured" or not self.step:
            return 0.0
        return self.config.batch_size * self.config.at_once / self.step

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median; 0 if unknown."""
        if not self.step or self.low is None or self.high is None:
            return 0.0
        return (self.high - self.low) / 2 / self.step

    def epoch(self, n_examples: int) -> float | None:
        """Returns the seconds of one trial's epoch; None if unknown.

        Trials that train at once share the time: each gets an equal part of the seconds.

        Args:
            n_examples: Training examples of an epoch.
        """
        return n_examples / self.rate if self.rate else None


class Device(msgspec.Struct, frozen=True):
    """The device, or the devices of one kind, that a run was measured on."""

    platform: str  # "cpu", "gpu" or "tpu"
    kind: str  # the name that the device reports; for a CPU, its model
    count: Size = 1
    cores: Count | None = None  # of the host, that this process may use
    memory: Count | None = None  # bytes of one device; None if unknown
    # Of one device, None if not probed: floating-point operations per second of a large matrix
    # product, and bytes per second of a large copy.
    peak_flops: Amount | None = None
    peak_bytes: Amount | None = None


class Curve(msgspec.Struct, frozen=True):
    """The accuracy of one trial, trained at one batch size, after each epoch."""

    batch_size: Size  # B
    metric: str
    direction: Literal["maximize", "minimize"]
    values: list[Value] = []  # the metric after each epoch
    seconds: list[Seconds] = []  # of training and validation, from the start to each epoch's end
    learning_rate: Value | None = None  # at the start; None if it follows a schedule
    scale: Value = 1.0  # the factor of the learning rate for this batch size
    plan: str | None = None  # how the trial trained
    reason: str | None = None  # why there are no values, or fewer than were asked for


class FirstEpoch(msgspec.Struct, frozen=True):
    """The parts of the first epoch of Keras' ``fit``, which is slower than later ones.

    All times are seconds. JAX reports ``trace``, ``lower``, ``compile`` and ``programs``; with
    another backend these are None, and their time is part of ``startup``.
    """

    batch_size: Size  # B
    steps: Size  # of a timed epoch: those of all the data, or as many as take a few seconds
    first: Seconds  # the whole first epoch
    later: Seconds  # the median of the epochs after the first
    epochs: Count  # after the first
    trace: Seconds | None  # Keras' Python code runs once and is recorded
    lower: Seconds | None  # the record becomes a program in XLA's language
    compile: Seconds | None  # that program becomes machine code
    programs: Count | None  # that were compiled
    # The rest of the first step: Keras prepares the training, memory is allocated, the first data
    # reach the device.
    startup: Value

    @property
    def extra(self) -> float:
        """Seconds that the first epoch takes longer than a later one."""
        return self.first - self.later

    @property
    def explained(self) -> float:
        """Sum of the known parts of ``extra``, in seconds."""
        parts = (self.trace, self.lower, self.compile, self.startup)
        return sum(part for part in parts if part is not None)


class Run(msgspec.Struct, frozen=True):
    """The measurements of one process on one kind of device, with one Keras backend.

    Attributes:
        device: The device.
        backend: Name of the Keras backend.
        precision: Name of Keras' dtype policy.
        date: When the run began, in ISO 8601 with a time zone.
        versions: Package -> version.
        model: name, digest (of the file), hparams, variables (their number).
        n_examples: Number of training examples.
        n_validation: Number of validation examples; 0 without validation data.
        cells: The measurements, in the order they were made.
        curves: One curve for each batch size, if accuracy was asked for.
        first_epoch: The parts of the first epoch of ``fit``; None if not measured.
        costs: The fields of ``forecast.Costs`` for the planned search; None if not measured.
        notes: Sentences that a reader of the figures must know.
        interrupted: Whether the user stopped the run before its end.
    """

    device: Device
    backend: str
    precision: str
    date: str
    versions: Mapping[str, str]
    model: Mapping[str, Any]
    n_examples: Size
    n_validation: Count = 0
    cells: list[Measurement] = []
    curves: list[Curve] = []
    first_epoch: FirstEpoch | None = None
    costs: Mapping[str, Any] | None = None
    notes: list[str] = []
    interrupted: bool = False

    @property
    def measured(self) -> list[Measurement]:
        """The cells with the state "measured"."""
        return [measurement for measurement in self.cells if measurement.state == "measured"]

    @property
    def name(self) -> str:
        """The platform of the device, with the backend if that is not JAX."""
        backend = "" if self.backend == "jax" else f" {self.backend}"
        return f"{self.device.platform}{backend}"


class PlannedSearch(msgspec.Struct, frozen=True):
    """A search whose time is predicted."""

    n_trials: Annotated[int, Meta(ge=1, le=MOST_PLANNED)]
    epochs: Annotated[int, Meta(ge=1, le=MOST_PLANNED)]
    pruner: str | None = None  # as text
    #: Seconds of a platform in a week, and of a "session", by name.
    quota: Mapping[str, Annotated[float, Meta(gt=0, le=LONGEST)]] = {}
    #: Workers of a cluster, each with one device, for a second prediction; None: none.
    workers: Annotated[int, Meta(ge=1, le=MOST_WORKERS)] | None = None

    @property
    def share(self) -> float:
        """Share of all epochs that the pruner lets trials train; 1 if that is unknown."""
        match = _ASHA.fullmatch(self.pruner or "")
        if match is None:
            return 1.0
        return asha_share(self.epochs, *(int(number) for number in match.groups() if number))


def labels(runs: Sequence[Run]) -> list[str]:
    """Returns a short name for each run, different from the names of the other runs.

    The name is the platform and the backend. Runs that share those are told apart by the kinds of
    their devices, else by their precisions, else by their dates.
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
    """Returns runs as JSON values; each cell also has its rate and the seconds of an epoch."""
    found = []
    for run in runs:
        value = msgspec.to_builtins(run, enc_hook=formats.strict)  # which knows NumPy's numbers
        for record, cell in zip(value["cells"], run.cells, strict=True):
            record |= {
                "examples_per_second": cell.rate or None,
                "at_once": cell.config.at_once,
                "epoch_seconds": cell.epoch(run.n_examples),
            }
        found.append(value)
    return found


def from_json(value: Any, where: str) -> StoredResult:
    """Returns what a JSON file holds; names in it that no record has are ignored.

    Raises DataError if the value is not a result of a benchmark, or damaged; ``where`` names the
    file.
    """
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        found = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise DataError(
            f"{where} is not a result of `paceline bench --json` (format {found!r}, not {FORMAT!r})"
        )
    stored = _checked(value, StoredResult, where)
    for at, run in enumerate(stored.runs):
        _checked(run.model, _Model, where, f"runs[{at}].model")
        if run.costs is not None:
            _checked(run.costs, Costs, where, f"runs[{at}].costs")
        for cell in run.cells:
            if cell.state == "measured" and cell.step is None:
                raise _damaged(where, f"runs[{at}] has a cell that is measured and has no step")
        for curve in run.curves:
            n, n_seconds = len(curve.values), len(curve.seconds)
            if n != n_seconds:
                raise _damaged(where, f"runs[{at}] has a curve of {n} values and {n_seconds} times")
    return stored


def _checked(value: Any, kind: type[T], where: str, what: str = "it") -> T:
    """Returns JSON values as a record.

    Raises DataError that names the field and what it holds; ``where`` is the name of the file, and
    ``what`` that of the value in it.
    """
    try:
        return msgspec.convert(value, kind)
    except UNREADABLE as error:
        raise _damaged(where, why(error, value, what)) from None


def _damaged(where: str, reason: str) -> DataError:
    return DataError(f"{where} is damaged: {reason}. Measure again, or leave the file out")


class _Model(msgspec.Struct):
    """The facts of a model that are shown."""

    name: str = ""
    hparams: dict[str, Scalar] = {}
    digest: str | None = None
    variables: Count | None = None


class StoredResult(msgspec.Struct):
    """The parts of a result file from which all others follow."""

    runs: Annotated[list[Run], Meta(min_length=1)]
    target_value: Value | None = None
    plan: PlannedSearch | None = None
