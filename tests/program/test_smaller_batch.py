"""A step on the smaller batch that was not traced is the one that a trace would have given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from marks import slow_where
from paceline.program import jax_compat as jv
from paceline.program import trace
from paceline.program.canonical import canonicalise
from paceline.program.formulas.smaller_batch import step_like
from paceline.program.trace import Step
from program.padding.kinds import MORE
from program.padding.test_widths import KINDS, shapes_of

MAKES = KINDS | MORE
#: Both sizes are widths of the models, too.
FULL, SMALL = 12, 8
WIDTHS = (12, 24), (20, 8)
QUICK = ("dense", "flatten", "clipped")
#: They have an axis of all steps of all rows, times a width: the smaller batch is traced.
UNKNOWN = {"gru", "embedding"}


def steps(make: Callable[[int, int], Any], widths: tuple[int, int]) -> list[list[Step]]:
    """A model's train and test step on the full and on the smaller batch."""
    keras.utils.set_random_seed(1)
    model = make(*widths)
    found = []
    for size in (FULL, SMALL):
        shapes = shapes_of(model, size)
        state = trace.build_state(model, shapes)
        train = trace.trace_train(model, state, shapes)
        found.append([train, trace.trace_test(model, state, shapes)])
    return found


def alike(ours: Step, expected: Step) -> None:
    assert ours.canonical.fingerprint == expected.canonical.fingerprint
    assert ours.log_names == expected.log_names
    pairs = zip(ours.canonical.constants, expected.canonical.constants, strict=True)
    for mine, theirs in pairs:
        assert mine.value.tobytes() == theirs.value.tobytes()
        assert mine.aval == theirs.aval and mine.liftable == theirs.liftable


@pytest.mark.parametrize("name", slow_where(MAKES, lambda name: name not in QUICK))
def test_it_is_the_step_that_a_trace_gives(name: str) -> None:
    whole, part = steps(MAKES[name], WIDTHS[0])
    own, expected = steps(MAKES[name], WIDTHS[1])
    found = [step_like(*each) for each in zip(whole, part, own, strict=True)]
    assert all(found) == (name not in UNKNOWN)
    for ours, theirs in zip(found, expected, strict=True):
        if ours is not None:
            alike(ours, theirs)


def step(function: Any, shape: tuple[int, ...], names: tuple[str, ...] = ("loss",)) -> Step:
    closed = jax.make_jaxpr(function)(jax.ShapeDtypeStruct(shape, "float32"))
    return Step(closed, canonicalise(closed), names)


def found(make: Callable[[int, int, float], Any]) -> tuple[Step | None, Step]:
    """What follows for the second model, and what a trace gives; ``make(rows, width, rate)``."""
    (whole, part), (own, expected) = (
        [step(make(n, width, rate), (n, width)) for n in (FULL, SMALL)]
        for width, rate in ((12, 0.1), (20, 0.3))
    )
    return step_like(whole, part, own), expected


KEYS = {FULL: jax.random.key(0), SMALL: jax.random.key(1)}


def _loop(n: int, width: int, rate: float) -> Any:
    def body(carry: Any, _: Any) -> Any:
        return carry * rate + jnp.sum(carry) / n, None

    return lambda x: jax.lax.scan(body, x, None, length=3)[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda n, width, rate: lambda x: x * rate / n,
        lambda n, width, rate: lambda x: x + np.arange(n, dtype="float32")[:, None],
        lambda n, width, rate: lambda x: x + np.linspace(0, rate, width, dtype="float32"),
        lambda n, width, rate: lambda x: jnp.pad(x, ((0, 30 - n), (1, 0)))[:n, :width],
        lambda n, width, rate: lambda x: jax.nn.relu(x) * jax.random.uniform(jax.random.key(0)),
        lambda n, width, rate: jax.checkpoint(lambda x: jnp.sin(x * rate).mean(0)),
        lambda n, width, rate: lambda x: jax.lax.cond(x[0, 0] > rate, jnp.sum, jnp.max, x),
        lambda n, width, rate: lambda x: jax.random.bits(jax.random.key(n), x.shape),
        lambda n, width, rate: lambda x: jnp.cumsum(x, axis=int(rate > 0.2)),
        _loop,
    ],
)
def test_numbers_and_extents_are_the_model_s_own_or_the_batch_s(make: Any) -> None:
    ours, expected = found(make)
    assert ours is not None
    alike(ours, expected)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda n, width, rate: lambda x: x * (rate / n), id="number"),
        pytest.param(lambda n, width, rate: lambda x: x.reshape(-1), id="axis"),
        pytest.param(
            lambda n, width, rate: lambda x: x + np.full((n, 1), rate * n, "float32"), id="array"
        ),
        pytest.param(
            lambda n, width, rate: lambda x: jnp.sin(x) if rate < 0.2 else jnp.cos(x), id="equation"
        ),
        pytest.param(
            lambda n, width, rate: lambda x: x if rate < 0.2 else jnp.sin(x), id="equations"
        ),
        pytest.param(
            lambda n, width, rate: lambda x: jnp.cos(y := jnp.sin(x)) - (x if rate < 0.2 else y),
            id="operand",
        ),
        pytest.param(
            lambda n, width, rate: (
                lambda x: jnp.sin(y := x.sum()) * (y if rate < 0.2 else np.float32(2))
            ),
            id="literal",
        ),
        pytest.param(
            lambda n, width, rate: lambda x: jnp.zeros(3, "float16" if rate < 0.2 else "float32"),
            id="dtype",
        ),
        pytest.param(
            lambda n, width, rate: lambda x: (jnp.sin(x), rate > 0.2 and jnp.cos(x))[0],
            id="equation more",
        ),
        pytest.param(lambda n, width, rate: lambda x: jax.random.bits(KEYS[n], x.shape), id="key"),
        pytest.param(
            lambda n, width, rate: lambda x: _loop(n, width, rate / n)(x) * n, id="in a loop"
        ),
    ],
)
def test_what_does_not_follow_is_traced(make: Any) -> None:
    assert found(make)[0] is None


def test_logs_of_other_names_do_not_follow() -> None:
    sizes = (FULL, "a"), (SMALL, "a"), (FULL, "b")
    whole, part, own = (step(jnp.sin, (n, 4), names=("loss", name)) for n, name in sizes)
    assert step_like(whole, part, whole) is not None
    assert step_like(whole, part, own) is None


@pytest.mark.parametrize("changed", [{"axes": None}, {"more": 1}])
def test_other_parameters_do_not_follow(changed: dict[str, Any]) -> None:
    whole, part, own = (step(lambda x: x.sum(axis=0), (n, 4)) for n in (FULL, SMALL, FULL))
    assert step_like(whole, part, own) is not None
    (eqn,) = own.closed.jaxpr.eqns
    other = eqn.replace(params={**eqn.params, **changed})
    jaxpr = own.closed.jaxpr.replace(eqns=[other])
    closed = jv.ClosedJaxpr(jaxpr, [])
    assert step_like(whole, part, Step(closed, canonicalise(closed), ("loss",))) is None
