"""Arithmetic of a step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paceline.benchmark.measure.cell import flops_of_step
from paceline.program.compile import Executable


def counted(function, *shapes):
    arrays = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    compiled = jax.jit(function).lower(*arrays).compile()
    return flops_of_step(jax.make_jaxpr(function)(*arrays), Executable(compiled, 0.0, False), 1)


def test_a_product_is_two_operations_for_each_element_summed():
    flops, source = counted(jnp.dot, (16, 64), (64, 32))
    assert (flops, source) == (pytest.approx(2 * 16 * 64 * 32, rel=0.01), "xla")


def test_trials_side_by_side_share_the_count():
    arrays = [jax.ShapeDtypeStruct((4, 8, 8), np.float32)] * 2
    executable = Executable(jax.jit(jnp.matmul).lower(*arrays).compile(), 0.0, False)
    flops, _ = flops_of_step(jax.make_jaxpr(jnp.matmul)(*arrays), executable, 4)
    assert flops == pytest.approx(2 * 8**3, rel=0.01)


def test_a_loop_counts_as_often_as_it_runs():
    def scan(x, w):
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=10)[0]

    assert counted(scan, (4, 8), (8, 8)) == (10 * 2 * 4 * 8 * 8, "trace")


def test_products_within_calls_and_branches_of_a_loop_count():
    def body(c, w):
        inner = jax.jit(lambda a: a @ w)(c)
        return jax.lax.cond(jnp.sum(c) > 0, lambda: inner @ w, lambda: inner)

    def scan(x, w):
        return jax.lax.scan(lambda c, _: (body(c, w), None), x, None, length=3)[0]

    assert counted(scan, (4, 8), (8, 8)) == (3 * 2 * 2 * 4 * 8 * 8, "trace")


def test_a_convolution_in_a_loop_counts():
    def scan(x, w):
        def body(c, _):
            numbers = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(
                c, w, (1, 1), "SAME", dimension_numbers=numbers
            ), None

        return jax.lax.scan(body, x, None, length=2)[0]

    products = 2 * 6 * 6 * 4 * (3 * 3 * 4)
    assert counted(scan, (2, 6, 6, 4), (3, 3, 4, 4)) == (2 * 2 * products, "trace")


def test_a_while_loop_counts_once_at_least():
    def loop(x, w):
        return jax.lax.while_loop(lambda c: jnp.sum(c) < 1, lambda c: c @ w, x)

    assert counted(loop, (4, 8), (8, 8)) == (2 * 4 * 8 * 8, "trace")


def test_who_does_not_tell_is_not_guessed():
    silent = Executable(lambda: None, 0.0, False)
    closed = jax.make_jaxpr(lambda x: x + 1)(np.float32(0))
    assert flops_of_step(closed, silent, 1) == (None, "xla")
