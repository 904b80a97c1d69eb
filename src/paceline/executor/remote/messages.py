"""What a search and its machines send each other: plain values and arrays, no functions.

The search sends a ``RoundOrder`` and gets a ``RoundAnswer``; it never sends a second order before
the answer. So the end of a machine is the error of one call, and whatever was not in an answer has
not happened.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline import errors
from paceline.executor.base import JobSpec, Parts, Weights
from paceline.executor.reporting import CompiledStep, JobStay, Seconds, SeenPack
from paceline.pack.callbacks.elsewhere import WrittenFile
from paceline.program.compile import Effort


@dataclass(frozen=True)
class JobState:
    """A job between two epochs, to go on from anywhere.

    Attributes:
        epoch: Epochs that it has trained.
        parts: Trainable, non-trainable, optimizer and metric variables.
        callbacks: What ``CallbackDriver.saved`` has returned; None without callbacks.
        arrays: The arrays of its callbacks, by name.
    """

    epoch: int
    parts: Parts
    callbacks: dict[str, Any] | None = None
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class KeptWeights:
    """Which weights the search may keep, so that reports come with them.

    Attributes:
        objective: Name of the log that is searched for.
        sign: 1 where lower is better, -1 where higher is.
        least: The value that a trial must reach to be kept; None: any.
        members: Members of a trial. With several the first one's weights are always sent.
        always: Whether all weights are sent.
    """

    objective: str = ""
    sign: int = 1
    least: float | None = None
    members: int = 1
    always: bool = False

    def wants(self, number: int, value: float | None, best: float | None) -> bool:
        """Whether the weights of a job after an epoch may be kept.

        Args:
            number: The job's.
            value: The objective in that epoch; None in an epoch without validation.
            best: The job's best value before; None: it has had none.
        """
        if self.always or (self.members > 1 and number % self.members == 0):
            return True
        if value is None or self.members > 1:
            return False
        improved = best is None or self.sign * value < self.sign * best
        return improved and self.reaches(value)

    def reaches(self, value: float | None) -> bool:
        """Whether a trial of this value may be among the kept ones."""
        if self.least is None:
            return True
        return value is not None and not self.sign * value > self.sign * self.least

    def better(self, value: float | None, best: float | None) -> float | None:
        """The better one of two values."""
        if value is None or best is None:
            return best if value is None else value
        return value if self.sign * value < self.sign * best else best


@dataclass(frozen=True)
class ProgramOrder:
    """How a machine is to compile a program, so that all machines compile the same.

    Attributes:
        roles: For the training and the validation step: which constants are inputs.
        plan, slots: As the user asks; None: the machine chooses.
        effort: How well the program is compiled; None: the machine decides.
    """

    roles: list[dict[str, Any]]
    plan: str | None = None
    slots: int | None = None
    effort: Effort | None = None


@dataclass(frozen=True)
class Submitted:
    """A job that a machine is to train.

    Attributes:
        spec: What to make the job of.
        program: The name of its program.
        state: Where it goes on; None: it begins.
        best: Its best value in the epochs that are known; None: it has had none.
        files: What its callbacks append to.
    """

    spec: JobSpec
    program: str
    state: JobState | None = None
    best: float | None = None
    files: list[WrittenFile] = field(default_factory=list)


@dataclass(frozen=True)
class RoundOrder:
    """What a machine is to do next.

    Attributes:
        submit: Jobs to take in.
        stop: Numbers of jobs that end now.
        take: Numbers of jobs that leave, with their state in the answer.
        programs: Name of a program -> how to compile it, of all programs that jobs were sent of.
        train: Whether to train; False: jobs are let go, and that is all.
        seconds: Train epochs for so long before the answer; 0.0: one epoch.
        kept: Which weights are sent.
        want_states: Whether the answer is to hold the states of all jobs.
        expected, all_asked: As of ``Demand``.
        suspects: As of ``EpochLimit``.
    """

    submit: list[Submitted] = field(default_factory=list)
    stop: list[int] = field(default_factory=list)
    take: list[int] = field(default_factory=list)
    programs: dict[str, ProgramOrder] = field(default_factory=dict)
    train: bool = True
    seconds: float = 0.0
    kept: KeptWeights = field(default_factory=KeptWeights)
    want_states: bool = False
    expected: int = 1
    all_asked: bool = False
    suspects: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class HostReport:
    """One epoch of a job; attributes as those of ``EpochReport``.

    Attributes:
        weights: After this epoch, where ``KeptWeights`` asks for them.
        state: All variables after the last epoch, where the trial may be kept.
    """

    number: int
    epoch: int
    logs: dict[str, float]
    seconds: float
    program: str | None
    plan: str
    wall: float
    last: bool
    weights: Weights | None = None
    state: Parts | None = None


@dataclass(frozen=True)
class ErrorText:
    """An error as text: that of another machine may be of a class that is not known here."""

    name: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> ErrorText:
        """The text of an error."""
        return cls(type(error).__name__, str(error))

    def error(self) -> Exception:
        """An error of the same name and text; of the same class where Python or Paceline has it."""
        found = getattr(errors, self.name, None) or getattr(builtins, self.name, None)
        if isinstance(found, type) and issubclass(found, Exception):
            try:
                return found(self.text)
            except Exception:  # a class that needs more than a text
                pass
        return type(self.name, (RuntimeError,), {})(self.text)


@dataclass(frozen=True)
class RoundSpent:
    """What a machine has spent in a round.

    Attributes:
        seconds: Where the time went.
        rounds: Seconds on the clock and trials trained, of each epoch.
        slot_epochs: Slots over all epochs, and how many of them held a trial.
    """

    seconds: Seconds = field(default_factory=Seconds)
    rounds: list[tuple[float, int]] = field(default_factory=list)
    slot_epochs: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class HostState:
    """A machine's executor as people look at it; moments are those of the machine's clock.

    Attributes:
        counts: As ``program_counts``.
        compile_seconds: As ``compile_seconds``.
        compiles: As ``compiles``.
        slots_now: As ``slots_now``.
        steps: As ``compiled_steps``.
        plans: As ``plans``.
        slots: Trials that train at once with the present programs.
    """

    counts: dict[str, int]
    compile_seconds: float
    compiles: tuple[int, int]
    slots_now: list[tuple[str, str, list[int | None]]]
    steps: list[CompiledStep]
    plans: set[str]
    slots: int


@dataclass(frozen=True)
class RoundAnswer:
    """What came of a ``RoundOrder``.

    Attributes:
        reports: Epochs, in the order in which they were trained.
        failed: Number of a job -> the error that ended it.
        taken: Number of a job that was to leave -> its state; None: it has trained no epoch.
        states: Number of a job -> its state after its last report.
        files: Number of a job -> what its callbacks have written, where the search collects that.
        programs: Number of a job that was taken in -> the name of its program here.
        notes: Sentences for the user.
        spent: What the round took.
        host: The machine's executor now.
        stays, packs: As from ``SlotTimeline.take``.
        stuck: For each pack that does not come back: number of a job -> epochs trained. The
            machine is of no use any more.
    """

    reports: list[HostReport] = field(default_factory=list)
    failed: dict[int, ErrorText] = field(default_factory=dict)
    taken: dict[int, JobState | None] = field(default_factory=dict)
    states: dict[int, JobState] = field(default_factory=dict)
    files: dict[int, list[WrittenFile]] = field(default_factory=dict)
    programs: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    spent: RoundSpent = field(default_factory=RoundSpent)
    host: HostState | None = None
    stays: list[JobStay] = field(default_factory=list)
    packs: list[SeenPack] = field(default_factory=list)
    stuck: list[dict[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class HostFacts:
    """What a machine says of itself before it is given a job.

    Attributes:
        versions: Library -> version, Python's own among them.
        digest: Digest of the code of ``build`` there; None without code.
        device: The device in words.
        max_slots: Trials of one program that train there side by side, at most.
        clock: The machine's ``time.perf_counter`` now.
        node: The name of the machine.
        pid: The process there.
    """

    versions: Mapping[str, str]
    digest: str | None
    device: str
    max_slots: int
    clock: float
    node: str
    pid: int
