"""Hyperparameters as KerasTuner's users know them.

KerasTuner has four files below ``engine.hyperparameters``; their paths lead here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import paceline.search_space
from paceline.compat.keras_tuner.protos import HasProto, get_proto
from paceline.search_space import Condition, HyperParameter, Parameter
from paceline.search_space.declaration import (
    boolean,
    choice,
    fixed,
    floating,
    integer,
    of_config,
)
from paceline.search_space.probability import n_values, nth_value, value_at

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

#: Scales of Int and Float; KerasTuner's messages have numbers for them.
_SAMPLINGS = ("linear", "log", "reverse_log")


class HyperParameters(paceline.search_space.HyperParameters, HasProto):
    """Paceline's ``HyperParameters`` with the rules of KerasTuner.

    The first declaration of a name counts, and later ones with other bounds have no effect. Values
    out of bounds are kept.

    Args:
        values: Name -> value, used if the name is declared and active.
        chooser: As for Paceline's class.
        trusting: As for Paceline's class.
    """

    theirs: ClassVar[str] = "engine.hyperparameters.hyperparameters"

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        chooser: Callable[[Parameter], Any] | None = None,
        trusting: bool = True,
    ) -> None:
        super().__init__(values, chooser=chooser, trusting=trusting)

    @property
    def _hps(self) -> dict[str, list[HyperParameter]]:
        """Name -> its declarations: a private name of KerasTuner that other code reads."""
        found: dict[str, list[HyperParameter]] = {}
        for hp in self.space:
            found.setdefault(hp.name, []).append(hp)
        return found

    def _kept(self, hp: HyperParameter) -> HyperParameter:
        return of_kind(hp)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, trusting: bool = True) -> Self:
        """Return the hp that a config of ``get_config``, ours or KerasTuner's, describes."""
        return super().from_config(config, trusting=trusting)


def as_ours(given: Any) -> HyperParameters:
    """Returns the ``HyperParameters`` of this package for those of any package, else TypeError.

    If a name is declared twice, the first declaration counts.
    """
    if isinstance(given, HyperParameters):
        return given
    if not callable(getattr(given, "get_config", None)):
        raise TypeError(
            f"`hyperparameters` must be a `HyperParameters`, got {given!r}. Pass an object such as "
            "`hp = keras_tuner.HyperParameters(); hp.Float('lr', 1e-4, 1e-2)`."
        )
    return HyperParameters.from_config(given.get_config())


# -- the kinds: ``Int("units", 8, 64)`` declares a hyperparameter by hand -------------------------


class _Kind(type):
    """Makes ``isinstance(parameter, Int)`` check the kind, and ``Int(...)`` declare a parameter."""

    declare: Any

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, HyperParameter) and instance.kind == cls.__name__

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.pop("conditions", None) or ()
        conditions = tuple(Condition.of(each.name, list(each.values)) for each in given)
        return of_kind(cls.declare(*args, **kwargs, conditions=conditions))

    def from_config(cls, config: Mapping[str, Any]) -> HyperParameter:
        """Return the hyperparameter of a config from ``get_config``."""
        return of_kind(of_config(cls.__name__, config, mixed=False))


class Int(HyperParameter, metaclass=_Kind):
    """An integer; the arguments are those of ``hp.Int``."""

    declare = staticmethod(integer)


class Float(HyperParameter, metaclass=_Kind):
    """A number; the arguments are those of ``hp.Float``."""

    declare = staticmethod(floating)


class Choice(HyperParameter, metaclass=_Kind):
    """One value of a list; the arguments are those of ``hp.Choice``."""

    declare = staticmethod(choice)


class Boolean(HyperParameter, metaclass=_Kind):
    """False or True; the arguments are those of ``hp.Boolean``."""

    declare = staticmethod(boolean)


class Fixed(HyperParameter, metaclass=_Kind):
    """A value that is not searched; the arguments are those of ``hp.Fixed``."""

    declare = staticmethod(fixed)


def of_kind(hp: HyperParameter) -> HyperParameter:
    """Returns a hyperparameter as an object of the class that is named after its kind."""
    cls = next(each for each in (Int, Float, Choice, Boolean, Fixed) if each.__name__ == hp.kind)
    if type(hp) is cls:
        return hp
    made = object.__new__(cls)
    vars(made).update(vars(hp))
    return made


def serialize(obj: HyperParameter | HyperParameters) -> dict[str, Any]:
    """Return KerasTuner's config of one hyperparameter, or of a ``HyperParameters``."""
    if isinstance(obj, HyperParameter):
        return {"class_name": obj.kind, "config": obj.get_config()}
    return {"class_name": "HyperParameters", "config": obj.get_config()}


def deserialize(config: Mapping[str, Any]) -> HyperParameter | HyperParameters:
    """Return the hyperparameter, or the ``HyperParameters``, of a config from ``serialize``."""
    if config["class_name"] == "HyperParameters":
        return HyperParameters.from_config(config["config"])
    return of_kind(of_config(config["class_name"], config["config"], mixed=False))


# -- what tuners do with one hyperparameter -------------------------------------------------------


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


def grid_of(hp: HyperParameter) -> list[Any]:
    """Returns the values of a grid, the default first; 10 values of a range without step."""
    if hp.kind == "Fixed":
        return [hp.value]
    if hp.choices is not None:
        values = list(dict.fromkeys(hp.choices))
    elif hp.step is not None:
        values = [nth_value(hp, index) for index in range(n_values(hp))]
    else:
        # KerasTuner's order, that of a set; numbers have the same order in every process.
        values = list({value_at(hp, share * 0.1 + 0.05) for share in range(10)})
    return [hp.default, *(value for value in values if value != hp.default)]


def prob_to_index(prob: float, n_index: int) -> int:
    """Returns the index, from 0, of several equally likely ones at a cumulative probability."""
    return min(math.floor(prob * n_index), n_index - 1)


def index_to_prob(index: int, n_index: int) -> float:
    """Returns the middle of the probabilities that lead to an index."""
    return (index + 0.5) / n_index


def sampling_to_proto(sampling: str) -> Any:
    """Returns KerasTuner's number of a scale, else ValueError; needs KerasTuner itself."""
    if sampling not in _SAMPLINGS:
        raise ValueError(f"Expected sampling to be one of {_SAMPLINGS}. Received: {sampling!r}.")
    return get_proto().Sampling.Value(sampling.upper())


def sampling_from_proto(sampling: Any) -> str:
    """Returns the scale of such a number, else ValueError; needs KerasTuner itself."""
    numbers = {sampling_to_proto(name): name for name in _SAMPLINGS}
    if sampling not in numbers:
        raise ValueError(f"Expected sampling to be one of {list(numbers)}. Received: {sampling!r}.")
    return numbers[sampling]
