"""Trials that fail: what is said, how they are counted, and what is kept of the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest

import paceline.compat.keras_tuner as ours
import toys
from compat.keras_tuner import spaces

X, Y = toys.data()
DATA = {"x": X, "y": Y, "validation_data": (X, Y), "epochs": 2, "batch_size": 25, "verbose": 0}


def search(
    kt: Any, bad: Callable[[int], None], folder: Path, n: int = 8, **kwargs: Any
) -> tuple[list[str], Exception | None]:
    """Trials 0, 1, ... of which ``bad`` may raise; their states, and what ended the search."""

    class InOrder(kt.Oracle):
        def populate_space(self, trial_id: str) -> dict[str, Any]:
            return {"status": "RUNNING", "values": {"number": int(trial_id)}}

        max_parallel = n

    def build(hp: Any) -> Any:
        number = hp.Int("number", -1, n, default=-1)  # the first look declares it
        if number >= 0:
            bad(number)
        return toys.softmax_at(0.01 + 0.001 * number)

    tuner = kt.Tuner(InOrder("val_loss", max_trials=n, **kwargs), build, directory=folder)
    raised: Exception | None = None
    try:
        tuner.search(**DATA)
    except Exception as error:
        raised = error
    return [trial.status for trial in tuner.oracle.trials.values()], raised


def failing(*numbers: int, error: type[Exception] = ValueError) -> Callable[[int], None]:
    def bad(number: int) -> None:
        if number in numbers:
            raise error(f"trial {number} is bad")

    return bad


C, F, R = "COMPLETED", "FAILED", "RUNNING"


def test_a_failed_trial_says_why_at_any_verbosity(kt, tmp_path, capsys):
    search(kt, failing(1), tmp_path, n=2)
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "ValueError: trial 1 is bad" in said


def test_failures_in_a_row_are_counted_by_number(kt, tmp_path):
    # Builds fail long before the trials between them have trained.
    states, raised = search(kt, failing(0, 2, 3, 5, 6), tmp_path)
    assert (states, raised) == ([F, C, F, F, C, F, F, C], None)


def test_trials_before_too_many_failures_are_kept(kt, tmp_path):
    states, raised = search(kt, failing(2, 3, 4), tmp_path)
    assert states == [C, C, F, F, F]
    assert isinstance(raised, RuntimeError)
    assert "Number of consecutive failures exceeded the limit of 3." in str(raised)
    assert "trial 4 is bad" in str(raised)


def test_trials_before_a_fatal_error_are_kept(kt, tmp_path):
    states, raised = search(kt, failing(5, error=kt.errors.FatalError), tmp_path)
    assert states == [C] * 5 + [R]
    assert isinstance(raised, kt.errors.FatalError)


def search_own_fits(
    kt: Any, folder: Path, n: int = 8, *, fit: Any = None, begin: Any = None, plain: bool = False
) -> tuple[list[str], Exception | None]:
    """As ``search``; the trials fit for themselves, and ``fit`` or ``on_trial_begin`` may raise."""

    class InOrder(kt.Oracle):
        def populate_space(self, trial_id: str) -> dict[str, Any]:
            return {"status": "RUNNING", "values": {"number": int(trial_id)}}

        max_parallel = n

    class Fits(kt.HyperModel):
        def build(self, hp: Any) -> Any:
            return toys.softmax_at(0.01 + 0.001 * hp.Int("number", 0, n))

        def fit(self, hp: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            history = model.fit(*args, **kwargs)
            if fit is not None:
                fit(hp.get("number"))
            return history

    class Begins(kt.Tuner):
        def on_trial_begin(self, trial: Any) -> None:
            super().on_trial_begin(trial)
            if begin is not None:
                begin(int(trial.trial_id))

    fits: Any = Fits().build if plain else Fits()
    tuner = Begins(InOrder("val_loss", max_trials=n), fits, directory=folder)
    raised: Exception | None = None
    try:
        tuner.search(**DATA)
    except Exception as error:
        raised = error
    return [trial.status for trial in tuner.oracle.trials.values()], raised


def test_trials_before_a_fatal_error_in_fit_are_kept(kt, tmp_path):
    states, raised = search_own_fits(kt, tmp_path, fit=failing(5, 6, error=kt.errors.FatalError))
    assert states[:6] == [C] * 5 + [R]  # those after it have begun here, but not in KerasTuner
    assert C not in states[6:7]
    assert isinstance(raised, kt.errors.FatalError)
    assert "trial 5 is bad" in str(raised)


def test_trials_before_too_many_failures_in_fit_are_kept(kt, tmp_path):
    states, raised = search_own_fits(kt, tmp_path, fit=failing(2, 3, 4))
    assert states[:5] == [C, C, F, F, F]
    assert "Number of consecutive failures exceeded the limit of 3." in str(raised)


@pytest.mark.parametrize("plain", [True, False])
def test_trials_before_an_error_of_a_hook_are_kept(kt, plain, tmp_path):
    states, raised = search_own_fits(kt, tmp_path, begin=failing(3), plain=plain)
    assert states == [C] * 3 + [R]
    assert str(raised) == "trial 3 is bad"


def test_models_that_are_all_too_large(kt, tmp_path):
    tuner = kt.RandomSearch(
        spaces.small, "val_loss", max_trials=5, max_model_size=5, directory=tmp_path
    )
    with pytest.raises(RuntimeError, match=r"limit of 3\.(.|\n)*Oversized model"):
        tuner.search(**DATA)
    assert [trial.status for trial in tuner.oracle.trials.values()] == [F] * 3


def test_data_of_a_wrong_shape(kt, tmp_path):
    tuner = kt.RandomSearch(spaces.small, "val_loss", max_trials=5, directory=tmp_path)
    with pytest.raises(RuntimeError, match=r"limit of 3\.") as caught:
        tuner.search(**{**DATA, "x": X[:, :4]})
    assert [trial.status for trial in tuner.oracle.trials.values()] == [F] * 3
    if kt is ours:
        assert "the model that build(hp) returned does not accept the data" in str(caught.value)


@pytest.mark.slow
def test_some_models_that_are_not_too_large_are_found(tmp_path, capsys):
    # One configuration of forty fits, and none of the first builds: trial by trial it is found.
    def build(hp: Any) -> Any:
        width = 8 if hp.Int("number", 0, 39) == 2 else 100
        layers = [keras.Input((toys.FEATURES,)), keras.layers.Dense(width, "softmax")]
        return toys.compiled(keras.Sequential(layers))

    tuner = ours.GridSearch(build, "val_loss", 4, seed=1, max_model_size=100, directory=tmp_path)
    tuner.search(**{**DATA, "verbose": 2})
    assert [trial.status for trial in tuner.oracle.trials.values()] == [F, F, C, F]
    assert "trials run in Keras' own fit, one at a time" in capsys.readouterr().err


@pytest.mark.parametrize("executions", [1, 2])
def test_an_infinite_objective_is_a_score(kt, executions, tmp_path):
    def huge(y: Any, predicted: Any) -> Any:
        return keras.ops.mean(predicted) * math.inf

    def build(hp: Any) -> Any:
        hp.Float("x", 0, 1)
        model = toys.softmax()
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=[huge])
        return model

    objective = kt.Objective("val_huge", "min")
    kwargs = {"max_trials": 2, "executions_per_trial": executions, "directory": tmp_path}
    tuner = kt.RandomSearch(build, objective, **kwargs)
    tuner.search(**DATA)
    trials = tuner.oracle.trials.values()
    assert [(trial.status, trial.score) for trial in trials] == [(C, math.inf)] * 2


class FirstInfinite(keras.callbacks.Callback):
    """Adds a log that is infinite in the first epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["cost"] = 0.5 if epoch else math.inf


@pytest.mark.parametrize("executions", [1, 2])
def test_a_trial_whose_objective_is_infinite_trains_on(kt, executions, tmp_path):
    objective = kt.Objective("cost", "min")
    kwargs = {"max_trials": 1, "executions_per_trial": executions, "directory": tmp_path}
    tuner = kt.RandomSearch(spaces.small, objective, **kwargs)
    tuner.search(**DATA, callbacks=[FirstInfinite()])
    assert [(trial.status, trial.score) for trial in tuner.oracle.trials.values()] == [(C, 0.5)]


@pytest.mark.parametrize("error", [ValueError, OSError])
def test_a_trial_whose_model_cannot_be_saved_fails_alone(kt, error, tmp_path, capsys):
    class Unsaved(keras.Model):
        def save_weights(self, *args: Any, **kwargs: Any) -> None:
            raise error("this model is not built")

    def build(hp: Any) -> Any:
        inputs = keras.Input((X.shape[1],))
        make = Unsaved if hp.Choice("kind", ["saved", "unsaved"]) == "unsaved" else keras.Model
        model = make(inputs, keras.layers.Dense(3, "softmax")(inputs))
        model.compile("sgd", "sparse_categorical_crossentropy")
        return model

    tuner = kt.GridSearch(build, "val_loss", directory=tmp_path)
    tuner.search(**DATA)
    states = {t.hyperparameters.get("kind"): t.status for t in tuner.oracle.trials.values()}
    assert states == {"saved": C, "unsaved": F}
    assert "this model is not built" in capsys.readouterr().err


def test_trials_of_one_program_with_other_variables_are_kept(kt, tmp_path):
    def build(hp: Any) -> Any:
        inputs = keras.Input((X.shape[1],))
        noisy = keras.layers.GaussianNoise(hp.Float("noise", 0.0, 0.5, step=0.5))(inputs)
        x = keras.layers.Dropout(hp.Float("rate", 0.0, 0.5, step=0.5))(noisy)
        model = keras.Model(inputs, keras.layers.Dense(3, "softmax")(x))
        model.compile("sgd", "sparse_categorical_crossentropy")
        return model

    tuner = kt.GridSearch(build, "val_loss", directory=tmp_path)
    tuner.search(**DATA)
    assert [trial.status for trial in tuner.oracle.trials.values()] == [C] * 4
    assert len(tuner.get_best_models(4)) == 4
