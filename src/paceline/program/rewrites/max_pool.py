"""The gradient of max-pooling without XLA's select-and-scatter, which runs slowly, on one core.

K strided views of the input are compared, in the order and with the comparison of XLA; that gives
the largest cell of each window. Each cell then sums the gradients of the windows that chose it, in
the order of the windows. NaN included, the results are equal bit for bit.

Notation
    K: cells of a window, in row-major order. W: windows.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from paceline.program.rewrites.splice import Replacement

#: Cells of a window above which comparing views costs more than it saves.
_LARGEST = 25


def max_pool_gradient(eqn: Any) -> Replacement | None:
    """The rule: maxima of real numbers, windows of at most 25 cells."""
    params, operand = eqn.params, eqn.invars[1].aval
    window, strides = tuple(params["window_dimensions"]), tuple(params["window_strides"])
    padding = tuple(params["padding"])
    real = jnp.issubdtype(operand.dtype, np.floating)
    if params["select_prim"].name != "ge" or not real or math.prod(window) > _LARGEST:
        return None

    def gradient(source: Any, operand: Any) -> Any:
        # As JAX lowers it: cells outside of the input are -inf, and may win over a NaN.
        lowest = np.array(-np.inf, operand.dtype)
        padded = lax.pad(operand, lowest, [(*ends, 0) for ends in padding])
        chosen = _largest(padded, window, strides, source.shape)
        whole = _scattered(source, chosen, window, strides, padded.shape)
        start = [low for low, _ in padding]
        stop = [low + length for low, length in zip(start, operand.shape, strict=True)]
        return lax.slice(whole, start, stop)

    return gradient


def _cells(window: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(size) for size in window)))


def _largest(operand: Any, window: Any, strides: Any, n_windows: Any) -> Any:
    """i32[W]: number of each window's largest cell, of equal ones the first.

    The comparison is that of XLA's select-and-scatter: a NaN is never greater or equal, so the cell
    after it replaces it.
    """

    def view(cell: tuple[int, ...]) -> Any:
        stop = [c + (n - 1) * s + 1 for c, n, s in zip(cell, n_windows, strides, strict=True)]
        return lax.slice(operand, cell, stop, strides)

    first, *others = _cells(window)
    best, chosen = view(first), jnp.zeros(n_windows, np.int32)
    for number, cell in enumerate(others, start=1):
        value = view(cell)
        keep = best >= value
        best = jnp.where(keep, best, value)
        chosen = jnp.where(keep, chosen, np.int32(number))
    return chosen


def _scattered(source: Any, chosen: Any, window: Any, strides: Any, shape: Any) -> Any:
    """Each window's gradient (``source``) at its chosen cell, summed where windows overlap."""
    zero = np.zeros((), source.dtype)
    if window == strides:
        return _tiled(source, chosen, window, shape)
    total = jnp.zeros(shape, source.dtype)
    # One input cell is a late cell of an early window and an early cell of a late one. From the
    # last cell to the first, the windows are added in order.
    for number, cell in reversed(list(enumerate(_cells(window)))):
        config = [
            (c, length - c - ((n - 1) * s + 1), s - 1)
            for c, n, s, length in zip(cell, source.shape, strides, shape, strict=True)
        ]
        total = total + lax.pad(jnp.where(chosen == number, source, zero), zero, config)
    return total


def _tiled(source: Any, chosen: Any, window: Any, shape: Any) -> Any:
    """The same for windows that do not overlap: every cell looks up its window."""
    tiles = [size for pair in zip(source.shape, window, strict=True) for size in pair]
    own = range(0, 2 * len(window), 2)
    number: Any = 0
    for axis, size in enumerate(window):
        number = number * size + lax.broadcasted_iota(np.int32, tiles, 2 * axis + 1)
    source, chosen = (lax.broadcast_in_dim(a, tiles, tuple(own)) for a in (source, chosen))
    whole = jnp.where(chosen == number, source, np.zeros((), source.dtype))
    whole = whole.reshape([n * w for n, w in zip(tiles[::2], window, strict=True)])
    config = [(0, length - size, 0) for length, size in zip(shape, whole.shape, strict=True)]
    return lax.pad(whole, np.zeros((), whole.dtype), config)
