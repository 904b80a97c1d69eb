"""What callbacks share in spite of their copies is found: right in fit, or packed with a note."""

from __future__ import annotations

import sys
import types
from typing import Any

import keras
import numpy as np
import pytest

import paceline
import toys
from marks import slow_where

X, Y = toys.data(40)
CALL: dict[str, Any] = {
    "validation_data": toys.data(16, seed=1),
    "epochs": 3,
    "batch_size": 16,
    "n_trials": 3,
}

current: int | None = None
seen: list[Any] = []
rows: list[int] = []


class Bound(keras.callbacks.Callback):
    """Leaves what it is in a global, and counts what it finds there."""

    def on_train_begin(self, logs: Any = None) -> None:
        global current
        current = id(self)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["mine"] = float(current == id(self))


class Collects(keras.callbacks.Callback):
    """Appends to a list that all of its copies see."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        seen.append((epoch, logs["loss"]))


class OfItsClass(keras.callbacks.Callback):
    """Counts in its class."""

    epochs = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.__class__.epochs += 1


class Own(keras.callbacks.Callback):
    """Changes what is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.losses.append(logs["loss"])
        self.best = min(self.losses)
        local: list[int] = []
        local.append(epoch)


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A stand-in for MLflow: one present run for the whole process."""
    module = types.ModuleType("mlflow")
    module.runs, module.now = {}, []  # type: ignore[attr-defined]

    def start_run(name: str) -> None:
        module.now.append(name)
        module.runs[name] = []

    def log_metric(name: str, value: float) -> None:
        module.runs[module.now[-1]].append(value)

    for function in (start_run, log_metric):
        setattr(module, function.__name__, function)
        function.__module__ = "mlflow"
    module.end_run = module.now.pop  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return module


def search(callbacks: Any, **options: Any) -> tuple[paceline.Tuner, list[str]]:
    notes: list[str] = []
    tuner = paceline.Tuner(
        toys.dense, study="s", sampler="random", on_note=notes.append, parallel_trials=3, **options
    )
    tuner.search(X, Y, callbacks=callbacks, **CALL)
    assert tuner.results()["state"].tolist() == ["complete"] * 3
    return tuner, [note for note in notes if "callbacks: " in note]


@pytest.mark.slow
def test_a_run_of_a_tracker_is_its_trial_s(tracker):
    class Log(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            import mlflow

            self.name = f"{float(self.model.optimizer.learning_rate)}"
            mlflow.start_run(self.name)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            import mlflow

            mlflow.log_metric("loss", logs["loss"])

        def on_train_end(self, logs: Any = None) -> None:
            import mlflow

            mlflow.end_run()

    tuner, notes = search([Log()])
    for number in range(3):
        trial = tuner.trial(number)
        (losses,) = [
            losses
            for name, losses in tracker.runs.items()
            if np.isclose(float(name), trial.hparams["lr"])
        ]
        assert losses == trial.history["loss"]
    assert set(tuner.results()["plan"]) == {"fit"}
    assert any("logs to the current mlflow run" in n and "trackers='mlflow'" in n for n in notes)


@pytest.mark.slow
def test_a_lambda_that_logs_goes_to_fit(tracker):
    mlflow = tracker
    mlflow.start_run("all")
    log = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: mlflow.log_metric("loss", logs["loss"])
    )
    tuner, notes = search([log])
    # As in fit: one trial after another.
    assert mlflow.runs["all"] == [v for n in range(3) for v in tuner.history(n)["loss"]]
    assert len(notes) == 1


@pytest.mark.slow
def test_a_global_that_is_bound_anew_is_the_trial_s():
    tuner, notes = search([Bound()])
    for number in range(3):
        assert tuner.history(number)["mine"] == [1.0] * 3
    assert set(tuner.results()["plan"]) == {"fit"}
    assert any("Bound.on_train_begin() assigns 'current'" in note for note in notes)


@pytest.mark.slow
def test_a_function_of_hp_may_bind_what_is_its_own():
    n_made = 0

    def callbacks(hp: Any) -> list[Any]:
        nonlocal n_made
        n_made += 1
        return [keras.callbacks.EarlyStopping("loss", patience=1 + n_made)]

    tuner, notes = search(callbacks)
    assert set(tuner.results()["plan"]) == {"vectorized"}
    assert not notes


@pytest.mark.parametrize(
    ("callback", "said"),
    [
        (Collects(), "Collects.on_epoch_end() changes 'seen'"),
        *slow_where(
            [
                (OfItsClass(), "OfItsClass.on_epoch_end() changes 'self.__class__"),
                (
                    keras.callbacks.LambdaCallback(
                        on_epoch_end=lambda epoch, logs: rows.append(epoch)
                    ),
                    "<lambda>() changes 'rows'",
                ),
            ],
            bool,
        ),
    ],
)
def test_what_is_changed_in_turns_is_told(callback, said):
    tuner, notes = search([callback])
    assert set(tuner.results()["plan"]) == {"vectorized"}
    (note,) = notes
    assert said in note and "use executor='fit' to train trials one after another" in note
    assert not search([callback], executor="fit", directory="other")[1]


def test_a_file_that_all_write_is_told():
    class Writes(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            with open("losses.txt", "a", encoding="utf-8") as file:
                file.write(f"{logs['loss']}\n")

    (note,) = search([Writes()])[1]
    assert "Writes.on_epoch_end() changes the file 'losses.txt'" in note


def test_what_is_its_own_is_not_spoken_of():
    tuner, notes = search([Own(), keras.callbacks.EarlyStopping("loss", patience=2)])
    assert set(tuner.results()["plan"]) == {"vectorized"}
    assert not notes
