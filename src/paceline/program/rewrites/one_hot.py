"""Sums of rows of which all but one number are multiplied by zero: that number is fetched.

Keras' sparse cross-entropy on JAX multiplies the logarithms of all classes with a one-hot row and
sums up, forward and backward; with a vocabulary for classes these are the largest arrays of the
step. XLA takes such a product as a choice: what is not chosen counts zero, NaN and infinity too.
Equal to the bit.

    A: classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from paceline.program import jax_compat as jv
from paceline.program.rewrites.row_max import is_by_large_rows
from paceline.program.rewrites.splice import Instead, Maker


def reduce_sum(eqn: Any, maker: Maker) -> Instead | None:
    """The rule: float32, along the last axis, large."""
    (operand,) = eqn.invars
    shape = operand.aval.shape
    if not is_by_large_rows(operand.aval, eqn.params["axes"]):
        return None
    is_negative, made = False, maker(operand)
    while made is not None and made.primitive.name == "neg":
        is_negative, made = not is_negative, maker(made.invars[0])
    if made is None or made.primitive.name != "mul":
        return None
    for hot, x in (made.invars, made.invars[::-1]):
        classes = _classes(hot, maker, len(shape))
        if classes is not None:
            return Instead((classes, _without_last(x, maker)), _chosen(shape, is_negative))
    return None


def _classes(hot: Any, maker: Maker, ndim: int) -> Any | None:
    """The classes, int[..., 1], of which an array is the one-hot form; None where it is not."""
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
            # mode: a class that is none is left out below.
            x = jnp.take_along_axis(x, classes, axis=-1, mode="clip")[..., 0]
        found = jnp.where(is_one & (x != 0), x, x.dtype.type(0))  # zeros add up to 0.0
        return -found if is_negative else found

    return chosen
