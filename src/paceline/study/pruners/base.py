"""What the search asks a pruner, and tells it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Set
from typing import Any, Literal

from paceline.study.trials.trial import Trial

#: What becomes of a trial after an epoch.
Verdict = Literal["go", "prune", "pause"]
#: A trial that has ended, with epoch -> the objective's value; an epoch may have none.
EndedTrial = tuple[Trial, Mapping[int, float]]


class Pruner(ABC):
    """Judges trials after each epoch. This one keeps nothing and never pauses a trial."""

    pauses = False  # whether it ever says "pause"

    @abstractmethod
    def judge(
        self, trial: Trial, epoch: int, epochs: int, value: float, can_pause: bool = True
    ) -> Verdict:
        """Return what becomes of a trial that has ended an epoch, from 1 and below ``epochs``.

        The epoch is counted in ``trial``, whose value is its best. ``can_pause``: the trial could
        be continued later from this epoch; if not, the answer is never "pause".
        """

    def state(self) -> Any:
        """Return all that it knows of trials, as JSON values."""
        return None

    def load_state(self, state: Any) -> None:
        """Replace all that it knows by what ``state`` returned."""
        return

    def end_trial(self, trial: Trial) -> None:
        """Note that a trial has ended; its state says how."""
        return

    def restart(self, numbers: Set[int]) -> None:
        """Forget the epochs of unfinished trials, which train from their first epoch again."""
        return

    def learn_trial(self, trial: Trial, values: Mapping[int, float]) -> None:
        """Learn from a trial that was judged elsewhere and has ended.

        ``values`` are epoch -> the objective's value, NaN if there was none. Other programs may
        count epochs from 0, and leave some out.
        """
        return

    def promoted(self) -> list[int]:
        """Return the paused trials that continue now, the most urgent first."""
        return []

    def given_up(self) -> list[int]:
        """Return the paused trials that can never be continued."""
        return []

    def last(self) -> list[int]:
        """Return the paused trial to continue when no other is left and none is complete."""
        return []

    def leader(self) -> int | None:
        """Return the paused trial with the best value, to continue as time runs out."""
        return None
