"""What the tuner hands to an executor, and what it hears back: plain records, no Optuna."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from paceline.data.folds import Fold

if TYPE_CHECKING:
    from paceline.data.inputs import TrialInputs
    from paceline.program.trace import State

#: Trainable, non-trainable, optimizer and metric variables, in Keras' order.
Parts = Sequence[Sequence[np.ndarray]]
#: Trainable and non-trainable variables, in Keras' order.
Weights = tuple[list[np.ndarray], list[np.ndarray]]


@dataclass
class Job:
    """A trial to train, or a member of one (``members.py``).

    Attributes:
        number: The trial's number, or the member's.
        seed: Weights, dropout and order of examples follow from it.
        epochs: Epochs to train.
        batch_size: Examples per step.
        model: The compiled model, just built; dropped once its state is taken.
        rebuild: Builds the same model again, from the seed on.
        folds: Parts of the data to train and validate on, one after another: each is a member, and
            their numbers begin at ``number``. Empty: all of the data.
        program: Short fingerprint of the program it shares with others, once it is known.
        counts: It tells how trials differ; further repeats of a trial do not.
        order: Called for each epoch, from 0: numbers of the training examples, i32[N]; None: they
            follow from the seed.
        callbacks: Makes the callbacks of a member, by its number; None without.
        made: The callbacks that were made, a list for each member; packs keep them here.
        setting: Its data and so on; None: those that the executor was made with.
    """

    number: int
    seed: int
    epochs: int
    batch_size: int
    model: Any
    rebuild: Callable[[], Any]
    folds: Sequence[Fold] = ()
    program: str | None = None
    counts: bool = True
    order: Callable[[int], np.ndarray] | None = None
    callbacks: Callable[[int], list[Any]] | None = None
    made: Sequence[list[Any]] = ()
    setting: TrialInputs | None = None


class PackTimeout(Exception):
    """Packs whose epoch does not end; the threads that wait for it are lost.

    Attributes:
        packs: Of each, number of a job -> epochs that it had trained.
    """

    def __init__(self, packs: Sequence[Mapping[int, int]]) -> None:
        super().__init__(f"{len(packs)} packs do not come back")
        self.packs = [dict(pack) for pack in packs]


@dataclass(frozen=True)
class EpochReport:
    """One epoch of one trial, or of a member of one.

    Attributes:
        number: The trial's number, or the member's.
        epoch: From 1.
        logs: Metric name -> value, names as Keras has them.
        seconds: The trial's share of the time its pack took.
        program: Short fingerprint of the compiled program, None in ``fit``.
        plan: stacked, mapped, sequential or fit.
        weights: Fetches the weights as they are now; only until the reports of this round have been
            answered.
        members: The logs of each member, where ``logs`` are their means; executors give none.
        state: Fetches all variables, as ``weights``; None where no pack holds them.
        wall: Seconds of the epoch on the clock, those of all who train in the same pack.
        last: It trains no further, whatever is answered: it has all its epochs, or a callback has
            stopped it.
    """

    number: int
    epoch: int
    logs: dict[str, float]
    seconds: float
    program: str | None
    plan: str
    weights: Callable[[], Weights]
    members: Sequence[Mapping[str, float]] = ()
    state: Callable[[], State] | None = None
    wall: float = 0.0
    last: bool = False


#: What becomes of a trial after an epoch: it goes on, is taken out, or waits to be resumed.
Answer = Literal["go", "stop", "pause"]
#: An answer, or a way to ask for it when all reports of this round are in.
LateAnswer = Answer | Callable[[], Answer]
#: Handles a report.
Report = Callable[[EpochReport], LateAnswer]
#: Told of a trial that failed while it trained, and why.
Failed = Callable[[int, BaseException], None]


def settled(answer: LateAnswer) -> Answer:
    """The answer, now that all reports of a round are in."""
    return answer() if callable(answer) else answer


class Executor(Protocol):
    """Runs jobs, reports every epoch."""

    def submit(self, job: Job) -> None:
        """Takes a job on.

        Raises:
            Unpackable: It cannot run here; the message says why.
        """
        ...

    @property
    def busy(self) -> bool:
        """Whether any job is waiting or running."""
        ...

    def advance(self, report: Report, meanwhile: Callable[[], bool], failed: Failed) -> None:
        """Runs for about one epoch.

        Args:
            report: Told about each epoch of each trial; called in this thread.
            meanwhile: Useful work for this thread while the device is busy; False when there is
                none.
            failed: Told of trials that fail; they are out then.

        Raises:
            Exception: What ``report`` raised: an error of the search, and not of the trial.
        """
        ...
