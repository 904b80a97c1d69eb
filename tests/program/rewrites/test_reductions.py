"""Extremes and one-hot sums of arrays larger than a cache: the same bits, by other operations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import zoo
from marks import slow_where
from numerics.packed import train_packed
from paceline.program import compilation_cache
from paceline.program import jax_compat as jv
from paceline.program.canonical import lift
from paceline.program.rewrites import reductions, rewrite
from paceline.program.rewrites.reductions import LEAST, SHORTEST

RNG = np.random.default_rng(0)
CLASSES = 600
ROWS = LEAST // CLASSES + 1
KEYS = ("reduce_max", "reduce_sum")


def rows(jaxpr: Any) -> list[tuple[str, int]]:
    """Reductions of rows of real numbers, with what they reduce."""
    return [
        (eqn.primitive.name, eqn.invars[0].aval.size)
        for eqn in jaxpr.eqns
        if eqn.primitive.name in KEYS
        and eqn.params["axes"] == (eqn.invars[0].aval.ndim - 1,)
        and eqn.invars[0].aval.dtype == np.float32
    ]


def large(jaxpr: Any) -> list[str]:
    return [name for name, size in rows(jaxpr) if size >= LEAST]


def both(function: Any, *args: Any) -> tuple[list[Any], list[Any], list[tuple[str, int]]]:
    """Results before and after, and the reductions left."""
    closed = lift(jax.make_jaxpr(function)(*args), ())
    new = rewrite(closed, "cpu")
    runs = (jax.jit(jv.jaxpr_as_fun(one)) for one in (closed, new))
    old_results, new_results = (run(*args) for run in runs)
    return old_results, new_results, rows(new.jaxpr)


def same_bits(a: list[Any], b: list[Any]) -> None:
    for one, other in zip(a, b, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one).view("u4"), np.asarray(other).view("u4"))


def logits(*shape: int) -> Any:
    return jnp.asarray(RNG.normal(size=shape), np.float32)


# -- the largest of a row --------------------------------------------------------------------------


@pytest.mark.parametrize("length", [SHORTEST, 65, 600, 1024, 4000])
def test_the_largest_of_a_row(length: int) -> None:
    x = np.array(RNG.integers(-3, 1, (LEAST // length + 1, length)), np.float32)
    x[0], x[1], x[2, 5], x[3] = -np.inf, np.inf, np.inf, -0.0
    x[4, -1], x[5, 0] = 7.0, 7.0
    old, new, found = both(lambda x: jnp.max(x, axis=-1), x)
    same_bits(old, new)
    assert found == []


def test_nan_is_the_largest_and_zeros_are_equal() -> None:
    x = np.full((ROWS, CLASSES), -1.0, np.float32)
    x[0, 3], x[1, 4], x[2, 5] = np.nan, -np.nan, np.nan
    x[2, 4] = np.inf
    x[3, :2], x[4, :2], x[5, 1] = (0.0, -0.0), (-0.0, 0.0), 1e-40
    _, (new,), found = both(lambda x: jnp.max(x, axis=-1), x)
    # XLA's own kernel passes over NaN, and 1e-40 is 0 to it.
    np.testing.assert_array_equal(new, np.max(x, axis=-1))
    assert found == []


@pytest.mark.parametrize(
    ("shape", "axis", "dtype"),
    [
        ((ROWS, CLASSES), 0, "float32"),
        ((ROWS, CLASSES), (0, 1), "float32"),
        ((LEAST // SHORTEST * 2, SHORTEST - 1), 1, "float32"),
        ((LEAST // CLASSES, CLASSES), 1, "float32"),  # too few
        ((ROWS, CLASSES), 1, "int32"),
        ((ROWS, CLASSES), 1, "bfloat16"),
    ],
)
def test_other_maxima_stay(shape: Any, axis: Any, dtype: str) -> None:
    traced = jax.make_jaxpr(lambda x: jnp.max(x, axis=axis))(jnp.zeros(shape, dtype))
    names = [eqn.primitive.name for eqn in rewrite(lift(traced, ()), "cpu").jaxpr.eqns]
    assert "reduce_max" in names


# -- one of a row ----------------------------------------------------------------------------------


def chosen(x: Any, classes: Any, sign: float = 1.0) -> Any:
    hot = jax.nn.one_hot(classes, x.shape[-1])
    return jnp.sum(-(hot * x) if sign < 0 else x * hot, axis=-1)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_number_of_a_row(sign: float) -> None:
    x = np.array(logits(ROWS, CLASSES))
    classes = RNG.integers(0, CLASSES, ROWS)
    classes[:4] = -1, CLASSES, CLASSES + 5, 0  # three that are none
    x[4:8, 3], classes[4:8] = (0.0, -0.0, np.inf, -np.inf), 3
    x[8:11, 3], classes[8:11] = (np.inf, -np.inf, 1e-40), 4  # not chosen
    old, new, found = both(lambda x, c: chosen(x, c, sign), x, classes)
    if sign > 0:
        same_bits(old, new)
    np.testing.assert_array_equal(old[0], new[0])  # the sign of a zero is the compiler's
    assert found == []


def test_nan_that_is_not_chosen_counts_as_in_xla() -> None:
    x, classes = np.array(logits(ROWS, CLASSES)), np.full(ROWS, 4)
    x[0, 3], x[1, 4] = np.nan, np.nan
    old, new, _ = both(chosen, x, classes)
    np.testing.assert_array_equal(old[0], new[0])
    assert np.isnan(new[0][1])


def test_rows_of_one_number() -> None:
    """As in the gradient of a logarithm of softmax."""
    value, classes = logits(ROWS), RNG.integers(-1, CLASSES + 1, ROWS)

    def summed(value: Any, classes: Any) -> Any:
        repeated = jnp.broadcast_to(value[:, None], (ROWS, CLASSES))
        return jnp.sum(jax.nn.one_hot(classes, CLASSES) * repeated, axis=-1)

    old, new, found = both(summed, value, classes)
    same_bits(old, new)
    assert found == []


@pytest.mark.parametrize("under_vmap", slow_where([False, True], lambda vmap: not vmap))
def test_keras_loss_its_gradient_and_its_accuracy(under_vmap: bool) -> None:
    """Of Keras' own loss over a vocabulary, padding left out."""
    batch, words = 8, LEAST // 8 // CLASSES + 1
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)

    def step(x: Any, y: Any) -> Any:
        value, gradient = jax.value_and_grad(lambda x: loss(y, x))(x)
        return value, gradient, keras.ops.argmax(x, axis=-1)

    x, y = logits(batch, words, CLASSES), jnp.asarray(RNG.integers(0, CLASSES, (batch, words)))
    closed = lift(jax.make_jaxpr(step)(x, y), ())
    runs = [jv.jaxpr_as_fun(closed), jv.jaxpr_as_fun(rewrite(closed, "cpu"))]
    if under_vmap:
        x, y = jnp.stack([x, x + 1]), jnp.stack([y, y])
        runs = [jax.vmap(run) for run in runs]
    old, new = (jax.jit(run)(x, y) for run in runs)
    same_bits(old, new)
    # The sum of exponentials is left (and, of older JAX, a count of maxima that nothing uses).
    before, after = (large(one.jaxpr) for one in (closed, rewrite(closed, "cpu")))
    assert [before.count(name) - after.count(name) for name in KEYS] == [1, 2]
    assert "reduce_max" not in after


def not_one_hot(x: Any, classes: Any) -> Any:
    return jnp.sum(x * (classes[:, None] >= jnp.arange(CLASSES)).astype(x.dtype), axis=-1)


def soft(x: Any, classes: Any) -> Any:
    return jnp.sum(x * (jax.nn.one_hot(classes, CLASSES) + 0.1), axis=-1)


def by_columns(x: Any, classes: Any) -> Any:
    return jnp.sum(x * (jnp.arange(ROWS)[:, None] == classes[0]).astype(x.dtype), axis=-1)


def of_real_numbers(x: Any, classes: Any) -> Any:
    there = classes.astype(np.float32)[:, None] == jnp.arange(CLASSES, dtype=np.float32)
    return jnp.sum(x * there.astype(x.dtype), axis=-1)


@pytest.mark.parametrize("function", [not_one_hot, soft, by_columns, of_real_numbers])
def test_other_sums_stay(function: Any) -> None:
    x, classes = logits(ROWS, CLASSES), RNG.integers(0, CLASSES, ROWS)
    old, new, found = both(function, x, classes)
    same_bits(old, new)
    assert [name for name, _ in found] == ["reduce_sum"]


@pytest.mark.slow
def test_training_is_that_of_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small rows too, and in float64: a wrong gradient would show in every digit."""
    chosen: list[str] = []
    for name, value in {"LEAST": 0, "SHORTEST": 2, "_DTYPE": np.float64}.items():
        monkeypatch.setattr(reductions, name, value)
    for name in ("_numbers", "_chosen"):  # of the rule for maxima, and of the one for sums
        function = getattr(reductions, name)

        def spy(*given: Any, function: Any = function, name: str = name) -> Any:
            found = function(*given)
            chosen.append(name)
            return found

        monkeypatch.setattr(reductions, name, spy)
    # A program that another test has left on disk would be run in place of this one, and this one,
    # of other limits, in place of another test's.
    monkeypatch.setattr(compilation_cache, "cache_folder", lambda: None)
    case = zoo.CASES["sparse_from_logits"]
    seeds = list(range(len(case.hparams)))
    with zoo.float64():
        packed = train_packed(case, seeds)
        alone, _ = zoo.reference(case, case.hparams[1], seeds[1])
    assert {"_numbers", "_chosen"} <= set(chosen)
    for name in ("loss", "val_loss"):
        # 1e-12: a dozen steps' rounding in float64.
        np.testing.assert_allclose(packed.history[1][name], alone[name], rtol=0, atol=1e-12)
