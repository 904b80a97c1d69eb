"""Marks of 64-bit integers: a step may move and compare them, but not calculate with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import jaxpr_as_fun

from paceline.program.foreign.operations import ForeignOperationError
from paceline.program.foreign.wide_results import marked, unmarked, without_marks

X = np.array([[3, -2], [7, 0]], "int32")


def wide(x: Any) -> Any:
    return marked(x, of_truth=False)


def given_back(x: Any) -> Any:
    found = unmarked(wide(x))
    assert found is not None and not found[1]
    return found[0]


ALLOWED: dict[str, Callable[[Any], Any]] = {
    "as it is": wide,
    "compared": lambda x: jnp.where(wide(x) > 2, 1.0, 2.0),
    "cast": lambda x: wide(x).astype("float32") * 1e9,
    "cast to fewer bits": lambda x: wide(x).astype("int8") * 2,
    "divided": lambda x: wide(x) / 3,
    "given back": lambda x: given_back(x) * 2**20,
    "index": lambda x: (
        lax.gather(
            jnp.arange(10),
            wide(jnp.abs(x))[..., None],
            lax.GatherDimensionNumbers((), (0,), (0,)),
            (1,),
            mode="clip",
        )
        * 2
    ),
    "joined": lambda x: jnp.concatenate([wide(x), x])[1:].max(0).astype("float32"),
    "named by the user": lambda x: checkpoint_name(x, "mine") * 2,
    "sorted": lambda x: lax.sort((x, wide(x)), num_keys=1)[0] * 2,
    "in a function": lambda x: jax.jit(wide)(x) > 2,
    "in a loop": lambda x: lax.scan(lambda sum, y: (sum + (wide(y) > 2), 0.0), x[0], x)[0],
    "rebuilt": jax.checkpoint(lambda y: wide(y).astype("float32")),
}
REFUSED: dict[str, Callable[[Any], Any]] = {
    "added": lambda x: wide(x) + 1,
    "multiplied": lambda x: x * wide(x),
    "summed": lambda x: wide(x).sum(),
    "moved, then multiplied": lambda x: wide(x).T.reshape(4)[1:] * 2,
    "named by the user": lambda x: checkpoint_name(wide(x), "mine") * 2,
    "of a function": lambda x: jax.jit(wide)(x) * 2,
    "into a function": lambda x: jax.jit(lambda y: y * 2)(wide(x)),
    "into a loop": lambda x: lax.map(lambda y: y * 2, wide(x)),
    "of a loop": lambda x: lax.map(wide, x) * 2,
    "into a branch": lambda x: lax.cond(x[0, 0] > 0, lambda y: y * 2, lambda y: y, wide(x)),
    "in a branch": lambda x: lax.cond(x[0, 0] > 0, lambda y: wide(y) * 2, lambda y: y, x),
    "rebuilt": jax.checkpoint(lambda y: wide(y) * 2),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_cannot_exceed_32_bits_is_allowed(name):
    closed = jax.make_jaxpr(ALLOWED[name])(X)
    found = without_marks(closed)
    assert "int64 of TensorFlow" not in str(found) and "given back" not in str(found)
    np.testing.assert_array_equal(jaxpr_as_fun(found)(X)[0], jaxpr_as_fun(closed)(X)[0])


@pytest.mark.parametrize("name", REFUSED)
def test_calculations_are_refused(name):
    closed = jax.make_jaxpr(REFUSED[name])(X)
    with pytest.raises(ForeignOperationError, match="64-bit integers .* cast them to tf.int32"):
        without_marks(closed)


def test_a_step_without_marks_stays_as_it_is():
    closed = jax.make_jaxpr(lambda x: checkpoint_name(x, "mine") * 2)(X)
    assert without_marks(closed) is closed


def test_truth_values_come_back_as_such():
    def run(x: Any) -> Any:
        found = unmarked(marked((x > 0).astype("int32"), of_truth=True))
        assert found is not None and found[1]
        assert unmarked(x) is None
        return found[0]

    np.testing.assert_array_equal(jax.jit(run)(X), X > 0)
