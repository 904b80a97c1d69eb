"""Where the largest or smallest number of a row stands, in one pass that compilers vectorize.

XLA's CPU backend compares pairs of number and place one by one. Here blocks of a row get their
extremes, and only the first block that holds the row's extreme is searched for its place. NaN wins,
both zeros are equal, and the first of equal ones counts, as in the original; results are whole
numbers, equal to the last.

    A: length of the axis. B: blocks of a row.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from paceline.program.rewrites import rows
from paceline.program.rewrites.splice import Replacement, Rule

#: A from which on it is the faster way; on rows of ten classes it is not.
_SHORTEST = 64


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
    highest = rows.of_blocks(rows.largest, _keys(x, is_max))  # [..., B]
    most = rows.of_all(rows.largest, highest)[..., None]
    blocks = jnp.where(highest == most, _places(highest), highest.shape[-1])
    # The last block may reach back into the one before, where nothing is as high.
    start = jnp.minimum(rows.of_all(rows.smallest, blocks) * rows.BLOCK, length - rows.BLOCK)
    start = start.reshape(-1)
    cut = jax.vmap(lambda row, at: lax.dynamic_slice(row, (at,), (rows.BLOCK,)))
    found = _keys(cut(x.reshape(-1, length), start), is_max)
    places = jnp.where(found == most.reshape(-1, 1), _places(found), rows.BLOCK)
    return (start + rows.smallest(places)).reshape(shape)


def _keys(x: Any, is_max: bool) -> Any:
    """Whole numbers of which the largest stands where the extreme does."""
    if x.dtype.itemsize < 4:
        x = x.astype(np.float32)
    keys = jnp.where(x == 0, 0, rows.ordered(x))
    return keys if is_max else jnp.where(x != x, keys, -keys)


def _places(x: Any) -> Any:
    return lax.broadcasted_iota(np.int32, x.shape, x.ndim - 1)


#: The rules: real numbers, rows of 64 and more.
argmax = _rule(is_max=True)
argmin = _rule(is_max=False)
