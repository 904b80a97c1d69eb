"""The mirror: a study in memory that samplers look at, so that choosing never waits for a storage.

It holds what a sampler may learn from: configurations being tried, their values epoch by epoch,
and those that were proposed and turned down (as failed trials, which Optuna's samplers ignore). Its
trial numbers are its own. It always minimises: the direction of a study is known only after the
first build, when samplers have chosen already; callers pass losses.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState

from paceline.errors import PacelineError, SamplerError
from paceline.study.storage.storage import quiet_optuna


class InMemoryStudy:
    """An Optuna study in memory, asked and told."""

    def __init__(self, *, learns: bool = False) -> None:
        """Make an empty one.

        Args:
            learns: Whether the sampler wants to be told of ended trials; those that are made
                afresh for every trial do not, which saves Optuna's copying.
        """
        self._learns = learns
        # An Optuna study has a sampler; this one is never asked, and seeded, because it would draw
        # from the system otherwise.
        self._nobody = RandomSampler(seed=0)
        self._storage = optuna.storages.InMemoryStorage()
        with quiet_optuna():
            self._study = optuna.create_study(
                storage=self._storage, study_name="mirror", sampler=self._nobody
            )
        self._id = self._storage.get_study_id_from_name("mirror")

    def add(self, trial: FrozenTrial, sign: int) -> int:
        """Add a trial of an earlier session, finished or still running.

        Args:
            trial: As the storage holds it.
            sign: 1 where low values are good, -1 where high ones are.

        Returns:
            The mirror's number of it.
        """
        complete = trial.state == OptunaState.COMPLETE
        value = trial.value if complete else None
        steps = {
            step: sign * value
            for step, value in trial.intermediate_values.items()
            if not math.isnan(value)
        }
        self._study.add_trial(
            create_trial(
                state=trial.state,
                value=None if value is None else sign * value,
                params=trial.params,
                distributions=trial.distributions,
                intermediate_values=steps,
            )
        )
        return self._storage.get_n_trials(self._id) - 1

    def ask(self, sampler: BaseSampler | None) -> optuna.Trial:
        """Begin a trial whose values ``sampler`` chooses; None where they come from elsewhere.

        Raises:
            SamplerError: The sampler failed.
        """
        sampler = sampler or self._nobody
        with _blaming(sampler):
            self._study.sampler = sampler
            return self._study.ask()

    def suggest(self, trial: optuna.Trial, name: str, distribution: BaseDistribution) -> Any:
        """Return the stored value that the sampler chooses; the same one when asked again.

        Raises:
            SamplerError: The sampler failed.
        """
        with _blaming(self._study.sampler):
            match distribution:
                case FloatDistribution(low=low, high=high, step=step, log=log):
                    return trial.suggest_float(name, low, high, step=step, log=log)
                case IntDistribution(low=low, high=high, step=step, log=log):
                    return trial.suggest_int(name, low, high, step=step, log=log)
                case CategoricalDistribution(choices=choices):
                    return trial.suggest_categorical(name, choices)
        raise TypeError(f"{name}: unknown distribution {distribution!r}")

    def params(self, number: int) -> dict[str, Any]:
        """Return name -> stored value of what the sampler has chosen for a trial."""
        return self._storage.get_trial(self._trial_id(number)).params

    def settle(
        self,
        number: int,
        values: Mapping[str, Any],
        distributions: Mapping[str, BaseDistribution],
    ) -> None:
        """Note the values of a trial, by whomever they were chosen.

        Args:
            number: The mirror's number of the trial.
            values: Name -> stored value.
            distributions: Name -> distribution, for each of ``values``.
        """
        known = self.params(number)
        for name, value in values.items():
            if name not in known or known[name] != value:
                stored = distributions[name].to_internal_repr(value)
                trial = self._trial_id(number)
                self._storage.set_trial_param(trial, name, stored, distributions[name])

    def report(self, number: int, epoch: int, loss: float) -> None:
        """Note a trial's loss after an epoch, counted from 1; NaN is left out."""
        if not math.isnan(loss):
            self._storage.set_trial_intermediate_value(self._trial_id(number), epoch, loss)

    def tell(self, number: int, state: OptunaState, loss: float | None = None) -> None:
        """End a trial.

        Args:
            number: The mirror's number of the trial.
            state: COMPLETE, PRUNED or FAIL.
            loss: Low is good; for COMPLETE only.

        Raises:
            SamplerError: The sampler failed at learning of it.
        """
        if self._learns:
            with _blaming(self._study.sampler):
                self._study.tell(number, loss, state=state)
        else:
            values = None if loss is None else [loss]
            self._storage.set_trial_state_values(self._trial_id(number), state, values)

    def _trial_id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, number)


@contextmanager
def _blaming(sampler: BaseSampler) -> Iterator[None]:
    """Run a sampler without its log lines and its notes on what is experimental."""
    with quiet_optuna(), warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            yield
        except PacelineError:
            raise
        except Exception as error:
            raise SamplerError(
                f"sampler {type(sampler).__name__} failed: {type(error).__name__}: {error}. Choose "
                'another, such as sampler="tpe".'
            ) from error
