"""Fingerprints and lifted constants, against the functions that were traced."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

from paceline.program.canonical import Unpackable, canonical_text, canonicalise, lift
from paceline.program.jax_compat import jaxpr_as_fun

X = jnp.array([0.5, 1.5, 2.5])


def canonical(function: Callable[..., Any], *args: Any) -> Any:
    return canonicalise(jax.make_jaxpr(function)(*(args or (X,))))


@jax.custom_jvp
def _softened(x: Any) -> Any:
    return jnp.tanh(x * 0.3)


_softened.defjvp(lambda primals, tangents: (_softened(*primals), 0.7 * tangents[0]))


@jax.custom_vjp
def _clipped(x: Any) -> Any:
    return x * 0.9


_clipped.defvjp(lambda x: (x * 0.9, None), lambda _, g: (jnp.clip(g, -0.4, 0.4),))


def _scanned(x: Any) -> Any:
    array = jnp.array([0.1, 0.2, 0.3])
    return lax.scan(lambda c, y: (c * 0.5 + y, (c * array).sum()), x, jnp.stack([x, 2.5 * x]))[1]


def _looped(x: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 3.5, lambda c: (c[0] + 0.5, c[1] * 1.1), (0.25, x))[1]


def _checkpointed(x: Any) -> Any:
    inside = jax.checkpoint(lambda z: jnp.sin(z * 0.3) * jnp.cos(z * 0.2))
    return jax.grad(lambda y: inside(y).sum())(x)


#: A constant in every kind of place.
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "in place": lambda x: x * 0.5 + 0.25,
    "array": lambda x: x * jnp.array([0.1, 0.2, 0.3]),
    "call": jax.jit(lambda x: x * 0.5),
    "scan": _scanned,
    "while": _looped,
    "cond": lambda x: lax.cond(x[0] > 0.25, lambda y: y * 0.3, lambda y: y + 0.4, x),
    "switch in scan": lambda x: lax.map(
        lambda y: lax.switch(jnp.int32(y), [lambda v: v * 0.3, lambda v: v * 0.4], y), x
    ),
    "fori": lambda x: lax.fori_loop(0, 3, lambda i, y: y * 0.6 + i, x),
    "remat": _checkpointed,
    "custom jvp": jax.grad(lambda x: (_softened(x) * 0.2).sum()),
    "custom vjp": jax.grad(lambda x: (_clipped(x) ** 2.0).sum()),
    "pad and clip": lambda x: jnp.clip(jnp.pad(x, 1, constant_values=0.3), 0.4, 2.0),
    "scatter": lambda x: x.at[1].add(0.3),
    "sorted": lambda x: jnp.sort(x * -0.5) + jnp.cumsum(x),
    "keys": lambda x: x + 0.1 * jax.random.normal(jax.random.key(3), x.shape),
    "where": lambda x: jnp.where(x > 1.0, x * jnp.nan, jnp.inf),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_lifted_constants_give_what_the_function_gives(function: Callable[[Any], Any]) -> None:
    closed = jax.make_jaxpr(function)(X)
    constants = canonicalise(closed).constants
    lifted = [i for i, constant in enumerate(constants) if constant.liftable]
    assert lifted
    step = jaxpr_as_fun(lift(closed, lifted))
    values = [constants[i].value for i in lifted]
    np.testing.assert_allclose(step(*values, X)[0], function(X), rtol=1e-6)
    # As in a pack: values of its own for every slot.
    many = [np.stack([value, value * 0.5]) for value in values]
    both = jax.vmap(step, in_axes=(*[0] * len(many), None))(*many, X)[0]
    np.testing.assert_allclose(both[0], function(X), rtol=1e-6)
    halved = step(*[value * 0.5 for value in values], X)[0]
    np.testing.assert_allclose(both[1], halved, rtol=1e-6)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_nothing_lifted_is_the_same_step(function: Callable[[Any], Any]) -> None:
    closed = jax.make_jaxpr(function)(X)
    np.testing.assert_allclose(jaxpr_as_fun(lift(closed, []))(X)[0], function(X), rtol=1e-6)


def test_each_lifted_constant_takes_its_own_value() -> None:
    closed = jax.make_jaxpr(lambda x: lax.cond(x[0] > 0, lambda y: y * 0.3, lambda y: y + 0.4, x))(
        X
    )
    constants = canonicalise(closed).constants
    (index,) = [i for i, c in enumerate(constants) if float(c.value) == np.float32(0.3)]
    np.testing.assert_allclose(jaxpr_as_fun(lift(closed, [index]))(np.float32(0.6), X)[0], X * 0.6)


def scaled(factor: Any) -> Callable[[Any], Any]:
    return lambda x: lax.scan(lambda c, y: (c * factor + y, c), x, jnp.stack([x, x]))[0]


def test_float_constants_share_a_fingerprint() -> None:
    one, other, odd = (canonical(scaled(v)) for v in (0.3, 0.4, float("nan")))
    assert one.fingerprint == other.fingerprint == odd.fingerprint
    differ = [
        (float(a.value), float(b.value))
        for a, b in zip(one.constants, other.constants, strict=True)
        if a.value != b.value
    ]
    assert differ == [(np.float32(0.3), np.float32(0.4))]


DIFFERENT: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "integer constant": (
        lambda x: jnp.where(jnp.arange(3) < 2, x, 0.5),
        lambda x: jnp.where(jnp.arange(3) < 1, x, 0.5),
    ),
    "boolean constant": (
        lambda x: jnp.where(jnp.array([True, False, True]), x, 0.5),
        lambda x: jnp.where(jnp.array([True, True, True]), x, 0.5),
    ),
    "power as a parameter": (lambda x: x**2, lambda x: x**3),
    "weak type": (lambda x: x + jnp.float32(0.5), lambda x: x + 0.5 * jnp.ones(())),
    "operation": (lambda x: x + 0.5, lambda x: x - 0.5),
    "wiring": (lambda x: jnp.sin(x) - jnp.cos(x), lambda x: jnp.cos(x) - jnp.sin(x)),
    "wiring inside": (
        lambda x: lax.scan(lambda c, y: (c - y, c), x, jnp.stack([x]))[0],
        lambda x: lax.scan(lambda c, y: (y - c, c), x, jnp.stack([x]))[0],
    ),
    "order of results": (lambda x: (x + 0.5, x), lambda x: (x, x + 0.5)),
    "precision": (
        lambda x: jnp.dot(x, x, precision="highest"),
        lambda x: jnp.dot(x, x, precision="default"),
    ),
    "length": (
        lambda x: lax.fori_loop(0, 3, lambda i, y: y * 0.5, x),
        lambda x: lax.fori_loop(0, 4, lambda i, y: y * 0.5, x),
    ),
    "generator": (
        lambda x: x + jax.random.uniform(jax.random.key(0), x.shape),
        lambda x: x + jax.random.uniform(jax.random.key(0, impl="rbg"), x.shape),
    ),
    "initial value of a reduction": (
        lambda x: lax.reduce_window(x, 0.0, lambda a, b: a + b * 2.0, (2,), (1,), "SAME"),
        lambda x: lax.reduce_window(x, 1.0, lambda a, b: a + b * 2.0, (2,), (1,), "SAME"),
    ),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_what_decides_the_structure_splits(one: Callable, other: Callable) -> None:
    assert canonical(one).fingerprint != canonical(other).fingerprint
    assert canonical(one).fingerprint == canonical(one).fingerprint


def test_names_and_calls_do_not_split() -> None:
    def named(y: Any) -> Any:
        return jnp.tanh(y) * 0.5

    inlined = canonical(lambda x: jnp.tanh(x) * 0.5)
    assert canonical(jax.jit(named)).fingerprint == inlined.fingerprint


def test_shapes_and_dtypes_split() -> None:
    prints = {
        canonical(lambda x: x * 0.5, jnp.ones(shape, dtype)).fingerprint
        for shape, dtype in [((3,), "float32"), ((4,), "float32"), ((3,), "bfloat16")]
    }
    assert len(prints) == 3


_CHILD = """
import jax, jax.numpy as jnp
from jax import lax
from paceline.program.canonical import canonicalise
def step(x):
    key = jax.random.key(3)
    y = lax.scan(lambda c, z: (c * 0.5, jnp.einsum("i,i->", c, z)), x, jnp.stack([x, x]))[1]
    y = lax.cond(y[0] > 0.2, lambda v: v * 0.1, lambda v: jax.nn.gelu(v), y)
    return y + jax.random.bernoulli(key, 0.4, y.shape), x.at[1].set(0.3, mode="drop")
print(canonicalise(jax.make_jaxpr(step)(jnp.ones(4))).fingerprint)
"""


@pytest.mark.slow
def test_a_fingerprint_is_the_same_in_every_process(child_environment: dict[str, str]) -> None:
    prints = {
        subprocess.run(
            [sys.executable, "-c", _CHILD],
            env={**child_environment, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(prints) == 1 and len(prints.pop()) == 65


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "debug print": (lambda x: (jax.debug.print("{x}", x=x), x)[1], "side effects"),
    "pure callback": (
        lambda x: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((3,), "float32"), x),
        "step calls Python",
    ),
    "callback in a loop": (
        lambda x: lax.map(
            lambda y: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((), "float32"), y), x
        ),
        "step calls Python",
    ),
    "io callback": (
        lambda x: io_callback(lambda v: v, jax.ShapeDtypeStruct((3,), "float32"), x),
        "side effects",
    ),
    "function as parameter": (
        lambda x: lax.reduce(x, np.float32(0.0), lambda a, b: a * b + 1.0, (0,)),
        "cannot be compared",
    ),
}


@pytest.mark.parametrize(("function", "why"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_packed_is_refused_with_the_reason(function: Callable, why: str) -> None:
    with pytest.raises(Unpackable, match=why):
        canonical(function)


RAW = jnp.arange(4, dtype="uint32")
HARDWARE: dict[str, Callable[[Any, Any], Any]] = {
    "in place": lambda x, k: x + jax.random.uniform(jax.random.key(0, impl="rbg"), x.shape),
    "argument": lambda x, k: x + jax.random.uniform(k, x.shape),
    "wrapped": lambda x, k: (
        x + jax.random.uniform(jax.random.wrap_key_data(RAW, impl="unsafe_rbg"), x.shape)
    ),
    "raw": lambda x, k: x + lax.rng_bit_generator(RAW, (3,))[1].astype("float32"),
    "in a loop": lambda x, k: lax.map(lambda y: y + jax.random.uniform(k), x),
}


@pytest.mark.parametrize("function", HARDWARE.values(), ids=HARDWARE)
def test_generators_that_vmap_changes_are_flagged(function: Callable) -> None:
    key = jax.random.key(0, impl="rbg")
    assert canonical(function, X, key).batched_rng_differs
    assert canonical(lambda x: function(x, key)).batched_rng_differs


def test_threefry_is_not_flagged() -> None:
    found = canonical(lambda x, k: x + jax.random.uniform(k, x.shape), X, jax.random.key(0))
    assert not found.batched_rng_differs
    assert not canonical(FUNCTIONS["keys"]).batched_rng_differs


def test_convolutions_are_noticed() -> None:
    def convolved(x: Any) -> Any:
        return lax.map(lambda y: jnp.convolve(y, jnp.ones(2)), jnp.stack([x]))

    assert canonical(convolved).convolves
    assert not canonical(jnp.cumsum).convolves


def test_parameters_that_hide_something_are_refused() -> None:
    class Vague:
        def __repr__(self) -> str:
            return "Vague(values=array([0, 1, ..., 9]))"

    for value in (Vague(), object(), lambda x: x):
        with pytest.raises(Unpackable, match="cannot be compared"):
            canonical_text(value)
    assert canonical_text({"b": 1, "a": 2}) == canonical_text({"a": 2, "b": 1})
    assert canonical_text(np.arange(5000)) != canonical_text(
        np.arange(5000) + (np.arange(5000) == 2500)
    )
    assert canonical_text(1) != canonical_text(1.0) != canonical_text(True)
