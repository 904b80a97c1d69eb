"""What a build declares: a hyperparameter and the conditions under which it is active.

These are the objects in ``hp.space``. Their attributes and configs are KerasTuner's, so that code
that reads them, and projects that stored them, still work.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline.errors import SpaceError
from paceline.search_space.distribution import (
    NO_VALUE,
    Distribution,
    Scalar,
    are_alike,
    distinct,
    distribution_of,
    find_choice,
    grid_values,
    number,
    plain,
    whole,
)
from paceline.search_space.probability import probability_of, value_at

#: Optuna stores floats; above this integer it cannot tell neighbours apart.
_EXACT = 2**53

Kind = Literal["Int", "Float", "Choice", "Boolean", "Fixed"]
Sampling = Literal["linear", "log", "reverse_log"]


class ChoiceTypeError(SpaceError, TypeError):
    """Values of a Choice that are of several types, or of none that can be stored."""


@dataclass(frozen=True)
class Condition:
    """Active while the hyperparameter ``name`` has one of ``values``."""

    name: str
    values: tuple[Scalar | None, ...]

    @classmethod
    def of(cls, name: str, values: Any) -> Condition:
        """Return a condition on a parent, by its full name and one or several of its values."""
        listed = list(values) if isinstance(values, list | tuple) else [values]
        listed = [plain(value) for value in listed]
        kinds = (bool, int, float, str, type(None))
        fine = values is not None and all(isinstance(value, kinds) for value in listed)
        if not listed or not fine:
            raise SpaceError(
                f"condition on {name!r}: parent_values must be a value of the parent or a list of "
                f"them, got {values!r}. Pass int, float, str, bool or None values."
            )
        return cls(name, tuple(listed))

    def is_active(self, values: Mapping[str, Any], *, typed: bool = False) -> bool:
        """Return whether ``values`` (plain name -> value) hold a fitting value of the parent.

        ``typed``: whether 1, 1.0 and True are different values of the parent.
        """
        if self.name not in values:
            return False
        value = values[self.name]
        alike = [each for each in self.values if each == value]
        return any(type(each) is type(value) for each in alike) if typed else bool(alike)

    def __str__(self) -> str:
        return f"{_escape(self.name)}={'|'.join(_escape(str(value)) for value in self.values)}"


def _escape(text: str) -> str:
    """Percent-encode what separates parts of a storage name: no two conditions read alike."""
    return re.sub(r"[%,=|\[\]]", lambda found: f"%{ord(found[0]):02X}", text)


@dataclass(frozen=True, repr=False)
class HyperParameter:
    """One hyperparameter as declared, unique by name and conditions; its text is KerasTuner's.

    Attributes:
        kind: Name of the method of ``hp`` that declares it.
        name: Full name, name scopes included.
        default: Value where nobody chooses one; the value itself for Fixed.
        conditions: All of them must hold for it to be active, outermost first.
        min_value, max_value: Bounds of Int and Float, both included.
        step: Distance between values; their ratio where sampling is not linear; None: no grid.
        sampling: Scale on which Int and Float are spread.
        choices: Values of Choice and Boolean.
        ordered: Whether Choice's values have an order.

    Raises:
        SpaceError: The name is empty, or cannot be stored.
    """

    kind: Kind
    name: str
    default: Any
    conditions: tuple[Condition, ...] = ()
    min_value: int | float | None = None
    max_value: int | float | None = None
    step: int | float | None = None
    sampling: Sampling | None = None
    choices: tuple[Any, ...] | None = None
    ordered: bool | None = None

    def __post_init__(self) -> None:
        if not self.name.rpartition("/")[2].strip():  # what stands before are name scopes
            raise SpaceError(
                f'hp.{self.kind}({self.name!r}): the name is empty. Pass a name, such as "units".'
            )
        _check_storable(f"hp.{self.kind}", [self.name])

    @property
    def value(self) -> Scalar:
        """The value of a Fixed."""
        return self.default

    @property
    def values(self) -> Sequence[Scalar]:
        """All values; of a range without a grid ten values. True comes first, as in KerasTuner."""
        if self.kind == "Fixed":
            return (self.default,)
        if self.kind == "Boolean":
            return (True, False)
        if self.choices is not None:
            return list(distinct(self.choices))
        return grid_values(self.distribution, mirrored=self.mirrored)

    def random_sample(self, seed: int | None = None) -> Scalar:
        """Return a random value; the same seed gives the same value."""
        return value_at(self, random.Random(seed).random())

    def prob_to_value(self, prob: float) -> Scalar:
        """Return the value at a cumulative probability in [0, 1]."""
        return value_at(self, prob)

    def value_to_prob(self, value: Any) -> float:
        """Return the middle of the probabilities that lead to a value."""
        return probability_of(self, value)

    def __repr__(self) -> str:
        if self.kind == "Fixed":
            return f"Fixed(name: {self.name}, value: {self.value})"
        if self.kind == "Boolean":
            return f'Boolean(name: "{self.name}", default: {self.default})'
        if self.kind == "Choice":
            shown = {"values": list(self.choices or ()), "ordered": self.ordered}
        else:
            names = ("min_value", "max_value", "step", "sampling")
            shown = {name: getattr(self, name) for name in names}
        shown["default"] = self.default
        quote = "'" if self.kind == "Float" else ""
        texts = [f"{name}: {quote}{value}{quote}" for name, value in shown.items()]
        return f"{self.kind}(name: '{self.name}', {', '.join(texts)})"

    @property
    def distribution(self) -> Distribution:
        """What Optuna samples; a Fixed has nothing to choose, and no distribution."""
        return distribution_of(
            f'hp.{self.kind}("{self.name}")',
            self.min_value,
            self.max_value,
            self.step,
            self.sampling,
            self.choices,
        )

    @property
    def mirrored(self) -> bool:
        """Whether the storage holds ``min_value + max_value`` minus the value."""
        return self.sampling == "reverse_log" and self.step is None

    @property
    def typed(self) -> bool:
        """Whether choices are equal but for their types, so that the storage holds texts."""
        return self.choices is not None and are_alike(distinct(self.choices))

    @property
    def bounds(self) -> str:
        """The declaration without its default: equal texts declare equal sets of values."""
        if self.kind == "Fixed":
            return f"Fixed({self.default!r})"
        if self.choices is not None:
            return f"{self.kind}({list(self.choices)!r})"
        step = "" if self.step is None else f", step={self.step!r}"
        sampling = "" if self.sampling == "linear" else f", sampling={self.sampling!r}"
        return f"{self.kind}({self.min_value!r}, {self.max_value!r}{step}{sampling})"

    @property
    def storage_name(self) -> str:
        """The name a storage knows it by: ``units``, or ``units[type=a]`` under a condition."""
        under = ",".join(str(condition) for condition in self.conditions)
        return f"{self.name}[{under}]" if under else self.name

    def get_config(self) -> dict[str, Any]:
        """Return KerasTuner's config of this hyperparameter."""
        config: dict[str, Any] = {"name": self.name}
        if self.kind == "Fixed":
            config["value"] = self.default
        else:
            config["default"] = self.default
        if self.kind in ("Int", "Float"):
            for key in ("min_value", "max_value", "step", "sampling"):
                config[key] = getattr(self, key)
        elif self.kind == "Choice":
            config |= {"values": list(self.choices or ()), "ordered": self.ordered}
        config["conditions"] = [
            {"class_name": "Parent", "config": {"name": c.name, "values": list(c.values)}}
            for c in self.conditions
        ]
        return config


def of_config(kind: str, config: Mapping[str, Any], *, mixed: bool = True) -> HyperParameter:
    """Return the hyperparameter of a config of ``get_config``, ours or KerasTuner's.

    ``kind`` is KerasTuner's class name. ``mixed`` is as for ``choice``.
    """
    declare = {
        "Int": integer,
        "Float": floating,
        "Choice": choice,
        "Boolean": boolean,
        "Fixed": fixed,
    }.get(kind)
    if declare is None:
        raise SpaceError(
            f"from_config: class_name must be Int, Float, Choice, Boolean or Fixed, got {kind!r}."
        )
    conditions = tuple(
        Condition.of(entry["config"]["name"], entry["config"]["values"])
        for entry in config.get("conditions") or ()
    )
    arguments = {key: value for key, value in config.items() if key != "conditions"}
    if kind == "Choice":
        arguments["mixed"] = mixed
    return declare(**arguments, conditions=conditions)


def integer(
    name: str,
    min_value: Any,
    max_value: Any,
    step: Any = None,
    sampling: Any = "linear",
    default: Any = None,
    conditions: tuple[Condition, ...] = (),
) -> HyperParameter:
    """Return an Int; see ``HyperParameters.Int``."""
    where = f'hp.Int("{name}")'
    sampling = _sampling(where, sampling)
    low, high = whole(where, "min_value", min_value), whole(where, "max_value", max_value)
    if step is not None:
        step = whole(where, "step", step)
    elif sampling == "linear":
        step = 1
    for argument, value in (("min_value", low), ("max_value", high), ("step", step or 1)):
        if abs(value) > _EXACT:
            raise SpaceError(
                f"{where}: {argument} must be at most 2**53, got {value!r}. Larger neighbouring "
                "integers are stored as one. Use hp.Float, or search the exponent and compute the "
                "number in build."
            )
    _check_range(where, low, high, step, sampling)
    # As in KerasTuner a default may lie off the grid: it is what build gets where nobody chooses.
    start = low if default is None else whole(where, "default", default)
    return HyperParameter("Int", name, start, conditions, low, high, step, sampling)


def floating(
    name: str,
    min_value: Any,
    max_value: Any,
    step: Any = None,
    sampling: Any = "linear",
    default: Any = None,
    conditions: tuple[Condition, ...] = (),
) -> HyperParameter:
    """Return a Float; see ``HyperParameters.Float``."""
    where = f'hp.Float("{name}")'
    sampling = _sampling(where, sampling)
    low, high = number(where, "min_value", min_value), number(where, "max_value", max_value)
    if step is not None:
        step = number(where, "step", step)
    _check_range(where, low, high, step, sampling)
    if not math.isfinite(high - low):
        raise SpaceError(
            f"{where}: min_value {low!r} and max_value {high!r} are further apart than the "
            "largest float. Pass a smaller range, or search the exponent."
        )
    start = low if default is None else number(where, "default", default)
    return HyperParameter("Float", name, start, conditions, low, high, step, sampling)


def _check_storable(where: str, values: Iterable[Any]) -> None:
    """Refuses values that a storage gives back as something else, or not at all."""
    for value in values:
        if type(value) is float and math.isinf(value):
            raise SpaceError(
                f"{where}: a storage cannot keep {value!r}. Pass a large number, or a name that "
                "build looks up."
            )
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise SpaceError(
                f"{where}: {value!r} has more than 64 bits, which a storage cannot keep. Pass it "
                "as text, and convert it in build."
            )
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise SpaceError(
                f"{where}: a storage cannot keep {value!r}, because it is not valid UTF-8. Rename "
                "the file, or pass its index in a list."
            )


def choice(
    name: str,
    values: Iterable[Any],
    ordered: bool | None = None,
    default: Any = None,
    conditions: tuple[Condition, ...] = (),
    *,
    mixed: bool = False,
) -> HyperParameter:
    """Return a Choice; see ``HyperParameters.Choice``.

    ``mixed``: whether None, and values of several types, may be among the choices.
    """
    where = f'hp.Choice("{name}")'
    if isinstance(values, set | frozenset) or not isinstance(values, Iterable):
        raise SpaceError(
            f"{where}: values must be in order, so that every run has the same choices, got "
            f"{values!r}. Pass a list."
        )
    choices = tuple(plain(value) for value in values)
    if not choices:
        raise SpaceError(f"{where}: `values` must be provided, got none. Pass at least one value.")
    kinds = sorted({type(value).__name__ for value in choices})
    if not set(kinds) <= {"bool", "int", "float", "str", *(["NoneType"] if mixed else [])}:
        none = ", `bool` or None" if mixed else " or `bool`"
        raise ChoiceTypeError(
            f"{where}: values {list(choices)!r} hold {', '.join(kinds)}; a Choice can contain "
            f"only `int`, `float`, `str`{none}. Use names, and look the objects up in build."
        )
    _check_storable(where, choices)
    if any(value != value for value in choices):
        raise SpaceError(
            f"{where}: values {list(choices)!r} contain NaN, which equals no value. Use numbers, "
            "or names that build looks up."
        )
    if len(kinds) > 1 and not mixed:
        raise ChoiceTypeError(
            f"{where}: values {list(choices)!r} mix {' and '.join(kinds)}, but a Choice can "
            "contain only one type. Use one type for all of them."
        )
    if ordered and kinds == ["str"]:
        raise SpaceError(
            f"{where}: for strings ordered must be `False`, got True for {list(choices)!r}. Leave "
            "ordered out."
        )
    start = choices[0] if default is None else find_choice(default, choices)
    if start is NO_VALUE:
        raise SpaceError(
            f"{where}: the default value should be one of {list(choices)!r}, got {default!r}."
        )
    if ordered is None:
        ordered = kinds != ["str"] if len(kinds) == 1 else set(kinds) == {"int", "float"}
    ordered = bool(ordered)
    return HyperParameter("Choice", name, start, conditions, choices=choices, ordered=ordered)


def boolean(
    name: str, default: Any = False, conditions: tuple[Condition, ...] = ()
) -> HyperParameter:
    """Return a Boolean; see ``HyperParameters.Boolean``."""
    default = plain(default)
    # As in KerasTuner a default may be written 0 or 1; a value may not.
    start = bool(default) if default in (0, 1) else None
    if start is None:
        raise SpaceError(
            f'hp.Boolean("{name}"): default must be a Python boolean, got {default!r}. Pass True '
            "or False."
        )
    return HyperParameter("Boolean", name, start, conditions, choices=(False, True))


def fixed(name: str, value: Any, conditions: tuple[Condition, ...] = ()) -> HyperParameter:
    """Return a Fixed; see ``HyperParameters.Fixed``."""
    value = plain(value)
    if not isinstance(value, bool | int | float | str):
        raise SpaceError(
            f'hp.Fixed("{name}"): the value must be an int, float, str or bool, got {value!r} of '
            f"type {type(value).__name__}."
        )
    if value != value:
        raise SpaceError(f'hp.Fixed("{name}"): value is NaN, which equals no value. Leave it out.')
    _check_storable(f'hp.Fixed("{name}")', [value])
    return HyperParameter("Fixed", name, value, conditions)


def _sampling(where: str, sampling: Any) -> Sampling:
    """Return the scale meant; None is linear and case does not matter, as in KerasTuner."""
    known: dict[Any, Sampling] = {"linear": "linear", "log": "log", "reverse_log": "reverse_log"}
    found = known.get("linear" if sampling is None else str(sampling).lower())
    if found is None:
        raise SpaceError(
            f"{where}: sampling must be one of 'linear', 'log' and 'reverse_log', got {sampling!r}."
        )
    return found


def _check_range(where: str, low: float, high: float, step: float | None, sampling: str) -> None:
    """Refuse bounds, or a step, from which no value could be drawn."""
    if low > high:
        raise SpaceError(
            f"{where}: min_value {low!r} is greater than the max_value {high!r}. Swap them."
        )
    if sampling != "linear" and low <= 0:
        raise SpaceError(
            f"{where}: sampling={sampling!r} does not support negative values or 0, got min_value "
            f"{low!r}. Raise it above 0, or use linear sampling."
        )
    if step is not None and sampling == "linear" and step <= 0:
        raise SpaceError(
            f"{where}: step must be above 0, got {step!r}. Pass a larger step, or leave it out."
        )
    if step is not None and sampling != "linear" and step <= 1:
        raise SpaceError(
            f"{where}: expected step > 1 with sampling={sampling!r}, which multiplies values by "
            f"the step, got {step!r}. Pass a step above 1, or leave it out."
        )
