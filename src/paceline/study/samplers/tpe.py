"""TPE: Optuna's sampler, with a seed for every trial."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from paceline.study.trial_codec import NAMED, violation_of

# Before Optuna 5, TPE reads the constraints in trials only where it is given this function, which
# it then calls for several objectives alone.
_HEEDS_CONSTRAINTS: dict[str, Any] = (
    {} if NAMED else {"constraints_func": lambda trial: trial.system_attrs["constraints"]}
)

#: How often a proposal is drawn anew whose neighbourhood is not allowed. TPE weighs good trials
#: against all others, and so proposes what lies just beyond a bound as often as what lies within.
_REDRAWS = 8


class Tpe(BaseSampler):
    """Optuna's TPE with a seed for every trial.

    A new TPE sampler would go through all trials to find the parameters that they share; this one
    remembers them. (At 1,000 trials that is a third of the time of a proposal.)
    """

    def __init__(self) -> None:
        self._shared = IntersectionSearchSpace(include_pruned=True)
        self._tpe = optuna.samplers.TPESampler(seed=0)
        self._space: dict[str, BaseDistribution] = {}  # all that trials share

    def seeded(self, seed: int) -> Tpe:
        """Return this sampler, about to choose from ``seed``."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # Both are defaults from Optuna 5 on. The constant liar keeps open trials from choosing
            # the same values.
            self._tpe = optuna.samplers.TPESampler(
                seed=seed, multivariate=True, constant_liar=True, **_HEEDS_CONSTRAINTS
            )
        return self

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that all trials share, to be chosen together."""
        shared = self._shared.calculate(study)
        self._space = {name: known for name, known in shared.items() if not known.single()}
        return dict(self._space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the stored values of shared parameters."""
        found = self._tpe.sample_relative(study, trial, search_space)
        # Where values are fixed, trials with other ones are no neighbours.
        if not found or search_space.keys() != self._space.keys():
            return found
        told = _Told(study, search_space)
        for _ in range(_REDRAWS):
            if not told.likely_violates(found):
                break
            found = self._tpe.sample_relative(study, trial, search_space)
        return found

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return the stored value of a parameter that not all trials have."""
        return self._tpe.sample_independent(study, trial, param_name, param_distribution)


class _Told:
    """The trials that have ended, as points between 0 and 1 on each axis.

    Args:
        study: The study in memory.
        space: Name -> distribution: the axes.
    """

    def __init__(self, study: optuna.Study, space: dict[str, BaseDistribution]) -> None:
        self._space = space
        trials = study.get_trials(deepcopy=False, states=(OptunaState.COMPLETE, OptunaState.PRUNED))
        violations = [violation_of(trial) or 0.0 for trial in trials]
        self._violates = np.array(violations) > 0  # bool[T]
        if self._violates.any():
            self._points = np.array([self._point(trial.params) for trial in trials])  # f64[T, D]

    def likely_violates(self, params: dict[str, Any]) -> bool:
        """Whether the trial nearest to a proposal violates a constraint."""
        if not self._violates.any():
            return False
        apart = np.abs(self._points - np.array(self._point(params)))
        for axis, distribution in enumerate(self._space.values()):
            if isinstance(distribution, CategoricalDistribution):
                apart[:, axis] = apart[:, axis] > 0
        return bool(self._violates[np.argmin((apart**2).sum(axis=1))])

    def _point(self, params: dict[str, Any]) -> list[float]:
        return [_place(kind, params[name]) for name, kind in self._space.items()]


def _place(distribution: BaseDistribution, value: Any) -> float:
    """Where a value lies in its range, from 0 to 1; the number of a choice."""
    place = distribution.to_internal_repr(value)
    if not isinstance(distribution, FloatDistribution | IntDistribution):
        return place
    low, high = float(distribution.low), float(distribution.high)
    if distribution.log:
        low, high, place = math.log(low), math.log(high), math.log(place)
    return (place - low) / (high - low)
