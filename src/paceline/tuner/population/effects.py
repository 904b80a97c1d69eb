"""What other values of hyperparameters change in a model, found out by building it.

Population based training gives copies of trials other values while they train. Nothing is known by
name: the model is built with another value, and the two are compared.

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

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.executor.model_builder import ModelBuilder
from paceline.executor.sharing.grouping import LocalGroup
from paceline.executor.training.copies import Compose, TrialCopies
from paceline.program import keras_private
from paceline.program.canonical import Unpackable
from paceline.program.trace import State
from paceline.search_space import HyperParameters, Parameter
from paceline.search_space.parameter import one_value_apart
from paceline.tuner.arguments.arguments import SearchArguments
from paceline.tuner.search.first_build import built_with_all

#: Values of a hyperparameter that are tried until ``build`` takes one.
_PROBES = 10


@dataclass(frozen=True)
class Effect:
    """What another value of a hyperparameter changes in a model."""

    fixed: str | None = None  # why it cannot change while a trial trains; None if it can
    leaves: frozenset[int] = frozenset()  # numbers of the optimizer's variables that follow from it
    sets_rate: bool = False  # whether the learning rate is among them
    build_fails: bool = False  # whether ``build`` takes no such value; others it may
    declares: frozenset[str] = frozenset()  # names that ``build`` has with the other value alone


@dataclass(frozen=True)
class _ProbedModel:
    """A model that was built to be compared."""

    hparams: Mapping[str, Any]
    parameters: Mapping[str, Parameter]  # by plain name
    group: LocalGroup
    state: State
    rate: int | None  # number of the learning rate among the optimizer's variables


class Effects:
    """Finds out what other values of hyperparameters change, by building models."""

    def __init__(
        self, builder: ModelBuilder, arguments: SearchArguments, copies: TrialCopies, seed: int
    ) -> None:
        self._builder, self._arguments, self._copies = builder, arguments, copies
        self._seed = seed
        self._models: dict[tuple[Any, ...], _ProbedModel] = {}
        self._found: dict[tuple[Any, ...], Effect] = {}
        self._read_by_callbacks: frozenset[str] | None = None

    def parameters(self, hparams: Mapping[str, Any]) -> Mapping[str, Parameter]:
        """The hyperparameters that ``build`` declares with these values, by plain name."""
        return self._model(hparams).parameters

    def usual(self, hp: HyperParameters, given: Set[str] = frozenset()) -> dict[str, Any]:
        """The hyperparameters of a build, with floats within their ranges; those ``given`` stay."""
        # Defaults are often bounds, and a rate of zero leaves an operation out.
        usual = hp.hparams
        for parameter in hp.parameters.values():
            if (name := parameter.name) not in given:
                usual[name] = usual_value(parameter, usual[name])
        try:
            self.parameters(usual)
        except Exception:  # the user's build, which has taken the defaults
            return hp.hparams
        return usual

    def branches(self, first: HyperParameters) -> Iterator[dict[str, Any]]:
        """Gives the hparams of builds that each differ from the first build in one value.

        What is declared under an ``if`` shows only in a build that takes that branch. There it has
        its usual value, and is given others as well. A build that fails is left out.
        """
        shown = dict(first.parameters)
        looks = deque(one_value_apart(shown.values(), self.usual(first)))
        while looks:
            hparams = looks.popleft()
            hp = HyperParameters(values=hparams)
            try:
                built_with_all(self._builder, self._arguments, hp, self._seed)
            except Exception:  # the user's build; a trial that fails will say why
                continue
            new = {name: each for name, each in hp.parameters.items() if name not in shown}
            if new:
                hparams = self.usual(hp, given=hparams.keys())
                shown |= new
                looks.extend(one_value_apart(new.values(), hparams))
            yield {name: hparams.get(name, value) for name, value in hp.hparams.items()}

    def program(self, hparams: Mapping[str, Any]) -> tuple[str, ...] | None:
        """What trials have in common whose hyperparameters have the same effects; None: unknown.

        It is the name of their group, and those that ``build`` declares.
        """
        with suppress(Exception):
            model = self._model(hparams)
            return model.group.name, *model.parameters
        return None

    def of(self, hparams: Mapping[str, Any], name: str, other: Any) -> Effect:
        """What another value of one hyperparameter changes."""
        key = (*self._key(hparams), name, _like(other))
        if key in self._found:
            return self._found[key]
        effect = self._compare(hparams, name, other)
        if not effect.build_fails:  # floats share a key, and the next one may be taken
            self._found[key] = effect
        return effect

    def of_others(self, hparams: Mapping[str, Any], name: str) -> Effect:
        """What other values of a hyperparameter change: the first that ``build`` takes says it."""
        model = self._model(hparams)
        if name not in model.parameters:
            return Effect("it has one value" if name in model.hparams else "callbacks use it")
        values = model.parameters[name].values()
        step = math.ceil(len(values) / _PROBES)
        others = [value for value in values[::-step] if value != hparams[name]]
        effect = Effect("it has one value")
        for value in [each for each in others if each != 0] or others:
            effect = self.of(hparams, name, value)
            if not effect.build_fails:
                break
        return effect

    def compose(
        self, source: Mapping[str, Any], own: Mapping[str, Any], non_trainable: Sequence[Any]
    ) -> Compose:
        """Returns what chooses the variables that a copy with the hparams ``own`` begins with.

        ``non_trainable`` are the variables of the copy's model, in Keras' order.
        """
        leaves: set[int] = set()
        for name, value in own.items():
            if value != source.get(name):
                leaves |= self.of(source, name, value).leaves
        seeds = {
            at
            for at, variable in enumerate(non_trainable)
            if variable.name == keras_private.SEED_STATE
        }

        def chosen(mine: State, other: State) -> State:
            return State(
                other.trainable,
                _mixed(other.non_trainable, mine.non_trainable, seeds),
                _mixed(other.optimizer, mine.optimizer, leaves),
                other.metrics,
            )

        return chosen

    def _compare(self, hparams: Mapping[str, Any], name: str, other: Any) -> Effect:
        if name in self._callback_names(hparams):
            return Effect("callbacks use it")
        base = self._model(hparams)  # of a trial like it, which may have the other value
        try:
            if base.hparams[name] == other:
                base = self._make({**base.hparams, name: hparams[name]})
            changed = self._make({**base.hparams, name: other})
        except Unpackable as why:
            return Effect(f"trials of another value cannot be packed: {why}")
        except Exception as error:  # the user's build
            why = f"build(hp) fails with {other!r}: {type(error).__name__}: {error}"
            return Effect(why, build_fails=True)
        if changed.group is not base.group or changed.parameters.keys() != base.parameters.keys():
            new = changed.parameters.keys() - base.parameters.keys()
            return Effect("another value needs another program", declares=frozenset(new))
        pairs = zip(base.state.lists(), changed.state.lists(), strict=True)
        differ = [_differing(ours, theirs) for ours, theirs in pairs]
        if differ[0] or differ[1]:
            return Effect("it determines the initial weights")
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

    def _model(self, hparams: Mapping[str, Any]) -> _ProbedModel:
        key = self._key(hparams)
        if key not in self._models:
            self._models[key] = self._make(hparams)
        return self._models[key]

    def _make(self, hparams: Mapping[str, Any]) -> _ProbedModel:
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
        return _ProbedModel(dict(hp.hparams), parameters, group, state, rate)


def _like(value: Any) -> Any:
    """What stands for a value: floats are alike, but for zero, which leaves an operation out."""
    return value == 0 if isinstance(value, float) else value


def usual_value(parameter: Parameter, default: Any) -> Any:
    """Returns a float within its range, and otherwise the default, which may decide a program."""
    values = parameter.values()
    return values[len(values) // 2] if isinstance(default, float) else default


def _differing(ours: Sequence[Any], theirs: Sequence[Any]) -> set[int]:
    """The numbers of the arrays that differ; of unlike lists, all."""
    if len(ours) != len(theirs):
        return set(range(max(len(ours), len(theirs))))
    pairs = enumerate(zip(ours, theirs, strict=True))
    return {at for at, (a, b) in pairs if not np.array_equal(np.asarray(a), np.asarray(b))}


def _mixed(theirs: Sequence[Any], ours: Sequence[Any], own: Set[int]) -> list[Any]:
    """Their arrays, but for those of our own; their own where the lists are unlike."""
    if len(theirs) != len(ours):
        return list(theirs)
    return [ours[at] if at in own else array for at, array in enumerate(theirs)]
