"""A study in memory that samplers learn from, so that choosing never waits for a storage.

It holds finished trials, unfinished ones with their values epoch by epoch, and rejected proposals
(as failed trials, which Optuna's samplers ignore). Its trial numbers are its own; ``SampledTrials``
knows them by the study's numbers. It always minimises, and callers pass losses, because samplers
choose before the first build shows the direction of a study.
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
from optuna.trial import FrozenTrial, create_trial
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


class InMemoryStudy:
    """An Optuna study in memory, asked and told."""

    def __init__(
        self,
        n: int = 1,
        *,
        learns: bool = False,
        constrained: bool = True,
        told: ToldTrials | None = None,
    ) -> None:
        """Make an empty one.

        Args:
            n: How many objectives it has.
            learns: Whether the sampler is told of ended trials. Samplers that are made again for
                every trial need not be told, which saves Optuna's copying.
            constrained: Whether it holds by how much trials violate their constraints.
            told: Shows the sampler its trials; None: it sees those of the study.
        """
        self._several = n > 1
        self._learns, self._constrained, self._told = learns, constrained, told
        # An Optuna study has to have a sampler. This one is never asked; without a seed it would
        # read the system's random numbers.
        self._nobody = RandomSampler(seed=0)
        self._storage = optuna.storages.InMemoryStorage() if told is None else _ToldStorage(told)
        with quiet_optuna():
            self._study = optuna.create_study(
                storage=self._storage,
                study_name="mirror",
                sampler=self._nobody,
                directions=[optuna.study.StudyDirection.MINIMIZE] * n,
            )
        self._id = self._storage.get_study_id_from_name("mirror")

    def add_trial(self, trial: FrozenTrial, signs: Sequence[int]) -> int:
        """Add a trial of an earlier session, finished or still running, and return its number here.

        ``signs`` are 1 where low values are good, -1 where high ones are, one for each objective.
        """
        losses = _losses(trial, signs)
        steps = {
            step: signs[0] * value
            for step, value in trial.intermediate_values.items()
            if not (self._several or math.isnan(value))
        }
        attrs = self._constraints(trial)
        attrs |= trial_codec.sampler_attributes(trial.system_attrs)
        if trial.state.is_finished():
            added = self._storage.create_new_trial(
                self._id,
                _EndedTrial(
                    number=trial.number,
                    trial_id=0,  # the storage sets both numbers
                    state=trial.state,
                    value=None,
                    values=losses,
                    datetime_start=trial.datetime_start,
                    datetime_complete=trial.datetime_complete,
                    params=trial.params,
                    distributions=trial.distributions,
                    user_attrs={},
                    system_attrs=attrs,
                    intermediate_values=steps,
                ),
            )
            if self._told is not None:
                self._told.end(self._storage.get_trial(added))
            return self._storage.get_trial_number_from_id(added)
        self._study.add_trial(
            create_trial(
                state=trial.state,
                params=trial.params,
                distributions=trial.distributions,
                intermediate_values=steps,
                system_attrs=attrs,
            )
        )
        number = self._storage.get_n_trials(self._id) - 1
        if self._told is not None:
            self._told.begin(number, self._trial_id(number))
        return number

    def ask(self, sampler: BaseSampler | None) -> optuna.Trial:
        """Begin a trial whose values ``sampler`` chooses; None if no Optuna sampler does.

        Raises SamplerError where the sampler failed.
        """
        sampler = sampler or self._nobody
        with _named_errors(sampler):
            self._study.sampler = sampler
            asked = self._study.ask()
        if self._told is not None:
            self._told.begin(asked.number, self._trial_id(asked.number))
        return asked

    def suggest(self, trial: optuna.Trial, name: str, distribution: BaseDistribution) -> Any:
        """Return the stored value that the sampler chooses; the same one when asked again.

        Raises SamplerError where the sampler failed, maybe since earlier trials have another
        distribution.
        """
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

    def params(self, number: int) -> dict[str, Any]:
        """Return name -> stored value of what the sampler has chosen for a trial."""
        return self._storage.get_trial(self._trial_id(number)).params

    def set_params(
        self,
        number: int,
        values: Mapping[str, Any],
        distributions: Mapping[str, BaseDistribution],
    ) -> None:
        """Set stored values of a trial by name, also those that its sampler did not choose."""
        known = self.params(number)
        for name, value in values.items():
            if name not in known or known[name] != value:
                stored = distributions[name].to_internal_repr(value)
                trial = self._trial_id(number)
                self._storage.set_trial_param(trial, name, stored, distributions[name])

    def report(self, number: int, epoch: int, loss: float) -> None:
        """Note a trial's loss after an epoch, counted from 1; NaN is left out.

        With several objectives nothing is noted: Optuna's samplers cannot compare such trials.
        """
        if not (self._several or math.isnan(loss)):
            self._storage.set_trial_intermediate_value(self._trial_id(number), epoch, loss)

    def constrain(self, number: int, stored: FrozenTrial) -> None:
        """Note by how much a trial violates its constraints, as the storage has them."""
        for name, value in self._constraints(stored).items():
            self._storage.set_trial_system_attr(self._trial_id(number), name, value)

    def evaluated(self, number: int) -> dict[str, Any]:
        """Return the constraints of an ended trial that its sampler has evaluated, to be stored."""
        attrs = self._storage.get_trial(self._trial_id(number)).system_attrs if self._learns else {}
        return trial_codec.evaluated_constraints(attrs)

    def noted(self, number: int) -> dict[str, Any]:
        """Return the attributes of a trial that samplers go by later."""
        attrs = self._storage.get_trial(self._trial_id(number)).system_attrs
        return trial_codec.sampler_attributes(attrs)

    def parents(self, numbers: Mapping[int, int]) -> dict[str, Any]:
        """Return what genetic samplers have noted of their generations, as JSON values.

        ``numbers``: number of a trial here -> the number to return.
        """
        attrs = self._storage.get_study_system_attrs(self._id)
        return parents_noted(attrs, numbers) if attrs else {}

    def note_parents(self, noted: Mapping[str, Any], numbers: Mapping[int, int]) -> None:
        """Note again what ``parents`` returned; ``numbers``: number in it -> number here."""
        for key, note in parents_noted(noted, numbers).items():
            self._storage.set_study_system_attr(self._id, key, note)

    def tell(self, number: int, state: OptunaState, losses: Sequence[float] | None = None) -> None:
        """End a trial as COMPLETE, PRUNED or FAIL.

        ``losses`` are for COMPLETE only: low is good, one for each objective. Raises SamplerError
        where the sampler failed to learn from the trial.
        """
        if self._learns:
            with _named_errors(self._study.sampler):
                self._study.tell(number, losses, state=state)
        else:
            self._storage.set_trial_state_values(self._trial_id(number), state, losses)
        if self._told is not None:
            self._told.end(self._storage.get_trial(self._trial_id(number)))

    def pause(self, number: int, *, paused: bool) -> None:
        """Note that a trial is paused, or continues."""
        if self._told is None:
            return
        trial_id = self._trial_id(number)
        if paused:
            self._told.pause(self._storage.get_trial(trial_id))
        else:
            self._told.resume(number, trial_id)

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

    def _trial_id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, number)


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


class SampledTrials:
    """The trials that a sampler learns from, by the study's numbers.

    ``past`` are trials of earlier sessions, as the storage holds them. ``signs`` has one sign for
    each objective: 1 if low values of ``past`` are good, else -1. ``open_again`` has the numbers of
    those that run again; ``parents`` is of the ``state`` of the search that continues. The rest is
    as for ``InMemoryStudy``.
    """

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
        self.told, self._parents = told, parents or {}
        self.stopwatch = Stopwatch()  # time spent in samplers
        self._learns, self._past, self._signs = learns, past, tuple(signs)
        self._constrained = constrained
        self._open_again = open_again
        self._numbers: dict[int, int] = {}  # open trial -> its number in the study in memory
        self._places: dict[int, int] = {}  # trial, also an ended one -> its number there
        self._told: set[int] = set()  # trials that have ended there
        # Reports of open trials need their numbers there at once.
        self._study = self._made() if open_again else None

    @property
    def study(self) -> InMemoryStudy:
        """The study in memory, made when first needed: a study that is only read needs none."""
        if self._study is None:
            self._study = self._made()
        return self._study

    def is_open(self, number: int) -> bool:
        """Whether samplers know a trial that has not ended."""
        return number in self._numbers

    def accept(self, number: int, draft_number: int, stored: FrozenTrial) -> None:
        """Note the number, in the study in memory, of a proposal that is a trial now."""
        self._numbers[number] = self._places[number] = draft_number
        self.study.constrain(draft_number, stored)

    def renumber(self, number: int, now: int) -> None:
        """Know a trial by another number."""
        if number in self._numbers:
            self._numbers[now] = self._numbers.pop(number)
        if number in self._places:
            self._places[now] = self._places.pop(number)
        if number in self._told:
            self._told.discard(number)
            self._told.add(now)

    def report(self, number: int, epoch: int, loss: float) -> None:
        """Note the loss of an open trial after an epoch."""
        if number in self._numbers:
            with self.stopwatch.running():
                self.study.report(self._numbers[number], epoch, loss)

    def pause(self, number: int, *, paused: bool) -> None:
        """Note that an open trial is paused, or continues."""
        if number in self._numbers:
            with self.stopwatch.running():
                self.study.pause(self._numbers[number], paused=paused)

    def tell(self, number: int, state: OptunaState, losses: Sequence[float] | None) -> None:
        """Note how an open trial ended; the losses for a complete one only.

        Raises SamplerError where the sampler failed.
        """
        self._told.add(number)
        with self.stopwatch.running():
            self.study.tell(self._numbers.pop(number), state, losses)

    def evaluated(self, number: int) -> dict[str, Any]:
        """Return the constraints of an ended trial that its sampler has evaluated, to be stored."""
        return self.study.evaluated(self._places[number]) if number in self._places else {}

    def state(self) -> dict[str, Any]:
        """Return what the trials do not tell of the generations of genetic samplers."""
        if self._study is None:
            return dict(self._parents)
        return self._study.parents({place: number for number, place in self._places.items()})

    def learn_peer_trial(self, trial: FrozenTrial, signs: Sequence[int]) -> bool:
        """Note a trial of another worker, as the storage holds it: it runs, or has ended.

        Returns whether it has ended since it was last noted.
        """
        number = trial.number
        with self.stopwatch.running():
            if number not in self._numbers:
                if trial.state in _LEARNT and number not in self._told:
                    self._numbers[number] = self.study.add_trial(trial, signs)
                    self._places[number] = self._numbers[number]
            elif trial.state.is_finished():
                for epoch, value in trial.intermediate_values.items():
                    self.study.report(self._numbers[number], epoch, signs[0] * value)
                self.study.constrain(self._numbers[number], trial)
                self.study.tell(self._numbers[number], trial.state, _losses(trial, signs))
        if not trial.state.is_finished() or number in self._told:
            return False
        self._told.add(number)
        self._numbers.pop(number, None)
        return True

    def adopt_peer_trial(self, number: int, trial: FrozenTrial) -> None:
        """Begin a trial of this worker's with values that another worker's sampler chose."""
        with self.stopwatch.running():
            self._numbers[number] = self.study.add_trial(trial, self._signs)
            self._places[number] = self._numbers[number]

    def _made(self) -> InMemoryStudy:
        """Return a study in memory with the past trials that samplers learn from."""
        study = InMemoryStudy(
            len(self._signs), learns=self._learns, constrained=self._constrained, told=self.told
        )
        for trial in self._past:
            again = trial.number in self._open_again
            if again or trial.state in (OptunaState.COMPLETE, OptunaState.PRUNED):
                self._places[trial.number] = place = study.add_trial(trial, self._signs)
                if again:
                    self._numbers[trial.number] = place
        self._past = ()
        if self._parents:
            study.note_parents(self._parents, self._places)
        return study
