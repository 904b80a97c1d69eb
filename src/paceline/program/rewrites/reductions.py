"""Reductions along the last axis of an array: max, argmax, argmin, and sums of one-hot rows.

XLA's CPU backend finds the extreme of a row of real numbers one by one, or in a kernel that needs
the row in memory. It compares many integers at a time, while they are computed. So the rules for
extremes turn real numbers into integers of the same order.

``reduce_max`` serves arrays larger than a core's cache, of which XLA's kernel writes a second one.
    Equal bit for bit, with three exceptions. 0.0 wins over -0.0, while XLA takes either. NaN wins,
    which XLA's kernel ignores. A largest number below 1.2e-38 is kept, while XLA returns zero.
``argmax`` and ``argmin`` find the extremes of the blocks of a row, and search only the first block
    with the row's extreme. NaN wins, 0.0 and -0.0 are equal, and the first of
    equal numbers counts, as in JAX; results are integers, so they are equal.
``reduce_sum`` serves Keras' sparse cross-entropy on JAX, which multiplies the logarithms of all
    classes with a one-hot row and sums up. With a vocabulary for classes these arrays are the
    largest of the step. The one number that is not multiplied by zero is
    fetched instead. XLA treats such a product as a choice: all other numbers count zero, even NaN
    and infinity. Equal bit for bit.

Notation
    A: length of a row, the last axis; classes of a one-hot row. B: blocks of a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from paceline.program import jax_compat as jv
from paceline.program.rewrites.splice import Maker, Replacement, ReplacementCall, Rule

#: Numbers of an array, and of a row, from which on ``reduce_max`` and ``reduce_sum`` are faster
#: than XLA's own code (docs/decisions/0029).
LEAST, SHORTEST = 2**20, 64
#: Numbers of a row from which on ``argmax`` and ``argmin`` are faster; at least a block.
_SHORTEST_SEARCHED = 64
#: Numbers of a block. XLA reduces longer rows in several passes, which it does not fuse with the
#: operations that make the numbers.
_BLOCK = 32
_DTYPE = np.float32


def reduce_max(eqn: Any) -> Replacement | None:
    """The rule for maxima: float32, along the last axis, of a large array."""
    if not _is_of_large_rows(eqn.invars[0].aval, eqn.params["axes"]):
        return None
    return lambda x: _numbers(_of_all(_largest, _ordered(x)), x.dtype)


def _is_of_large_rows(aval: Any, axes: tuple[int, ...]) -> bool:
    """Whether a reduction is along the last axis alone, of float32, and of enough numbers."""
    last = len(aval.shape) - 1
    return (
        aval.dtype == _DTYPE
        and tuple(axes) == (last,)
        and aval.shape[last] >= SHORTEST
        and math.prod(aval.shape) >= LEAST
    )


def _place_rule(is_max: bool) -> Rule:
    def rule(eqn: Any) -> Replacement | None:
        operand, (axis,) = eqn.invars[0].aval, eqn.params["axes"]
        dtype = eqn.params["index_dtype"]
        if (
            not jnp.issubdtype(operand.dtype, np.floating)
            or operand.shape[axis] < _SHORTEST_SEARCHED
        ):
            return None

        def place(x: Any) -> Any:
            return _place(jnp.moveaxis(x, axis, -1), is_max).astype(dtype)

        return place

    return rule


#: The rules for places of extremes: real numbers, rows of 64 and more.
argmax = _place_rule(is_max=True)
argmin = _place_rule(is_max=False)


def _place(x: Any, is_max: bool) -> Any:
    """The place of the extreme of each row: i32[...] of float[..., A]."""
    shape, length = x.shape[:-1], x.shape[-1]
    highest = _of_blocks(_largest, _keys(x, is_max))  # [..., B]
    most = _of_all(_largest, highest)[..., None]
    blocks = jnp.where(highest == most, _places(highest), highest.shape[-1])
    # The last block may reach back into the one before, where nothing is as high.
    start = jnp.minimum(_of_all(_smallest, blocks) * _BLOCK, length - _BLOCK)
    start = start.reshape(-1)
    cut = jax.vmap(lambda row, at: lax.dynamic_slice(row, (at,), (_BLOCK,)))
    found = _keys(cut(x.reshape(-1, length), start), is_max)
    places = jnp.where(found == most.reshape(-1, 1), _places(found), _BLOCK)
    return (start + _smallest(places)).reshape(shape)


def _keys(x: Any, is_max: bool) -> Any:
    """Integers whose largest stands where the extreme of the row stands."""
    if x.dtype.itemsize < 4:
        x = x.astype(np.float32)
    keys = jnp.where(x == 0, 0, _ordered(x))
    return keys if is_max else jnp.where(x != x, keys, -keys)


def _places(x: Any) -> Any:
    return lax.broadcasted_iota(np.int32, x.shape, x.ndim - 1)


def reduce_sum(eqn: Any, maker: Maker) -> ReplacementCall | None:
    """The rule for sums: float32, along the last axis, of a large array times a one-hot one."""
    (operand,) = eqn.invars
    shape = operand.aval.shape
    if not _is_of_large_rows(operand.aval, eqn.params["axes"]):
        return None
    is_negative, made = False, maker(operand)
    while made is not None and made.primitive.name == "neg":
        is_negative, made = not is_negative, maker(made.invars[0])
    if made is None or made.primitive.name != "mul":
        return None
    for hot, x in (made.invars, made.invars[::-1]):
        classes = _classes(hot, maker, len(shape))
        if classes is not None:
            return ReplacementCall((classes, _without_last(x, maker)), _chosen(shape, is_negative))
    return None


def _classes(hot: Any, maker: Maker, ndim: int) -> Any | None:
    """The classes, int[..., 1], of a one-hot array; None if the array is not one-hot."""
    made = maker(hot)
    if made is None or made.primitive.name != "convert_element_type":
        return None
    made = maker(made.invars[0])
    if made is None or made.primitive.name != "eq":
        return None
    sides = [_narrow(side, maker) for side in made.invars]
    for places, classes in (sides, sides[::-1]):
        source = maker(places)
        if source is None or source.primitive.name != "iota":
            continue
        shape = classes.aval.shape
        is_last = source.params["dimension"] == ndim - 1 == len(shape) - 1
        if is_last and shape[-1] == 1 and jnp.issubdtype(classes.aval.dtype, np.integer):
            return classes
    return None


def _narrow(x: Any, maker: Maker) -> Any:
    """The array that was repeated along axes of one, as older JAX repeats what it compares."""
    made = maker(x)
    while made is not None and made.primitive.name == "broadcast_in_dim":
        axes = tuple(made.params["broadcast_dimensions"])
        if len(made.invars) > 1 or axes != tuple(range(x.aval.ndim)):
            break
        x = made.invars[0]
        made = maker(x)
    return x


def _without_last(x: Any, maker: Maker) -> Any:
    """The array that was repeated along the last axis, or the array as it is."""
    made = maker(x)
    if made is None or made.primitive.name != "broadcast_in_dim" or len(made.invars) > 1:
        return x
    source, last = made.invars[0], x.aval.ndim - 1
    wanted = tuple(range(last))
    same = tuple(made.params["broadcast_dimensions"]) == wanted and not jv.is_literal(source)
    return source if same and source.aval.shape == x.aval.shape[:-1] else x


def _chosen(shape: tuple[int, ...], is_negative: bool) -> Callable[[Any, Any], Any]:
    def chosen(classes: Any, x: Any) -> Any:
        is_one = jnp.squeeze((classes >= 0) & (classes < shape[-1]), -1)
        if x.ndim == len(shape):
            # "clip", because a number that is not a class is left out below.
            x = jnp.take_along_axis(x, classes, axis=-1, mode="clip")[..., 0]
        found = jnp.where(is_one & (x != 0), x, x.dtype.type(0))  # zeros add up to 0.0
        return -found if is_negative else found

    return chosen


def _ordered(x: Any) -> Any:
    """Integers in the order of real ones, -0.0 before 0.0, NaN the largest: int[..., A]."""
    whole = np.int64 if x.dtype.itemsize == 8 else np.int32
    largest = np.iinfo(whole).max
    bits = lax.bitcast_convert_type(x, whole)
    # Of negative numbers the larger has the smaller bits.
    return jnp.where(x != x, largest, jnp.where(bits < 0, bits ^ largest, bits))


def _numbers(keys: Any, dtype: Any) -> Any:
    """The real numbers, float32 or float64, of which ``_ordered`` made these."""
    bits = jnp.where(keys < 0, keys ^ np.iinfo(keys.dtype).max, keys)
    return lax.bitcast_convert_type(bits, dtype)


def _largest(x: Any) -> Any:
    """The largest of integers in the last axis."""
    return lax.reduce(x, x.dtype.type(np.iinfo(x.dtype).min), lax.max, (x.ndim - 1,))


def _smallest(x: Any) -> Any:
    """The smallest of integers in the last axis."""
    return lax.reduce(x, x.dtype.type(np.iinfo(x.dtype).max), lax.min, (x.ndim - 1,))


def _of_blocks(extreme: Callable[[Any], Any], x: Any) -> Any:
    """The extremes of a row's blocks, the last of which may be shorter: int[..., B]."""
    length = x.shape[-1]
    rest = length % _BLOCK
    some = []
    if length > rest:
        some.append(extreme(x[..., : length - rest].reshape(*x.shape[:-1], -1, _BLOCK)))
    if rest:
        some.append(extreme(x[..., length - rest :])[..., None])
    return jnp.concatenate(some, axis=-1)


def _of_all(extreme: Callable[[Any], Any], x: Any) -> Any:
    """The extreme of a row, int[...]."""
    while x.shape[-1] > _BLOCK:
        x = _of_blocks(extreme, x)
    return extreme(x)
