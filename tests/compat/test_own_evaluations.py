"""What users' own functions and callbacks evaluate: the numbers that a search ranks by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import optuna
import pytest
from keras import layers

import paceline
from paceline.compat import keras_tuner as kt
from paceline.compat import talos
from paceline.errors import DataError

N = 48
X = np.random.default_rng(0).random((N, 3)).astype("float32")
Y = np.full(N, 3_000_000_000)
RIGHT, CLOSE = 3e9, 1e-6  # float32 rounds to 256; JAX would make 1,294,967,296 of it
TOKENS = np.arange(N * 4).reshape(N, 4) % 10


def dense(rate: float = 1e-8) -> Any:
    model = keras.Sequential([keras.Input((3,)), layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(rate), "mae")
    return model


def words() -> Any:
    table = layers.Embedding(10, 2, name="words")
    model = keras.Sequential([keras.Input((4,), dtype="int32"), table, layers.Flatten()])
    model.add(layers.Dense(1))
    model.compile("sgd", "mse")
    return model


def trained(rate: float) -> float:
    model = dense(rate)
    model.fit(X, Y, epochs=1, batch_size=16, verbose=0)
    return float(model.evaluate(X, Y, verbose=0))


def objective(trial: Any) -> float:
    return trained(trial.suggest_float("rate", 1e-9, 1e-8))


class Fits(kt.HyperModel):
    def build(self, hp: Any) -> Any:
        return dense(hp.Choice("rate", [1e-8]))

    def fit(self, hp: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        model.fit(*args, **kwargs)
        return model.evaluate(*args, verbose=0)


class Runs(kt.RandomSearch):
    def run_trial(self, trial: Any, *args: Any, **kwargs: Any) -> Any:
        return trained(trial.hyperparameters.Choice("rate", [1e-8]))


def scanned(x: Any, y: Any, x_val: Any, y_val: Any, params: Any) -> Any:
    model = dense(params["rate"])
    history = model.fit(x, y, epochs=1, verbose=0)
    history.history["own"] = [model.evaluate(x, y, verbose=0)]
    return history, model


def by_map() -> float:
    [value] = paceline.map(trained, [1e-8])
    return value


def by_optimize() -> float:
    study = optuna.create_study()
    paceline.optimize(study, objective, n_trials=1)
    return study.best_value


def by_hypermodel() -> float:
    tuner = kt.RandomSearch(Fits(), max_trials=1, directory="k")
    tuner.search(X, Y, epochs=1, verbose=0)
    return tuner.oracle.get_best_trials()[0].score


def by_run_trial() -> float:
    tuner = Runs(lambda hp: dense(hp.Choice("rate", [1e-8])), max_trials=1, directory="k")
    tuner.search(X, Y)
    return tuner.oracle.get_best_trials()[0].score


def by_scan() -> float:
    found = talos.Scan(X, Y, {"rate": [1e-8]}, scanned, "s", disable_progress_bar=True)
    return found.data["own"][0]


@pytest.mark.parametrize("door", [by_map, by_optimize, by_hypermodel, by_run_trial, by_scan])
def test_the_value_of_a_function_counts_large_integers_right(door: Callable[[], float]) -> None:
    assert door() == pytest.approx(RIGHT, rel=CLOSE)


@pytest.mark.parametrize("value", [10, -1])
def test_numbers_beyond_an_embedding_end_the_function(value: int) -> None:
    def evaluated(_: int) -> float:
        model = words()
        model.fit(TOKENS, X[:, 0], epochs=1, verbose=0)
        tokens = np.where(TOKENS == 3, value, TOKENS)
        return model.evaluate(tokens, X[:, 0], verbose=0)

    results = paceline.map(evaluated, [0])
    with pytest.raises(DataError, match=rf"'words' looks up must be from 0 to 9.*got {value}\."):
        next(results)
    assert list(results) == []  # which ends the run: an error's traceback would keep it open


class Evaluates(keras.callbacks.Callback):
    """Reports what its model and others make of the data."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        swapped = Y.astype(">i8")
        logs["own"] = self.model.evaluate(X.astype(">f4"), swapped, verbose=0)
        logs["batch"] = self.model.test_on_batch(X, Y)
        with pytest.raises(DataError, match="from 0 to 9"):
            words().predict(TOKENS + 10, verbose=0)
        other = dense()
        logs["other"] = other.fit(X, Y, epochs=1, verbose=0).history["loss"][0]


@pytest.mark.parametrize("executor", ["packed", "fit"])
def test_callbacks_of_a_search(executor: str) -> None:
    def build(hp: Any) -> Any:
        return dense(hp.Choice("rate", [1e-8, 1e-9]))

    callbacks = [Evaluates()]
    tuner = paceline.Tuner(build, "min:own", sampler="grid", executor=executor)
    tuner.search(X, Y, epochs=1, n_trials=2, batch_size=16, callbacks=callbacks)
    for number in range(2):
        trial = tuner.trial(number)
        assert (trial.plan == "fit") == (executor == "fit")
        for name in ("own", "batch", "other"):
            assert trial.history[name] == pytest.approx([RIGHT], rel=CLOSE), name


def test_callbacks_of_a_fit_in_a_pack() -> None:
    def function(rate: float) -> Any:
        callbacks = [Evaluates()]
        return dense(rate).fit(X, Y, epochs=1, verbose=0, callbacks=callbacks).history

    notes: list[str] = []
    for history in paceline.map(function, [1e-8, 1e-9], seeds=0, notes=notes.append):
        for name in ("own", "batch", "other"):
            assert history[name] == pytest.approx([RIGHT], rel=CLOSE), name
    assert not [note for note in notes if "Keras' own fit, one at a time" in note]
