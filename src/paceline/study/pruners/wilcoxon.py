"""Optuna's WilcoxonPruner over the members of trials: pairs of folds, or of repeats.

Optuna expects a trial to meet one instance after another and to report each one's final value. Here
the members of a trial train side by side, so the pairs are those of one epoch: each member's value
now against the same member's of the best complete trial, when that one was at this epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import optuna
from optuna.pruners import WilcoxonPruner
from optuna.trial import TrialState as OptunaState
from optuna.trial import create_trial

from paceline.errors import UsageError
from paceline.study.objective import Direction, is_better
from paceline.study.pruners.asha import Verdict
from paceline.study.storage.storage import quiet_optuna
from paceline.study.trial import Trial

# Optuna's, where the user's object does not tell.
_P = 0.1


class PairedWilcoxon:
    """Stops a trial whose members are worse than those of the best one, by a signed-rank test.

    Args:
        pruner: Optuna's.
        direction: Of the objective.
        past: Trials that have ended, each with the objective's values by epoch.
        n_members: Members of each trial.
        note: Told when there are too few members for the test ever to stop a trial.

    Raises:
        UsageError: Trials have one member, so there is nothing to pair.
    """

    pauses = False

    def __init__(
        self,
        pruner: WilcoxonPruner,
        direction: Direction,
        past: Iterable[tuple[Trial, list[float]]],
        n_members: int,
        note: Callable[[str], None],
    ) -> None:
        if n_members < 2:
            raise UsageError(
                "pruner: wilcoxon compares the folds or repeats of trials, and trials have one; "
                "give folds= or repeats= (--folds, --repeats), or choose another pruner."
            )
        threshold = getattr(pruner, "_p_threshold", _P)
        if 0.5**n_members >= threshold:
            note(
                f"wilcoxon never stops a trial here: with {n_members} repeats or folds the test's "
                f"p is at least {0.5**n_members:.3g}, and trials stop below {threshold:g}"
            )
        self._direction: Direction = direction
        self._pruner, self._n_members = pruner, n_members
        self._best: Trial | None = None
        self._studies: dict[int, optuna.Study] = {}  # epoch -> one that holds the best trial
        for trial, _ in past:
            self.ended(trial)

    def judge(
        self, trial: Trial, epoch: int, epochs: int, value: float, can_pause: bool = True
    ) -> Verdict:
        """See ``pruners.Pruner``."""
        if self._best is None or len(self._best.members) < epoch:
            return "go"
        ours, theirs = trial.members[epoch - 1], self._best.members[epoch - 1]
        if not all(map(math.isfinite, (*ours, *theirs))):
            return "go"
        with quiet_optuna():
            if epoch not in self._studies:
                self._studies[epoch] = self._study_of(theirs)
            now = create_trial(state=OptunaState.RUNNING, intermediate_values=_by_member(ours))
            return "prune" if self._pruner.prune(self._studies[epoch], now) else "go"

    def snapshot(self) -> None:
        """Nothing: it knows the best of the trials that have ended."""

    def restore(self, facts: None) -> None:
        """See ``snapshot``."""

    def ended(self, trial: Trial) -> None:
        """See ``pruners.Pruner``."""
        if trial.state != "complete" or not trial.members:
            return
        if len(trial.members[0]) != self._n_members:  # of a search with others
            return
        if is_better(trial.value, self._best and self._best.value, self._direction):
            self._best = trial
            self._studies.clear()

    def learn(self, trial: Trial, values: Sequence[float]) -> None:
        """See ``pruners.Pruner``."""
        self.ended(trial)

    def promoted(self) -> list[int]:
        """None: it never pauses a trial."""
        return []

    def given_up(self) -> list[int]:
        """None: it never pauses a trial."""
        return []

    def last(self) -> list[int]:
        """None: it never pauses a trial."""
        return []

    def _study_of(self, members: Sequence[float]) -> optuna.Study:
        """A study whose only trial is the best one, as it was at an epoch."""
        study = optuna.create_study(direction=self._direction)
        value = sum(members) / len(members)
        study.add_trial(create_trial(value=value, intermediate_values=_by_member(members)))
        return study


def _by_member(values: Sequence[float]) -> dict[int, float]:
    return dict(enumerate(values))
