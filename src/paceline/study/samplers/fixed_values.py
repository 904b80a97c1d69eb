"""The values that a user's ``PartialFixedSampler`` fixes, whoever chooses the others."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import optuna
from optuna.samplers import BaseSampler, PartialFixedSampler

from paceline.search_space import Parameter
from paceline.study.samplers.values import Chooser
from paceline.study.storage.storage import quiet_optuna

#: Answers that are compared. That all of them are equal by chance, for two equally likely values,
#: happens once in 2 ** 63 times.
_ANSWERS = 64
_FREE = object()


class FixedValues:
    """What a user's sampler fixes; only a ``PartialFixedSampler`` fixes anything.

    Optuna has no public name for it. So the sampler is asked repeatedly over a study without
    trials: for fixed values it always answers alike.
    """

    def __init__(self, sampler: BaseSampler) -> None:
        self._sampler = sampler
        self._found: dict[str, Any] = {}  # storage name -> stored value, or _FREE

    def kept_by(self, chooser: Chooser) -> Chooser:
        """Return what chooses as ``chooser`` does, but for the values that are fixed."""
        if not isinstance(self._sampler, PartialFixedSampler):
            return chooser

        def choose(parameter: Parameter) -> Any:
            name = parameter.storage_name
            if name not in self._found:
                self._found[name] = self._value_of(parameter)
            found = self._found[name]
            return chooser(parameter) if found is _FREE else parameter.from_storage(found)

        return choose

    def _value_of(self, parameter: Parameter) -> Any:
        study, trial = self._dummy_study
        asked = parameter.storage_name, parameter.distribution
        with quiet_optuna(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                first = self._sampler.sample_independent(study, trial, *asked)
                for _ in range(_ANSWERS):
                    if self._sampler.sample_independent(study, trial, *asked) != first:
                        return _FREE
            except Exception:  # that of the sampler behind it, which needs trials
                return _FREE
        return first

    @cached_property
    def _dummy_study(self) -> tuple[optuna.Study, optuna.trial.FrozenTrial]:
        """A study with one trial, which has begun."""
        with quiet_optuna():
            study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
            study.ask()
        return study, study.trials[0]
