"""Every argument of Keras' ``fit``, with the values that its documentation names, and others.

A value is refused before anything is written, or a search takes it and its study can be read again.
What it then does is compared with Keras beside the promise that it belongs to; here, ``shuffle``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import callbacks

import paceline
import paceline.compat.keras_tuner as keras_tuner
import toys
from streams import alone

X, Y = toys.data()
ONES = np.ones(len(X))


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return X[:16], Y[:16]


def endless() -> Any:
    while True:
        yield X[:16], Y[:16]


def call_of(name: str, value: Any) -> dict[str, Any]:
    call = {"x": X, "y": Y, "epochs": 2, "validation_data": (X, Y), "validation_steps": None}
    if isinstance(value, (Batches, type(endless()))):
        call["validation_steps"] = 2
    if name == "validation_split":
        del call["validation_data"]
    return call | {name: value}


WHOLE = "must be a positive integer, got"
REFUSED: list[tuple[str, Any, str]] = [
    *(("batch_size", value, WHOLE) for value in (0, -1, 2.5, "7", [7], True)),
    *(("epochs", value, WHOLE) for value in (0, 1.5, "2", [2], None, True)),
    ("epochs", 2**60, r"study 'study' cannot be written: .*search\.epochs is 1152921504606846976"),
    *(("verbose", value, "must be one of auto, 0, 1, 2") for value in (3, -1, "1", None)),
    *(
        ("callbacks", value, "callbacks must be keras.callbacks.Callback")
        for value in ([3], "x", 0)
    ),
    *(("validation_split", v, "must be between 0 and 1") for v in (1, -0.1, "0.2", [0.2], np.nan)),
    *(("validation_data", value, "validation_data must be") for value in ((), False, 3)),
    ("validation_data", "x", "validation_data must be arrays or a data set, got the path 'x'"),
    *(
        ("shuffle", v, "shuffle must be True, False or 'batch', got")
        for v in (None, 0, 1, "batches", [])
    ),
    *(("class_weight", v, rf"class_weight must be a dict .*, got {v}") for v in (0, False)),
    ("class_weight", [], r"class_weight must be a dict of class -> weight, got \[\]"),
    ("class_weight", {"0": 1.0}, "classes are numbers from 0 as in y, got the class '0'"),
    *(("sample_weight", value, "sample_weight is a") for value in (1.0, False)),
    ("sample_weight", "x", "sample_weight must be arrays or a data set, got the path 'x'"),
    *(
        ("initial_epoch", value, "must be an integer of at least 0, got")
        for value in (-1, "1", "", True, [1])
    ),
    ("initial_epoch", 2, "initial_epoch must be below epochs, .* got 2 and 2"),
    *(("steps_per_epoch", value, WHOLE) for value in (0, -1, [2], "2", np.inf, np.nan)),
    *(("validation_steps", value, WHOLE) for value in (0, -1, [2], "2", np.inf)),
    *(("validation_batch_size", value, WHOLE) for value in (0, "5", [5])),
    *(("validation_freq", value, WHOLE) for value in (0, "2", True, np.array([1, 2]), range(1, 2))),
    ("validation_freq", 3, "validates none of 2 epochs"),
]
TAKEN: list[tuple[str, Any]] = [
    *(("batch_size", value) for value in (None, 7, np.int64(7), 7.0)),
    *(("epochs", value) for value in (2, np.int64(2), 2.0)),
    *(("verbose", value) for value in ("auto", 0, 1, 2)),
    *(("callbacks", value) for value in (None, [], callbacks.History(), [callbacks.History()])),
    ("callbacks", callbacks.CallbackList([callbacks.EarlyStopping("loss")])),
    *(("validation_split", value) for value in (0.2, np.float32(0.2))),
    *(("validation_data", value) for value in ((X, Y), (X, Y, ONES), Batches(), endless())),
    *(("shuffle", value) for value in (True, False, "batch", np.True_)),
    *(("class_weight", value) for value in (None, {}, {0: 1.0, 1: 2.0})),
    *(("sample_weight", value) for value in (None, ONES, ONES[:, None], ONES.tolist())),
    *(("initial_epoch", value) for value in (0, 1, 1.0, None)),
    *(("steps_per_epoch", value) for value in (None, 2, 2.0, 100)),
    *(("validation_steps", value) for value in (None, 1, 100)),
    *(("validation_batch_size", value) for value in (None, 5, 5.0)),
    *(("validation_freq", value) for value in (1, 2, 2.0, [1], (2,), [1, 9])),
]


def described(case: tuple[Any, ...]) -> str:
    return f"{case[0]}={type(case[1]).__name__ if len(repr(case[1])) > 30 else case[1]!r}"


def tuner(**settings: Any) -> paceline.Tuner:
    call = {"sampler": "random", "on_note": lambda text: None, "objective": "min:loss"}
    return paceline.Tuner(toys.dense, study="study", **(call | settings))


@pytest.mark.parametrize(("name", "value", "message"), REFUSED, ids=map(described, REFUSED))
def test_a_value_is_refused_before_anything_is_written(name, value, message) -> None:
    with pytest.raises(paceline.PacelineError, match=message) as caught:
        tuner().search(n_trials=1, **call_of(name, value))
    assert name in str(caught.value)
    assert not list(Path("runs").rglob("journal.log"))


@pytest.mark.parametrize(("name", "value"), TAKEN, ids=map(described, TAKEN))
def test_a_study_of_a_value_that_is_taken_can_be_read(monkeypatch, name, value) -> None:
    monkeypatch.setattr("paceline.tuner.search.loop.SearchLoop.run", lambda search: None)
    monkeypatch.setattr("paceline.tuner.search.run.trace_ends_of_space", lambda *_: None)
    tuner().search(n_trials=1, **call_of(name, value))
    assert tuner()._require_study().metadata.meta["search"]["epochs"] == 2


ELSEWHERE = [case for case in REFUSED if case[0] not in ("epochs", "verbose")][::6]


@pytest.mark.parametrize(("name", "value", "message"), ELSEWHERE, ids=map(described, ELSEWHERE))
def test_the_tuners_of_keras_tuner_refuse_it_too(tmp_path, name, value, message) -> None:
    searcher = keras_tuner.RandomSearch(
        toys.dense, "val_loss", max_trials=1, directory=tmp_path, project_name="p"
    )
    with pytest.raises(paceline.UsageError, match=message):
        searcher.search(**(call_of(name, value) | {"verbose": 0}))
    assert not list(tmp_path.rglob("trial_*"))


def unstirred(hp: Any) -> keras.Model:
    """Without dropout, the order within a batch changes nothing."""
    return toys.compiled(toys.softmax(), hp.Float("lr", 1e-3, 1e-1, sampling="log"))


@pytest.mark.parametrize("executor", ["packed", pytest.param("fit", marks=pytest.mark.slow)])
def test_batches_are_shuffled_within_as_in_keras(executor: str) -> None:
    call: dict[str, Any] = {"epochs": 2, "batch_size": 16, "shuffle": "batch"}
    settings: Any = {"study": "s", "on_note": len, "objective": "min:loss", "executor": executor}
    search = paceline.Tuner(unstirred, **settings)
    search.search(X, Y, n_trials=2, **call)
    for trial in search._require_study().trials:
        history = alone(trial, unstirred, X, Y, **call)
        # Only the order of sums differs: 2e-6 measured.
        np.testing.assert_allclose(trial.history["loss"], history["loss"], rtol=2e-5)


@pytest.mark.parametrize("executor", ["packed", pytest.param("fit", marks=pytest.mark.slow)])
def test_sample_weights_by_output_count_as_in_keras(executor: str) -> None:
    def build(hp: Any) -> keras.Model:
        inputs = keras.Input((toys.FEATURES,))
        outputs = {n: keras.layers.Dense(1, kernel_initializer="ones", name=n) for n in "pq"}
        model = keras.Model(inputs, {name: layer(inputs) for name, layer in outputs.items()})
        rate = hp.Float("lr", 1e-3, 1e-2, sampling="log")
        model.compile(keras.optimizers.SGD(rate), "mse", weighted_metrics={"p": ["mae"]})
        return model

    ramp = np.linspace(0.0, 2.0, len(X), dtype="float32")
    y, weights = {"p": X[:, 0], "q": X[:, 1]}, {"p": ramp, "q": 3.0 - ramp}
    call: dict[str, Any] = {"epochs": 2, "batch_size": 16, "shuffle": False}
    settings: Any = {"study": "s", "on_note": len, "objective": "min:loss", "executor": executor}
    search = paceline.Tuner(build, **settings)
    search.search(X, y, sample_weight=weights, n_trials=2, **call)
    for trial in search._require_study().trials:
        model = build(paceline.HyperParameters(trial.hparams))
        history = model.fit(X, y, sample_weight=weights, verbose=0, **call).history
        for name in ("loss", "p_loss", "q_loss", "p_mae"):
            # Only the order of sums differs, as above.
            np.testing.assert_allclose(trial.history[name], history[name], rtol=2e-5)
