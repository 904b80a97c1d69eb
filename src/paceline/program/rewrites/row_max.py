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

from paceline.program.rewrites import rows
from paceline.program.rewrites.splice import Replacement

#: Numbers of an array, and of a row, from which on it is the faster way (docs/decisions/0029).
LEAST, SHORTEST = 2**20, 64
_DTYPE = np.float32


def reduce_max(eqn: Any) -> Replacement | None:
    """The rule: float32, along the last axis, large."""
    if not is_by_large_rows(eqn.invars[0].aval, eqn.params["axes"]):
        return None
    return lambda x: rows.numbers(rows.of_all(rows.largest, rows.ordered(x)), x.dtype)


def is_by_large_rows(aval: Any, axes: tuple[int, ...]) -> bool:
    """Whether a reduction is along the last axis alone, of float32, and of enough numbers."""
    last = len(aval.shape) - 1
    return (
        aval.dtype == _DTYPE
        and tuple(axes) == (last,)
        and aval.shape[last] >= SHORTEST
        and math.prod(aval.shape) >= LEAST
    )
