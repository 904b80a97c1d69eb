"""Where the largest or smallest number of a row stands, in one pass that compilers vectorize.

XLA's CPU backend compares pairs of number and place one by one. Here numbers become whole numbers
of the same order, blocks of a row get their extremes, and only the first block that holds the row's
extreme is searched for its place. NaN wins, both zeros are equal, and the first of equal ones
counts, as in the original; results are whole numbers, equal to the last.

    A: length of the axis. B: blocks of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from paceline.rewrites.splice import Replacement, Rule

#: A from which on it is the faster way; on rows of ten classes it is not.
_SHORTEST = 64
#: Numbers of a block. XLA reduces longer rows in several passes that it does not fuse with what
#: makes their numbers.
_BLOCK = 32


def _rule(is_max: bool) -> Rule:
    def rule(eqn: Any) -> Replacement | None:
        operand, (axis,) = eqn.invars[0].aval, eqn.params["axes"]
        dtype = eqn.params["index_dtype"]
        if not jnp.issubdtype(operand.dtype, np.floating) or operand.shape[axis] < _SHORTEST:
            return None

        def place(x: Any) -> Any:
            return _place(jnp.moveaxis(x, axis, -1), is_max).astype(dtype)

        return place

    return rule


def _place(x: Any, is_max: bool) -> Any:
    """The place of each row's extreme, int32[...], of float[..., A]."""
    shape, length = x.shape[:-1], x.shape[-1]
    keys = _keys(x, is_max)
    highest = _in_blocks(_max, keys)  # [..., B]
    most = _whole(_max, highest)[..., None]
    block = _whole(_min, jnp.where(highest == most, _places(highest), highest.shape[-1]))
    # The last block may reach back into the one before, where nothing is as high.
    start = jnp.minimum(block * _BLOCK, length - _BLOCK).reshape(-1)
    rows = jax.vmap(lambda row, at: lax.dynamic_slice(row, (at,), (_BLOCK,)))
    found = _keys(rows(x.reshape(-1, length), start), is_max)
    places = jnp.where(found == most.reshape(-1, 1), _places(found), _BLOCK)
    return (start + _min(places)).reshape(shape)


def _keys(x: Any, is_max: bool) -> Any:
    """Whole numbers that are in order as the numbers are (or, for minima, the other way round)."""
    if x.dtype.itemsize < 4:
        x = x.astype(np.float32)
    whole = np.int64 if x.dtype.itemsize == 8 else np.int32
    largest = np.iinfo(whole).max
    bits = lax.bitcast_convert_type(x, whole)
    # Of negative numbers the larger has the smaller bits.
    keys = jnp.where(x == 0, 0, jnp.where(bits < 0, bits ^ largest, bits))
    return jnp.where(x != x, largest, keys if is_max else -keys)


def _places(x: Any) -> Any:
    return lax.broadcasted_iota(np.int32, x.shape, x.ndim - 1)


def _whole(reduce: Callable[[Any], Any], x: Any) -> Any:
    """A row's extreme."""
    while x.shape[-1] > _BLOCK:
        x = _in_blocks(reduce, x)
    return reduce(x)


def _in_blocks(reduce: Callable[[Any], Any], x: Any) -> Any:
    """The extremes of blocks, the last of which may be shorter: [..., B]."""
    length = x.shape[-1]
    rest = length % _BLOCK
    blocks = x[..., : length - rest].reshape(*x.shape[:-1], -1, _BLOCK)
    some = [reduce(blocks)]
    if rest:
        some.append(reduce(x[..., length - rest :])[..., None])
    return jnp.concatenate(some, axis=-1)


def _max(x: Any) -> Any:
    return lax.reduce(x, x.dtype.type(np.iinfo(x.dtype).min), lax.max, (x.ndim - 1,))


def _min(x: Any) -> Any:
    return lax.reduce(x, x.dtype.type(np.iinfo(x.dtype).max), lax.min, (x.ndim - 1,))


#: The rules: real numbers, rows of 64 and more.
argmax = _rule(is_max=True)
argmin = _rule(is_max=False)
