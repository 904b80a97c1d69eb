"""Any number of a call may be a function of hp, and so may its data."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import paceline
import toys
from paceline.data.arrays import class_weights, prepare
from paceline.data.labels import weights_by_class
from paceline.program import trace
from streams import XV, YV, Batches, X, Y, alone, same, search

CALL: dict[str, Any] = {"epochs": 2, "shuffle": False}


def weights(hp: Any) -> dict[int, Any]:
    return {0: hp.Float("rare", 1.0, 5.0), 2: 0.5}


def weights_of(trial: Any) -> dict[int, float]:
    return {0: trial.hparams["rare"], 2: 0.5}


def test_class_weights_pack_as_constants():
    arrays = search(X, y=Y, class_weight=weights, batch_size=16, **CALL)
    assert arrays.results()["program_id"].nunique() == 1
    for number in (0, 3):
        trial = arrays.trial(number)
        expected = {"class_weight": weights_of(trial), "batch_size": 16, **CALL}
        same(arrays, number, alone(trial, toys.dense, X, y=Y, **expected))


@pytest.mark.slow
def test_labels_below_0_weigh_one_as_in_keras():
    """Losses ignore such labels, or take -1 and 1 for two classes."""
    y = np.array([-1, 1, -1, 1], "float32")
    table = weights_by_class({1: 3.0}, prepare(np.zeros((4, 1), "float32"), y))
    np.testing.assert_array_equal(trace._weights(y, jnp.asarray(table)), [1, 3, 1, 3])
    np.testing.assert_array_equal(class_weights(y, {1: 3.0}), [1, 3, 1, 3])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one-hot labels", "batches"])
def test_class_weights_of_other_data(kind):
    build, data, more = toys.dense, Batches, {}
    if kind == "one-hot labels":
        build, data, more = hot, lambda: X, {"y": np.eye(3)[Y]}
    tuner = search(data(), build=build, class_weight=weights, n_trials=2, **more, **CALL)
    trial = tuner.trial(1)
    same(tuner, 1, alone(trial, build, data(), class_weight=weights_of(trial), **more, **CALL))


def hot(hp: Any) -> Any:
    model = toys.dense(hp)
    model.compile(model.optimizer, "categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.slow
@pytest.mark.parametrize("n_trials", [3, 5])
def test_features_weights_steps_and_epochs(n_trials):
    def some(x: Any) -> Any:
        return lambda hp: x[:, : hp.Choice("features", [3, 6])]

    def build(hp):
        layers = [keras.layers.Dense(3, activation="softmax")]
        return toys.compiled(keras.Sequential(layers), hp.Float("lr", 1e-3, 1e-1, sampling="log"))

    def weight(hp):
        return np.linspace(1.0, hp.Choice("last", [1.0, 3.0]), len(X)).astype("float32")

    def validation(hp):
        return some(XV)(hp), YV

    tuner = search(
        some(X),
        build=build,
        y=Y,
        sample_weight=weight,
        validation_data=validation,
        batch_size=lambda hp: hp.Choice("batch_size", [16, 25]),
        steps_per_epoch=lambda hp: hp.Choice("steps", [1, 2]),
        validation_steps=lambda hp: 1,
        validation_batch_size=lambda hp: hp.Choice("by", [8, 9]),
        initial_epoch=lambda hp: hp.Choice("first", [0, 1]),
        epochs=lambda hp: 3,
        n_trials=n_trials,
    )
    for number in range(n_trials):
        trial = tuner.trial(number)
        h = trial.hparams
        assert trial.epochs == 3 - h["first"]
        expected = alone(
            trial,
            build,
            X[:, : h["features"]],
            y=Y,
            sample_weight=np.linspace(1.0, h["last"], len(X)).astype("float32"),
            validation_data=(XV[:, : h["features"]], YV),
            batch_size=h["batch_size"],
            steps_per_epoch=h["steps"],
            validation_steps=1,
            validation_batch_size=h["by"],
            initial_epoch=h["first"],
            epochs=3,
            shuffle=False,
        )
        same(tuner, number, expected)


def test_trials_in_fit_are_given_the_same():
    def weights(hp):
        return {0: hp.Float("rare", 1.0, 5.0)}

    call: dict[str, Any] = {"epochs": 3, "shuffle": False, "batch_size": 16}
    functions = {"class_weight": weights, "initial_epoch": lambda hp: hp.Choice("first", [1, 2])}
    tuner = search(lambda hp: X, y=Y, n_trials=2, executor="fit", **functions, **call)
    trial = tuner.trial(1)
    given = {"class_weight": {0: trial.hparams["rare"]}, "initial_epoch": trial.hparams["first"]}
    same(tuner, 1, alone(trial, toys.dense, X, y=Y, **given, **call))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"class_weight": lambda hp: 3}, "class_weight must be a dict of class -> weight, got 3"),
        ({"x": lambda hp: None}, "search: x is missing"),
        ({"x": lambda hp: X[:4]}, "x has 4, y has 50"),
        ({"sample_weight": lambda hp: np.ones(3)}, "sample_weight has 3"),
        ({"initial_epoch": lambda hp: 9}, "initial_epoch must be below epochs, .* got 9 and 2"),
    ],
)
def test_what_a_function_returns_is_checked(arguments, message):
    call: dict[str, Any] = {"x": X, "y": Y} | arguments
    with pytest.raises(paceline.PacelineError, match=message):
        search(call.pop("x"), **call)
