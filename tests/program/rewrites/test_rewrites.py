"""Every rewrite gives the numbers of what it replaces, to the bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from paceline.program import jax_compat as jv
from paceline.program.rewrites import CPU_CHAINS, CPU_RULES, rewrite
from paceline.program.rewrites.splice import splice

RNG = np.random.default_rng(0)
DTYPES = [pytest.param("float16", marks=pytest.mark.slow), "bfloat16", "float32"]


def primitives(jaxpr: Any) -> list[str]:
    """Names of a jaxpr's equations, bodies included."""
    names = []
    for eqn in jaxpr.eqns:
        names.append(eqn.primitive.name)
        for value in eqn.params.values():
            for body in value if isinstance(value, tuple) else (value,):
                if isinstance(body, (jv.ClosedJaxpr, jv.Jaxpr)):
                    names += primitives(getattr(body, "jaxpr", body))
    return names


def both(function: Any, *args: Any) -> tuple[Any, Any, list[str]]:
    """What a function gives, what its rewritten form gives, and that form's primitives."""
    closed = jax.make_jaxpr(function)(*args)
    new = rewrite(closed, "cpu")
    run = jax.jit(jv.jaxpr_as_fun(new))
    return jax.jit(function)(*args), run(*args)[0], primitives(new.jaxpr)


def same_bits(a: Any, b: Any) -> None:
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(np.asarray(a).view(np.uint8), np.asarray(b).view(np.uint8))


# -- random bits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1,), (3, 5), (255,), (256,), (257,), (33, 31), (2, 3, 129)])
def test_random_bits_are_jaxs(shape: tuple[int, ...]) -> None:
    old, new, names = both(lambda key: jax.random.bits(key, shape), jax.random.key(7))
    same_bits(old, new)
    assert "random_bits" not in names


@pytest.mark.parametrize("draw", [jax.random.uniform, jax.random.normal, jax.random.bernoulli])
def test_draws_under_vmap_are_those_of_each_key(draw: Any) -> None:
    keys = jax.random.split(jax.random.key(3), 4)

    def one(key: Any) -> Any:
        return draw(key, shape=(40, 17))

    new = rewrite(jax.make_jaxpr(one)(keys[0]), "cpu")
    together = jax.jit(jax.vmap(jv.jaxpr_as_fun(new)))(keys)[0]
    for key, row in zip(keys, together, strict=True):
        np.testing.assert_array_equal(row, jax.jit(one)(key))


def test_wider_words_and_other_generators_stay() -> None:
    narrow = jax.make_jaxpr(lambda key: jax.random.bits(key, (300,), "uint8"))(jax.random.key(0))
    assert "random_bits" in primitives(rewrite(narrow, "cpu").jaxpr)
    other = jax.make_jaxpr(lambda key: jax.random.bits(key, (300,)))(jax.random.key(0, impl="rbg"))
    assert "random_bits" in primitives(rewrite(other, "cpu").jaxpr)


def test_bodies_are_rewritten() -> None:
    def noisy(key: Any) -> Any:
        def body(total: Any, i: Any) -> Any:
            noise = jax.random.uniform(jax.random.fold_in(key, i), (300,))
            return total + jnp.where(i > 1, 1.0, 2.0) * noise, noise[0]

        total, first = lax.scan(body, jnp.zeros(300), jnp.arange(3))
        return lax.cond(
            first[0] > 2, lambda: total, lambda: total + jax.random.uniform(key, (300,))
        )

    old, new, names = both(noisy, jax.random.key(1))
    np.testing.assert_allclose(old, new, rtol=1e-6)  # sums may be fused with what they add
    assert "random_bits" not in names


def test_accelerators_keep_the_step_as_it_is() -> None:
    closed = jax.make_jaxpr(lambda key: jax.random.bits(key, (300,)))(jax.random.key(0))
    assert rewrite(closed, "gpu") is closed


# -- max-pooling -----------------------------------------------------------------------------------

WINDOWS = [(2, 2), (3, 2), (3, 1), (2, 1), (2, 3), (3, 3)]  # size, stride


def pool_gradient(size: int, stride: int, padding: str) -> Any:
    def pool(x: Any) -> Any:
        window, strides = (1, size, size, 1), (1, stride, stride, 1)
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)

    def gradient(x: Any, weights: Any) -> Any:
        return jax.vjp(pool, x)[1](weights)[0]

    gradient.pool = pool
    return gradient


# Examples are one longer than they are wide: 7 has an even and an odd length.
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    "length", [7, *(pytest.param(n, marks=pytest.mark.slow) for n in (6, 8, 9))]
)
@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_max_pool_gradient(window: tuple[int, int], length: int, padding: str) -> None:
    gradient = pool_gradient(*window, padding)
    x = RNG.integers(0, 4, (3, length, length + 1, 5)).astype(np.float32)  # ties abound
    x[RNG.random(x.shape) < 0.05] = np.nan
    x[RNG.random(x.shape) < 0.05] = -np.inf
    weights = RNG.standard_normal(gradient.pool(x).shape).astype(np.float32)
    old, new, names = both(gradient, x, weights)
    same_bits(old, new)
    assert "select_and_scatter_add" not in names


def test_large_windows_stay() -> None:
    x, gradient = np.zeros((1, 9, 9, 1), np.float32), pool_gradient(6, 3, "VALID")
    weights = np.ones(gradient.pool(x).shape, np.float32)
    assert "select_and_scatter_add" in both(gradient, x, weights)[2]


# -- convolutions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("wrt", ["x", "kernel"])
def test_gradient_convolutions_move_to_the_fast_layout(
    strides: int, padding: str, wrt: str
) -> None:
    x = RNG.standard_normal((4, 10, 9, 3)).astype(np.float32)
    kernel = RNG.standard_normal((3, 3, 3, 8)).astype(np.float32)

    def loss(x: Any, kernel: Any) -> Any:
        y = lax.conv_general_dilated(
            x, kernel, (strides, strides), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.sum(y * y)

    old, new, _ = both(jax.grad(loss, argnums=0 if wrt == "x" else 1), x, kernel)
    same_bits(old, new)
    closed = rewrite(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(x, kernel), "cpu")
    specs = {
        eqn.params["dimension_numbers"]
        for eqn in closed.jaxpr.eqns
        if eqn.primitive.name == "conv_general_dilated"
    }
    assert specs == {lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))}


@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions_of_other_ranks_and_groups(rank: int) -> None:
    x = RNG.standard_normal((2, *[6] * rank, 4)).astype(np.float32)
    kernel = RNG.standard_normal((*[3] * rank, 2, 6)).astype(np.float32)
    letters = "DHW"[-rank:]

    def loss(kernel: Any) -> Any:
        y = lax.conv_general_dilated(
            x,
            kernel,
            (1,) * rank,
            "SAME",
            dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
            feature_group_count=2,
        )
        return jnp.sum(y * y)

    old, new, _ = both(jax.grad(loss), kernel)
    np.testing.assert_allclose(old, new, rtol=2e-5)  # grouped: XLA sums in another order


# -- products over several axes --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((5, 7, 24), "abc,cd->abd"),  # Dense on sequences
        ((33, 9, 40), "abc,cde->abde"),  # heads of attention
        ((2, 3, 4, 130), "abcd,de->abce"),
    ],
)
def test_gradients_of_kernels_on_sequences(shape: tuple[int, ...], spec: str) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    rank = spec.index("-") - spec.index(",") - 1
    kernel = RNG.standard_normal((shape[-1], 6, 16)[:rank]).astype(np.float32)

    def loss(kernel: Any) -> Any:
        return jnp.sum(jnp.tanh(jnp.einsum(spec, x, kernel)) ** 2)

    old, new, _ = both(jax.grad(loss), kernel)
    same_bits(old, new)
    rewritten = rewrite(jax.make_jaxpr(jax.grad(loss))(kernel), "cpu").jaxpr
    summed = [
        eqn.params["dimension_numbers"][0][0]
        for eqn in rewritten.eqns
        if eqn.primitive.name == "dot_general"
    ]
    assert [len(axes) for axes in summed] == [1, 1]


@pytest.mark.parametrize(
    "numbers",
    [
        (((0,), (0,)), ((), ())),
        (((1, 0), (1, 0)), ((), ())),
        (((0, 1), (1, 0)), ((), ())),
        (((1, 2), (1, 2)), ((), ())),
        (((1, 2), (1, 2)), ((0,), (0,))),
    ],
    ids=str,
)
def test_other_products_stay(numbers: Any) -> None:
    a = RNG.standard_normal((4, 4, 4)).astype(np.float32)
    old, new, names = both(lambda a, b: lax.dot_general(a, b, numbers), a, a + 1)
    same_bits(old, new)
    assert names == ["dot_general"]


def test_precision_and_type_of_a_product_are_kept() -> None:
    a = jnp.asarray(RNG.standard_normal((4, 5, 6)), "bfloat16")

    def product(a: Any) -> Any:
        return lax.dot_general(
            a,
            a,
            (((0, 1), (0, 1)), ((), ())),
            precision="highest",
            preferred_element_type=np.float32,
        )

    old, new, names = both(product, a)
    assert old.dtype == new.dtype == np.float32
    # The order of twenty sums is XLA's; of some numbers it shows in the last bit, and of those near
    # zero, whose terms are around one, in the last bits of one.
    np.testing.assert_allclose(new, old, rtol=1e-6, atol=2e-6)
    assert "reshape" in names


# -- places of extremes ----------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("find", [lax.argmax, lax.argmin], ids=["max", "min"])
def test_places_of_extremes(find: Any, dtype: str, axis: int) -> None:
    shape = [3, 4, 5]
    shape[axis] = 70
    x = RNG.integers(-2, 3, shape).astype(np.float32)  # ties abound
    x *= RNG.choice([1.0, -1.0], shape)  # both zeros
    where = RNG.random(shape)
    x[where < 0.02], x[where > 0.98], x[(where > 0.5) & (where < 0.505)] = np.inf, -np.inf, np.nan
    rows = np.moveaxis(x, axis, -1).reshape(-1, 70)
    rows[0], rows[1], rows[2] = np.nan, -np.inf, np.inf
    x = np.moveaxis(rows.reshape(*(n for n in shape if n != 70), 70), -1, axis)
    assert np.isnan(x).any()
    old, new, names = both(lambda x: find(x, axis, np.int32), jnp.asarray(x, dtype))
    same_bits(old, new)
    assert not {"argmax", "argmin"} & set(names)


def test_short_rows_and_whole_numbers_keep_their_places() -> None:
    for x in (np.zeros((9, 63), np.float32), np.zeros((9, 64), np.int32)):
        assert both(lambda x: lax.argmax(x, 1, np.int32), x)[2] == ["argmax"]


def test_every_rule_has_its_primitive_here() -> None:
    assert set(CPU_RULES) == {
        "random_bits",
        "select_and_scatter_add",
        "conv_general_dilated",
        "dot_general",
        "argmax",
        "argmin",
        "reduce_max",
    }
    assert set(CPU_CHAINS) == {"reduce_sum"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [(2, 2), (3, 2)])
def test_max_pool_in_every_dtype(dtype: str, window: tuple[int, int]) -> None:
    gradient = pool_gradient(*window, "SAME")
    x = jnp.asarray(RNG.integers(0, 4, (2, 5, 6, 3)), dtype)
    weights = jnp.asarray(RNG.standard_normal(gradient.pool(x).shape), dtype)
    old, new, names = both(gradient, x, weights)
    same_bits(old, new)
    assert "select_and_scatter_add" not in names


def test_arrays_that_a_rule_closes_over_are_literals_in_bodies_too() -> None:
    factors = np.arange(3.0, dtype=np.float32)

    def rule(eqn: Any) -> Any:
        return lambda x: x * factors

    def stepwise(x: Any) -> Any:
        return lax.scan(lambda total, _: (lax.sin(total) + 1, lax.sin(total)), x, None, length=2)

    x = np.ones(3, np.float32)
    closed = splice(jax.make_jaxpr(stepwise)(x), {"sin": rule})
    assert "sin" not in primitives(closed.jaxpr)
    last, all_of_them = jax.jit(jv.jaxpr_as_fun(closed))(x)
    np.testing.assert_array_equal(all_of_them, [factors, (factors + 1) * factors])
    np.testing.assert_array_equal(last, (factors + 1) * factors + 1)


def test_a_rule_that_fails_leaves_the_equation() -> None:
    def broken(eqn: Any) -> Any:
        def replacement(*_: Any) -> Any:
            raise TypeError("a case it does not know")

        return replacement

    def narrow(eqn: Any) -> Any:
        return lambda x, y: (x + y).astype("float16")

    closed = jax.make_jaxpr(lambda x: x + x)(np.ones(3, np.float32))
    for rule in (broken, narrow):
        assert primitives(splice(closed, {"add": rule}).jaxpr) == ["add"]
