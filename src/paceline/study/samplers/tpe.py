"""TPE: Optuna's sampler, with a seed for every trial."""

from __future__ import annotations

import warnings
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.trial import FrozenTrial

from paceline.study.trial_codec import NAMED

# Before Optuna 5, TPE reads the constraints in trials only where it is given this function, which
# it then calls for several objectives alone.
_HEEDS_CONSTRAINTS: dict[str, Any] = (
    {} if NAMED else {"constraints_func": lambda trial: trial.system_attrs["constraints"]}
)


class Tpe(BaseSampler):
    """Optuna's TPE with a seed for every trial.

    A new TPE sampler would go through all trials to find the parameters that they share; this one
    remembers them. (At 1,000 trials that is a third of the time of a proposal.)
    """

    def __init__(self) -> None:
        self._shared = IntersectionSearchSpace(include_pruned=True)
        self._tpe = optuna.samplers.TPESampler(seed=0)

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
        return {name: known for name, known in shared.items() if not known.single()}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the stored values of shared parameters."""
        return self._tpe.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return the stored value of a parameter that not all trials have."""
        return self._tpe.sample_independent(study, trial, param_name, param_distribution)
