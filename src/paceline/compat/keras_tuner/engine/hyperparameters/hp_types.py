"""The kinds of hyperparameters as classes: ``Int("units", 8, 64)`` declares one by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.search_space import Condition, HyperParameter
from paceline.search_space.declaration import boolean, choice, fixed, floating, integer

__all__ = ["Boolean", "Choice", "Fixed", "Float", "Int", "deserialize", "serialize"]


class _Kind(type):
    """Makes ``isinstance(parameter, Int)`` check the kind, and ``Int(...)`` declare a parameter."""

    declare: Any

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, HyperParameter) and instance.kind == cls.__name__

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.pop("conditions", None) or ()
        conditions = tuple(Condition.of(each.name, list(each.values)) for each in given)
        return cls.declare(*args, **kwargs, conditions=conditions)

    def from_config(cls, config: Mapping[str, Any]) -> HyperParameter:
        """Return the hyperparameter of a config from ``get_config``."""
        return HyperParameter.from_config(cls.__name__, config)


class Int(metaclass=_Kind):
    """A whole number; the arguments are those of ``hp.Int``."""

    declare = staticmethod(integer)


class Float(metaclass=_Kind):
    """A number; the arguments are those of ``hp.Float``."""

    declare = staticmethod(floating)


class Choice(metaclass=_Kind):
    """One value of a list; the arguments are those of ``hp.Choice``."""

    declare = staticmethod(choice)


class Boolean(metaclass=_Kind):
    """False or True; the arguments are those of ``hp.Boolean``."""

    declare = staticmethod(boolean)


class Fixed(metaclass=_Kind):
    """A value that is not searched; the arguments are those of ``hp.Fixed``."""

    declare = staticmethod(fixed)


def serialize(obj: HyperParameter) -> dict[str, Any]:
    """Return KerasTuner's config of a hyperparameter."""
    return {"class_name": obj.kind, "config": obj.get_config()}


def deserialize(config: Mapping[str, Any]) -> HyperParameter:
    """Return the hyperparameter of a config from ``serialize``."""
    return HyperParameter.from_config(config["class_name"], config["config"])
