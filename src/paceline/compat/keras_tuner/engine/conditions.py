"""Conditions of hyperparameters, under the names of ``keras_tuner.engine.conditions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import paceline.search_space
from paceline.compat.keras_tuner.protos import HasProto
from paceline.errors import SpaceError


class ConditionTypeError(SpaceError, TypeError):
    """Raised for values that no hyperparameter can have; a TypeError as in KerasTuner."""


class Condition(paceline.search_space.Condition, HasProto):
    """The base of conditions; ``Parent`` is the only kind."""

    theirs: ClassVar[str] = "engine.conditions"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Parent:
        """Returns the condition whose ``get_config`` gave ``config``."""
        return Parent(**config)


class Parent(Condition):
    """Active while the hyperparameter ``name`` has one of ``values``.

    Args:
        name: The full name of the parent.
        values: One value of the parent, or a list of values.

    Raises:
        ConditionTypeError: ``values`` is empty, or has a value that no hyperparameter can have.
    """

    def __init__(self, name: str, values: Any) -> None:
        try:
            checked = paceline.search_space.Condition.of(name, values)
        except SpaceError as error:
            text = f"{error} Can contain only `int`, `float`, `str` or `bool`."
            raise ConditionTypeError(text) from None
        super().__init__(checked.name, checked.values)

    def get_config(self) -> dict[str, Any]:
        """Returns the condition as JSON values."""
        return {"name": self.name, "values": list(self.values)}


def serialize(obj: Parent) -> dict[str, Any]:
    """Returns KerasTuner's config of a condition."""
    return {"class_name": "Parent", "config": obj.get_config()}


def deserialize(config: Mapping[str, Any]) -> Parent:
    """Returns the condition of a config from ``serialize``."""
    return Parent.from_config(config["config"])
