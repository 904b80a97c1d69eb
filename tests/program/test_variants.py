"""A trial within a step of several variants is the trial alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras import layers

import zoo
from marks import slow_where
from paceline.program.padding.widths import PaddedRole, PaddedStep
from paceline.program.trace import State, Step
from paceline.program.variants import emission
from paceline.program.variants.layout import Layout, NotMergeable, lay_out
from paceline.program.variants.step import Variants, VariantStep
from program.padding.test_widths import CLASSES, batches, compiled, traced, train

#: Makes a model whose numbers, such as rates and momenta, are multiples of a number up to 0.2.
Make = Callable[[float], Any]
#: That number in the examples of variants, and in the trials that are compared.
EXAMPLE, TRIAL = 0.2, 0.1


def stack(*parts: Any, optimizer: Any = None, loss: Any = None) -> Any:
    """A classifier with these hidden layers."""
    head = layers.Dense(CLASSES, activation="softmax")
    return compiled(keras.Sequential([keras.Input((6,)), *parts, head]), optimizer, loss)


def _activation(name: str, number: float) -> Any:
    if name == "leaky_relu":
        return stack(layers.Dense(8), layers.LeakyReLU(number), layers.Dense(8, "elu"))
    return stack(layers.Dense(8, name), layers.Dense(8, "elu"), layers.Dropout(number))


def _dropout(places: str, number: float) -> Any:
    parts: list[Any] = []
    for place in "ab":
        parts.append(layers.Dense(8, "relu" if place == "a" else None))
        if place in places:
            parts.append(layers.Dropout(number if place == "a" else 3 * number, seed=ord(place)))
    return stack(*parts, optimizer=keras.optimizers.SGD(number, momentum=4 * number))


def _layer(part: Callable[[float], Any] | None, number: float) -> Any:
    """A model with one more layer or none between others; dropout follows in both."""
    between = [] if part is None else [part(number)]
    return stack(layers.Dense(8, "tanh"), *between, layers.Dropout(2 * number), layers.Dense(8))


def _loss(loss: Callable[[float], Any], number: float) -> Any:
    return stack(layers.Dense(8, "relu"), loss=loss(number))


def _regularized(regularizer: Any, number: float) -> Any:
    kernel = None if regularizer is None else regularizer(number)
    bias = None if kernel is None else "l2"
    return stack(layers.Dense(8, "relu", kernel_regularizer=kernel, bias_regularizer=bias))


def _optimizer(optimizer: Callable[[float], Any], number: float) -> Any:
    return stack(layers.Dense(8, "relu"), layers.Dropout(number), optimizer=optimizer(number))


def _of(make: Callable[[Any, float], Any], *choices: Any) -> list[Make]:
    return [partial(make, choice) for choice in choices]


opt = keras.optimizers
KINDS: dict[str, list[Make]] = {
    "activations": _of(_activation, "relu", "softplus", "gelu", "leaky_relu"),
    "more activations": _of(_activation, "tanh", "sigmoid", "selu", "silu", "exponential"),
    "dropout": _of(_dropout, "", "a", "b", "ab"),
    "batch norm": _of(_layer, None, lambda n: layers.BatchNormalization(momentum=4 * n)),
    "norms": _of(_layer, lambda n: layers.LayerNormalization(epsilon=n), None),
    "noise": _of(_layer, lambda n: layers.GaussianNoise(n, seed=7), layers.GaussianDropout, None),
    "losses": _of(
        _loss,
        lambda n: keras.losses.SparseCategoricalCrossentropy(),
        lambda n: keras.losses.SparseCategoricalCrossentropy(ignore_class=1),
    ),
    "regularizers": _of(_regularized, None, keras.regularizers.L2, keras.regularizers.L1),
    "optimizers": _of(
        _optimizer,
        opt.SGD,
        lambda n: opt.Adam(n, beta_1=4 * n, amsgrad=True),
        lambda n: opt.RMSprop(n, rho=4 * n, momentum=n, centered=True),
    ),
    "clipping": _of(
        _optimizer,
        opt.SGD,
        lambda n: opt.SGD(n, clipvalue=n / 10),
        lambda n: opt.SGD(n, global_clipnorm=n),
        lambda n: opt.SGD(n, weight_decay=n, momentum=n, nesterov=True),
        lambda n: opt.SGD(n, use_ema=True, ema_momentum=4 * n),
    ),
}
QUICK = {"activations", "dropout", "batch norm"}
#: Keras computes parts of these in float32, whatever floatx is.
ROUNDS = {"batch norm", "norms"}


def padded(step: Step) -> PaddedStep:
    """A step as one of a family without widths."""
    return PaddedRole((step, step), None).admit(step)[0]


def joined(makes: Sequence[Make]) -> tuple[Variants, Layout]:
    """The common step of examples of variants."""
    found = [traced(make(EXAMPLE)) for make in makes]
    layout = lay_out([state for state, _ in found])
    return Variants([padded(step) for _, step in found], layout, optimizer=True), layout


def placed(state: State, layout: Layout, variant: int) -> State:
    """A trial's variables among those of others, which are NaN or the largest whole number."""
    parts = []
    for whole, own, places in zip(
        layout.state.lists(), state.lists(), layout.places[variant], strict=True
    ):
        part = [np.full(leaf.shape, _worst(leaf.dtype), leaf.dtype) for leaf in whole]
        for place, leaf in zip(places, own, strict=True):
            part[place] = np.asarray(leaf)
        parts.append(part)
    return State(*parts)


def _worst(dtype: Any) -> Any:
    return np.nan if jnp.issubdtype(dtype, jnp.floating) else np.iinfo(dtype).max


def assert_alone(
    step: VariantStep,
    closed: Any,
    first: Sequence[Any],
    layout: Layout,
    variant: int,
    alone: tuple[State, Step],
    data: Any,
    tolerance: float,
) -> None:
    """Trains a trial in the common step, its constants given or not, and by itself."""
    state, own = alone
    logs, last = train(own.closed, state, data)
    before = placed(state, layout, variant)
    ours, after = train(closed, before, data, *first)
    np.testing.assert_allclose(ours, logs, rtol=tolerance, atol=tolerance)
    assert step.log_names == own.log_names
    for part, places in enumerate(layout.places[variant]):
        mine, olds, theirs = (each.lists()[part] for each in (after, before, last))
        for place, y in zip(places, theirs, strict=True):
            np.testing.assert_allclose(mine[place], y, rtol=tolerance, atol=tolerance)
        for other in {*range(len(mine))} - {*places}:
            np.testing.assert_array_equal(mine[other], olds[other], "another's variable is kept")


@pytest.mark.parametrize("name", slow_where(KINDS, lambda name: name not in QUICK))
def test_a_trial_of_a_variant_is_the_lone_trial(name: str) -> None:
    with zoo.float64():
        keras.utils.set_random_seed(1)
        common, layout = joined(KINDS[name])
        for variant, make in enumerate(KINDS[name]):
            keras.utils.set_random_seed(2)
            model = make(TRIAL)
            alone = traced(model)
            step = common.step(variant, padded(alone[1]))
            first = [constant.value for constant in step.canonical.constants]
            # The same numbers; float32 rounds at 1e-7, and Adam divides small gradients by their
            # size.
            tolerance = 1e-4 if name in ROUNDS else 1e-9
            data = batches(model, 4)
            assert_alone(step, step.closed, first, layout, variant, alone, data, tolerance)


def _alike(dropout: bool, number: float) -> Any:
    """A dropout rate in one variant is a momentum in the other, and both are a decay."""
    dropped = [layers.Dropout(number)] if dropout else []
    rest = 4 * number if dropout else number
    optimizer = opt.SGD(2 * number, momentum=rest, weight_decay=number)
    return stack(layers.Dense(8, "tanh"), *dropped, optimizer=optimizer)


@pytest.mark.parametrize(
    "makes",
    slow_where(
        [_of(_alike, True, False), _of(_alike, False, True), KINDS["noise"], KINDS["optimizers"]],
        lambda makes: makes in (KINDS["noise"], KINDS["optimizers"]),
    ),
)
def test_constants_that_stay_constants_give_the_same_numbers(makes: list[Make]) -> None:
    """A program keeps those that all trials share, whichever trial came first."""
    with zoo.float64():
        keras.utils.set_random_seed(1)
        common, layout = joined(makes)
        trials = [traced(make(EXAMPLE)) for make in makes]
        steps = [common.step(v, padded(step)) for v, (_, step) in enumerate(trials)]
        values = [[c.value.tobytes() for c in step.canonical.constants] for step in steps]
        differing = {i for i, each in enumerate(zip(*values, strict=True)) if len({*each}) > 1}
        indices = steps[0].always_lifted
        assert differing <= {*indices}
        assert len(indices) < steps[0].n_constants
        closed = steps[-1].lift(indices)
        for variant, step in enumerate(steps):
            first = [step.canonical.constants[i].value for i in indices]
            data = batches(makes[variant](EXAMPLE), 3)
            # float64, as above
            assert_alone(step, closed, first, layout, variant, trials[variant], data, 1e-9)


def test_overflow_of_one_variant_stays_out_of_the_others() -> None:
    """Each slot computes what the other variants would make of its numbers: infinity here."""
    with zoo.float64():
        common, layout = joined(_of(_activation, "exponential", "relu"))
        state, own = traced(_activation("relu", TRIAL))
        state.trainable[0] = np.asarray(state.trainable[0]) * 1e4
        step = common.step(1, padded(own))
        first = [constant.value for constant in step.canonical.constants]
        data = batches(_activation("relu", TRIAL), 3)
        assert_alone(step, step.closed, first, layout, 1, (state, own), data, 1e-9)
        logs, _ = train(step.closed, placed(state, layout, 1), data, np.int32(0), *first[1:])
        assert not np.isfinite(logs).all(), "as the other variant the slot does overflow"


def test_each_choice_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a single select takes the others' value, the test above fails."""
    makes = _of(_layer, None, lambda n: layers.GaussianDropout(n, seed=3))
    choosing, seen, broken = emission._choosing, [0], [-1]

    def choose(shape: tuple[int, ...], dtype: Any) -> Any:
        seen[0] += 1
        whole = choosing(shape, dtype)
        return _first_of(whole) if seen[0] == broken[0] else whole

    monkeypatch.setattr(emission, "_choosing", choose)
    with zoo.float64():
        keras.utils.set_random_seed(1)
        model = makes[1](EXAMPLE)
        alone, data = traced(model), batches(model, 2)

        def check() -> int:
            seen[0] = 0
            common, layout = joined(makes)
            step = common.step(1, padded(alone[1]))
            first = [constant.value for constant in step.canonical.constants]
            assert_alone(step, step.closed, first, layout, 1, alone, data, 1e-9)
            return seen[0]

        n = check()
        assert n > 1
        for broken[0] in (1, n):  # and all between them, tried once
            with pytest.raises(AssertionError, match="Not equal to tolerance"):
                check()


def _first_of(closed: Any) -> Any:
    """``(is_own, others, own) -> others``."""
    jaxpr = closed.jaxpr
    return closed.replace(jaxpr=jaxpr.replace(eqns=[], outvars=[jaxpr.invars[1]]))


def _metrics(names: list[str], number: float) -> Any:
    model = stack(layers.Dense(8))
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=names)
    return model


@pytest.mark.parametrize(
    ("why", "makes"),
    [
        (
            "only one of two variants has this dot_general",
            [lambda n: stack(layers.Dense(8)), lambda n: stack(layers.Dense(8), layers.Dense(9))],
        ),
        ("count other metrics", _of(_metrics, [], ["accuracy"])),
        (
            "log other metrics",
            _of(_metrics, ["accuracy"], ["sparse_top_k_categorical_accuracy"]),
        ),
    ],
    ids=["layers", "no metric", "other metric"],
)
def test_what_cannot_merge_stays_apart(why: str, makes: list[Make]) -> None:
    with pytest.raises(NotMergeable, match=why):
        joined(makes)


def test_other_numbers_of_extents_stay_apart() -> None:
    makes = [lambda n: stack(layers.Dense(8)), lambda n: stack(layers.Dense(6))]
    (state, w), (_, n) = (traced(make(EXAMPLE)) for make in makes)
    wide = PaddedRole((w, n), None).admit(w)[0]
    layout = lay_out([state, state])
    with pytest.raises(NotMergeable, match="have other numbers of extents"):
        Variants([wide, padded(w)], layout, optimizer=True)
