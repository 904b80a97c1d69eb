"""A study in memory that samplers learn from, so that choosing never waits for a storage.

It holds finished trials, unfinished ones with their values epoch by epoch, and rejected proposals
(as failed trials, which Optuna's samplers ignore). It always minimises, and callers pass losses,
because samplers choose before the first build shows the direction of a study.

A place is a trial's number in this study. A proposal has a place and no number yet.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from paceline.errors import PacelineError, SamplerError
from paceline.study.samplers.nsga import parents_noted
from paceline.study.samplers.told_trials import ToldTrials
from paceline.study.storage.storage import Stopwatch, quiet_optuna
from paceline.study.trials import trial_codec

# States of other workers' trials that samplers learn from.
_LEARNT = (OptunaState.RUNNING, OptunaState.COMPLETE, OptunaState.PRUNED)


class _EndedTrial(FrozenTrial):
    """A trial that never changes: where Optuna copies what it is given, the copy is the trial."""

    def __deepcopy__(self, memo: Any) -> _EndedTrial:
        return self


class _ToldStorage(optuna.storages.InMemoryStorage):
    """A storage in memory that shows ``ToldTrials`` in place of its own where they are shown."""

    def __init__(self, told: ToldTrials) -> None:
        super().__init__()
        self._told = told

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[OptunaState] | None = None,
    ) -> list[FrozenTrial]:
        """Return all trials; where ``ToldTrials`` are shown, those of them in these states."""
        if not self._told.shown:
            return super().get_all_trials(study_id, deepcopy, states)
        found = cast("list[FrozenTrial]", self._told.visible())
        found = found + [self.get_trial(trial_id) for trial_id in self._told.open_ids]
        if states is not None:
            found = [trial for trial in found if trial.state in states]
        return sorted(found, key=lambda trial: trial.number)


class SampledTrials:
    """An Optuna study in memory, asked and told; it knows trials by the study's numbers."""

    def __init__(
        self,
        *,
        learns: bool,
        past: Sequence[FrozenTrial],
        signs: Sequence[int],
        open_again: Container[int] = (),
        constrained: bool = True,
        told: ToldTrials | None = None,
        parents: Mapping[str, Any] | None = None,
    ) -> None:
        """Make one with those trials of earlier sessions that samplers learn from.

        ``learns``: the sampler is told of ended trials; those that are made again for every trial
        need not be told, which saves Optuna's copying. ``signs`` has 1 for each objective whose low
        values are good, else -1. ``open_again`` are the numbers of those that run again,
        ``parents`` is of ``state``. ``constrained``: it holds by how much trials violate their
        constraints. ``told`` shows the sampler its trials; None: it sees those of the study.
        """
        self.told, self.stopwatch = told, Stopwatch()  # the time is that spent in samplers
        self._several, self._signs = len(signs) > 1, tuple(signs)
        self._learns, self._constrained = learns, constrained
        self._places: dict[int, int] = {}  # trial -> its place
        self._ended: set[int] = set()  # trials that have ended, also those that have no place
        # An Optuna study has to have a sampler. This one is never asked; without a seed it would
        # read the system's random numbers.
        self._nobody = RandomSampler(seed=0)
        self._storage = optuna.storages.InMemoryStorage() if told is None else _ToldStorage(told)
        with quiet_optuna():
            self._study = optuna.create_study(
                storage=self._storage,
                study_name="mirror",
                sampler=self._nobody,
                directions=[optuna.study.StudyDirection.MINIMIZE] * len(signs),
            )
        self._id = self._storage.get_study_id_from_name("mirror")
        with self.stopwatch.running():
            for trial in past:
                again = trial.number in open_again
                if again or trial.state in (OptunaState.COMPLETE, OptunaState.PRUNED):
                    self._add(trial.number, trial, signs)
                    if not again:
                        self._ended.add(trial.number)
            for key, note in parents_noted(parents or {}, self._places).items():
                self._storage.set_study_system_attr(self._id, key, note)

    # Proposals

    def ask(self, sampler: BaseSampler | None) -> optuna.Trial:
        """Begin a trial whose values ``sampler`` chooses; None if no Optuna sampler does."""
        sampler = sampler or self._nobody
        with _named_errors(sampler):
            self._study.sampler = sampler
            asked = self._study.ask()
        if self.told is not None:
            self.told.begin(asked.number, self._id_at(asked.number))
        return asked

    def suggest(self, trial: optuna.Trial, name: str, distribution: BaseDistribution) -> Any:
        """Return the stored value that the sampler chooses; the same one when asked again."""
        try:
            with _named_errors(self._study.sampler):
                match distribution:
                    case FloatDistribution(low=low, high=high, step=step, log=log):
                        return trial.suggest_float(name, low, high, step=step, log=log)
                    case IntDistribution(low=low, high=high, step=step, log=log):
                        return trial.suggest_int(name, low, high, step=step, log=log)
                    case CategoricalDistribution(choices=choices):
                        return trial.suggest_categorical(name, choices)
        except SamplerError as error:
            trials = self._study.get_trials(deepcopy=False)
            stored = (t.distributions[name] for t in trials if name in t.distributions)
            if (other := next((d for d in stored if _differ(d, distribution)), None)) is None:
                raise
            raise SamplerError(
                f'hyperparameter "{name}": trials of the study have {other}, but build declares '
                f"{distribution}. No sampler can use both. Declare it as in the trials, with "
                "choices in the same order, or rename it or the study."
            ) from error
        raise TypeError(f"{name}: unknown distribution {distribution!r}")

    def params(self, place: int) -> dict[str, Any]:
        """Return name -> stored value of what the sampler has chosen for a proposal."""
        return self._at(place).params

    def set_params(
        self,
        place: int,
        values: Mapping[str, Any],
        distributions: Mapping[str, BaseDistribution],
    ) -> None:
        """Set stored values of a proposal by name, also those that its sampler did not choose."""
        known = self.params(place)
        for name, value in values.items():
            if name not in known or known[name] != value:
                kind = distributions[name]
                stored = kind.to_internal_repr(value)
                self._storage.set_trial_param(self._id_at(place), name, stored, kind)

    def noted(self, place: int) -> dict[str, Any]:
        """Return the attributes of a proposal that samplers go by later."""
        return trial_codec.sampler_attributes(self._at(place).system_attrs)

    def drop(self, place: int) -> None:
        """Forget a proposal."""
        with self.stopwatch.running():
            self._end(place, OptunaState.FAIL, None)

    def accept(self, number: int, place: int, stored: FrozenTrial) -> None:
        """Note the number of a proposal that is a trial now."""
        self._places[number] = place
        self._ended.discard(number)
        self._constrain(place, stored)

    # Trials

    def is_open(self, number: int) -> bool:
        """Whether samplers know a trial that has not ended."""
        return number in self._places and number not in self._ended

    def renumber(self, number: int, now: int) -> None:
        """Know a trial by another number."""
        if number in self._places:
            self._places[now] = self._places.pop(number)
        if number in self._ended:
            self._ended.discard(number)
            self._ended.add(now)

    def report(self, number: int, epoch: int, loss: float) -> None:
        """Note the loss of an open trial after an epoch."""
        if self.is_open(number):
            with self.stopwatch.running():
                self._report(self._places[number], epoch, loss)

    def pause(self, number: int, *, paused: bool) -> None:
        """Note that an open trial is paused, or continues."""
        if self.told is None or not self.is_open(number):
            return
        place = self._places[number]
        with self.stopwatch.running():
            if paused:
                self.told.pause(self._at(place))
            else:
                self.told.resume(place, self._id_at(place))

    def tell(self, number: int, state: OptunaState, losses: Sequence[float] | None) -> None:
        """Note how an open trial ended; the losses for a complete one only."""
        self._ended.add(number)
        with self.stopwatch.running():
            self._end(self._places[number], state, losses)

    def evaluated(self, number: int) -> dict[str, Any]:
        """Return the constraints of an ended trial that its sampler has evaluated, to be stored."""
        if not self._learns or number not in self._places:
            return {}
        return trial_codec.evaluated_constraints(self._at(self._places[number]).system_attrs)

    def state(self) -> dict[str, Any]:
        """Return what the trials do not tell of the generations of genetic samplers."""
        attrs = self._storage.get_study_system_attrs(self._id)
        numbers = {place: number for number, place in self._places.items()} if attrs else {}
        return parents_noted(attrs, numbers)

    def learn_peer_trial(self, trial: FrozenTrial, signs: Sequence[int]) -> bool:
        """Note another worker's stored trial; return whether it has ended since then."""
        number = trial.number
        if number in self._ended:
            return False
        with self.stopwatch.running():
            if number not in self._places:
                if trial.state in _LEARNT:
                    self._add(number, trial, signs)
            elif trial.state.is_finished():
                place = self._places[number]
                for epoch, value in trial.intermediate_values.items():
                    self._report(place, epoch, signs[0] * value)
                self._constrain(place, trial)
                self._end(place, trial.state, _losses(trial, signs))
        if trial.state.is_finished():
            self._ended.add(number)
        return trial.state.is_finished()

    def adopt_peer_trial(self, number: int, trial: FrozenTrial) -> None:
        """Begin a trial of this worker's with values that another worker's sampler chose."""
        with self.stopwatch.running():
            self._add(number, trial, self._signs)

    # Inside

    def _add(self, number: int, trial: FrozenTrial, signs: Sequence[int]) -> None:
        """Add a trial that was not asked for here, finished or running."""
        steps = {
            step: signs[0] * value
            for step, value in trial.intermediate_values.items()
            if not (self._several or math.isnan(value))
        }
        noted = trial_codec.sampler_attributes(trial.system_attrs)
        over = trial.state.is_finished()
        added = self._storage.create_new_trial(
            self._id,
            (_EndedTrial if over else FrozenTrial)(
                number=number,
                trial_id=0,  # the storage sets both numbers
                state=trial.state,
                value=None,
                values=_losses(trial, signs),
                datetime_start=trial.datetime_start,
                datetime_complete=trial.datetime_complete,
                params=trial.params,
                distributions=trial.distributions,
                user_attrs={},
                system_attrs=self._constraints(trial) | noted,
                intermediate_values=steps,
            ),
        )
        self._places[number] = place = self._storage.get_trial_number_from_id(added)
        if self.told is not None and over:
            self.told.end(self._at(place))
        elif self.told is not None:
            self.told.begin(place, added)

    def _report(self, place: int, epoch: int, loss: float) -> None:
        """Note a loss; with several objectives none: samplers cannot compare such trials."""
        if not (self._several or math.isnan(loss)):
            self._storage.set_trial_intermediate_value(self._id_at(place), epoch, loss)

    def _constrain(self, place: int, stored: FrozenTrial) -> None:
        """Note by how much a trial violates its constraints, as the storage has them."""
        for name, value in self._constraints(stored).items():
            self._storage.set_trial_system_attr(self._id_at(place), name, value)

    def _end(self, place: int, state: OptunaState, losses: Sequence[float] | None) -> None:
        if self._learns:
            with _named_errors(self._study.sampler):
                self._study.tell(place, losses, state=state)
        else:
            self._storage.set_trial_state_values(self._id_at(place), state, losses)
        if self.told is not None:
            self.told.end(self._at(place))

    def _constraints(self, trial: FrozenTrial) -> dict[str, Any]:
        """The system attributes for the constraints that a stored trial has.

        Each trial has one constraint here: samplers compare the sums, and some refuse trials with
        different numbers of constraints. A user's sampler gets the results of its
        ``constraints_func`` unchanged.
        """
        if self._learns and trial_codec.has_evaluated(trial):
            return trial_codec.constraints_of(trial)
        violation = trial_codec.violation_of(trial)
        if not self._constrained or (violation is None and (self._learns or trial_codec.NAMED)):
            return {}
        # To TPE before Optuna 5, a trial without constraints is worse than one that violates them.
        return trial_codec.constraint_attributes({"violation": violation or 0.0})

    def _id_at(self, place: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, place)

    def _at(self, place: int) -> FrozenTrial:
        return self._storage.get_trial(self._id_at(place))


def _losses(trial: FrozenTrial, signs: Sequence[int]) -> list[float] | None:
    """The values of a stored trial as losses; None if it has none that samplers learn from."""
    if trial.state != OptunaState.COMPLETE or not trial.values:
        return None
    return [sign * value for sign, value in zip(signs, trial.values, strict=True)]


def _differ(one: BaseDistribution, other: BaseDistribution) -> bool:
    """Whether Optuna refuses two distributions for one parameter; their bounds may differ."""
    if type(one) is not type(other) or isinstance(one, CategoricalDistribution):
        return one != other
    return getattr(one, "log", False) != getattr(other, "log", False)


@contextmanager
def _named_errors(sampler: BaseSampler) -> Iterator[None]:
    """Run a sampler without log lines and warnings of experimental features; its errors name it."""
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
