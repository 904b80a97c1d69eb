"""Compiled steps that models share: the same results as Keras', bit for bit, and fewer of them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import keras
import numpy as np
import pytest

from marks import slow_where
from paceline.compat.interception import Engine, FunctionCall, shared_steps
from toys import CLASSES, FEATURES, data

X, Y = data(21, seed=1)
WEIGHTS = np.linspace(0.5, 2.0, len(X)).astype("float32")


def network(i: int, *layers: Any, **arguments: Any) -> keras.Model:
    """Model i: its weights follow from i, and its structure from the layers."""
    keras.utils.set_random_seed(i)
    model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", **{"loss": loss, "metrics": ["accuracy"], **arguments})
    return model


def dense(i: int) -> keras.Model:
    keras.utils.set_random_seed(i)  # the layers draw when they are made
    return network(i, keras.layers.Dense(4, "relu"), keras.layers.Dropout(0.1 * i))


def normed(i: int) -> keras.Model:
    return network(i, keras.layers.BatchNormalization())


class Scaled(keras.layers.Layer):
    """Multiplies by a number that no configuration of Keras' shows."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def call(self, x: Any) -> Any:
        return x * self.by


class Shown(keras.layers.Layer):
    """Calls back to Python in every batch."""

    def __init__(self, show: Any) -> None:
        super().__init__()
        self.show = show

    def call(self, x: Any) -> Any:
        jax.debug.callback(self.show, x)
        return x


class Doubled(keras.Sequential):
    """Has steps of its own."""

    def predict_step(self, state: Any, data: Any) -> Any:
        outputs, state = super().predict_step(state, data)
        return 2 * outputs, state


def doubled(i: int) -> keras.Model:
    keras.utils.set_random_seed(i)
    model = Doubled([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
    model.compile("sgd", "mse")
    return model


def two_outputs(i: int) -> keras.Model:
    keras.utils.set_random_seed(i)
    keras.utils.clear_session()
    one, other = keras.Input((FEATURES,), name="one"), keras.Input((FEATURES,), name="other")
    sums = keras.layers.Add()([one, other])
    outputs = {name: keras.layers.Dense(1, name=name)(sums) for name in ("a", "b")}
    model = keras.Model({"one": one, "other": other}, outputs)
    model.compile("sgd", {"a": "mse", "b": "mae"})
    return model


def used(model: keras.Model) -> Any:
    """What a model returns, before and after it has trained in Keras' own ``fit``."""
    if not isinstance(model, keras.Sequential):
        x, y = {"one": X, "other": X * 2}, {"a": Y[:, None], "b": Y[:, None]}
    else:
        x, y = X, Y if isinstance(model.loss, keras.losses.Loss) else np.eye(CLASSES)[Y]
    found = []
    for _ in range(2):
        found += [model.predict(x, verbose=0), model.predict(x, batch_size=7, verbose=0)]
        found.append(model.evaluate(x, y, batch_size=8, sample_weight=WEIGHTS, verbose=0))
        found.append(model.predict_on_batch(x))
        found.append(model.fit(x, y, batch_size=8, epochs=2, verbose=0).history)
    return [*found, model.get_weights()]


@pytest.mark.parametrize(
    "make",
    slow_where([dense, normed, two_outputs, doubled], lambda make: make is not dense),
    ids=lambda make: make.__name__,
)
def test_results_are_those_of_keras_bit_for_bit(make):
    alone = [used(make(i)) for i in (1, 2)]
    with shared_steps.steps_shared():
        first = used(make(1))
        n_steps = len(shared_steps._steps)
        shared = [first, used(make(2))]
        n_new = len(shared_steps._steps) - n_steps
    for one, there in zip(jax.tree.leaves(shared), jax.tree.leaves(alone), strict=True):
        np.testing.assert_array_equal(one, there)
    # Dropout's rate is a constant of the step that trains, which has two shapes of batches.
    assert n_new == (2 if make is dense else 0)


def test_constants_are_told_apart():
    expected = [network(1, Scaled(by)).predict(X, verbose=0) for by in (0.5, 2.0)]
    with shared_steps.steps_shared():
        found = [network(1, Scaled(by)).predict(X, verbose=0) for by in (0.5, 2.0)]
    np.testing.assert_array_equal(found, expected)


def test_a_step_that_calls_back_is_the_models_own():
    ones, others = [], []
    with shared_steps.steps_shared():
        for seen in (ones, others):
            show = functools.partial(lambda kept, x: kept.append(len(x)), seen)
            network(1, Shown(show)).predict(X, batch_size=7, verbose=0)
            jax.effects_barrier()
        assert shared_steps._steps == {}
    assert ones == others == [7, 7, 7]


@pytest.mark.parametrize(
    "arguments",
    [{"run_eagerly": True}, {"jit_compile": False}, {"steps_per_execution": 2}],
    ids=str,
)
def test_what_keras_runs_otherwise_stays_with_keras(arguments):
    expected = network(1, **arguments).predict(X, batch_size=7, verbose=0)
    with shared_steps.steps_shared():
        found = network(1, **arguments).predict(X, batch_size=7, verbose=0)
        assert shared_steps._steps == {}
    np.testing.assert_array_equal(found, expected)


def test_settings_of_jax_make_other_steps():
    with shared_steps.steps_shared():
        model = dense(1)
        model.predict(X, verbose=0)
        with jax.default_matmul_precision("highest"):
            model.predict(X, verbose=0)
        assert len(shared_steps._steps) == 2


def test_callbacks_see_the_batches():
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            seen.append((batch, logs["outputs"].shape))

    with shared_steps.steps_shared():
        dense(1).predict(X, batch_size=16, callbacks=[Watch()], verbose=0)
    assert seen == [(0, (16, CLASSES)), (1, (5, CLASSES))]


def test_keras_has_its_own_functions_back():
    makers = [getattr(keras.Model, f"make_{name}") for name in shared_steps._STEPS]
    with shared_steps.steps_shared():
        model = dense(1)
        expected = model.predict(X, verbose=0)
        assert isinstance(model.predict_function, shared_steps.SharedStep)
    assert [getattr(keras.Model, f"make_{name}") for name in shared_steps._STEPS] == makers
    assert not isinstance(model.predict_function, shared_steps.SharedStep)
    assert shared_steps._steps == {}
    np.testing.assert_array_equal(model.predict(X, verbose=0), expected)


def test_the_steps_that_are_kept_are_limited(monkeypatch):
    monkeypatch.setattr(shared_steps, "_MOST", 2)
    with shared_steps.steps_shared():
        for by in (0.5, 1.5, 2.5):
            network(1, Scaled(by)).predict(X, verbose=0)
        assert len(shared_steps._steps) == 2


@pytest.mark.slow
def test_functions_of_an_engine_share_them():
    expected, found = [], []

    def function(i, where, **arguments):
        keras.utils.set_random_seed(i)
        model = network(i, keras.layers.Dense(4, "relu"))
        model.fit(X, Y, epochs=1, verbose=0, **arguments)
        where.append((i, model.evaluate(X, Y, verbose=0), model.predict(X, verbose=0)))
        return len(shared_steps._steps)

    for i in range(3):
        function(i, expected)
    with Engine(concurrent=True) as engine:
        calls = [FunctionCall(i, functools.partial(function, i, found), i) for i in range(3)]
        counts = [outcome.value for outcome in engine.run(calls)]
    assert counts == [2, 2, 2]
    with Engine(concurrent=True) as engine:
        own = functools.partial(function, where=[], steps_per_epoch=1)  # trains in Keras' own fit
        calls = [FunctionCall(i, functools.partial(own, i), i) for i in range(3)]
        outcomes = list(engine.run(calls))
    assert [fit.plan for outcome in outcomes for fit in outcome.fits] == ["fit"] * 3
    assert [outcome.value for outcome in outcomes] == [3, 3, 3]
    for (_, *values), (_, *there) in zip(sorted(found, key=lambda f: f[0]), expected, strict=True):
        for one, other in zip(jax.tree.leaves(values), jax.tree.leaves(there), strict=True):
            np.testing.assert_allclose(one, other, 1e-4, 1e-5)
