"""TPE: Optuna's sampler, with a seed for every trial."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
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

from paceline.study.samplers.told_trials import SeenTrial, ToldTrials
from paceline.study.samplers.values import share_of
from paceline.study.trials.trial_codec import NAMED

# Before Optuna 5, TPE reads the constraints in trials only where it is given this function, which
# it then calls for several objectives alone.
_HEEDS_CONSTRAINTS: dict[str, Any] = (
    {} if NAMED else {"constraints_func": lambda trial: trial.system_attrs["constraints"]}
)

#: How often a proposal is drawn again whose neighbourhood is not allowed. TPE weighs good trials
#: against all others, and so proposes what lies just beyond a bound as often as what lies within.
_REDRAWS = 8


class Tpe(BaseSampler):
    """Optuna's TPE with a seed for every trial.

    A new TPE sampler would go through all trials to find the parameters that they share; this one
    remembers them. (At 1,000 trials that is a third of the time of a proposal.)
    """

    def __init__(self, told: ToldTrials) -> None:
        self._told = told
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
        with self._told.showing(search_space):
            found = self._tpe.sample_relative(study, trial, search_space)
            # Where values are fixed, trials with other ones are not neighbours.
            if not found or search_space.keys() != self._space.keys():
                return found
            if self._told.any_violates:
                neighbours = _Neighbours(self._told.ended, search_space)
                for _ in range(_REDRAWS):
                    if not neighbours.likely_violates(found):
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
        with self._told.showing({param_name: param_distribution}):
            return self._tpe.sample_independent(study, trial, param_name, param_distribution)


class _Neighbours:
    """The trials that have ended, as points between 0 and 1 on each axis.

    They share the axes, which are the distributions of ``space``.
    """

    def __init__(self, trials: Sequence[SeenTrial], space: dict[str, BaseDistribution]) -> None:
        self._space = space
        self._violates = np.array([trial.violation > 0 for trial in trials])  # bool[T]
        self._points = np.array([self._point(trial.params) for trial in trials])  # f64[T, D]

    def likely_violates(self, params: dict[str, Any]) -> bool:
        """Whether the trial nearest to a proposal violates a constraint."""
        apart = np.abs(self._points - np.array(self._point(params)))
        for axis, distribution in enumerate(self._space.values()):
            if isinstance(distribution, CategoricalDistribution):
                apart[:, axis] = apart[:, axis] > 0
        return bool(self._violates[np.argmin((apart**2).sum(axis=1))])

    def _point(self, params: dict[str, Any]) -> list[float]:
        return [_place(kind, params[name]) for name, kind in self._space.items()]


def _place(distribution: BaseDistribution, value: Any) -> float:
    """Where a value is in its range, from 0 to 1; the number of a choice."""
    place = distribution.to_internal_repr(value)
    is_range = isinstance(distribution, FloatDistribution | IntDistribution)
    return share_of(distribution, place) if is_range else place
