"""What the tuners of KerasTuner do with hyperparameters: names, configs, draws and grids.

The class ``HyperParameters`` is Paceline's own. A hyperparameter maps probabilities in [0, 1) to
its values and back; draws, grids and Gaussian processes use these maps. The arithmetic is that of
KerasTuner, so that a seed gives the same configurations.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any, cast

from paceline.search_space import HyperParameter, HyperParameters
from paceline.search_space.declaration import boolean, choice, fixed, floating, integer

__all__ = [
    "Boolean",
    "Choice",
    "Fixed",
    "Float",
    "HyperParameter",
    "HyperParameters",
    "Int",
    "deserialize",
    "serialize",
]


class _Kind(type):
    """Makes ``isinstance(parameter, Int)`` check the kind, and ``Int(...)`` declare a parameter."""

    declare: Any

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, HyperParameter) and instance.kind == cls.__name__

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("conditions"):
            kwargs["conditions"] = tuple(kwargs["conditions"])
        else:
            kwargs.pop("conditions", None)
        return cls.declare(*args, **kwargs)


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


def serialize(obj: HyperParameter | HyperParameters) -> dict[str, Any]:
    """Return KerasTuner's config of one hyperparameter, or of a ``HyperParameters``."""
    kind = obj.kind if isinstance(obj, HyperParameter) else "HyperParameters"
    return {"class_name": kind, "config": obj.get_config()}


def deserialize(config: Mapping[str, Any]) -> HyperParameter | HyperParameters:
    """Return the hyperparameter, or the ``HyperParameters``, of a config from ``serialize``."""
    if config["class_name"] == "HyperParameters":
        return HyperParameters.from_config(config["config"])
    return HyperParameter.from_config(config["class_name"], config["config"])


def as_ours(given: Any) -> HyperParameters:
    """Returns Paceline's ``HyperParameters`` for those that a user gives.

    Args:
        given: Paceline's or KerasTuner's ``HyperParameters``. If a name is declared twice, the
            first declaration counts.

    Raises:
        TypeError: It is neither.
    """
    if not callable(getattr(given, "get_config", None)):
        raise TypeError(
            f"`hyperparameters` is {given!r}; pass a `HyperParameters` object, such as "
            "`hp = keras_tuner.HyperParameters(); hp.Float('lr', 1e-4, 1e-2)`."
        )
    return HyperParameters.from_config(given.get_config(), trusting=True)


def config_of(hp: HyperParameter) -> dict[str, Any]:
    """Returns the config as KerasTuner prints it; an Int without a given default has None."""
    config = hp.get_config()
    conditions = config.pop("conditions")
    found = {"name": config.pop("name")}
    if hp.kind != "Fixed":
        default = config.pop("default")
        given = hp.kind != "Int" or default != hp.min_value
        found["default"] = default if given else None
    return {**found, "conditions": conditions, **config}


def value_at(hp: HyperParameter, probability: float) -> Any:
    """Returns the value at a cumulative probability in [0, 1)."""
    if hp.kind == "Fixed":
        return hp.value
    if hp.kind == "Boolean":
        return probability >= 0.5
    if hp.choices is not None:
        return hp.choices[_index(probability, len(hp.choices))]
    if hp.step is not None:
        return _nth(hp, _index(probability, _count(hp)))
    low, high, _ = _range(hp)
    if hp.kind == "Float":
        return _between(hp, low, high, probability)
    return int(
        _between(hp, low, high + 1, probability)
    )  # + 1: the upper bound is as likely as the others


def probability_of(hp: HyperParameter, value: Any) -> float:
    """Returns the middle of the probabilities that lead to a value."""
    if hp.kind == "Fixed":
        return 0.5
    if hp.kind == "Boolean":
        return 0.75 if value else 0.25
    if hp.choices is not None:
        return (hp.choices.index(value) + 0.5) / len(hp.choices)
    low, high, step = _range(hp)
    if hp.step is not None:
        if hp.sampling == "linear":
            index = (value - low) // step
        else:
            ratio = value if hp.sampling == "log" else high - value + low
            index = math.log(ratio / low, step)
        return (index + 0.5) / _count(hp)
    if hp.kind == "Int":
        value, high = value + 0.5, high + 1
    if low == high:
        return 0.5
    if hp.sampling == "linear":
        return (value - low) / (high - low)
    if hp.sampling == "log":
        return math.log(value / low) / math.log(high / low)
    return 1.0 - math.log((high + low - value) / low) / math.log(high / low)


def draw(hp: HyperParameter, seed: int) -> Any:
    """Returns a random value, the same one for the same seed."""
    return value_at(hp, random.Random(seed).random())


def grid_of(hp: HyperParameter) -> list[Any]:
    """Returns the values of a grid, the default first; 10 values of a range without step."""
    if hp.kind == "Fixed":
        return [hp.value]
    if hp.choices is not None:
        values = list(dict.fromkeys(hp.choices))
    elif hp.step is not None:
        values = [_nth(hp, index) for index in range(_count(hp))]
    else:
        values = sorted({value_at(hp, share * 0.1 + 0.05) for share in range(10)})
    return [hp.default, *(value for value in values if value != hp.default)]


def _range(hp: HyperParameter) -> tuple[Any, Any, Any]:
    return cast(Any, hp.min_value), cast(Any, hp.max_value), cast(Any, hp.step)


def _index(probability: float, count: int) -> int:
    return min(math.floor(probability / (1 / count)), count - 1)


def _count(hp: HyperParameter) -> int:
    """Number of values of a range with a step."""
    low, high, step = _range(hp)
    if hp.sampling == "linear":
        return int((high - low) // step + 1)
    return int(math.log(high / low, step) + 1e-8) + 1


def _nth(hp: HyperParameter, index: int) -> Any:
    """The value at an index of a range with a step."""
    low, high, step = _range(hp)
    if hp.sampling == "linear":
        value = low + index * step
    else:
        value = low * math.pow(step, index)
        value = value if hp.sampling == "log" else high + low - value
    return int(value) if hp.kind == "Int" else value


def _between(hp: HyperParameter, low: Any, high: Any, share: float) -> float:
    if hp.sampling == "linear":
        return share * (high - low) + low
    if hp.sampling == "log":
        return low * math.pow(high / low, share)
    return high + low - low * math.pow(high / low, 1 - share)
