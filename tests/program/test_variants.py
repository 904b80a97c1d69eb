"""A trial within a step of several variants is the trial alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras import layers

import zoo
from marks import slow_where
from paceline.program.canonical import canonicalise
from paceline.program.padding.widths import FamilyStep, PaddedStep
from paceline.program.trace import State, Step
from paceline.program.variants import emission
from paceline.program.variants.layout import NotMergeable, VariantLayout, lay_out
from paceline.program.variants.step import Variants
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


def _compiled(argument: str, choice: Callable[[float], Any], number: float) -> Any:
    """A model with another optimizer or loss."""
    return stack(layers.Dense(8, "relu"), layers.Dropout(number), **{argument: choice(number)})


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
        partial(_compiled, "loss"),
        lambda n: "sparse_categorical_crossentropy",
        lambda n: keras.losses.SparseCategoricalCrossentropy(ignore_class=1),
    ),
    "regularizers": _of(
        _layer,
        lambda n: layers.Dense(8),
        lambda n: layers.Dense(8, kernel_regularizer=keras.regularizers.L2(n)),
        lambda n: layers.Dense(8, kernel_regularizer=keras.regularizers.L1(n)),
    ),
    "optimizers": _of(
        partial(_compiled, "optimizer"),
        opt.SGD,
        lambda n: opt.Adam(n, beta_1=4 * n, amsgrad=True),
        lambda n: opt.RMSprop(n, rho=4 * n, momentum=n, centered=True),
    ),
    "clipping": _of(
        partial(_compiled, "optimizer"),
        opt.SGD,
        lambda n: opt.SGD(n, clipvalue=n / 10),
        lambda n: opt.SGD(n, global_clipnorm=n),
        lambda n: opt.SGD(n, weight_decay=n, momentum=n, nesterov=True),
        lambda n: opt.SGD(n, use_ema=True, ema_momentum=4 * n),
    ),
}
QUICK = {"activations"}
#: Keras computes parts of these in float32, whatever floatx is, which rounds at 1e-7; and Adam
#: divides small gradients by their size. All others compute the same numbers in float64.
ROUNDS = {"batch norm", "norms"}


def padded(step: Step) -> PaddedStep:
    """A step as one of a family without widths."""
    return FamilyStep((step, step), None).admit(step)[0]


def joined(makes: Sequence[Make]) -> tuple[Variants, VariantLayout]:
    """The common step of examples of variants."""
    states, steps = zip(*(traced(make(EXAMPLE)) for make in makes), strict=True)
    layout = lay_out(states)
    return Variants([padded(step) for step in steps], layout, optimizer=True), layout


def placed(state: State, layout: VariantLayout, variant: int) -> State:
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
    common: tuple[Any, Sequence[Any], VariantLayout, int],
    alone: tuple[State, Step],
    data: Any,
    tolerance: float = 1e-9,
) -> None:
    """Trains a trial in a common step, its first inputs given, as one of a variant; and alone."""
    (closed, first, layout, variant), (state, own) = common, alone
    logs, last = train(own.closed, state, data)
    before = placed(state, layout, variant)
    ours, after = train(closed, before, data, *first)
    np.testing.assert_allclose(ours, logs, rtol=tolerance, atol=tolerance)
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
            tolerance = 1e-4 if name in ROUNDS else 1e-9
            data = batches(model, 4)
            assert_alone((step.closed, first, layout, variant), alone, data, tolerance)
            assert step.log_names == alone[1].log_names


def _alike(dropout: bool, number: float) -> Any:
    """A dropout rate in one variant is a momentum in the other, and both are a decay."""
    dropped = [layers.Dropout(number)] if dropout else []
    rest = 4 * number if dropout else number
    optimizer = opt.SGD(2 * number, momentum=rest, weight_decay=number)
    return stack(layers.Dense(8, "tanh"), *dropped, optimizer=optimizer)


@pytest.mark.slow
@pytest.mark.parametrize("first", slow_where([True, False], bool))
def test_constants_that_stay_constants_give_the_same_numbers(first: bool) -> None:
    """A program keeps those that all trials share, whichever trial came first."""
    with zoo.float64():
        keras.utils.set_random_seed(1)
        makes = _of(_alike, first, not first)
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
            inputs = [step.canonical.constants[i].value for i in indices]
            data = batches(makes[variant](EXAMPLE), 3)
            assert_alone((closed, inputs, layout, variant), trials[variant], data)


@pytest.mark.slow
def test_overflow_of_one_variant_stays_out_of_the_others() -> None:
    """Each slot computes what the other variants would make of its numbers: infinity here."""
    with zoo.float64():
        common, layout = joined(_of(_activation, "exponential", "relu"))
        state, own = traced(_activation("relu", TRIAL))
        state.trainable[0] = np.asarray(state.trainable[0]) * 1e4
        step = common.step(1, padded(own))
        first = [constant.value for constant in step.canonical.constants]
        data = batches(_activation("relu", TRIAL), 3)
        assert_alone((step.closed, first, layout, 1), (state, own), data)
        logs, _ = train(step.closed, placed(state, layout, 1), data, np.int32(0), *first[1:])
        assert not np.isfinite(logs).all(), "as the other variant the slot does overflow"


@pytest.mark.slow
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
            assert_alone((step.closed, first, layout, 1), alone, data)
            return seen[0]

        n = check()
        assert n > 1
        for broken[0] in (1, n):  # and all between them, tried once
            with pytest.raises(AssertionError, match="Not equal to tolerance"):
                check()


def _first_of(closed: Any) -> Any:
    """``(is_own, others, own) -> others``."""
    return closed.replace(jaxpr=closed.jaxpr.replace(eqns=[], outvars=[closed.jaxpr.invars[1]]))


def _metrics(metrics: list[Any], number: float) -> Any:
    model = stack()
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=metrics)
    return model


@pytest.mark.parametrize(
    ("why", "makes"),
    [
        (
            "only one of two variants has this dot_general",
            [lambda n: stack(layers.Dense(8)), lambda n: stack(layers.Dense(8), layers.Dense(9))],
        ),
        ("count other metrics", _of(_metrics, [], ["accuracy"])),
        ("log other metrics", _of(_metrics, ["accuracy"], ["sparse_categorical_accuracy"])),
    ],
    ids=["layers", "no metric", "other metric"],
)
def test_what_cannot_merge_stays_apart(why: str, makes: list[Make]) -> None:
    with pytest.raises(NotMergeable, match=why):
        joined(makes)


def test_other_numbers_of_extents_stay_apart() -> None:
    makes = [lambda n: stack(layers.Dense(8)), lambda n: stack(layers.Dense(6))]
    (state, w), (_, n) = (traced(make(EXAMPLE)) for make in makes)
    wide = FamilyStep((w, n), None).admit(w)[0]
    layout = lay_out([state, state])
    with pytest.raises(NotMergeable, match="have other numbers of extents"):
        Variants([wide, padded(w)], layout, optimizer=True)


@pytest.mark.parametrize("other", [2.0, 16.0])
def test_a_number_of_the_batch_size_is_no_number_of_another_kind(other: float) -> None:
    """Not even if the two are equal: the program would take one for the other on fewer examples."""

    def step(divisor: float, n: int) -> PaddedStep:
        shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((), (n,))]
        closed = jax.make_jaxpr(lambda w, x: ((x.sum() / divisor)[None], w * 2))(*shapes)
        return padded(Step(closed, canonicalise(closed), ("loss",)))

    weight = State([np.zeros((), "float32")], [], [], [])
    layout = lay_out([weight, weight])
    full = Variants([step(16.0, 16), step(other, 16)], layout, optimizer=True)
    with pytest.raises(NotMergeable, match="follows from the batch size in some variants only"):
        Variants([step(5.0, 5), step(other, 5)], layout, optimizer=True, like=full)
    alike = Variants([step(16.0, 16), step(16.0, 16)], layout, optimizer=True)
    Variants([step(5.0, 5), step(5.0, 5)], layout, optimizer=True, like=alike)
