"""Which steps do with floats what they do with integers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import keras
import pytest

from paceline.program.data_paths.integer_casts import casts_at_once


def casts(step: Callable[[Any], Any]) -> bool:
    """Of the last of two inputs, 4 numbers."""
    traced: Any = [
        SimpleNamespace(
            closed=jax.make_jaxpr(lambda state, x: (state + 1.0, step(x)))(
                1.0, jax.ShapeDtypeStruct((4,), dtype)
            )
        )
        for dtype in ("int32", "float32")
    ]
    return casts_at_once(*traced, -1)


def called(x: Any) -> Any:
    return jax.jit(lambda a: jax.jit(jnp.squeeze)(a[:, None]))(x).astype("float32")


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda x: x.astype("float32"), True),
        (lambda x: x.astype("bfloat16"), True),
        (lambda x: x * 0.5, True),
        (lambda x: jnp.reshape(x, (2, 2)).T[None].astype("float32") // 7, True),
        (called, True),
        (jax.checkpoint(lambda a: a * 0.5), True),
        (lambda x: keras.losses.huber(x, jnp.ones(4)), True),
        (lambda x: 1.0, True),  # it is not used
        (lambda x: x, False),
        (lambda x: x.astype("float32") + (x > 3), False),
        (lambda x: (x // 7).astype("float32"), False),
        (lambda x: jax.jit(lambda a: a + 1)(x) * 0.5, False),
        (lambda x: jnp.arange(9.0)[x.astype("int32")], False),
        # Integers are cast to floats, and floats are cast to integers before that.
        (lambda x: x.astype("int32").astype("float32"), False),
        (lambda x: jax.lax.cond(True, lambda a: a * 0.5, lambda a: a * 1.5, x), False),
    ],
)
def test_a_step_casts_before_anything_else(step: Callable[[Any], Any], expected: bool) -> None:
    assert casts(step) == expected
