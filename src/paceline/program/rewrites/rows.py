"""Extremes of rows by whole numbers, which compilers compare many at a time.

XLA's CPU backend computes the largest of a row of real numbers one by one, or in a kernel of its
own that has to have the row in memory; whole numbers it compares in vectors, as they are made.

    A: length of a row. B: blocks of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

#: Numbers of a block. XLA reduces longer rows in several passes that it does not fuse with what
#: makes their numbers.
BLOCK = 32


def ordered(x: Any) -> Any:
    """Whole numbers in the order of real ones, -0.0 before 0.0, NaN the largest: int[..., A]."""
    whole = np.int64 if x.dtype.itemsize == 8 else np.int32
    largest = np.iinfo(whole).max
    bits = lax.bitcast_convert_type(x, whole)
    # Of negative numbers the larger has the smaller bits.
    return jnp.where(x != x, largest, jnp.where(bits < 0, bits ^ largest, bits))


def numbers(keys: Any, dtype: Any) -> Any:
    """The real numbers, float32 or float64, of which ``ordered`` made these."""
    bits = jnp.where(keys < 0, keys ^ np.iinfo(keys.dtype).max, keys)
    return lax.bitcast_convert_type(bits, dtype)


def largest(x: Any) -> Any:
    """The largest of whole numbers in the last axis."""
    return lax.reduce(x, x.dtype.type(np.iinfo(x.dtype).min), lax.max, (x.ndim - 1,))


def smallest(x: Any) -> Any:
    """The smallest of whole numbers in the last axis."""
    return lax.reduce(x, x.dtype.type(np.iinfo(x.dtype).max), lax.min, (x.ndim - 1,))


def of_blocks(extreme: Callable[[Any], Any], x: Any) -> Any:
    """The extremes of a row's blocks, the last of which may be shorter: int[..., B]."""
    length = x.shape[-1]
    rest = length % BLOCK
    some = []
    if length > rest:
        some.append(extreme(x[..., : length - rest].reshape(*x.shape[:-1], -1, BLOCK)))
    if rest:
        some.append(extreme(x[..., length - rest :])[..., None])
    return jnp.concatenate(some, axis=-1)


def of_all(extreme: Callable[[Any], Any], x: Any) -> Any:
    """The extreme of a row, int[...]."""
    while x.shape[-1] > BLOCK:
        x = of_blocks(extreme, x)
    return extreme(x)
