"""The dropout rewrite: threefry's random bits in straight-line code.

Dropout draws a mask of random bits in every step. On a CPU JAX lowers threefry to a loop of five
rounds, whose small operations take a third of a small model's step. Unrolled, XLA fuses all rounds
into one operation. But XLA would compute a plain expression again for each of its uses (a dropout
mask has two: forward and backward). So a loop draws the bits in two halves, and XLA computes a loop
once.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011 (Threefry-2x32, 20
rounds). The order of counters is that of JAX's ``jax_threefry_partitionable``.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from paceline.program.rewrites.splice import Replacement

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_BLOCKS = 5
#: Words of a draw below which a loop of two halves costs more than computing the words again.
_FEW = 256


def random_bits(eqn: Any) -> Replacement | None:
    """The rule: 32-bit words of one threefry key, counted as JAX does by default since 0.5.

    The bits are those of JAX, equal in every position.
    """
    shape = eqn.params["shape"]
    key = eqn.invars[0].aval
    partitionable = jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]
    fits = key.shape == () and "fry" in str(key.dtype) and 0 < math.prod(shape) < 2**31
    if not (fits and partitionable and eqn.params["bit_width"] == 32):
        return None

    def draw(key: Any) -> Any:
        return _words(jax.random.key_data(key), math.prod(shape)).reshape(shape)

    return draw


def _words(key: Any, n: int) -> Any:
    """u32[n], words of a key u32[2]: word i is the two halves of threefry(key, (0, i)), xored."""
    if n < _FEW:
        return _draw(key, lax.iota(np.uint32, n))
    half = -(-n // 2)

    def body(start: Any, _: None) -> Any:
        return start + np.uint32(half), _draw(key, start + lax.iota(np.uint32, half))

    _, words = lax.scan(body, np.uint32(0), None, length=2)
    return words.reshape(-1)[:n]


def _draw(key: Any, counters: Any) -> Any:
    """The words of a key u32[2] at these counters, both u32[n]."""
    high, low = threefry(key, counters)
    return high ^ low


def threefry(key: Any, counters: Any) -> tuple[Any, Any]:
    """Both words, each u32[n], that a key u32[2] gives for counters (0, i)."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    a, b = jnp.full_like(counters, keys[0]), counters + keys[1]
    for block in range(_BLOCKS):
        for rotation in _ROTATIONS[block % 2]:
            a = a + b
            b = a ^ ((b << np.uint32(rotation)) | (b >> np.uint32(32 - rotation)))
        a = a + keys[(block + 1) % 3]
        b = b + (keys[(block + 2) % 3] + np.uint32(block + 1))
    return a, b
