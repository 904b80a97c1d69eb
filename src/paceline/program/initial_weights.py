"""Initial weights, drawn by a few programs instead of one for each shape.

On a CPU XLA takes a third of a second to two seconds to compile ``jax.random.uniform`` for a shape
that it has not met, often longer than a small model trains. Number i of a draw follows from the key
and i alone, so many shapes can be cut from draws of a few lengths: to the bit the same.

Keras' initializers look the functions up in ``jax.random`` at every call. While a search is on,
these names stand for the ones here.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from paceline.program import jax_compat as jv
from paceline.program.keras_private import RefCountedPatch

#: Functions of ``jax.random`` whose numbers follow from the key and their position alone.
NAMES = ("uniform", "normal", "truncated_normal")
#: Lengths that are drawn: the smallest, the ratio between two, and from where they only double.
_LEAST, _RATIO, _LARGE = 4096, 8, 1 << 18
#: Beyond, drawing numbers that are not needed costs more than a compile.
_MOST = 1 << 24

_before: dict[str, Any] = {}
_ours: dict[str, Any] = {}


@contextmanager
def shared_initializer_programs() -> Iterator[None]:
    """Has initial weights drawn so inside, on a CPU; searches may overlap."""
    if keras.backend.backend() != "jax" or jax.default_backend() != "cpu":
        yield
        return
    with _patch.applied():
        yield


def _install() -> None:
    outside = jv.trace_state()
    for name in NAMES:
        _before[name] = getattr(jax.random, name)
        _ours[name] = _cutting(_before[name], outside)
        setattr(jax.random, name, _ours[name])


def _remove() -> None:
    for name in NAMES:
        if getattr(jax.random, name) is _ours[name]:  # else patched by another since
            setattr(jax.random, name, _before[name])


_patch = RefCountedPatch(_install, _remove)


def _cutting(original: Callable[..., Any], outside: Any) -> Callable[..., Any]:
    """The function, with the numbers of a shape cut from a longer draw where that is the same.

    Args:
        original: JAX' own.
        outside: The state of tracing where nothing is traced.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def draw(*args: Any, **kwargs: Any) -> Any:
        if jv.trace_state() != outside:  # of a step: its numbers are drawn when it runs
            return original(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        shape = _shape(bound.arguments)
        if shape is None:
            return original(*args, **kwargs)
        n = math.prod(shape)
        bound.arguments["shape"] = (_length(n),)
        drawn = original(*bound.args, **bound.kwargs)
        return jnp.array(np.asarray(drawn)[:n].reshape(shape))

    return draw


def _shape(arguments: dict[str, Any]) -> tuple[int, ...] | None:
    """The shape that is asked for; None where it is not cut from another draw."""
    found = dict(arguments)
    key, shape, dtype = found.pop("key"), found.pop("shape"), found.pop("dtype")
    if not isinstance(shape, (tuple, list)) or not all(isinstance(size, int) for size in shape):
        return None
    # Words of another width are counted otherwise.
    if not _is_float32(dtype) or not 0 < math.prod(shape) <= _MOST:
        return None
    if not all(value is None or _is_number(value) for value in found.values()):
        return None
    return tuple(shape) if jv.counts_by_position(key) else None


def _is_float32(dtype: Any) -> bool:
    try:
        return dtype is not None and np.dtype(dtype) == np.float32
    except TypeError:  # a type that NumPy does not know
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.generic, np.ndarray, jax.Array)) and not np.ndim(value)


def _length(n: int) -> int:
    """How many numbers are drawn for n."""
    length = _LEAST
    while length < n:
        length *= _RATIO if length < _LARGE else 2
    return length
