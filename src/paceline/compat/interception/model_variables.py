"""Copies variables between a user's model and the pack that trains it."""

from __future__ import annotations

from typing import Any

from paceline.program.trace import State


class ModelVariables:
    """The variables of a built, compiled model, which train in a pack.

    A packed ``fit`` copies them from the pack at the end of every epoch, because callbacks may read
    them there, and copies what callbacks have changed back into the pack. The model is the user's,
    just after a pack has queued it.
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
                variable.assign(value)
        self._seen = self._values()

    def changed(self) -> State | None:
        """Returns all values if any was written since the last ``take``; else None."""
        values = self._values()
        same = all(
            new is old
            for part, seen in zip(values, self._seen, strict=True)
            for new, old in zip(part, seen, strict=True)
        )
        if same:
            return None
        self._seen = values
        trainable, non_trainable, optimizer = values
        return State(trainable, non_trainable, optimizer, self._metrics)

    def _values(self) -> list[list[Any]]:
        return [[variable.value for variable in part] for part in self._parts]
