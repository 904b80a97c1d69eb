"""Large convolutions by fewer multiplications: the same numbers but for rounding."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import zoo
from marks import slow_where
from numerics.packed import train_packed
from paceline.program import compilation_cache
from paceline.program import jax_compat as jv
from paceline.program.rewrites import rewrite
from paceline.program.rewrites.winograd import TILE, correlated, filtered, transforms

RNG = np.random.default_rng(0)
NHWC = ("NHWC", "HWIO", "NHWC")
#: Enough multiplications for the rule.
LARGE = {"x": (8, 14, 14, 64), "kernel": (5, 5, 64, 64)}


def convolve(x: Any, kernel: Any, pads: Any = "SAME", strides: int = 1, **more: Any) -> Any:
    return lax.conv_general_dilated(
        x, kernel, (strides, strides), pads, dimension_numbers=NHWC, **more
    )


def windows(function: Any, *shapes: Any) -> list[tuple[int, ...]]:
    """Shapes of the windows of a function's convolutions after the rewrite, height first.

    A loop over points counts once.
    """
    closed = rewrite(jax.make_jaxpr(function)(*shapes), "cpu")
    loops = [eqn.params["jaxpr"].jaxpr for eqn in closed.jaxpr.eqns if eqn.primitive.name == "scan"]
    return [
        eqn.invars[1].aval.shape[:2]
        for jaxpr in (closed.jaxpr, *loops)
        for eqn in jaxpr.eqns
        if eqn.primitive.name == "conv_general_dilated"
    ]


def shape(*axes: int, dtype: Any = np.float32) -> Any:
    return jax.ShapeDtypeStruct(axes, dtype)


@pytest.mark.parametrize("taps", [2, 3, 4, 5])
def test_transforms_are_those_of_minimal_filtering(taps: int) -> None:
    back, filters, forth = transforms(TILE, taps)
    data, kernel = RNG.standard_normal(TILE + taps - 1), RNG.standard_normal(taps)
    wanted = np.correlate(data, kernel, "valid")
    # 1e-13: numbers up to about 20 are added up in float64.
    np.testing.assert_allclose(back @ ((filters @ kernel) * (forth @ data)), wanted, atol=1e-13)
    assert (forth == forth.round()).all()


@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize(
    ("width", "pads"),
    slow_where(
        [
            (4, ((2, 2), (2, 2))),
            (7, ((2, 2), (2, 2))),
            (9, ((0, 0), (0, 0))),
            (9, ((1, 0), (0, 1))),
            (13, ((3, 3), (4, 3))),
        ],
        lambda case: case[0] != 13,
    ),
)
def test_in_float64_nothing_else_can_be_seen(taps: int, width: int, pads: Any) -> None:
    with zoo.float64():
        x, kernel = RNG.standard_normal((3, 6, width, 5)), RNG.standard_normal((3, taps, 5, 7))
        wanted = convolve(x, kernel, pads)
        # 1e-12: sums of up to 75 products of numbers near 1, through matrices of numbers up to 32.
        np.testing.assert_allclose(filtered(x, kernel, pads), wanted, rtol=0, atol=1e-12)
        x, window = np.transpose(x, (3, 1, 2, 0)), RNG.standard_normal((*wanted.shape[1:3], 3, 7))
        wanted = convolve(x, window, pads)
        assert wanted.shape == (5, 3, taps, 7)
        np.testing.assert_allclose(correlated(x, window, pads), wanted, rtol=0, atol=1e-12)


def test_a_large_convolution_and_its_gradients_round_a_few_times_as_much() -> None:
    x, kernel = (RNG.standard_normal(axes).astype(np.float32) for axes in LARGE.values())
    weights = RNG.standard_normal(x.shape).astype(np.float32)

    def all_three(x: Any, kernel: Any, weights: Any) -> Any:
        y, back = jax.vjp(convolve, x, kernel)
        return y, *back(weights)

    closed = jax.make_jaxpr(all_three)(x, kernel, weights)
    assert windows(all_three, x, kernel, weights) == [(5, 1)] * 2, "a gradient is of products only"
    ours = jax.jit(jv.jaxpr_as_fun(rewrite(closed, "cpu")))(x, kernel, weights)
    theirs = jax.jit(all_three)(x, kernel, weights)
    with zoo.float64():
        exact = jax.jit(all_three)(*(np.float64(part) for part in (x, kernel, weights)))
    three = (map(np.asarray, found) for found in (ours, theirs, exact))
    for one, other, wanted in zip(*three, strict=True):
        scale = np.sqrt(np.mean(np.square(wanted)))
        errors = [np.sqrt(np.mean(np.square(found - wanted))) / scale for found in (one, other)]
        # Measured: 1.0e-6 to 1.5e-6 of the root mean square, where XLA's own are 2e-7 to 4e-7.
        assert errors[0] < 3e-6
        assert errors[0] < 10 * errors[1]


def test_numbers_that_are_none_stay_to_be_seen() -> None:
    x, kernel = (RNG.standard_normal(axes).astype(np.float32) for axes in LARGE.values())
    x[3, 5, 6, 7], x[4, 0, 0, 0] = np.nan, np.inf
    closed = rewrite(jax.make_jaxpr(convolve)(x, kernel), "cpu")
    ours = np.asarray(jax.jit(jv.jaxpr_as_fun(closed))(x, kernel)[0])
    lost = ~np.isfinite(np.asarray(convolve(x, kernel)))
    assert lost.any()
    assert not np.isfinite(ours[lost]).any()
    assert np.isfinite(ours[[0, 1, 2, 5, 6, 7]]).all(), "other examples are not touched"


def test_under_vmap_each_trial_is_as_alone() -> None:
    x, kernel = (RNG.standard_normal((2, *axes)).astype(np.float32) for axes in LARGE.values())
    run = jv.jaxpr_as_fun(rewrite(jax.make_jaxpr(convolve)(x[0], kernel[0]), "cpu"))
    together = jax.jit(jax.vmap(run))(x, kernel)[0]
    for i in range(2):
        alone = jax.jit(run)(x[i], kernel[i])[0]
        # 1e-3: numbers near 40; grouped convolutions add up in another order.
        np.testing.assert_allclose(together[i], alone, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("x", "kernel", "more"),
    [
        ((8, 14, 14, 32), (5, 5, 32, 256), {}),  # few channels
        ((32, 14, 14, 64), (3, 3, 64, 64), {}),
        ((1, 14, 14, 64), (5, 5, 64, 64), {}),  # small
        ((32, 14, 14, 64), (7, 7, 64, 64), {}),  # other windows
        ((64, 14, 3, 64), (5, 5, 64, 128), {}),  # narrow images
        ((32, 28, 28, 64), (5, 5, 64, 64), {"strides": 2}),
        ((32, 28, 28, 64), (5, 5, 64, 64), {"rhs_dilation": (2, 2)}),
        ((32, 14, 14, 128), (5, 5, 64, 128), {"feature_group_count": 2}),
        ((32, 14, 14, 64), (5, 5, 64, 64), {"precision": "highest"}),
        ((32, 14, 14, 64), (5, 5, 64, 64), {"pads": ((2, 2), (-1, 2))}),
    ],
)
def test_others_stay(x: Any, kernel: Any, more: Any) -> None:
    given = shape(*x), shape(*kernel)
    assert windows(lambda x, kernel: convolve(x, kernel, **more), *given) == [kernel[:2]]


def test_other_types_stay() -> None:
    given = [shape(*axes, dtype=jnp.bfloat16) for axes in LARGE.values()]
    assert windows(convolve, *given) == [(5, 5)]
    assert windows(convolve, *(shape(*axes) for axes in LARGE.values())) == [(5, 1)]


def test_whoever_asks_jax_for_more_precision_gets_it() -> None:
    given = [shape(*axes) for axes in LARGE.values()]
    with jax.default_matmul_precision("float32"):
        assert windows(lambda x, kernel: convolve(x, kernel), *given) == [(5, 5)]  # noqa: PLW0108


@pytest.mark.slow
def test_training_is_that_of_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small convolutions too, and in float64: a wrong gradient would show in every digit."""
    module: Any = sys.modules["paceline.program.rewrites.winograd"]
    called: list[str] = []
    for name in ("filtered", "correlated"):
        function = getattr(module, name)
        monkeypatch.setattr(
            module,
            name,
            lambda *given, function=function, name=name: (called.append(name), function(*given))[1],
        )
    monkeypatch.setattr(module, "_LEAST", 0)
    monkeypatch.setattr(module, "_CHANNELS", {3: 1, 5: 1})
    monkeypatch.setattr(module, "_DTYPE", np.float64)
    # A program that another test has left on disk would be run in place of this one, and this one,
    # of other limits, in place of another test's.
    monkeypatch.setattr(compilation_cache, "cache_folder", lambda: None)
    case = zoo.CASES["conv_batchnorm"]
    seeds = list(range(len(case.hparams)))
    with zoo.float64():
        packed = train_packed(case, seeds, plan="looped")
        alone, _ = zoo.reference(case, case.hparams[1], seeds[1])
    assert {"filtered", "correlated"} <= set(called)
    for name in ("loss", "val_loss"):
        # 1e-6: Keras' batch statistics are float32 (tests/numerics).
        np.testing.assert_allclose(packed.history[1][name], alone[name], rtol=0, atol=1e-6)
