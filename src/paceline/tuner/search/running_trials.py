"""Which trials of a search run or are paused, and how many have ended in which state.

Also when a search gives up: too many of its trials fail, or are rejected before they are trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from paceline.errors import (
    BuildError,
    ConstraintError,
    PacelineError,
    TrialRejected,
    shortened,
    with_keras_3,
)
from paceline.executor.base import Answer, EpochReport, Weights
from paceline.study.storage.schema import Count
from paceline.study.trials.trial import INTERRUPTED, UNDER_WAY, Trial, TrialState
from paceline.tuner.arguments.constraints import rejections_text

#: A search ends with an error after this many failures in a row: its space or data cannot work.
IN_A_ROW = 5


class TrialMembers(Struct):
    """How far the members of a trial are, by the numbers of their jobs."""

    complete: Count = 0  # epochs that all members have reported
    trained: dict[Count, Count] = {}  # job -> epochs it has reported
    waiting: set[Count] = set()  # jobs paused until the others have caught up
    ended: set[Count] = set()  # jobs that train no further
    verdict: Answer = "continue"  # to the last epoch that all have reported
    # Epoch -> job -> logs, of epochs that not all have reported.
    reports: dict[Count, dict[Count, dict[str, float]]] = {}
    # Job -> the latest value of each of its logs; not every epoch validates.
    latest: dict[Count, dict[str, float]] = {}
    seconds: float = 0.0  # since the trial's last epoch, as the next field
    wall: dict[Count, float] = {}
    held: Weights | None = None  # the first member's, while it waits for the others

    def add(self, report: EpochReport) -> None:
        """Takes in an epoch of a member."""
        job, epoch = report.number, report.epoch
        self.trained[job] = epoch
        self.seconds += report.seconds
        self.wall[job] = self.wall.get(job, 0.0) + report.wall
        self.reports.setdefault(epoch, {})[job] = report.logs
        self.latest[job] = {**self.latest.get(job, {}), **report.logs}
        if report.last:
            self.ended.add(job)

    def due(self, jobs: Sequence[int]) -> list[dict[str, float]] | None:
        """The logs of all ``jobs`` in the trial's next epoch; None if some have not reported it."""
        logs = self.reports.get(self.complete + 1, {})
        if not logs:
            return None
        # A member that a callback has stopped counts with the last value of each log.
        logs = {job: self.latest[job] for job in self.ended} | logs
        found = [logs[job] for job in jobs if job in logs]
        return found if len(found) == len(jobs) else None


class UnfinishedTrial(Struct):
    """A trial that runs or is paused."""

    epochs: Count  # to train
    epoch: Count = 0  # epochs trained
    seconds: float = 0.0  # the trial's share of the seconds that its packs took
    # Of its pack: vectorized, looped or sequential; or fit; None before an epoch.
    plan: str | None = None
    # Fingerprint of the compiled program; None in ``fit`` and before an epoch.
    program: str | None = None
    fallback_reason: str | None = None  # why it trains in ``fit``; None in a pack
    worker: str | None = None  # the machine of a cluster that trained its last epoch
    wall: float = 0.0  # seconds on the clock of its epochs, its neighbours in the pack included
    members: TrialMembers | None = None  # None with one member, and before the first has reported
    costs: dict[str, Any] = {}  # as ``Trial.costs`` has them, where objectives need them


class UnfinishedTrials:
    """The trials of a search that have not ended, and counts of those that have.

    Of ``past``, the trials that a dead process left running do not count: they are tried again.
    """

    def __init__(self, past: Iterable[Trial]) -> None:
        self.running: dict[int, UnfinishedTrial] = {}  # trains, or waits for a slot
        self.paused: dict[int, UnfinishedTrial] = {}  # waits for the pruner's verdict
        self.ended: Counter[TrialState] = Counter()  # earlier sessions included
        # Trials of all sessions that continue others: they do not count for ``n_trials``.
        self.n_extra = 0
        # Of all trials in this search; and their shares of their packs' seconds, in this process.
        self.trial_epochs, self.trial_seconds = 0, 0.0
        self.n_begun = 0  # in this search
        self.n_theirs = 0  # trials of the study that other workers train
        self.share(past, 0)

    def get(self, number: int) -> UnfinishedTrial | None:
        """A trial that runs or is paused; None if none of this number does."""
        return self.running.get(number) or self.paused.get(number)

    @property
    def n_counted(self) -> int:
        """Trials that count for ``n_trials``: running, trained or failed."""
        under_way = len(self.running) + len(self.paused) + self.n_theirs
        return self.ended.total() - self.ended["rejected"] + under_way - self.n_extra

    @property
    def healthy(self) -> bool:
        """Whether some running trial has trained an epoch without an error."""
        return any(running.epoch > 0 for running in self.running.values())

    def begin(self, number: int, epochs: int, *, extra: bool = False) -> None:
        """Adds a running trial; ``extra`` where it continues another trial."""
        self.running[number] = UnfinishedTrial(epochs)
        self.n_begun += 1
        self.n_extra += extra

    def pause(self, number: int) -> None:
        """Makes a running trial a paused one."""
        self.paused[number] = self.running.pop(number)

    def unpause(self, number: int) -> None:
        """Makes a paused trial a running one."""
        self.running[number] = self.paused.pop(number)

    def count_end(self, state: TrialState) -> None:
        """Counts a trial that has ended."""
        self.ended[state] += 1
        self.n_begun -= state == "rejected"  # it says nothing of how long trials train

    def forget(self, number: int) -> bool:
        """Removes a trial that has ended or is others' now; returns whether it was here."""
        was = self.running.pop(number, None) or self.paused.pop(number, None)
        return was is not None

    def share(self, trials: Iterable[Trial], n_theirs: int) -> None:
        """Counts all trials of a study of which other workers now train ``n_theirs``."""
        trials = list(trials)
        self.ended = Counter(trial.state for trial in trials if has_ended(trial))
        self.n_extra = sum(
            trial.continued_from is not None
            for trial in trials
            if has_ended(trial) or trial.number in self.running or trial.number in self.paused
        )
        self.n_theirs = n_theirs

    def epochs_left(self) -> list[int]:
        """The number of epochs that each running trial has still to train."""
        return [trial.epochs - trial.epoch for trial in self.running.values()]

    def to_come(self, n_trials: int) -> tuple[int, float]:
        """The number of trials still to begin of ``n_trials``, and the epochs that each will train.

        With a pruner, these are as many as the trials so far have trained on average.
        """
        usual: float = max((trial.epochs for trial in self.running.values()), default=0)
        if self.ended["pruned"] or self.paused:
            usual = min(usual, self.trial_epochs / max(1, self.n_begun))
        return max(0, n_trials - self.n_counted), usual


def has_ended(trial: Trial) -> bool:
    """Whether a trial of an earlier session has ended, and not only its process."""
    return trial.error != INTERRUPTED and trial.state not in UNDER_WAY


class FailureLimit:
    """Counts the failures of one search; too many failures or rejections in a row end it."""

    def __init__(self, in_a_row: float, rejected_in_a_row: float) -> None:
        self._in_a_row, self._rejected_in_a_row = in_a_row, rejected_in_a_row
        # In a row: builds and traces as trials were asked for, trainings as trials ended.
        self._builds = self._trainings = 0
        self._last: BaseException | None = None
        # Rejections since a trial was last traced. Only texts, and the last error: they may be as
        # many as a grid, and an error keeps the model of its trial in memory.
        self._rejected: list[str] = []
        self._last_rejected: TrialRejected | None = None
        self.succeeded = 0  # trials that were complete or pruned
        self.cause: BaseException | None = None  # the error for which no more trials are asked for

    def began(self) -> None:
        """A trial was built and traced."""
        self._builds = 0
        self._rejected.clear()
        self._last_rejected = None

    def rejected(self, why: TrialRejected) -> None:
        """A trial was rejected before it was traced."""
        self._rejected.append(str(why))
        self._last_rejected = why
        if len(self._rejected) >= self._rejected_in_a_row:
            self.cause = why

    @property
    def last_was_rejected(self) -> bool:
        """Whether the last trial that was asked for was rejected."""
        return self._last_rejected is not None

    def ended_well(self) -> None:
        """A trial is complete, or was pruned."""
        self._trainings = 0
        self.succeeded += 1

    def of_build(self, error: BaseException) -> None:
        """A trial could not be built or traced."""
        self._builds, self._last = self._builds + 1, error
        if self._builds >= self._in_a_row:
            self.cause = error

    def of_training(self, error: BaseException) -> None:
        """A trial failed while it trained."""
        self._trainings, self._last = self._trainings + 1, error

    def of_all(self, healthy: bool) -> bool:
        """Whether one trial after another fails in training, and none is ``healthy``."""
        if self._trainings < self._in_a_row or healthy:
            return False
        self.cause = self._last
        return True

    def error(self, over: bool, useful: bool = False) -> tuple[PacelineError, BaseException] | None:
        """The error that the search must end with, and its cause; None as long as it can continue.

        ``over``: the whole space has been tried. ``useful``: some trial is complete or was pruned.
        """
        cause, text = self.cause, f"{self._in_a_row} trials failed in a row; the last one"
        why = self._last_rejected
        if why is not None and (cause is why or (over and not useful)):
            text = rejections_text(self._rejected, over=cause is None)
            return ConstraintError(text), why
        if cause is None and over and not self.succeeded:
            cause, text = self._last, "every trial of this search failed; the last one"
        return None if cause is None else (BuildError(f"{text}: {describe(cause)}"), cause)


def describe(error: BaseException) -> str:
    """An error as one sentence; errors of Paceline need no class name before their text."""
    clear = isinstance(error, (PacelineError, FloatingPointError))
    if clear:
        return shortened(str(error))
    return shortened(with_keras_3(f"{type(error).__name__}: {error}"))
