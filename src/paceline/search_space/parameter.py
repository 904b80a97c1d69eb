"""A parameter: one thing a sampler may choose, as Optuna sees it and as the user does.

A ``Space`` is the union of the parameters that builds have declared so far.

| declared | distribution | stored value |
|---|---|---|
| Int, linear, or log without step | int | the value |
| Float, linear, or log without step | float | the value |
| Int, Float: log or reverse_log with step | categorical | the value |
| Int, Float: reverse_log without step | int, float on a log scale | ``low + high - value`` |
| Choice, Boolean | categorical | the value |
| Choice of 1, 1.0 or True, or 0, 0.0 or False | categorical | the value as a JSON text |

The fourth row is called ``[reversed]``: Optuna has no scale that is dense near the upper bound. The
last one is called ``[typed]``: to Optuna, values that are equal are one, whatever their types.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from optuna.distributions import (
    CategoricalDistribution,
    IntDistribution,
    distribution_to_json,
    json_to_distribution,
)

from paceline.errors import SpaceError
from paceline.search_space.declaration import HyperParameter
from paceline.search_space.distribution import (
    NO_VALUE,
    Distribution,
    Scalar,
    cardinality,
    coded,
    find_choice,
    grid_point,
    grid_values,
    mirror,
    plain,
)

#: A parameter with at most this many values is checked with all of them, others with their ends.
_FEW = 10


@dataclass(frozen=True)
class Parameter:
    """One thing a sampler may choose, under one condition."""

    name: str  # plain name, name scopes included: ``a/units``
    storage_name: str  # name in storage: ``units[type=a]``, ``lr[reversed]``
    distribution: Distribution  # what Optuna sees; its values are stored values
    default: Scalar  # real value where nobody chooses
    mirrored: bool = False  # whether a stored value is ``low + high`` minus the real one
    typed: bool = False  # whether a stored value is a JSON text

    @classmethod
    def of(cls, hp: HyperParameter) -> Parameter:
        """Return the parameter of a declared Int, Float, Choice or Boolean."""
        suffix = "[reversed]" if hp.mirrored else "[typed]" if hp.typed else ""
        name = f"{hp.storage_name}{suffix}"
        return cls(hp.name, name, hp.distribution, hp.default, hp.mirrored, hp.typed)

    @property
    def is_finite(self) -> bool:
        """False only for a continuous float."""
        return self.cardinality is not None

    @property
    def cardinality(self) -> int | None:
        """How many values there are; None for a continuous float."""
        return cardinality(self.distribution)

    def check(self, value: Any) -> Scalar:
        """Return ``value`` as this parameter writes it: of its type, on its grid, or SpaceError."""
        found = self._find(plain(value))
        if found is NO_VALUE:
            raise SpaceError(
                f'hyperparameter "{self.name}": the value {value!r} is not {self._described()}. '
                "Pass another value, or change the bounds in build."
            )
        return found

    def to_storage(self, real: Any) -> Scalar:
        """Return what Optuna stores for a real value; raise SpaceError if ``check`` refuses it."""
        value = self.check(real)
        if self.typed:
            return coded(value)
        return mirror(self.distribution, value) if self.mirrored else value

    def from_storage(self, stored: Any) -> Scalar:
        """Return the real value of a stored one, of ``distribution``; raise SpaceError for others.

        Storing and reading changes no value that came from here, no bound, and nothing that is not
        a mirrored float. Another mirrored float is restored within a rounding error of ``low +
        high``.
        """
        if self.typed and stored in cast(CategoricalDistribution, self.distribution).choices:
            return json.loads(cast(str, stored))
        value = self.check(stored)  # a mirrored parameter has the same bounds on both sides
        return mirror(self.distribution, value) if self.mirrored else value

    def values(self, *, every: bool = False) -> Sequence[Scalar]:
        """Return the real values that a grid walks, as ``grid_values`` does."""
        found = grid_values(self.distribution, mirrored=self.mirrored, every=every)
        return [json.loads(cast(str, text)) for text in found] if self.typed else found

    def to_json(self) -> dict[str, Any]:
        """Return this parameter as JSON values; ``from_json`` is the way back."""
        return {
            "name": self.name,
            "storage_name": self.storage_name,
            "distribution": json.loads(distribution_to_json(self.distribution)),
            "default": self.default,
            "mirrored": self.mirrored,
            **({"typed": True} if self.typed else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Parameter:
        """Return the parameter that ``to_json`` described."""
        distribution = cast(Distribution, json_to_distribution(json.dumps(data["distribution"])))
        return cls(
            data["name"],
            data["storage_name"],
            distribution,
            data["default"],
            data["mirrored"],
            data.get("typed", False),
        )

    def same_values(self, other: Parameter) -> bool:
        """Return whether the distributions are equal, types included: 0, 1 is not False, True."""
        mine, theirs = self.distribution, other.distribution
        return distribution_to_json(mine) == distribution_to_json(theirs)

    def _find(self, value: Any) -> Any:
        """Return the value of the distribution that is meant, NO_VALUE when there is none."""
        known = self.distribution
        if isinstance(known, CategoricalDistribution):
            return find_choice(value, self.values())
        if isinstance(value, bool) or not isinstance(value, int | float):
            return NO_VALUE
        if not known.low <= value <= known.high:  # false for NaN
            return NO_VALUE
        if isinstance(known, IntDistribution):
            return int(value) if (value - known.low) % known.step == 0 else NO_VALUE
        if known.step is None:
            return float(value)
        # A sampler returns low + k * step with its rounding error: the grid point is meant.
        point = grid_point(known.low, known.step, round((value - known.low) / known.step))
        return point if abs(value - point) <= 1e-8 * known.step else NO_VALUE  # as in Optuna

    def _described(self) -> str:
        known = self.distribution
        if isinstance(known, CategoricalDistribution):
            shown = ", ".join(repr(choice) for choice in self.values()[:20])
            return f"one of {shown}{', ...' if len(known.choices) > 20 else ''}"
        kind = "an integer" if isinstance(known, IntDistribution) else "a number"
        steps = "" if known.step in (None, 1) else f" in steps of {known.step}"
        return f"{kind} from {known.low} to {known.high}{steps}"


def one_value_apart(
    parameters: Iterable[Parameter], hparams: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Give configurations that differ in the value of one of the parameters from these hparams.

    A build with each of them shows what is declared under an ``if``. Of a parameter of many values
    the lowest and the highest are given. ``hparams``: plain name -> real value, also of others.
    """
    for parameter in parameters:
        values, n = parameter.values(), parameter.cardinality
        for value in values if n is not None and n <= _FEW else (values[0], values[-1]):
            known = hparams[parameter.name]
            if value != known or type(value) is not type(known):
                yield {**hparams, parameter.name: value}


class Space:
    """The union of the parameters met in builds."""

    def __init__(self, parameters: Mapping[str, Parameter] | None = None) -> None:
        # By storage name, in the order first met.
        self.parameters: dict[str, Parameter] = dict(parameters or {})

    def learn(self, parameters: Mapping[str, Parameter]) -> None:
        """Add the parameters that a build met; SpaceError where one had other bounds before."""
        for storage_name, parameter in parameters.items():
            known = self.parameters.get(storage_name)
            if known is not None and not known.same_values(parameter):
                raise SpaceError(
                    f'hyperparameter "{storage_name}": its bounds changed from '
                    f"{known.distribution} to {parameter.distribution}. Rename it, put it in an "
                    "hp.conditional_scope, or start another study."
                )
        for storage_name, parameter in parameters.items():
            self.parameters.setdefault(storage_name, parameter)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the parameters as JSON values; ``from_json`` is the way back."""
        return [parameter.to_json() for parameter in self.parameters.values()]

    @classmethod
    def from_json(cls, data: list[dict[str, Any]]) -> Space:
        """Return the space that ``to_json`` described."""
        parameters = [Parameter.from_json(entry) for entry in data]
        return cls({parameter.storage_name: parameter for parameter in parameters})
