"""Which steps gain from stacking on a CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from paceline.pack.plan.base import gains_from_stacking, is_short


def traced(function, *shapes):
    return jax.make_jaxpr(function)(*(jnp.ones(shape) for shape in shapes))


def test_small_products_gain() -> None:
    assert gains_from_stacking(traced(lambda x, w: x @ w, (32, 64), (64, 64)))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_large_products_do_not(wrap) -> None:
    product = wrap(lambda x, w: x @ w)
    assert not gains_from_stacking(traced(product, (128, 784), (784, 128)))


def test_products_add_up() -> None:
    def four_times(x, w):
        return x @ w @ w @ w @ w

    shapes = (128, 128), (128, 128)
    assert gains_from_stacking(traced(lambda x, w: x @ w, *shapes))
    assert not gains_from_stacking(traced(four_times, *shapes))


def test_loops_of_recurrent_layers_do_not() -> None:
    def loop(x):
        return jax.lax.scan(lambda c, v: (c + v, c), jnp.zeros(4), x)[0]

    assert not gains_from_stacking(traced(loop, (5, 4)))


def test_a_run_is_short_by_its_steps_and_by_its_products() -> None:
    small = traced(lambda x, w: x @ w, (32, 64), (64, 64))
    large = traced(lambda x, w: x @ w, (704, 128), (128, 4000))  # 0.7 GFLOP
    assert is_short(small, 4_999, 8)
    assert not is_short(small, 5_000, 1)
    assert is_short(large, 600, 8)
    assert not is_short(large, 600, 16)
    assert not is_short(large, 1_200, 8)
