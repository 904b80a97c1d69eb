"""Names of KerasTuner's own files that public scripts use or override."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, ClassVar

import keras
import pytest

import paceline.compat.keras_tuner as kt
import toys
from compat.keras_tuner import spaces
from paceline.compat.keras_tuner.engine import base_tuner

X, Y = toys.data()
DATA: dict[str, Any] = {"validation_data": (X, Y), "epochs": 1, "batch_size": 25, "verbose": 0}


class Noted(keras.callbacks.TensorBoard):
    """Keeps where it would write, and needs no TensorFlow."""

    seen: ClassVar[list[str]] = []

    def set_model(self, model: Any) -> None:
        self.seen.append(self.log_dir)

    def on_train_begin(self, logs: Any = None) -> None:
        pass

    on_train_end = on_epoch_begin = on_epoch_end = on_test_begin = on_test_end = on_train_begin


@pytest.mark.parametrize(
    "path",
    [
        *("engine.tuner", "engine.base_tuner", "engine.tuner_utils", "engine.oracle", "utils"),
        *("engine.hyperparameters.hp_types", "tuners.randomsearch", "tuners.bayesian", "errors"),
    ],
)
def test_each_file_has_its_path_below_src(path: str) -> None:
    ours = importlib.import_module(f"paceline.compat.keras_tuner.{path}")
    assert importlib.import_module(f"paceline.compat.keras_tuner.src.{path}") is ours


def test_what_is_imported_from_there_is_the_same() -> None:
    names: dict[str, Any] = {}
    exec(
        "from paceline.compat.keras_tuner.src.backend import keras as theirs\n"
        "from paceline.compat.keras_tuner.src.engine import base_tuner\n"
        "from paceline.compat.keras_tuner.src.engine.hyperparameters import HyperParameters\n"
        "from paceline.compat.keras_tuner.src.engine.hyperparameters.hp_types import int_hp\n"
        "from paceline.compat.keras_tuner.src.backend.keras import layers\n"
        "from paceline.compat.keras_tuner.src.api_export import keras_tuner_export\n"
        "from paceline.compat.keras_tuner.applications.resnet import __getattr__\n"
        "from paceline.compat.keras_tuner.engine.multi_execution_tuner import MultiExecutionTuner\n"
        "from paceline.compat.keras_tuner.tuners import Sklearn\n",
        names,
    )
    assert names["keras_tuner_export"]("keras_tuner.X")(base_tuner) is base_tuner
    assert names["layers"] is keras.layers
    assert names["int_hp"] is kt.engine.hyperparameters
    assert (names["MultiExecutionTuner"], names["Sklearn"]) == (kt.Tuner, kt.SklearnTuner)
    assert kt.oracles.BayesianOptimization is kt.BayesianOptimizationOracle
    assert kt.engine.multi_execution_tuner.MultiExecutionTuner is kt.Tuner
    assert names["HyperParameters"] is kt.HyperParameters
    assert names["base_tuner"] is base_tuner
    assert names["theirs"] is keras


class Elsewhere(kt.RandomSearch):
    def _get_tensorboard_dir(self, logdir: Any, trial_id: str, execution: int) -> str:
        return os.path.join("mine", str(trial_id))


class Itself(kt.RandomSearch):
    def _configure_tensorboard_dir(self, callbacks: Any, trial: Any, execution: int = 0) -> None:
        for callback in callbacks:
            callback.log_dir = f"given/{trial.trial_id}-{trial.hyperparameters.values['lr']:.1e}"


@pytest.mark.parametrize(
    ("kind", "first"), [(kt.RandomSearch, "logs/"), (Elsewhere, "mine/"), (Itself, "given/")]
)
def test_where_tensorboard_writes_is_the_subclass_s_to_say(
    kind: Any, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.pack.callbacks.packable.find_spec", lambda name: True)
    monkeypatch.setattr(Noted, "seen", [])
    tuner = kind(spaces.small, "val_loss", 2, seed=1, directory=tmp_path)
    tuner.search(X, Y, **DATA, callbacks=[Noted("logs")])
    assert len(set(Noted.seen)) == 2
    assert all(folder.startswith(first) for folder in Noted.seen)


class OfArrays(base_tuner.BaseTuner):
    """Trains what is no Keras model, as LightGBM's are trained."""

    models: ClassVar[dict[str, Any]] = {}

    def run_trial(self, trial: Any, x: Any, y: Any) -> dict[str, float]:
        model = self.hypermodel.build(trial.hyperparameters)
        model["mean"] = float(y.mean()) * model["scale"]
        self.save_model(trial.trial_id, model)
        return {"error": abs(model["mean"] - float(y.mean()))}

    def save_model(self, trial_id: str, model: Any, step: int = 0) -> None:
        self.models[trial_id] = model

    def load_model(self, trial: Any) -> Any:
        return self.models[trial.trial_id]


def test_a_base_tuner_trains_models_that_are_not_keras(tmp_path: Path) -> None:
    oracle = kt.oracles.RandomSearchOracle(kt.Objective("error", "min"), max_trials=4, seed=1)
    tuner = OfArrays(oracle, lambda hp: {"scale": hp.Float("scale", 0.5, 1.5)}, tmp_path)
    tuner.search(X, Y)
    best = tuner.oracle.get_best_trials(1)[0]
    assert tuner.get_best_models()[0]["scale"] == best.hyperparameters.values["scale"]
    assert best.score == min(trial.score for trial in tuner.oracle.trials.values())
