"""Optuna's WilcoxonPruner over the members of trials: pairs of folds, or of repeats.

Optuna expects a trial to train one instance after another and to report each instance's final
value. Here the members of a trial train side by side. A pair belongs to one epoch and one member:
its values in this trial and in the best complete trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import optuna
from optuna.pruners import WilcoxonPruner
from optuna.trial import TrialState as OptunaState
from optuna.trial import create_trial

from paceline.errors import UsageError
from paceline.study.objectives import Direction, is_better
from paceline.study.pruners.base import EndedTrial, Pruner, Verdict
from paceline.study.storage.storage import quiet_optuna
from paceline.study.trials.trial import Trial

# Optuna's default p, where the user's object does not show its own.
_P = 0.1


class PairedWilcoxon(Pruner):
    """Stops a trial whose members are worse than those of the best one, by a signed-rank test.

    Of unfinished trials it keeps nothing, and the best of those that have ended it finds again
    among them, so it has no state. Raises UsageError where trials have one member, so that there is
    nothing to pair.
    """

    def __init__(
        self,
        pruner: WilcoxonPruner,
        direction: Direction,
        past: Iterable[EndedTrial],
        n_members: int,
        note: Callable[[str], None],
    ) -> None:
        if n_members < 2:
            raise UsageError(
                "pruner: wilcoxon compares folds or repeats of trials, but trials have a single "
                "run. Pass folds= or repeats= (--folds, --repeats), or use another pruner."
            )
        threshold = getattr(pruner, "_p_threshold", _P)
        if 0.5**n_members >= threshold:
            note(
                f"wilcoxon cannot prune any trial: with {n_members} repeats or folds p is at "
                f"least {0.5**n_members:.3g}, but pruning needs p below {threshold:g}"
            )
        self._direction: Direction = direction
        self._pruner, self._n_members = pruner, n_members
        self._best: Trial | None = None
        self._studies: dict[int, optuna.Study] = {}  # epoch -> one that holds the best trial
        for trial, _ in past:
            self.end_trial(trial)

    def judge(
        self, trial: Trial, epoch: int, epochs: int, value: float, can_pause: bool = True
    ) -> Verdict:
        """See ``Pruner``."""
        if self._best is None or len(self._best.runs) < epoch:
            return "go"
        ours, best = trial.runs[epoch - 1], self._best.runs[epoch - 1]
        if not all(map(math.isfinite, (*ours, *best))):
            return "go"
        with quiet_optuna():
            if epoch not in self._studies:
                self._studies[epoch] = self._study_of(best)
            now = create_trial(state=OptunaState.RUNNING, intermediate_values=_by_member(ours))
            return "prune" if self._pruner.prune(self._studies[epoch], now) else "go"

    def end_trial(self, trial: Trial) -> None:
        """See ``Pruner``."""
        if trial.state != "complete" or not trial.runs:
            return
        if len(trial.runs[0]) != self._n_members:  # of an earlier search, with other members
            return
        if is_better(trial.value, self._best and self._best.value, self._direction):
            self._best = trial
            self._studies.clear()

    def learn_trial(self, trial: Trial, values: Mapping[int, float]) -> None:
        """See ``Pruner``."""
        self.end_trial(trial)

    def _study_of(self, members: Sequence[float]) -> optuna.Study:
        """Return a study whose only trial is the best one, as it was at an epoch."""
        study = optuna.create_study(direction=self._direction)
        value = sum(members) / len(members)
        study.add_trial(create_trial(value=value, intermediate_values=_by_member(members)))
        return study


def _by_member(values: Sequence[float]) -> dict[int, float]:
    return dict(enumerate(values))
