"""Population based training: copies of the best trials take the places of the worst.

``study/pruners/pbt.py`` says who is copied where. Here is how: the copy is a trial of its own,
built with other values of its hyperparameters, which begins with the variables of the trial that it
continues. Nothing is known by name. What another value changes is found out by building the model
with it and comparing the two:

| what differs | examples | then |
|---|---|---|
| constants of the steps | dropout, weight decay, momentum | the copy has its own |
| variables of the optimizer | learning rate | the copy keeps its own, and takes over the others |
| first weights | the scale of an initializer | it stays as it is: weights are taken over |
| the program | units, layers, batch size | it stays as it is: the weights would not fit |

A copy keeps the states of its own seed generators, or copies of one trial would all drop out the
same units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from paceline.errors import UsageError
from paceline.executor.copies import TrialCopies
from paceline.executor.grouping import Group
from paceline.executor.local import LocalExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.program import keras_private
from paceline.program.canonical import Unpackable
from paceline.program.trace import State
from paceline.search_space import HyperParameters, Parameter
from paceline.study.draft import BuildFailed
from paceline.study.pruners.exploration import copy_seed, explored
from paceline.study.pruners.pbt import Exchange, PopulationPruner
from paceline.study.trial import Trial
from paceline.tuner.arguments import SearchArguments
from paceline.tuner.context import SearchContext
from paceline.tuner.launcher import TrialLauncher
from paceline.tuner.search_state import SearchCheckpointer
from paceline.tuner.trial_events import TrialEvents

#: Attempts at other values for one copy, which the build may reject.
_ATTEMPTS = 10
#: Callbacks of Keras' that set the learning rate of a trial, whatever it was.
_RATE_CALLBACKS = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)


@dataclass(frozen=True)
class Effect:
    """What another value of a hyperparameter changes in a model.

    Attributes:
        fixed: Why it cannot change while a trial trains; None where it can.
        leaves: Numbers of the optimizer's variables that follow from it.
        sets_rate: Whether the learning rate is among them.
    """

    fixed: str | None = None
    leaves: frozenset[int] = frozenset()
    sets_rate: bool = False


@dataclass(frozen=True)
class _Probed:
    """A model that was built to be compared."""

    hparams: Mapping[str, Any]
    parameters: Mapping[str, Parameter]  # by plain name
    group: Group
    state: State
    rate: int | None  # number of the learning rate among the optimizer's variables


class Effects:
    """Finds out what other values of hyperparameters change, by building models.

    Args:
        builder: Builds the models.
        arguments: The arguments of the search.
        copies: Traces the models.
        seed: The seed of their weights.
    """

    def __init__(
        self, builder: ModelBuilder, arguments: SearchArguments, copies: TrialCopies, seed: int
    ) -> None:
        self._builder, self._arguments, self._copies = builder, arguments, copies
        self._seed = seed
        self._models: dict[tuple[Any, ...], _Probed] = {}
        self._found: dict[tuple[Any, ...], Effect] = {}
        self._read_by_callbacks: frozenset[str] | None = None

    def parameters(self, hparams: Mapping[str, Any]) -> Mapping[str, Parameter]:
        """The hyperparameters that ``build`` declares with these values, by plain name."""
        return self._model(hparams).parameters

    def of(self, hparams: Mapping[str, Any], name: str, other: Any) -> Effect:
        """What another value of one hyperparameter changes.

        Args:
            hparams: Plain name -> real value, of all.
            name: The hyperparameter's.
            other: Its other value.
        """
        key = (*self._key(hparams), name, _like(other))
        if key not in self._found:
            self._found[key] = self._compare(hparams, name, other)
        return self._found[key]

    def probe_values(self, hparams: Mapping[str, Any], name: str) -> list[Any]:
        """Another value or two of a hyperparameter, to see what it changes; none if it has none."""
        parameter, own = self.parameters(hparams)[name], hparams[name]
        others = [value for value in parameter.values() if value != own]
        return ([value for value in others if value != 0] or others)[-1:]

    def _compare(self, hparams: Mapping[str, Any], name: str, other: Any) -> Effect:
        if name in self._callback_names(hparams):
            return Effect("callbacks read it")
        base = self._model(hparams)
        try:
            changed = self._make({**base.hparams, name: other})
        except Unpackable as why:
            return Effect(f"trials of another value cannot be packed: {why}")
        except Exception as error:  # the user's build
            return Effect(f"build(hp) fails with {other!r}: {type(error).__name__}: {error}")
        if changed.group is not base.group or changed.parameters.keys() != base.parameters.keys():
            return Effect("another value makes another program")
        pairs = zip(base.state.lists(), changed.state.lists(), strict=True)
        differ = [_differing(ours, theirs) for ours, theirs in pairs]
        if differ[0] or differ[1]:
            return Effect("it decides the first weights")
        return Effect(None, frozenset(differ[2]), base.rate in differ[2])

    def _callback_names(self, hparams: Mapping[str, Any]) -> frozenset[str]:
        """The hyperparameters that the function of callbacks asks for."""
        if self._read_by_callbacks is None:
            hp = HyperParameters(values=hparams)
            if self._arguments.callbacks is not None:
                self._arguments.callbacks.ask(hp)
            self._read_by_callbacks = frozenset(p.name for p in hp.parameters.values())
        return self._read_by_callbacks

    def _key(self, hparams: Mapping[str, Any]) -> tuple[Any, ...]:
        """What tells the models apart in which a hyperparameter may have another effect."""
        return tuple((name, _like(value)) for name, value in sorted(hparams.items()))

    def _model(self, hparams: Mapping[str, Any]) -> _Probed:
        key = self._key(hparams)
        if key not in self._models:
            self._models[key] = self._make(hparams)
        return self._models[key]

    def _make(self, hparams: Mapping[str, Any]) -> _Probed:
        hp = HyperParameters(values=hparams)
        model = self._builder(hp, self._seed)
        group, state = self._copies.probe(model, self._arguments.inputs_for(hp, model))
        rate = next(
            (
                at
                for at, variable in enumerate(model.optimizer.variables)
                if variable is model.optimizer.learning_rate
            ),
            None,
        )
        parameters = {each.name: each for each in hp.parameters.values()}
        return _Probed(dict(hp.hparams), parameters, group, state, rate)


def _like(value: Any) -> Any:
    """What stands for a value: floats are alike, but for zero, which leaves an operation out."""
    return value == 0 if isinstance(value, float) else value


def _usual(parameter: Parameter, default: Any) -> Any:
    """A float within its range, and otherwise the default, which may decide a program."""
    values = parameter.values()
    return values[len(values) // 2] if isinstance(default, float) else default


def _differing(ours: Sequence[Any], theirs: Sequence[Any]) -> set[int]:
    """The numbers of the arrays that differ; of unlike lists, all."""
    if len(ours) != len(theirs):
        return set(range(max(len(ours), len(theirs))))
    pairs = enumerate(zip(ours, theirs, strict=True))
    return {at for at, (a, b) in pairs if not np.array_equal(np.asarray(a), np.asarray(b))}


class Population:
    """Exchanges the trials of one search.

    Args:
        context: The search; its pruner is a ``PopulationPruner``.
        events: Told of copies that fail.
        launcher: Begins copies.
        checkpointer: Saves the search before its first exchange.

    Raises:
        UsageError: The search cannot be one of a population.
    """

    def __init__(
        self,
        context: SearchContext,
        events: TrialEvents,
        launcher: TrialLauncher,
        checkpointer: SearchCheckpointer,
    ) -> None:
        assert isinstance(context.pruner, PopulationPruner)
        arguments = context.arguments
        if context.study.peers.shared:
            raise UsageError(
                "pruner: the members of pbt's population wait for one another in one process, and "
                f"other processes search study {context.study.name!r}; choose another study name."
            )
        if context.packs is None:
            raise UsageError(
                "pruner: pbt copies trials in packs, and trials of this search run in Keras' own "
                f"fit: {arguments.why_fit or 'their data are no arrays'}; use another pruner."
            )
        if not isinstance(context.packs, LocalExecutor):
            raise UsageError(
                "pruner: pbt copies trials between the packs of one machine, and executor='ray' "
                "trains on several; leave executor out, or use another pruner, such as 'asha'."
            )
        if arguments.validation_freq != 1:
            raise UsageError(
                "pruner: pbt compares trials after the epochs of its exchanges, so that each epoch "
                f"is validated; validation_freq is {arguments.validation_freq!r}: leave it out."
            )
        self._context, self._events = context, events
        self._pruner, self._packs = context.pruner, context.packs
        self._launcher, self._checkpointer = launcher, checkpointer
        self._study, self._trials = context.study, context.trials
        self._seed = context.study.seed
        self.effects = Effects(context.builder, arguments, context.packs.copies, self._seed)
        self._seen: set[str] = set()  # programs whose hyperparameters were looked at

    def check(self, hp: HyperParameters) -> None:
        """Checks before the first trial that there is something to explore.

        Args:
            hp: The hyperparameters of a first build.

        Raises:
            UsageError: No hyperparameter can change while a trial trains, or one of ``only`` cannot
                or is not there, or a callback sets the learning rate too.
        """
        # Defaults are often bounds, and a rate of zero leaves an operation out.
        hparams = {p.name: _usual(p, hp.hparams[p.name]) for p in hp.parameters.values()}
        effects = self._effects(hparams)
        only = self._pruner.settings.only
        for name in only or ():
            if name not in effects:
                raise UsageError(
                    f"PBT: only has {name!r}, and build declares no such hyperparameter; it "
                    f"declares {', '.join(effects) or 'none'}."
                )
            if (why := effects[name].fixed) is not None:
                raise UsageError(
                    f"PBT: only has {name!r}, which cannot change while a trial trains: {why}."
                )
        free = [name for name, effect in effects.items() if self._may_change(name, effect)]
        fixed = [(n, e.fixed) for n, e in effects.items() if e.fixed is not None]
        kept = "; ".join(f"{name} stays as it was drawn: {why}" for name, why in fixed)
        if not free:
            raise UsageError(
                "pruner: pbt changes hyperparameters while trials train, and none can be changed: "
                f"{kept or 'build declares none'}; use asha, which stops the worst trials."
            )
        self._check_rate([name for name in free if effects[name].sets_rate], hparams)
        self._context.notes(f"pbt changes {', '.join(free)}" + (f"; {kept}" if kept else ""))

    def _check_rate(self, names: Sequence[str], hparams: Mapping[str, Any]) -> None:
        """Refuses callbacks that would overwrite the learning rate of a copy."""
        callbacks = self._context.arguments.callbacks
        if callbacks is None or not names:
            return
        for each in callbacks.classes(HyperParameters(values=hparams)):
            if issubclass(each, _RATE_CALLBACKS):
                raise UsageError(
                    f"pruner: pbt changes {names[0]!r}, and so does the callback {each.__name__}, "
                    "which would overwrite it; leave the callback out, or name in PBT(only=[...]) "
                    "the hyperparameters that may change."
                )

    def look(self) -> None:
        """Traces models like the trials that have begun, with other values.

        So the numbers that exchanges will change are inputs of the programs from the start, and
        nothing is compiled again when they do.
        """
        for number in list(self._trials.running):
            trial = self._study.trials.by_number(number)
            if trial.program is not None and trial.program not in self._seen:
                self._seen.add(trial.program)
                self._effects(trial.hparams)

    def exchange_if_due(self) -> None:
        """Has copies take the places of the worst members, once all members are there."""
        launcher = self._launcher
        if not self._pruner.waits or self._trials.running:
            return
        if launcher.to_come != 0 and not launcher.over:
            return
        policy = self._context.policy
        if policy is not None and not policy.any:
            # A search that goes on from a checkpoint makes the same copies again. From the storage
            # alone it could not.
            self._checkpointer.save()
        for exchange in self._pruner.exchange(self._seed):
            self._copy(exchange)

    def _effects(self, hparams: Mapping[str, Any]) -> dict[str, Effect]:
        """What each hyperparameter of a trial changes, by plain name."""
        found = {}
        for name in self.effects.parameters(hparams):
            values = self.effects.probe_values(hparams, name)
            effects = [self.effects.of(hparams, name, value) for value in values]
            found[name] = effects[0] if effects else Effect("it has one value")
        for name in hparams.keys() - found.keys():
            found[name] = Effect("callbacks read it")
        return found

    def _may_change(self, name: str, effect: Effect) -> bool:
        only = self._pruner.settings.only
        return effect.fixed is None and (only is None or name in only)

    def _copy(self, exchange: Exchange) -> None:
        """Begins a trial that takes the place of another."""
        source = self._study.trials.by_number(exchange.source)
        seed = copy_seed(self._seed, exchange.replaced, exchange.epoch)
        asker, build = self._study.asker, self._launcher.build
        for attempt in range(_ATTEMPTS + 1):
            hparams = dict(source.hparams)
            if attempt < _ATTEMPTS:
                hparams = self._explore(source, exchange, attempt)
            try:
                draft, hp, built = asker.propose_copy(
                    source.number, exchange.epoch, hparams, seed, build
                )
                break
            except BuildFailed as failed:  # a constraint, or values that the user rejects
                if attempt == _ATTEMPTS:
                    self._launcher.begin_failed(failed, extra=True)
                    return
                self._study.proposer.reject(failed.draft)
        number = self._study.accept(draft, hp)
        self._launcher.begin(number, built.epochs, extra=True)
        self._launcher.submit(number, draft.seed, hp.hparams, built)
        if number in self._trials.running:
            self._take_over(number, source, exchange.epoch, built.model)

    def _explore(self, source: Trial, exchange: Exchange, attempt: int) -> dict[str, Any]:
        """The values of a copy: those of the trial that it continues, some of them changed."""
        hparams = dict(source.hparams)
        settings = self._pruner.settings
        for name, parameter in self.effects.parameters(hparams).items():
            stream = exchange.replaced, exchange.epoch, attempt
            value = explored(parameter, hparams[name], settings, self._seed, *stream)
            if value == hparams[name]:
                continue
            effect = self.effects.of(source.hparams, name, value)
            if self._may_change(name, effect):
                hparams[name] = value
        return hparams

    def _take_over(self, number: int, source: Trial, epoch: int, model: Any) -> None:
        """Has a copy that was submitted begin where the trial is that it continues."""
        running, paused = self._trials.running[number], self._trials.paused[source.number]
        now = self._study.trials.by_number(number).hparams
        own: set[int] = set()
        for name, value in now.items():
            if value != source.hparams.get(name):
                own |= self.effects.of(source.hparams, name, value).leaves
        seeds = {
            at
            for at, variable in enumerate(model.non_trainable_variables)
            if variable.name == keras_private.SEED_STATE
        }

        def compose(mine: State, other: State) -> State:
            return State(
                other.trainable,
                _mixed(other.non_trainable, mine.non_trainable, seeds),
                _mixed(other.optimizer, mine.optimizer, own),
                other.metrics,
            )

        callbacks = None
        if running.not_packed is None:
            callbacks = self._packs.copies.begin(number, source.number, compose)
        if callbacks is None:
            why = f"trial {number} cannot take over the variables of trial {source.number}"
            self._events.training_failed(number, RuntimeError(why))
            return
        for callback in callbacks:
            if callback["lost"]:
                self._context.notes(
                    f"pbt: trial {number} does not take over {', '.join(callback['lost'])} of the "
                    f"{callback['class']} of trial {source.number}: they begin anew"
                )
        self._study.updates.copy_epochs(number, source.history, epoch)
        running.epoch, running.seconds = epoch, paused.seconds
        held = self._context.models.best.held(source.number)
        if held is not None:
            at, value, weights = held
            self._context.models.best.offer(number, at, value, lambda: weights)


def _mixed(theirs: Sequence[Any], ours: Sequence[Any], own: Set[int]) -> list[Any]:
    """Their arrays, but for those of our own; their own where the lists are unlike."""
    if len(theirs) != len(ours):
        return list(theirs)
    return [ours[at] if at in own else array for at, array in enumerate(theirs)]
