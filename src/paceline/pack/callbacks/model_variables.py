"""Variables that callbacks have in common with a model, as a weight of a loss that they anneal.

A callback that writes to such a variable writes to the model. So the copies of the user's callbacks
that each trial has keep the model's own variables and layers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from paceline.pack.callbacks.reachable import ReachableObjects, reached
from paceline.program import keras_private
from paceline.program.initial_weights import all_variables, is_of_build, is_reused

_HOOKS = tuple(name for name in dir(keras.callbacks.Callback) if name.startswith("on_"))
#: Methods in which layers, losses and metrics read variables.
_STEPS = ("__call__", "build", "call", "compute_loss", "result", "train_step", "update_state")


def copied(callbacks: Sequence[Any], model: Any, kept: Mapping[int, Any]) -> list[Any]:
    """Copies of callbacks, which hold the same variables and layers where those are a model's.

    ``model``: the one that they will be called with. ``kept``: other objects that are not copied,
    by id.
    """
    own = [model, *keras_private.all_layers(model), *all_variables(model)]
    same = {id(each): each for each in own}
    held = _held(callbacks)
    if held.keys() - same.keys():
        read = _read_by(model)
        # A variable that a build has made is not a callback's own, but perhaps another model's.
        same |= {key: v for key, v in held.items() if key in read or is_of_build(v)}
    return copy.deepcopy(list(callbacks), {**same, **kept})


def why_not_beside(callbacks: Sequence[Any], model: Any, *, away: bool = False) -> str | None:
    """Why a trial with these callbacks cannot train beside others, for the user; None: it can.

    ``away``: whether the trial would train on another machine, with another model.
    """
    if is_reused(model):
        return (
            "build returns a model that was created outside, so callbacks of trials that train "
            "together would share it"
        )
    for callback in callbacks:
        what = _what_is_shared(_held([callback]), model, away=away)
        if what is not None:
            return f"callbacks: {type(callback).__name__} holds a variable that {what}"
    return None


def _what_is_shared(held: Mapping[int, Any], model: Any, *, away: bool) -> str | None:
    """What a variable is that a callback holds and a pack could not follow; None: none is."""
    if any(map(is_of_build, held.values())):
        return "build creates, but packs build the models of many trials before they train"
    own = {id(each) for each in all_variables(model)}
    if away and held.keys() & own:
        return "belongs to the model, but on another machine the model has another one"
    if held.keys() - own and (held.keys() - own) & _read_by(model):
        return "the model reads but does not track; packs support only tracked variables"
    return None


def _held(callbacks: Sequence[Any]) -> dict[int, Any]:
    """The variables that callbacks and the user's functions in them reach, by id."""
    given = {f"{type(each).__name__} {i}": each for i, each in enumerate(callbacks)}
    for label, callback in list(given.items()):  # a build may have set what their class does not
        given |= {f"{label}.{name}": part for name, part in vars(callback).items()}
    return _variables_in(reached(given, _HOOKS))


def _read_by(model: Any) -> set[int]:
    """The ids of the variables that the user's code in a model reaches."""
    parts = [*keras_private.all_layers(model), *keras_private.compile_arguments(model).values()]
    given = {f"part {i}": part for i, part in enumerate(parts)}
    return set(_variables_in(reached(given, _STEPS)))


def _variables_in(found: ReachableObjects) -> dict[int, Any]:
    variables: dict[int, Any] = {}
    for each in found.keras.values():
        own = [each] if isinstance(each, keras.Variable) else getattr(each, "variables", ())
        variables |= {id(variable): variable for variable in own}
    return variables
