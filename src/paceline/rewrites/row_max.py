"""The largest number of each row of an array that is larger than a core's cache.

XLA's CPU backend has a kernel that finds it and writes down what is computed with it, a second
array of that size. By whole numbers it is found as the rows are made, and nothing is written.
Equal to the bit, but that 0.0 wins over -0.0, where XLA takes either, that NaN wins, which XLA's
kernel passes over, and that a largest number below 1.2e-38 is kept, where XLA has zero.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from paceline.rewrites import rows
from paceline.rewrites.splice import Replacement

#: Numbers of an array, and of a row, from which on it is the faster way (docs/decisions/0029).
LEAST, SHORTEST = 2**20, 64


def reduce_max(eqn: Any) -> Replacement | None:
    """The rule: float32, along the last axis, large."""
    operand = eqn.invars[0].aval
    if operand.dtype != np.float32 or not is_by_large_rows(operand.shape, eqn.params["axes"]):
        return None
    return lambda x: rows.numbers(rows.of_all(rows.largest, rows.ordered(x)), x.dtype)


def is_by_large_rows(shape: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    """Whether a reduction is along the last axis alone, and of enough numbers."""
    last = len(shape) - 1
    return tuple(axes) == (last,) and shape[last] >= SHORTEST and math.prod(shape) >= LEAST
