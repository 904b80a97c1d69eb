"""Which steps gain from stacking on a CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from paceline.pack.plan.base import effort_for, gains_from_stacking
from paceline.program.compile import CompileEffort


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
    assert effort_for(small, 4_999, 8, 1) > CompileEffort.WELL
    assert effort_for(small, 5_000, 1, 1) is CompileEffort.WELL
    assert effort_for(large, 600, 8, 1) > CompileEffort.WELL
    assert effort_for(large, 600, 16, 1) is CompileEffort.WELL
    assert effort_for(large, 1_200, 8, 1) is CompileEffort.WELL


def test_a_run_of_one_trial_s_products_is_short_for_more_steps() -> None:
    def loop(x, w):
        return jax.lax.scan(lambda c, v: (c + v, c), jnp.zeros(4), jnp.zeros((2, 4)))[0], x @ w

    products = traced(lambda x, w: x @ w, (128, 784), (784, 128))  # 26 MFLOP
    assert effort_for(products, 19_999, 1, 1) > CompileEffort.WELL
    assert effort_for(products, 20_000, 1, 1) is CompileEffort.WELL
    assert effort_for(products, 5_000, 2, 1) is CompileEffort.WELL
    assert effort_for(traced(loop, (128, 784), (784, 128)), 5_000, 1, 1) is CompileEffort.WELL


@pytest.mark.parametrize(
    ("steps", "n_slots", "n_numbers", "effort"),
    [
        (1_000, 1, 149_999, CompileEffort.MOST_QUICKLY),
        (1_000, 1, 150_000, CompileEffort.QUICKLY),
        (1_000, 2, 75_000, CompileEffort.QUICKLY),
        (2_000, 1, 75_000, CompileEffort.QUICKLY),
    ],
)
def test_few_updates_in_place_are_compiled_most_quickly(
    steps: int, n_slots: int, n_numbers: int, effort: CompileEffort
) -> None:
    step = traced(lambda x, w: x @ w, (32, 64), (64, 64))
    assert effort_for(step, steps, n_slots, n_numbers) is effort
