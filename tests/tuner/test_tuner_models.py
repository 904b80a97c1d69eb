"""``best_model()`` scores what the study reported, for models that are hard to bring back."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import paceline
import toys
from marks import slow_where
from paceline.errors import StudyError

X, Y = toys.data()
XV, YV = toys.data(23, seed=1)
SEQUENCES = {"x": X.reshape(-1, 3, 2), "xv": XV.reshape(-1, 3, 2)}


class Lazy(keras.Model):
    """Its layers have no weights before it sees data."""

    def __init__(self, units: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.units = units
        self.hidden = keras.layers.Dense(units, activation="relu")
        self.norm = keras.layers.BatchNormalization(momentum=0.5)
        self.out = keras.layers.Dense(toys.CLASSES, activation="softmax")

    def call(self, x: Any, training: bool = False) -> Any:
        return self.out(self.norm(self.hidden(x), training=training))

    def get_config(self) -> dict[str, Any]:
        return {"units": self.units}


class Unsaveable(Lazy):
    """Keras cannot write down what it was made with."""

    def __init__(self, function: Any) -> None:
        super().__init__(4)
        self.function = function

    def call(self, x: Any, training: bool = False) -> Any:
        return super().call(self.function(x), training=training)

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError("No words\nfor it. More.")


class Scale(keras.layers.Layer):
    """A custom layer with a weight made in build."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        return x * self.scale


def lazy_sequential(hp: Any) -> Any:
    layers = [Scale(), keras.layers.Dense(4), keras.layers.BatchNormalization(momentum=0.5)]
    head = keras.layers.Dense(toys.CLASSES, activation="softmax")
    return toys.compiled(keras.Sequential([*layers, head]), hp.Float("lr", 1e-3, 1e-1))


def subclassed(hp: Any) -> Any:
    return toys.compiled(Lazy(4), hp.Float("lr", 1e-3, 1e-1))


def unsaveable(hp: Any) -> Any:
    return toys.compiled(Unsaveable(lambda x: x * 2), hp.Float("lr", 1e-3, 1e-1))


def averaged(hp: Any) -> Any:
    model = toys.softmax()
    lr = hp.Float("lr", 1e-2, 1e-1)
    adam = keras.optimizers.Adam(lr, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3)
    model.compile(adam, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def recurrent(hp: Any) -> Any:
    layers = [
        keras.Input((3, 2)),
        keras.layers.LSTM(4, dropout=0.2, recurrent_dropout=hp.Float("dropout", 0.1, 0.5)),
        keras.layers.Dense(toys.CLASSES, activation="softmax"),
    ]
    return toys.compiled(keras.Sequential(layers))


MODELS = {f.__name__: f for f in (lazy_sequential, subclassed, unsaveable, averaged, recurrent)}


#: What `make test` tries; `make test-slow` has each with both.
QUICK = {("lazy_sequential", "packed")}


@pytest.mark.parametrize(
    ("name", "executor"),
    slow_where(itertools.product(MODELS, ["packed", "fit"]), lambda pair: pair not in QUICK),
)
@pytest.mark.filterwarnings("ignore:.*layer.* does not have a `build.*")
def test_the_best_model_scores_what_was_reported(tmp_path, name, executor):
    x, xv = (SEQUENCES["x"], SEQUENCES["xv"]) if name == "recurrent" else (X, XV)
    notes: list[str] = []

    def make():
        return paceline.Tuner(
            MODELS[name],
            objective="val_loss",
            study="s",
            directory=tmp_path,
            sampler="random",
            executor=executor,
            parallel_trials=2,
            on_note=notes.append,
        )

    tuner = make()
    n_trials = 2 if executor == "packed" else 1
    tuner.search(x, Y, validation_data=(xv, YV), epochs=2, batch_size=16, n_trials=n_trials)
    assert set(tuner.results()["plan"]) == {"vectorized" if executor == "packed" else "fit"}
    for one in (tuner, make()):
        model = one.best_model()
        scores = model.evaluate(xv, YV, batch_size=16, verbose=0, return_dict=True)
        assert scores["loss"] == pytest.approx(tuner.best_trial.value, abs=1e-5)
    assert any("(NotImplementedError: No words for it)" in n for n in notes) == (
        name == "unsaveable"
    )
    model.fit(x, Y, epochs=1, verbose=0)  # an ordinary model: it can be trained on
    assert np.isfinite(model.predict(xv, verbose=0)).all()


@pytest.mark.slow
def test_the_best_model_is_not_one_of_another_study_of_that_name(fresh_folder: Any) -> None:
    """Two storages, one folder: both first trials reach an accuracy of 1 in their first epoch."""
    x = 9 * np.eye(3, toys.FEATURES, dtype="float32").repeat(20, 0)
    y = np.arange(3).repeat(20)

    def study(seed: int) -> paceline.Tuner:
        def build(hp: Any) -> Any:
            return toys.softmax_at(hp.Float("lr", 0.05, 0.2))

        return paceline.Tuner(
            build,
            "max:val_accuracy",
            "s",
            f"sqlite:///{seed}.db",
            seed=seed,
            on_note=lambda _: None,
        )

    def searched(seed: int) -> paceline.Tuner:
        tuner = study(seed)
        tuner.search(x, y, validation_data=(x, y), epochs=1, n_trials=1, batch_size=4)
        assert tuner.best_trial.value == 1.0
        return tuner

    searched(0)
    with pytest.raises(StudyError, match="runs/s already holds models of a study of that name"):
        searched(1)
    Path("runs/s").rename("first")
    trained, kept = (each.best_model().get_weights() for each in (searched(1), study(1)))
    for ours, theirs in zip(trained, kept, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(StudyError, match="the saved model of trial 0 is missing from"):
        study(0).best_model()
