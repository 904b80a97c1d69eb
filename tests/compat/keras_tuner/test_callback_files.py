"""Files of callbacks: one sub-folder per trial, and the best trial's at the path that was given."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import keras
import pytest

import paceline.compat.keras_tuner as ours
import toys
from compat.keras_tuner import spaces
from paceline.compat.keras_tuner.engine.callback_files import CallbackFiles, ExecutionPaths

X, Y = toys.data()
DATA = {"x": X, "y": Y, "validation_data": (X, Y), "epochs": 3, "batch_size": 25, "verbose": 0}


def callbacks(folder: Path) -> list[Any]:
    return [
        keras.callbacks.ModelCheckpoint(folder / "best.keras", "val_loss", save_best_only=True),
        keras.callbacks.ModelCheckpoint(
            folder / "all/{epoch:02d}.weights.h5", save_weights_only=True
        ),
        keras.callbacks.CSVLogger(folder / "log.csv"),
    ]


def losses(file: Path) -> list[float]:
    with file.open() as rows:
        return [float(row["val_loss"]) for row in csv.DictReader(rows)]


@pytest.mark.parametrize(
    ("kind", "folder"),
    [
        pytest.param("plain", "out", id="in packs"),
        pytest.param("hyperband", "out", marks=pytest.mark.slow, id="run_trial"),
        pytest.param("plain", None, marks=pytest.mark.slow, id="absolute path"),
    ],
)
def test_the_best_trial_s_files_lie_where_the_user_asked(kind, folder, tmp_path):
    there = Path(folder) if folder else tmp_path / "files"
    call = dict(DATA)
    if kind == "plain":
        tuner = ours.RandomSearch(spaces.small, "val_loss", 3, seed=1, directory=tmp_path)
    else:
        tuner = ours.Hyperband(spaces.small, "val_loss", 3, 3, seed=1, directory=tmp_path)
        del call["epochs"]
    tuner.search(**call, callbacks=callbacks(there))
    best = tuner.oracle.get_best_trials()[0]
    for trial in tuner.oracle.trials.values():
        own = there / "trials" / trial.trial_id
        assert min(losses(own / "log.csv")) == pytest.approx(trial.score)
    assert min(losses(there / "log.csv")) == pytest.approx(best.score)
    own = there / "trials" / best.trial_id
    assert (there / "best.keras").read_bytes() == (own / "best.keras").read_bytes()
    model = keras.models.load_model(there / "best.keras")
    assert model.evaluate(X, Y, verbose=0)[0] == pytest.approx(best.score, rel=1e-5)
    epochs = {file.name for file in (there / "all" / "trials" / best.trial_id).iterdir()}
    assert {file.name for file in (there / "all").glob("*.h5")} == epochs != set()


@pytest.mark.slow
def test_the_better_execution_s_file_is_the_trial_s(tmp_path):
    tuner = ours.RandomSearch(
        spaces.small, "val_loss", 2, seed=1, directory=tmp_path, executions_per_trial=2
    )
    tuner.search(**DATA, callbacks=callbacks(Path()))
    best = tuner.oracle.get_best_trials()[0].trial_id
    runs = [min(losses(Path("trials", best, f"execution{i}", "log.csv"))) for i in range(2)]
    assert min(losses(Path("log.csv"))) == min(runs) < max(runs)


@pytest.mark.slow
def test_a_later_search_leaves_the_best_file_in_place(tmp_path):
    def search(most: int) -> Any:
        tuner = ours.RandomSearch(spaces.small, "val_loss", most, seed=1, directory=tmp_path)
        tuner.search(**DATA, callbacks=callbacks(Path()))
        return tuner.oracle.get_best_trials()[0]

    for most in (2, 3):
        best = search(most)
        assert min(losses(Path("log.csv"))) == pytest.approx(best.score)
    assert {path.name for path in Path("trials").iterdir()} == {"0", "1", "2"}


def test_logs_of_tensorboard_lie_below_the_folder_that_was_given():
    paths = ExecutionPaths(CallbackFiles(executions=1), lambda name: ("07", 0))
    assert paths.of(Path("logs"), "7", is_file=False) == Path("logs/07/execution0")
    assert paths.label("7") == "07"  # what stands for {trial}
