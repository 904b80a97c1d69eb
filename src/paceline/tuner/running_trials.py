"""Who is under way in a search: running, paused, and how many ended in which state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.study.trial import INTERRUPTED, Trial, TrialState


@dataclass
class RunningTrial:
    """A trial that trains now, or waits at a rung.

    Attributes:
        epochs: Epochs it is to train.
        epoch: Epochs trained.
        seconds: Its share of the time.
        plan, program: Where it trains.
        not_packed: Why it trains in ``fit``; None in a pack.
        wall: Seconds on the clock that it has trained, those of its neighbours among them.
    """

    epochs: int
    epoch: int = 0
    seconds: float = 0.0
    plan: str | None = None
    program: str | None = None
    not_packed: str | None = None
    wall: float = 0.0


class RunningTrials:
    """The trials of a search that have not ended, and counts of those that have.

    Args:
        past: Trials of the study so far. Those that a dead process left under way do not count:
            they are tried again.

    Attributes:
        running, paused: Number -> trial.
        ended: State -> how many, those of earlier sessions included.
        trial_epochs: Epochs trained in this search, all trials together.
        n_begun: Trials that began in this search.
        n_extra: Trials, past ones among them, that go on with others: they do not count for
            ``n_trials``.
        n_theirs: Trials of the study that other workers train.
    """

    def __init__(self, past: Iterable[Trial]) -> None:
        self.running: dict[int, RunningTrial] = {}
        self.paused: dict[int, RunningTrial] = {}
        trials = [trial for trial in past if has_ended(trial)]
        self.ended = Counter(trial.state for trial in trials)
        self.n_extra = sum(trial.continues is not None for trial in trials)
        self.trial_epochs = 0
        self.n_begun = 0
        self.n_theirs = 0

    @property
    def n_counted(self) -> int:
        """Trials that count for ``n_trials``: ended, failed ones included, or under way."""
        under_way = len(self.running) + len(self.paused) + self.n_theirs
        return self.ended.total() + under_way - self.n_extra

    @property
    def healthy(self) -> bool:
        """Whether some trial trains well: then others may fail as they like."""
        return any(running.epoch > 0 for running in self.running.values())

    def begin(self, number: int, epochs: int, *, extra: bool = False) -> None:
        """A trial is under way; ``extra`` where it goes on with another."""
        self.running[number] = RunningTrial(epochs)
        self.n_begun += 1
        self.n_extra += extra

    def pause(self, number: int) -> None:
        """A running trial waits."""
        self.paused[number] = self.running.pop(number)

    def unpause(self, number: int) -> None:
        """A paused trial goes on."""
        self.running[number] = self.paused.pop(number)

    def end(self, number: int, state: TrialState) -> RunningTrial:
        """A running trial has ended; returns what was known of it."""
        self.ended[state] += 1
        return self.running.pop(number)

    def forget(self, number: int) -> bool:
        """A trial is no longer under way here; returns whether it was."""
        was = self.running.pop(number, None) or self.paused.pop(number, None)
        return was is not None

    def share(self, trials: Iterable[Trial], n_theirs: int) -> None:
        """Count the trials of a study that others search too.

        Args:
            trials: All its trials.
            n_theirs: How many others train now.
        """
        trials = list(trials)
        self.ended = Counter(trial.state for trial in trials if has_ended(trial))
        self.n_extra = sum(
            trial.continues is not None
            for trial in trials
            if has_ended(trial) or trial.number in self.running or trial.number in self.paused
        )
        self.n_theirs = n_theirs

    def epochs_left(self) -> list[int]:
        """Epochs left of each trial that is running."""
        return [trial.epochs - trial.epoch for trial in self.running.values()]

    def to_come(self, n_trials: int) -> tuple[int, float]:
        """How many trials are still to begin, and the epochs that each takes, as far as one knows.

        With a pruner they take as many as those that began until now.
        """
        usual: float = max((trial.epochs for trial in self.running.values()), default=0)
        if self.ended["pruned"] or self.paused:
            usual = min(usual, self.trial_epochs / max(1, self.n_begun))
        return max(0, n_trials - self.n_counted), usual


def counts(trial: Trial) -> bool:
    """Whether a trial of an earlier session counts for ``n_trials``."""
    return has_ended(trial) and trial.continues is None


def has_ended(trial: Trial) -> bool:
    """Whether a trial of an earlier session has come to its own end."""
    return trial.error != INTERRUPTED and trial.state not in ("running", "paused")
