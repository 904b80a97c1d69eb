"""From a declaration to the distribution that Optuna samples, and the points of its grid.

Grids are computed in decimals: 0.1 in steps of 0.1 has 0.3 on it, and 0.001 times 10 is 0.01, not
a neighbour of it.
"""

from __future__ import annotations

import math
from decimal import Decimal

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from paceline.errors import SpaceError
from paceline.search_space.declaration import HyperParameter
from paceline.search_space.scalars import Scalar

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution

# A grid takes this many values of a range that has no grid of its own, as KerasTuner does.
GRID_POINTS = 10
# A step so small that its values fill memory is a mistake; no search could tell such values apart.
MAX_CHOICES = 100_000


def distribution_of(hp: HyperParameter) -> Distribution:
    """Return what Optuna samples for a declared Int, Float, Choice or Boolean.

    A bound that the step does not reach is pulled in here, because Optuna would warn of it.

    Raises:
        SpaceError: A step so small that its values cannot be told apart or listed.
    """
    if hp.choices is not None:
        return CategoricalDistribution(tuple(dict.fromkeys(hp.choices)))
    low, high, step = hp.min_value, hp.max_value, hp.step
    if low is None or high is None:
        raise TypeError(f"{hp.kind} {hp.name!r} has nothing to choose")
    log = hp.sampling != "linear"
    if log and step is not None:
        return CategoricalDistribution(_log_grid(hp, low, high, step))
    if isinstance(low, int) and isinstance(high, int):
        if log:
            return IntDistribution(low, high, log=True)
        stride = int(step or 1)
        return IntDistribution(low, low + (high - low) // stride * stride, step=stride)
    if step is None:
        return FloatDistribution(low, high, log=log)
    return _stepped_float(hp, low, high, step)


def _stepped_float(
    hp: HyperParameter, low: float, high: float, step: float
) -> FloatDistribution | CategoricalDistribution:
    # Optuna wants a stored value within 1e-8 of a step of its grid: near 1e8 steps from zero floats
    # are too coarse for that. It also recomputes the top bound in decimals. Where a grid would not
    # survive either, its values are written out.
    coarse = max(abs(low), abs(high)) > 1e7 * step
    if coarse and (high - low) / step > MAX_CHOICES:
        raise _too_many(hp, (high - low) / step)
    count = int((_decimal(high) - _decimal(low)) // _decimal(step)) + 1
    top = grid_point(low, step, count - 1)
    if coarse or _decimal(top) != _decimal(low) + (count - 1) * _decimal(step):
        if count > MAX_CHOICES:
            raise _too_many(hp, count)
        points = [grid_point(low, step, index) for index in range(count)]
        return CategoricalDistribution(tuple(dict.fromkeys(points)))
    return FloatDistribution(low, top, step=step)


def _log_grid(hp: HyperParameter, low: float, high: float, step: float) -> list[Scalar]:
    """Return min_value times the powers of step, mirrored for reverse_log, ascending."""
    # 1e-8 of a step, as in KerasTuner, for a bound that a power reaches but for rounding.
    steps = (math.log(high) - math.log(low)) / math.log(step) + 1e-8
    if steps >= MAX_CHOICES:
        raise _too_many(hp, steps)
    points = [_decimal(low) * _decimal(step) ** index for index in range(int(steps) + 1)]
    if hp.sampling == "reverse_log":
        points = [_decimal(low) + _decimal(high) - point for point in reversed(points)]
    if hp.kind == "Int":
        return [int(point) for point in points]
    return [min(max(float(point), low), high) for point in points]


def _too_many(hp: HyperParameter, count: float) -> SpaceError:
    return SpaceError(
        f'hp.{hp.kind}("{hp.name}"): step {hp.step!r} makes {count:,.0f} values; give a larger '
        "step, or leave it out."
    )


def _decimal(value: float) -> Decimal:
    """Return the number as written: 0.1 is one tenth."""
    return Decimal(repr(value))


def grid_point(low: float, step: float, index: int) -> float:
    """Return ``low + index * step``, rounded once."""
    return float(_decimal(low) + index * _decimal(step))


def spread(low: float, high: float, log: bool) -> list[float]:
    """Return 10 points, evenly spread on the scale, both bounds among them; 1 where they are equal.

    Args:
        low: First point.
        high: Last point.
        log: Whether the scale is logarithmic; both bounds are above 0 then.
    """
    if low == high:
        return [low]
    shares = [index / (GRID_POINTS - 1) for index in range(1, GRID_POINTS - 1)]
    if log:
        start, width = math.log(low), math.log(high) - math.log(low)
        inner = [math.exp(start + width * share) for share in shares]
    else:
        inner = [low + (high - low) * share for share in shares]
    return [low, *inner, high]
