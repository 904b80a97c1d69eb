"""Jobs, reports and answers: what a search and an executor exchange, without Optuna."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from paceline.data.folds import Fold

if TYPE_CHECKING:
    from paceline.data.arrays import ArrayData
    from paceline.data.batched import BatchedDataset
    from paceline.data.inputs import TrialInputs
    from paceline.pack.pack import BatchCallbacks
    from paceline.program.trace import State
    from paceline.search_space.parameter import Parameter

#: Trainable, non-trainable, optimizer and metric variables, in Keras' order.
Parts = Sequence[Sequence[np.ndarray]]
#: Trainable and non-trainable variables, in Keras' order.
Weights = tuple[list[np.ndarray], list[np.ndarray]]


#: Executors with which it is an error that no trial of a search can be packed.
PACKS_ONLY = ("packed", "ray")


@dataclass(frozen=True, eq=False)
class SearchData:
    """What the jobs of an executor train and validate on, unless a job has inputs of its own."""

    train: ArrayData | BatchedDataset  # N examples
    validation: ArrayData | None = None  # V examples; None without
    # Examples per step; None: the job's batch size, like Keras.
    validation_batch_size: int | None = None
    # Epochs between two validations, or the numbers of the epochs, from 1, that are validated, as
    # ``fit`` takes it.
    validation_freq: int | Collection[int] = 1
    # Whether each epoch has an order of its own, from the job's seed; "batch": within each batch.
    shuffle: bool | str = True
    # How many examples a job's folds train on and validate on; None if jobs have no folds.
    fold: tuple[int, int] | None = None
    # Whether callbacks of some job may act between training batches.
    by_batch: bool = False

    def inputs(self, batch_size: int) -> TrialInputs:
        """The inputs of jobs that have none of their own."""
        from paceline.data.inputs import TrialInputs  # loads Keras, and commands read studies

        size = self.validation_batch_size or batch_size
        return TrialInputs(self.train, self.validation, batch_size, size)


@dataclass(frozen=True)
class PackOptions:
    """How the user wants trials to be packed."""

    # Trials that train at once, or "auto": 8 per core on a CPU, 32 on an accelerator.
    slots: int | str = "auto"
    plan: str = "auto"  # "vectorized", "looped", "sequential" or "auto"
    # Devices along the trial axis and along the data axis, from ``check_mesh``; None: all
    # accelerators, or one CPU.
    mesh: tuple[int, int | None] | None = None
    cores: int | None = None  # that the executor may use on a CPU; None: all of this process
    most: int | None = None  # of ``slots``, after a process has died of them; None: all


def _nobody_asks(jobs: Collection[int]) -> None:
    pass


@dataclass(frozen=True)
class EpochLimit:
    """How long an epoch of a pack may take, and which jobs are suspected of never ending one."""

    seconds: float | None = None  # on the clock; None: as long as it needs
    # Number of a job -> epochs that it had trained when its pack did not come back. At that epoch
    # it trains in a pack of its own. The search may add to this mapping.
    suspects: Mapping[int, int] = field(default_factory=dict)
    # Whether one job at a time is compiled and trained, since any may end the process.
    alone: bool = False
    # Told the numbers of the jobs that are compiled or trained from now on.
    under_way: Callable[[Collection[int]], None] = _nobody_asks


class UserNotifier:
    """Tells the user of a search what the user may want to know, a sentence at a time."""

    def __init__(self, tell: Callable[[str], None] = lambda text: None) -> None:
        self._tell = tell
        self._told: set[str] = set()

    def tell(self, text: str) -> None:
        """Tells a sentence."""
        self._tell(text)

    def tell_once(self, text: str) -> None:
        """Tells a sentence unless this method has told the same one before."""
        if text not in self._told:
            self._told.add(text)
            self._tell(text)


#: A hyperparameter of more values is not a width: seeds, for example.
_MOST_WIDTHS = 4096
#: Of more values than this, no choice is trained together.
_MOST_CHOICES = 6


#: Trials that a program of several widths and choices is judged by, and compiled for, at least.
LEAST_TRIALS = 8


@dataclass(frozen=True)
class SearchOutlook:
    """What a search is expected to train, by which trials of several widths share programs."""

    trials: int = LEAST_TRIALS  # that the study was to have when it began; 0: any number
    # Seconds that the search may take, times the cores that train; 0.0: time does not end it.
    core_seconds: float = 0.0
    trained: float = 1.0  # share of its epochs that a trial trains on average
    # Trials in a row that the sampler asks for with one structure, if they train shorter than their
    # program compiles.
    alike: int = 1


@dataclass(frozen=True)
class SiblingModelBuilder:
    """Builds models like a trial's, at other widths and for other choices."""

    parameters: Sequence[Parameter]  # that the trial's build declared
    hparams: Mapping[str, Any]  # the trial's values
    build: Callable[[Mapping[str, Any]], Any]  # makes the model for other values of hparams
    epochs: float  # that a trial like it is expected to train
    # Whether the trial shares a program wherever that is proved, even if it isn't faster.
    always: bool
    job: int | None = None  # number of the trial's first job; None if it is not known
    outlook: SearchOutlook = SearchOutlook()

    def ranges(self) -> dict[str, list[int]]:
        """The integers that may be widths: name -> their values, ascending."""
        found = {}
        for parameter in self.parameters:
            if type(self.hparams.get(parameter.name)) is not int:
                continue
            if parameter.cardinality is None or parameter.cardinality > _MOST_WIDTHS:
                continue
            values = parameter.values(every=True)
            if len(values) > 1 and all(type(value) is int and value > 0 for value in values):
                found[parameter.name] = sorted(map(int, values))
        return found

    def other_numbers(self, hparams: Mapping[str, Any]) -> dict[str, float]:
        """Other values of the floats among some hyperparameters.

        None of them is zero: a rate of zero leaves an operation out.
        """
        found = {}
        for parameter in self.parameters:
            own = hparams.get(parameter.name)
            if isinstance(own, float) and own:
                values = [value for value in parameter.values() if type(value) in (int, float)]
                others = [value for value in values if value and value != own]
                if others:
                    found[parameter.name] = float(others[-1])
        return found

    def choices(self) -> dict[str, list[Any]]:
        """What may change the operations of a model: name -> values, in the order declared.

        Of numbers, only zero and one other value: a rate of zero leaves an operation out.
        """
        found: dict[str, list[Any]] = {}
        for parameter in self.parameters:
            value = self.hparams.get(parameter.name)
            count = parameter.cardinality
            if value is None or type(value) is int or count is None or count > _MOST_CHOICES:
                continue
            values = list(parameter.values(every=True))
            if isinstance(value, float):
                two = 0.0 in values and any(values) and {*map(type, values)} == {float}
                values = [0.0, next(filter(None, values))] if two else []
            if len(values) > 1:
                found[parameter.name] = values
        return found


@dataclass(frozen=True)
class JobSpec:
    """All that a job follows from, as plain values: another machine makes the same job of it."""

    number: int  # the job's; of a job with folds, that of its first member
    trial: int  # the trial's number
    seed: int  # the trial's
    epochs: int
    hparams: Mapping[str, Any]  # the trial's values
    repeat: int = 0  # which repeat of the trial the job is, from 0
    fold: int | None = None  # the one fold that is meant, from 0; None: all of the job's folds


@dataclass
class Job:
    """A trial to train, or one member of a trial (see ``tuner/search/members.py``)."""

    number: int  # the trial's, or the member's
    seed: int  # the initial weights, dropout and the order of examples follow from it
    epochs: int
    batch_size: int  # examples per step
    model: Any  # compiled, just built; an executor drops it once it has taken its state
    rebuild: Callable[[], Any]  # builds the same model again, starting from the seed
    # Parts of the data to train and validate on, one after another. Each fold is a member of the
    # trial; the members' numbers begin at ``number``. Empty: all of the data.
    folds: Sequence[Fold] = ()
    # Short fingerprint of the program that the job shares with others, once the executor knows it.
    program: str | None = None
    # Whether the job shows how trials differ. Further repeats of a trial do not.
    counts: bool = True
    # Called with the number of an epoch, from 0; returns the numbers of its training examples,
    # i32[N]. None: the order follows from the seed.
    order: Callable[[int], np.ndarray] | None = None
    # Makes the callbacks of a member, given the member's number and the model that was just built;
    # None without.
    callbacks: Callable[[int, Any], list[Any]] | None = None
    # Called between training batches, for a job without ``callbacks``.
    batch_callbacks: BatchCallbacks | None = None
    # The callbacks that were made, one list for each member. Packs keep them here.
    made: Sequence[list[Any]] = ()
    # Its own data and batch sizes; None: the executor's ``SearchData``.
    setting: TrialInputs | None = None
    # Builds models like the job's, at other widths; None: its program is its own.
    widths: SiblingModelBuilder | None = None
    spec: JobSpec | None = None  # what the job follows from, where it may train on another machine

    @property
    def first_epoch(self) -> int:
        """Number of the first epoch, from 0, as the user counts."""
        return 0 if self.setting is None else self.setting.first_epoch

    def make_callbacks(self) -> Sequence[list[Any]]:
        """Makes the callbacks of all members, which are ``made`` from now on; returns them."""
        if self.callbacks is not None:
            members = range(max(1, len(self.folds)))
            self.made = [self.callbacks(self.number + each, self.model) for each in members]
        return self.made


class PackTimeout(Exception):
    """An epoch of one or several packs does not end; the threads that wait for it are lost."""

    def __init__(self, packs: Sequence[Mapping[int, int]]) -> None:
        super().__init__(f"{len(packs)} packs do not come back")
        # For each such pack, number of a job -> epochs that the job had trained.
        self.packs = [dict(pack) for pack in packs]


@dataclass(frozen=True)
class EpochReport:
    """One epoch of a job."""

    number: int  # the job's
    epoch: int  # from 1
    logs: dict[str, float]  # metric name -> value, names as Keras has them
    seconds: float  # the job's share of the seconds that its pack took
    program: str | None  # short fingerprint of the compiled program; None in ``fit``
    plan: str  # "vectorized", "looped", "sequential" or "fit"
    # Fetches the weights after this epoch. It may be called only until all reports of this round
    # have been answered.
    weights: Callable[[], Weights]
    # The logs of each member of a trial where ``logs`` are their means. Executors leave it empty.
    members: Sequence[Mapping[str, float]] = ()
    # Fetches all variables after this epoch, under the same condition as ``weights``; None if no
    # pack holds them.
    state: Callable[[], State] | None = None
    # Seconds on the clock that the epoch took, of all jobs in the same pack together, and the job's
    # own callbacks.
    wall: float = 0.0
    # Whether the job trains no further, whatever the answer is: it has trained all its epochs, or a
    # callback has stopped it.
    last: bool = False
    worker: str | None = None  # name of the machine that has trained the epoch; None: this one


#: What a job does after an epoch: it trains on, it ends, or it waits to be resumed.
Answer = Literal["continue", "stop", "pause"]
#: An answer, or a function that gives the answer once all reports of the round are in.
LateAnswer = Answer | Callable[[], Answer]
#: Handles a report.
Report = Callable[[EpochReport], LateAnswer]
#: Is told the number of a job that failed while it trained, and the error.
Failed = Callable[[int, BaseException], None]


def settled(answer: LateAnswer) -> Answer:
    """The answer itself; all reports of the round must be in."""
    return answer() if callable(answer) else answer


class Executor(Protocol):
    """Trains jobs and reports every epoch of each."""

    def submit(self, job: Job) -> None:
        """Takes a job in.

        Raises:
            Unpackable: The job cannot run here; the message says why.
        """
        ...

    @property
    def busy(self) -> bool:
        """Whether any job is waiting or training."""
        ...

    def advance(self, report: Report, meanwhile: Callable[[], bool], failed: Failed) -> None:
        """Trains for about one epoch.

        Args:
            report: Handles the report of each epoch of each job; called in this thread.
            meanwhile: Does a piece of useful work in this thread while the device is busy; returns
                False when no work is left.
            failed: Is told of each job that fails; the executor has forgotten that job by then.

        Raises:
            Exception: What ``report`` raised: an error of the search, and not of the job.
        """
        ...


class UnsavedAttributes:
    """Tells the user which attributes of callbacks checkpoints do not hold, each once."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._said: dict[str, set[str]] = {}  # class of callbacks -> attributes

    def say(self, callbacks: Iterable[Mapping[str, Any]]) -> None:
        """Tells of the attributes that ``callback_state``, which returned this, could not store."""
        for callback in callbacks:
            lost = set(callback["lost"]) - self._said.setdefault(callback["class"], set())
            if lost:
                self._said[callback["class"]] |= lost
                self._note(
                    f"callbacks: checkpoints do not contain {', '.join(sorted(lost))} of "
                    f"{callback['class']}. If you resume this search, they restart with "
                    "on_train_begin"
                )
