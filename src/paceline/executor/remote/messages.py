"""What a search and its machines send each other: plain values and arrays, no functions.

The search sends a ``RoundOrder`` and gets a ``RoundAnswer``; it never sends a second order before
the answer. So the end of a machine is the error of one call, and whatever was not in an answer has
not happened.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline import errors
from paceline.executor.base import EpochReport, JobSpec, Parts, Weights
from paceline.executor.state.facts import ProgramFacts, TemplateFacts
from paceline.executor.state.snapshot import JobState
from paceline.executor.training.reporting import ExecutorTimings
from paceline.pack.callbacks.remote_files import WrittenFile
from paceline.program.trace import State
from paceline.records import PackCreated, SlotStay, StepCompiled


@dataclass(frozen=True)
class WeightsToReport:
    """Which weights the search may keep, so that reports come with them."""

    objective: str = ""  # name of the log that is searched for
    sign: int = 1  # 1 where lower is better, -1 where higher is
    least: float | None = None  # the value that a trial must reach to be kept; None: any
    members: int = 1  # of a trial; with several the first one's weights are always sent
    always: bool = False  # whether all weights are sent

    def wants(self, number: int, value: float | None, best: float | None) -> bool:
        """Whether the weights of a job after an epoch may be kept.

        ``value`` is the objective in that epoch, None without validation, and ``best`` the job's
        best value before, None if it has had none.
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
    """How a machine is to compile a program, so that all machines compile the same."""

    # For the training and the validation step: which constants are inputs.
    roles: list[TemplateFacts]
    # As the user asks for plan and slots; None: the machine chooses.
    program: ProgramFacts | None = None


@dataclass(frozen=True)
class SubmittedJob:
    """A job that a machine is to train."""

    spec: JobSpec  # what to make the job of
    program: str  # its name
    state: JobState | None = None  # where it continues; None: it begins
    best: float | None = None  # its best value in the epochs that are known; None: it has had none
    files: list[WrittenFile] = field(default_factory=list)  # what its callbacks append to


@dataclass(frozen=True)
class RoundOrder:
    """What a machine is to do next."""

    submit: list[SubmittedJob] = field(default_factory=list)  # jobs to take in
    stop: list[int] = field(default_factory=list)  # numbers of jobs that end now
    # Numbers of jobs that leave, with their state in the answer.
    take: list[int] = field(default_factory=list)
    # Name of a program -> how to compile it, of all programs that jobs were sent of.
    programs: dict[str, ProgramOrder] = field(default_factory=dict)
    train: bool = True  # whether to train; False: jobs are let go, and that is all
    seconds: float = 0.0  # train epochs for so long before the answer; 0.0: one epoch
    kept: WeightsToReport = field(default_factory=WeightsToReport)  # which weights are sent
    want_states: bool = False  # whether the answer is to hold the states of all jobs
    expected: int = 1  # ``expected`` and ``all_asked`` are as of ``TrialDemand``
    all_asked: bool = False
    suspects: dict[int, int] = field(default_factory=dict)  # as of ``EpochLimit``


@dataclass(frozen=True)
class SentWeights:
    """The weights of a report, as an ``EpochReport`` has them; None: they did not come with it."""

    number: int  # the job's
    epoch: int
    values: Weights | None

    def __call__(self) -> Weights:
        """The weights."""
        if self.values is None:
            raise RuntimeError(
                f"the weights of job {self.number} after epoch {self.epoch} were not sent. This "
                "is a bug in Paceline; please report it"
            )
        return self.values


@dataclass(frozen=True)
class SentState:
    """All variables after an epoch, as an ``EpochReport`` has them."""

    parts: Parts

    def __call__(self) -> State:
        """The variables."""
        return State(*map(list, self.parts))


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
class HostState:
    """A machine's executor as people look at it; moments are those of the machine's clock.

    Fields are as the members of ``PackExecutor`` of those names.
    """

    counts: dict[str, int]  # ``program_counts``
    compiles: tuple[int, int]
    slots_now: list[tuple[str, str, list[int | None]]]
    steps: dict[int, StepCompiled]  # ``compiled_steps``
    plans: set[str]
    slots: int  # trials that train at once with the present programs


@dataclass(frozen=True)
class RoundAnswer:
    """What came of a ``RoundOrder``."""

    # In the order in which they were trained. Weights come with them where ``WeightsToReport`` asks
    # for them, and all variables after the last epoch of a job whose trial may be kept.
    reports: list[EpochReport] = field(default_factory=list)
    # Number of a job -> the error that ended it.
    failed: dict[int, ErrorText] = field(default_factory=dict)
    # Number of a job that was to leave -> its state; None: it has trained no epoch.
    taken: dict[int, JobState | None] = field(default_factory=dict)
    # Number of a job -> its state after its last report.
    states: dict[int, JobState] = field(default_factory=dict)
    # Number of a job -> what its callbacks have written, where the search collects that.
    files: dict[int, list[WrittenFile]] = field(default_factory=dict)
    # Number of a job that was taken in -> the name of its program here.
    programs: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # sentences for the user
    spent: ExecutorTimings = field(default_factory=ExecutorTimings)  # in the round
    host: HostState | None = None  # the machine's executor now
    # ``stays`` and ``packs`` are as from ``SlotTimeline.take``.
    stays: list[SlotStay] = field(default_factory=list)
    packs: list[PackCreated] = field(default_factory=list)
    # For each pack that does not come back: number of a job -> epochs trained. The machine is of no
    # use any more.
    stuck: list[dict[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class HostFacts:
    """What a machine says of itself before it is given a job."""

    versions: Mapping[str, str]  # library -> version, Python's own among them
    digest: str | None  # digest of the code of ``build`` there; None without code
    device: str  # in words
    max_slots: int  # trials of one program that train there side by side, at most
    clock: float  # the machine's ``time.perf_counter`` now
    node: str  # the name of the machine
    pid: int  # the process there
