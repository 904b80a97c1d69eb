"""One search, and what it is asked afterwards: in the same process and when opened again."""

from __future__ import annotations

import inspect
import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest

import paceline
import toys
from paceline.data.inputs import DataArguments
from paceline.study.storage.schema import StoredSearch
from paceline.tuner.arguments.arguments import ARGUMENTS, SearchArguments
from streams import alone, same

X, Y = toys.data()
XV, YV = toys.data(23, seed=1)


def make(folder: Path, build: Any = toys.dense, **arguments: Any) -> paceline.Tuner:
    settings: dict[str, Any] = {
        "sampler": "random",
        "parallel_trials": 4,
        "on_note": lambda text: None,
    }
    return paceline.Tuner(build, study="s", directory=folder, **(settings | arguments))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def tuner(folder):
    tuner = make(folder)
    tuner.enqueue({"lr": 0.05})
    tuner.search(X, Y, validation_data=(XV, YV), epochs=2, batch_size=16, n_trials=6, shuffle=False)
    return tuner


@pytest.fixture(scope="module", params=["same process", "opened again"])
def after(request, tuner, folder):
    return tuner if request.param == "same process" else make(folder)


def test_the_results_are_a_table(after):
    results = after.results()
    assert list(results) == [
        *("value", "dropout", "lr"),
        *("number", "state", "best_epoch", "epochs", "train_seconds", "seed", "program_id", "plan"),
    ]
    assert results["number"].tolist() == list(range(6))
    assert set(results["state"]) == {"complete"}
    assert set(results["plan"]) == {"vectorized"}
    assert results["program_id"].nunique() == 1
    assert results["seed"].nunique() == 6
    kinds = {
        name: results[name].dtype.kind for name in ("number", "value", "epochs", "train_seconds")
    }
    assert kinds == {"number": "i", "value": "f", "epochs": "i", "train_seconds": "f"}
    assert (results["train_seconds"] > 0).all()
    assert results["lr"].dtype == "float64"


def test_the_default_objective_is_the_first_metric_on_validation_data(after):
    assert {"val_accuracy", "val_loss"} <= set(after.history(0))
    best = max(after.results()["value"])
    assert best == max(max(after.history(number)["val_accuracy"]) for number in range(6))
    assert after.best_trial.value == best


def test_a_trial_is_a_record(after):
    trial = after.trial(0)
    assert trial.hparams["lr"] == 0.05  # the one that was enqueued comes first
    assert (trial.number, trial.state, trial.epochs) == (0, "complete", 2)
    assert after.best_hparams == after.best_trial.hparams
    with pytest.raises(paceline.StudyError, match="no trial 6"):
        after.trial(6)


def test_the_history_is_that_of_keras_alone(after):
    call = {"validation_data": (XV, YV), "batch_size": 16, "shuffle": False}
    for number in (0, 3):
        same(after, number, alone(after.trial(number), toys.dense, X, Y, epochs=2, **call))


def test_the_best_model_scores_what_was_reported(after):
    model, trial = after.best_model(), after.best_trial
    assert isinstance(model, keras.Model)
    assert model.compiled
    scores = model.evaluate(XV, YV, batch_size=16, verbose=0, return_dict=True)
    assert scores["accuracy"] == pytest.approx(trial.value, abs=1e-5)
    loss = after.history(trial.number)["val_loss"][trial.best_epoch - 1]
    assert scores["loss"] == pytest.approx(loss, abs=1e-5)


def test_the_saved_model_is_an_ordinary_keras_file(tuner, folder):
    files = sorted(path.name for path in (folder / "s" / "best").iterdir())
    number, epoch = tuner.best_trial.number, tuner.best_trial.best_epoch
    assert files == ["manifest.json", f"trial-{number}-epoch-{epoch}.keras"]
    model = keras.models.load_model(folder / "s" / "best" / files[1])
    assert model.evaluate(XV, YV, verbose=0)[1] == pytest.approx(tuner.best_trial.value, abs=1e-5)


def test_the_summary_is_what_json_prints(tuner):
    summary = tuner.summary()
    assert summary["n_trials"] == {"complete": 6, "pruned": 0, "failed": 0, "running": 0}
    assert summary["best"]["number"] == tuner.best_trial.number
    assert summary["programs"]["distinct"] == 1
    assert summary["plans"] == ["vectorized"]
    assert set(summary["seconds"]) == {
        *("total", "build", "trace", "compile", "train", "validate", "storage", "sampler"),
    }


def test_n_trials_is_the_total_and_plus_adds(tmp_path):
    notes: list[str] = []
    call: dict[str, Any] = {"epochs": 1, "batch_size": 16, "validation_data": (XV, YV)}
    tuner = make(tmp_path, on_note=notes.append)
    tuner.search(X, Y, n_trials=2, **call)
    first = tuner.results()
    tuner = make(tmp_path, on_note=notes.append)
    tuner.search(X, Y, n_trials=3, **call)
    assert len(tuner.results()) == 3
    tuner.search(X, Y, n_trials="+1", **call)
    assert len(tuner.results()) == 4
    pd.testing.assert_frame_equal(tuner.results().head(2), first)
    assert not any("already" in note for note in notes)
    tuner.search(X, Y, n_trials=4, **call)
    assert len(tuner.results()) == 4
    assert "already has its 4 trials" in notes[-1]
    assert tuner.summary()["best"]["number"] == tuner.best_trial.number


def test_the_users_random_state_is_as_before(tmp_path):
    def seeded():
        keras.utils.set_random_seed(5)
        random.seed(3)
        np.random.seed(4)

    def draws():
        # Keras 3.10 does not repeat its unseeded draws after set_random_seed: nothing to compare.
        old = keras.__version__.startswith(("3.10.", "3.11."))
        keras_draw = 0.0 if old else float(keras.random.uniform(()))
        return [random.random(), np.random.random(), keras_draw]

    seeded()
    expected = draws()
    seeded()
    tuner = make(tmp_path)
    tuner.search(X, Y, validation_split=0.2, epochs=1, n_trials=1)
    tuner.best_model()
    eager = [keras.callbacks.Callback()]
    tuner.search(X, Y, validation_split=0.2, epochs=1, n_trials="+1", callbacks=eager)
    assert draws() == expected


@pytest.mark.slow
def test_a_hyperparameter_may_be_called_like_a_column(tmp_path):
    def build(hp):
        hp.Fixed("seed", 3)
        return toys.softmax()

    tuner = make(tmp_path, build, executor="fit")
    tuner.search(
        X,
        Y,
        validation_split=0.2,
        n_trials=3,
        epochs=lambda hp: hp.Int("epochs", 1, 3),
        batch_size=lambda hp: hp.Choice("batch_size", [8, 16]),
    )
    results = tuner.results()
    assert list(results)[1:4] == ["hp.seed", "hp.epochs", "batch_size"]
    assert (results["hp.epochs"] == results["epochs"]).all()
    assert results["seed"].nunique() == 3


@pytest.mark.slow
def test_a_grid_compiles_each_role_once(tmp_path):
    def build(hp):
        rates = hp.Choice("dropout", [0.1, 0.2]), hp.Choice("lr", [0.01, 0.02, 0.03, 0.04])
        values = dict(zip(("dropout", "lr"), rates, strict=True))
        return toys.dense(paceline.HyperParameters(values=values))

    tuner = make(tmp_path, build, sampler="grid")
    tuner.search(X, Y, validation_data=(XV, YV), epochs=1)
    assert len(tuner.results()) == 8
    programs = tuner.summary()["programs"]
    assert programs["distinct"] == 1
    assert programs["compiled"] + programs["from_cache"] == 2, "train and validate, never widened"


@pytest.mark.slow
def test_epochs_and_batch_size_may_be_functions_of_hp_in_packs(tmp_path):
    tuner = make(tmp_path, lambda hp: toys.softmax(), sampler="grid")
    tuner.search(
        X,
        Y,
        validation_data=(XV, YV),
        shuffle=False,
        epochs=lambda hp: hp.Int("epochs", 1, 2),
        batch_size=lambda hp: hp.Choice("batch_size", [16, 25]),
    )
    results = tuner.results()
    assert len(results) == 4
    assert (results["epochs"] == results["hp.epochs"]).all()
    for number in (0, 3):
        trial = tuner.trial(number)
        call = {"validation_data": (XV, YV), "shuffle": False, **trial.hparams}
        same(tuner, number, alone(trial, lambda hp: toys.softmax(), X, Y, **call))


def test_a_study_that_is_not_there(fresh_folder):
    tuner = make(fresh_folder / "runs")
    with pytest.raises(paceline.StudyError, match="there is no study 's' yet. Run search first"):
        tuner.results()
    with pytest.raises(paceline.StudyError, match="there is no study"):
        _ = tuner.best_trial
    assert not list(fresh_folder.iterdir())


@pytest.mark.slow
def test_other_data_and_epochs_are_said_when_a_study_goes_on(fresh_folder):
    notes: list[str] = []

    def search(x, **changed):
        tuner = paceline.Tuner(toys.dense, study="s", sampler="random", on_note=notes.append)
        tuner.search(
            x, Y, validation_split=0.3, **{"epochs": 1, "n_trials": "+1", "verbose": 0, **changed}
        )

    search(X)
    search(X.copy())
    assert not any("data" in note or "epochs" in note for note in notes)
    search(X * 2, epochs=2)
    assert sum("with other data, other validation data, so" in note for note in notes) == 1
    assert sum("new trials have 2 epochs" in note for note in notes) == 1


@pytest.mark.slow
def test_a_build_that_was_changed_cannot_take_the_saved_weights(fresh_folder):
    def wider(hp):
        hp.Float("dropout", 0.1, 0.5)
        hp.Float("lr", 1e-3, 1e-1, sampling="log")
        return toys.compiled(
            keras.Sequential([keras.Input((toys.FEATURES,)), keras.layers.Dense(toys.CLASSES)])
        )

    call = {"validation_split": 0.3, "epochs": 1, "verbose": 0}
    paceline.Tuner(toys.dense, study="s", sampler="random", on_note=print).search(
        X, Y, n_trials=1, **call
    )
    with pytest.raises(paceline.StudyError, match="do not fit the model of build"):
        paceline.Tuner(wider, study="s", sampler="random", on_note=print).best_model()


def test_the_repr_of_a_tuner_opens_no_storage() -> None:
    tuner = paceline.Tuner(lambda hp: None, study="s", storage="postgresql://localhost:1/none")
    assert repr(tuner) == "Tuner('s')"


def test_the_arguments_of_search_are_those_that_are_declared() -> None:
    signature = inspect.signature(paceline.Tuner.search).parameters
    defaults = {name: of.default for name, of in signature.items() if of.kind is of.KEYWORD_ONLY}
    declared = {each.name: each.default for each in fields(SearchArguments) if each.metadata}
    of_data = {each.name for each in fields(DataArguments)}
    elsewhere = {"callbacks", "x", "y", "seed", "packs", "preprocessing"}
    assert set(defaults) == {*declared, *of_data, "verbose"} - elsewhere
    assert {name: of for name, of in defaults.items() if name in declared} == {
        name: of for name, of in declared.items() if name != "callbacks"
    }
    kept = {name for name, spec in ARGUMENTS.items() if spec.kept != "never"}
    assert kept == set(StoredSearch.__struct_fields__)
