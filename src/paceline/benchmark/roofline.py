"""Measures the peaks of a device, with one large matrix product and one large copy."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

#: Side of the matrices, and bytes of the copied array: large enough to fill the device.
_SIDE = {"cpu": 2048}
_BYTES = {"cpu": 2**27}
#: Timed repetitions. The fastest one counts, because a peak is the best that can be reached.
_REPEATS = 5


def matmul_flops(precision: str) -> float:
    """Measures floating-point operations per second of a matrix product on the default device.

    Args:
        precision: Keras' dtype policy; the product is in bfloat16 under a bfloat16 policy.
    """
    side = _SIDE.get(jax.default_backend(), 8192)
    dtype = jnp.bfloat16 if "bfloat16" in precision else _float(precision)
    a = jnp.asarray(np.random.default_rng(0).normal(size=(side, side)), dtype)
    return 2.0 * side**3 / _fastest(jax.jit(lambda a: a @ a), a)


def copy_bytes() -> float:
    """Measures bytes per second, read and written, of a copy on the default device."""
    n = _BYTES.get(jax.default_backend(), 2**30) // 4
    a = jnp.zeros(n, jnp.float32)
    return 8.0 * n / _fastest(jax.jit(lambda a: a + 1), a)


def _float(precision: str) -> Any:
    return {"float64": jnp.float64, "float16": jnp.float16, "mixed_float16": jnp.float16}.get(
        precision, jnp.float32
    )


def _fastest(function: Any, argument: Any) -> float:
    jax.block_until_ready(function(argument))
    each = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        jax.block_until_ready(function(argument))
        each.append(time.perf_counter() - began)
    return min(each)
