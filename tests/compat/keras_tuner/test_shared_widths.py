"""Searches of KerasTuner's, over widths and activations, share programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import paceline.compat.keras_tuner as ours
import toys
from marks import slow_where
from paceline.compat.keras_tuner.engine.trial import PARENT
from paceline.executor.sharing.family_builder import FamilyBuilder
from paceline.executor.sharing.width_families import WidthFamilies

X, Y = toys.data(60)
DATA: dict[str, Any] = {"x": X, "y": Y, "validation_data": (X[:21], Y[:21]), "batch_size": 16}


def build(hp: Any) -> Any:
    """A model as KerasTuner's guides write it: it learns its inputs from the data."""
    rate = hp.Float("lr", 1e-3, 1e-1, sampling="log")
    model = keras.Sequential()
    activation = hp.Choice("activation", ["relu", "tanh"])
    model.add(keras.layers.Dense(hp.Int("units", 4, 32, step=4), activation=activation))
    if hp.Boolean("dropout"):
        model.add(keras.layers.Dropout(0.25))
    model.add(keras.layers.Dense(toys.CLASSES, activation="softmax"))
    model.compile(
        keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[WidthFamilies]:
    """The families of each search, in order."""
    made: list[WidthFamilies] = []
    begin = WidthFamilies.__init__

    def note(self: WidthFamilies, *args: Any) -> None:
        begin(self, *args)
        made.append(self)

    monkeypatch.setattr(WidthFamilies, "__init__", note)
    return made


def search(
    kind: str, folder: Path, hypermodel: Any = build, n_trials: int = 6, **arguments: Any
) -> Any:
    more = {"max_epochs": 4, "factor": 2} if kind == "Hyperband" else {"max_trials": n_trials}
    tuner = getattr(ours, kind)(
        hypermodel, "val_loss", seed=1, directory=folder, project_name="p", **more, **arguments
    )
    tuner.search(**DATA, epochs=2, verbose=0)
    return tuner


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    slow_where(
        ["RandomSearch", "GridSearch", "Hyperband", "BayesianOptimization"],
        lambda kind: kind != "RandomSearch",
    ),
)
def test_trials_of_several_widths_are_those_of_programs_of_their_own(
    kind: str, tmp_path: Path, shared: list[WidthFamilies], monkeypatch: pytest.MonkeyPatch
) -> None:
    n_trials = 4 if kind == "RandomSearch" else 6
    together = search(kind, tmp_path / "together", n_trials=n_trials)
    assert shared[0].saved >= 2
    monkeypatch.setattr(FamilyBuilder, "family", lambda *arguments: None)
    apart = search(kind, tmp_path / "apart", n_trials=n_trials)
    assert shared[1].saved == 0
    for number, theirs in enumerate(apart.oracle.trials.values()):
        trial = list(together.oracle.trials.values())[number]
        if kind != "BayesianOptimization":  # which learns from values that differ in rounding
            assert trial.hyperparameters.values == theirs.hyperparameters.values
        if trial.hyperparameters.values == theirs.hyperparameters.values:
            # float32's rounding of sums with zeros in between, up to seven epochs long
            assert trial.score == pytest.approx(theirs.score, rel=2e-5)


@pytest.mark.slow
def test_a_trial_of_hyperband_that_goes_on_has_its_parent_s_weights(
    tmp_path: Path, shared: list[WidthFamilies]
) -> None:
    tuner = search("Hyperband", tmp_path)
    assert shared[0].saved
    going_on = [t for t in tuner.oracle.trials.values() if PARENT in t.hyperparameters.values]
    assert {trial.hyperparameters["units"] for trial in going_on} > {
        going_on[0].hyperparameters["units"]
    }
    for trial in going_on:
        before = tuner.oracle.get_trial(trial.hyperparameters.values[PARENT])
        assert trial.score < before.score + 0.05  # a fresh start would not be this close
        model = tuner.load_model(trial)
        assert model.layers[0].units == trial.hyperparameters["units"]
        found = model.evaluate(*DATA["validation_data"], batch_size=16, verbose=0)[0]
        assert found == pytest.approx(trial.score, rel=1e-5)


@pytest.mark.slow
def test_widths_that_cannot_be_built_leave_trials_apart(
    tmp_path: Path, shared: list[WidthFamilies]
) -> None:
    """No trial fails by the size of a model that nobody asked for."""
    asked = search("GridSearch", tmp_path / "whole", n_trials=4)
    units = [trial.hyperparameters["units"] for trial in asked.oracle.trials.values()]
    assert max(units) < 32
    limit = (toys.FEATURES + 1) * 28 + 29 * toys.CLASSES
    tuner = search("GridSearch", tmp_path / "bounded", n_trials=4, max_model_size=limit)
    assert {trial.status for trial in tuner.oracle.trials.values()} == {"COMPLETED"}
    np.testing.assert_allclose(
        [trial.score for trial in tuner.oracle.trials.values()],
        [trial.score for trial in asked.oracle.trials.values()],
        rtol=2e-5,  # float32's rounding of sums with zeros in between
    )
