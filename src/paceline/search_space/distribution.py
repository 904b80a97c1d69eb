"""The distribution that Optuna samples for a declaration, the points of its grid, and its scalars.

Grids are computed in decimals: 0.1 in steps of 0.1 has 0.3 on it, and 0.001 times 10 is 0.01, not
a neighbour of it. Values that users write become plain Python scalars here: NumPy's scalars are
accepted, and a bool is never taken for an int.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, cast

import numpy as np
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from paceline.errors import SpaceError

Scalar = bool | int | float | str  # None is a value too, but only of a Choice
Distribution = CategoricalDistribution | FloatDistribution | IntDistribution

# A grid takes this many values of a range that has no grid of its own, as KerasTuner does.
GRID_POINTS = 10
# A step so small that its values fill memory is a mistake; no search could tell such values apart.
MAX_CHOICES = 100_000
# Two floats whose relative distance is smaller are one grid point. So a value that went through
# text or a float sum finds its choice again. Neighbouring choices of real spaces are further apart.
SAME_FLOAT = 1e-9
#: What stands for no value, where None may be one.
NO_VALUE: Any = object()


def distribution_of(
    where: str,
    low: int | float | None = None,
    high: int | float | None = None,
    step: int | float | None = None,
    sampling: str | None = "linear",
    choices: Sequence[Scalar] | None = None,
) -> Distribution:
    """Return what Optuna samples for a declared Int, Float, Choice or Boolean.

    A bound that the step does not reach is pulled in here, because Optuna would warn of it.
    ``where``: the declaration as messages name it, ``hp.Int("units")``. Bounds are included, and
    None for a choice; two ints make an Int, else it is a Float. ``step``: the distance between
    values, their ratio where ``sampling`` is not linear; None: no grid.
    """
    if choices is not None:
        found = distinct(choices)
        return CategoricalDistribution(tuple(map(coded, found)) if are_alike(found) else found)
    if low is None or high is None:
        raise TypeError(f"{where} has nothing to choose")
    log = sampling != "linear"
    if log and step is not None:
        return CategoricalDistribution(_log_grid(where, low, high, step, sampling))
    if isinstance(low, int) and isinstance(high, int):
        if log:
            return IntDistribution(low, high, log=True)
        stride = int(step or 1)
        return IntDistribution(low, low + (high - low) // stride * stride, step=stride)
    if step is None:
        return FloatDistribution(low, high, log=log)
    return _stepped_float(where, low, high, step)


def _stepped_float(
    where: str, low: float, high: float, step: float
) -> FloatDistribution | CategoricalDistribution:
    # Optuna wants a stored value within 1e-8 of a step of its grid: near 1e8 steps from zero floats
    # are too coarse for that. It also recomputes the top bound in decimals. Where a grid would not
    # survive either, its values are written out.
    coarse = max(abs(low), abs(high)) > 1e7 * step
    if coarse and (high - low) / step > MAX_CHOICES:
        raise _too_many(where, step, (high - low) / step)
    count = int((_decimal(high) - _decimal(low)) // _decimal(step)) + 1
    top = grid_point(low, step, count - 1)
    if coarse or _decimal(top) != _decimal(low) + (count - 1) * _decimal(step):
        if count > MAX_CHOICES:
            raise _too_many(where, step, count)
        points = [grid_point(low, step, index) for index in range(count)]
        return CategoricalDistribution(tuple(dict.fromkeys(points)))
    return FloatDistribution(low, top, step=step)


def _log_grid(
    where: str, low: float, high: float, step: float, sampling: str | None
) -> list[Scalar]:
    """Return ``low`` times the powers of step, mirrored for reverse_log, ascending."""
    # 1e-8 of a step, as in KerasTuner, for a bound that a power reaches but for rounding.
    steps = (math.log(high) - math.log(low)) / math.log(step) + 1e-8
    if steps >= MAX_CHOICES:
        raise _too_many(where, step, steps)
    points = [_decimal(low) * _decimal(step) ** index for index in range(int(steps) + 1)]
    if sampling == "reverse_log":
        points = [_decimal(low) + _decimal(high) - point for point in reversed(points)]
    if isinstance(low, int) and isinstance(high, int):
        return [int(point) for point in points]
    return [min(max(float(point), low), high) for point in points]


def _too_many(where: str, step: float, count: float) -> SpaceError:
    return SpaceError(
        f"{where}: step {step!r} gives {count:,.0f} values, which are too many. Pass a larger "
        "step, or leave it out."
    )


def cardinality(distribution: Distribution) -> int | None:
    """Return how many values a distribution has; None for a continuous float."""
    if isinstance(distribution, CategoricalDistribution):
        return len(distribution.choices)
    low, high, step = distribution.low, distribution.high, distribution.step
    if isinstance(distribution, IntDistribution):
        return (distribution.high - distribution.low) // distribution.step + 1
    if step is not None:
        return round((high - low) / step) + 1
    return 1 if low == high else None


def grid_values(
    distribution: Distribution, *, mirrored: bool = False, every: bool = False
) -> Sequence[Scalar]:
    """Return the real values that a grid walks, lowest or first choice first.

    Without step, a float gives 10 values spread evenly on its scale, an int on a log scale up to
    10. Both include the bounds. ``mirrored``: whether a stored value is ``low + high`` minus the
    real one. ``every``: all values of an int on a log scale, so that a finite space is walked
    completely.
    """
    if isinstance(distribution, CategoricalDistribution):
        return cast(list[Scalar], list(distribution.choices))
    low, high = distribution.low, distribution.high
    if isinstance(distribution, IntDistribution):
        if not distribution.log or every or high - low < GRID_POINTS:
            return range(distribution.low, distribution.high + 1, distribution.step)
        points = sorted({round(point) for point in spread(low, high, True)})
    elif distribution.step is not None:
        count = cardinality(distribution) or 1
        return [grid_point(low, distribution.step, index) for index in range(count)]
    else:
        points = spread(low, high, distribution.log)
    return [mirror(distribution, point) for point in reversed(points)] if mirrored else points


def mirror(distribution: Distribution, value: Any) -> Scalar:
    """Return ``low + high - value``: the stored value of a real one of reverse_log, and back."""
    if isinstance(distribution, CategoricalDistribution):
        raise TypeError(f"the choices {distribution.choices!r} have no mirror image")
    low, high = distribution.low, distribution.high
    # The bounds map onto each other exactly, whatever low + high rounds to.
    if value == low:
        return high
    if value == high:
        return low
    return min(max(low + high - value, low), high)


def _decimal(value: float) -> Decimal:
    """Return the number as written: 0.1 is one tenth."""
    return Decimal(repr(value))


def grid_point(low: float, step: float, index: int) -> float:
    """Return ``low + index * step``, rounded once."""
    return float(_decimal(low) + index * _decimal(step))


def spread(low: float, high: float, log: bool) -> list[float]:
    """Return 10 points, evenly spread on the scale, with both bounds; 1 where these are equal."""
    if low == high:
        return [low]
    shares = [index / (GRID_POINTS - 1) for index in range(1, GRID_POINTS - 1)]
    if log:
        start, width = math.log(low), math.log(high) - math.log(low)
        inner = [math.exp(start + width * share) for share in shares]
    else:
        inner = [low + (high - low) * share for share in shares]
    return [low, *inner, high]


def plain(value: Any) -> Any:
    """Return a NumPy scalar or 0-d array as the Python scalar it holds; anything else unchanged."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return value


def whole(where: str, argument: str, value: Any) -> int:
    """Return an int, a NumPy integer or a float without fraction as an int; SpaceError for others.

    ``where``: the call at fault, as the user wrote it; begins the message.
    """
    value = plain(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0:
        return int(value)
    raise SpaceError(f"{where}: {argument} must be an int, got {value!r}.")


def number(where: str, argument: str, value: Any) -> float:
    """Return an int, a float or a NumPy number as a finite float; SpaceError for others."""
    value = plain(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise SpaceError(f"{where}: {argument} must be a finite number, got {value!r}. Pass a float.")


def same(value: Any, other: Scalar) -> bool:
    """Return whether two scalars are equal; a bool equals only a bool."""
    if not isinstance(value, Scalar):
        return False
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def distinct(choices: Iterable[Any]) -> tuple[Any, ...]:
    """Return each choice once; 1, 1.0 and True are three."""
    return tuple({(type(choice), choice): choice for choice in choices}.values())


def are_alike(choices: Sequence[Any]) -> bool:
    """Return whether Optuna would take two of the distinct choices for one, as 1 and 1.0."""
    return len(set(choices)) < len(choices)


def coded(choice: Any) -> str:
    """Return the text that stands for a choice in a storage where some of them are alike."""
    return json.dumps(choice)


def find_choice(value: Any, choices: Sequence[Any]) -> Any:
    """Return the choice that ``value`` means, NO_VALUE when there is none.

    A choice of the value's own type comes first; then ``1`` finds ``1.0`` and the other way round.
    A bool finds only a bool, a str only a str. Among choices of several types a str also finds the
    choice with the same text, because tables and command lines hold texts.
    """
    value = plain(value)
    if value is not None and not isinstance(value, Scalar):
        return NO_VALUE
    if value in choices and type(found := choices[choices.index(value)]) is type(value):
        return found  # in one go: a grid may have many values
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return choice
    if isinstance(value, int | float) and not isinstance(value, bool):
        for choice in choices:
            if type(choice) in (int, float) and choice == value:
                return choice
    if isinstance(value, float):
        for choice in choices:
            if isinstance(choice, float) and math.isclose(value, choice, rel_tol=SAME_FLOAT):
                return choice
    if isinstance(value, str) and len({type(choice) for choice in choices}) > 1:
        for choice in choices:
            if value in (str(choice), coded(choice)):
                return choice
    return NO_VALUE
