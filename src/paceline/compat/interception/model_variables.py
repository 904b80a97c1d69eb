"""Copies variables between a user's model and the pack that trains it."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np

from paceline.program.trace import State


class ModelVariables:
    """The variables of a built, compiled model, which train in a pack.

    A packed ``fit`` copies them from the pack at the end of every epoch, because callbacks may read
    them. It copies what callbacks have changed back into the pack. The model is the user's, just
    after a pack has queued it.
    """

    def __init__(self, model: Any) -> None:
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._parts = [
            list(model.trainable_variables),
            list(model.non_trainable_variables),
            list(model.optimizer.variables),
        ]
        self._metrics = [variable.value for variable in model.metrics_variables]
        self._seen = self._values()

    def take(self, state: State) -> None:
        """Assigns the values that the pack has."""
        for variables, values in zip(self._parts, state.lists(), strict=False):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(_of_kind(variable, value))
        self._seen = self._values()

    def changed(self) -> State | None:
        """Returns all values if any was written since the last ``take``; else None."""
        values = self._values()
        same = all(
            new is old or _equal(new, old)
            for part, seen in zip(values, self._seen, strict=True)
            for new, old in zip(part, seen, strict=True)
        )
        if same:
            return None
        self._seen = values
        trainable, non_trainable, optimizer = values
        return State(trainable, non_trainable, optimizer, self._metrics)

    @property
    def values(self) -> list[list[Any]]:
        """Trainable, non-trainable and optimizer variables as the pack has them."""
        return self._seen

    def _values(self) -> list[list[Any]]:
        return [[fixed_value(variable) for variable in part] for part in self._parts]


def _equal(new: Any, old: Any) -> bool:
    # JAX never changes an array, and a large one need not be read.
    return keras.backend.backend() != "jax" and bool(np.array_equal(new, old, equal_nan=True))


def fixed_value(variable: Any) -> Any:
    """The array of a variable, which stays as it is when the variable changes."""
    if keras.backend.backend() == "jax":
        return variable.value
    return np.array(keras.ops.convert_to_numpy(variable.value))


def _of_kind(variable: Any, value: Any) -> Any:
    """A value as the variable's backend has it: TensorFlow has seeds and counts of 64 bits."""
    if keras.backend.backend() == "jax":
        return value
    return np.asarray(value).astype(jax.numpy.dtype(variable.dtype))
