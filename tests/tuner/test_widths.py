"""``Tuner(widths="together")``: trials of several widths share a program and come out as alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import paceline
from paceline.errors import UsageError

X = np.random.default_rng(0).normal(size=(50, 12)).astype("float32")
Y = np.random.default_rng(1).integers(0, 3, 50)
DATA: dict[str, Any] = {"validation_data": (X[:21], Y[:21]), "batch_size": 16}


def build(hp: Any) -> Any:
    """Two widths, of which one trial of the grid has the largest."""
    model = keras.Sequential(
        [
            keras.Input((12,)),
            keras.layers.Dense(hp.Int("units", 4, 12, step=4), activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(hp.Choice("second", [5, 9]), activation="tanh"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def search(widths: str, notes: list[str], made: Any = build, **arguments: Any) -> paceline.Tuner:
    tuner = paceline.Tuner(
        made, sampler="grid", study=widths, widths=widths, notes=notes.append, slots=2
    )
    tuner.search(X, Y, epochs=2, **(DATA | arguments))
    return tuner


def test_trials_of_six_widths_are_those_of_six_programs() -> None:
    notes: list[str] = []
    apart, together = search("apart", notes), search("together", notes)
    assert apart.summary()["programs"]["distinct"] == 6
    assert together.summary()["programs"]["distinct"] == 1
    for number in range(6):
        ours, theirs = together.trial(number), apart.trial(number)
        assert ours.hparams == theirs.hparams
        for name, values in theirs.history.items():
            # float32's rounding of sums with zeros in between, two epochs long
            np.testing.assert_allclose(ours.history[name], values, rtol=1e-5, atol=1e-6)
    assert not [note for note in notes if "width" in note]


def test_the_best_model_has_its_own_widths() -> None:
    tuner = search("together", [])
    model, hparams = tuner.best_model(), tuner.best_hparams
    assert model.layers[0].units == hparams["units"]
    assert model.layers[2].units == hparams["second"]
    found = model.evaluate(X[:21], Y[:21], verbose=0, return_dict=True)
    assert found["accuracy"] == pytest.approx(tuner.best_trial.value, abs=1e-6)


def test_callbacks_see_the_trial_s_own_widths() -> None:
    seen: list[tuple[int, ...]] = []

    class Shapes(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            kernel = self.model.layers[0].kernel
            seen.append(tuple(np.asarray(kernel).shape))
            kernel.assign(np.asarray(kernel) * 0.5)

    search("together", [], callbacks=lambda hp: [Shapes()])
    assert {shape[1] for shape in seen} == {4, 8, 12}


def test_a_search_goes_on_where_it_was_stopped(fresh_folder: Path) -> None:
    first = paceline.Tuner(build, sampler="grid", study="on", widths="together", slots=2)
    first.search(X, Y, epochs=2, n_trials=2, **DATA)
    second = paceline.Tuner(build, sampler="grid", study="on", widths="together", slots=2)
    second.search(X, Y, epochs=2, **DATA)
    whole = search("together", [])
    for number in range(6):
        for name, values in whole.trial(number).history.items():
            np.testing.assert_allclose(second.trial(number).history[name], values, rtol=1e-5)


def test_a_largest_model_that_build_refuses_is_told(fresh_folder: Path) -> None:
    def picky(hp: Any) -> Any:
        units = hp.Int("units", 4, 12, step=4)
        if units * hp.Choice("second", [5, 9]) > 100:
            raise ValueError("too many weights")
        return build(hp)

    notes: list[str] = []
    tuner = search("together", notes, picky)
    assert tuner.summary()["programs"]["distinct"] == 5
    assert any("widths are not trained together: too many weights" in note for note in notes)


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"widths: 'all' is not one of apart, together\."):
        paceline.Tuner(build, widths="all")
