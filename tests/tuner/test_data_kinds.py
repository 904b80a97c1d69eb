"""Data as users have it, in a whole search, against Keras' own ``fit`` on the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest

import paceline
import toys
from paceline.cli import datasets
from streams import XV, YV, X, Y, alone, same, search

CALL: dict[str, Any] = {"epochs": 2, "shuffle": False, "batch_size": 16}


def frame(x: np.ndarray) -> pd.DataFrame:
    """Columns of several types, and an index that is no order."""
    found = pd.DataFrame(x, columns=list("abcdef"), index=np.arange(len(x))[::-1])
    return found.astype({"b": "float64"}).assign(c=(x[:, 2] * 4).astype("int64"), d=x[:, 3] > 0)


@pytest.mark.slow
def test_pandas():
    x, y = frame(X), pd.Series(Y, index=np.arange(len(Y)) * 2)
    given = CALL | {
        "y": y,
        "sample_weight": pd.Series(np.linspace(0.5, 2.0, len(Y))),
        "validation_data": (frame(XV), pd.Series(YV)),
    }
    tuner = search(x, **given)
    same(tuner, 3, alone(tuner.trial(3), toys.dense, x, **given))


@pytest.mark.slow
def test_columns_of_pandas_as_inputs_by_name():
    def build(hp: Any) -> Any:
        a, rest = keras.Input((1,), name="a"), keras.Input((5,), name="rest")
        joined = keras.layers.Concatenate()([a, rest])
        outputs = {
            "kind": keras.layers.Dense(3, activation="softmax", name="kind")(joined),
            "size": keras.layers.Dense(1, name="size")(joined),
        }
        model = keras.Model({"a": a, "rest": rest}, outputs)
        losses = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
        model.compile(keras.optimizers.SGD(hp.Float("lr", 1e-3, 1e-1, sampling="log")), losses)
        return model

    def inputs(x: np.ndarray) -> dict[str, Any]:
        found = frame(x)
        return {"a": found["a"], "rest": found.drop(columns="a")}

    def targets(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
        return {"kind": pd.Series(y), "size": pd.DataFrame({"size": x[:, 0] * 2})}

    given = CALL | {"y": targets(X, Y), "validation_data": (inputs(XV), targets(XV, YV))}
    tuner = search(inputs(X), build=build, **given)
    same(tuner, 3, alone(tuner.trial(3), build, inputs(X), **given))


def test_npz(tmp_path: Path):
    path = tmp_path / "data.npz"
    np.savez(path, x_train=X, y_train=Y, x_val=XV, y_val=YV)
    read = datasets.load(str(path))
    tuner = search(read.x, y=read.y, validation_data=(read.x_val, read.y_val), **CALL)
    with np.load(path) as file:
        given = CALL | {"y": file["y_train"], "validation_data": (file["x_val"], file["y_val"])}
        same(tuner, 3, alone(tuner.trial(3), toys.dense, file["x_train"], **given))


# -- what users' code does with its arrays ---------------------------------------------------------


class Refills(keras.utils.PyDataset):
    """Fills the same arrays for each batch, or new ones."""

    def __init__(self, x: np.ndarray, y: np.ndarray, *, anew: bool) -> None:
        super().__init__()
        self._x, self._y, self._anew = x, y, anew
        self._buffer = np.empty((16, *x.shape[1:]), x.dtype), np.empty(16, y.dtype)

    def __len__(self) -> int:
        return len(self._x) // 16

    def __getitem__(self, index: int) -> Any:
        part = slice(16 * index, 16 * index + 16)
        if self._anew:
            return self._x[part].copy(), self._y[part].copy()
        for buffer, source in zip(self._buffer, (self._x, self._y), strict=True):
            buffer[:] = source[part]
        return self._buffer


def test_a_data_set_may_fill_its_arrays_anew():
    found = [
        search(
            Refills(X, Y, anew=anew),
            validation_data=Refills(XV, YV, anew=anew),
            epochs=2,
            shuffle=False,
            n_trials=2,
        )
        for anew in (False, True)
    ]
    for number in (0, 1):
        ours, theirs = (tuner.trial(number).history for tuner in found)
        assert ours == theirs


def test_functions_of_hp_have_the_data_of_their_trial():
    """Values in two scopes of one name, and values that are only looked at."""

    def scoped(hp: Any) -> np.ndarray:
        with hp.name_scope("a"):
            n = hp.Choice("n", [16, 48])
        with hp.name_scope("b"):
            hp.Choice("n", [1])
        return X[:n]

    def looked_at(hp: Any) -> np.ndarray:
        hp.Choice("n", [16, 48])
        return X[: hp.hparams["n"]]

    def asked_by_index(hp: Any) -> np.ndarray:
        hp.Choice("n", [16, 48])
        return X[: hp["n"]] if "n" in hp else X

    for function in (scoped, looked_at, asked_by_index):
        tuner = search(
            function,
            y=lambda hp, of=function: Y[: len(of(hp))],
            sampler="grid",
            n_trials=4,
            build=lambda hp: toys.softmax_at(hp.Choice("lr", [0.01, 0.02])),
            **CALL,
        )
        sizes = {
            trial.hparams.get("a/n", trial.hparams.get("n")) for trial in map(tuner.trial, range(4))
        }
        assert sizes == {16, 48}


def test_a_function_that_fills_its_array_anew_is_refused():
    buffer = X.copy()

    def scaled(hp: Any) -> np.ndarray:
        np.multiply(X, hp.Choice("scale", [1.0, 10.0]), out=buffer)
        return buffer

    results = search(scaled, y=Y, n_trials=6, **CALL).results()
    failed = results[results["state"] == "failed"]
    assert len(failed) and all(failed["reason"].str.contains("returned for other values"))


@pytest.mark.parametrize("kind", ["arrays", "batches"])
def test_masked_arrays_are_refused(kind: str):
    masked = np.ma.masked_less(X, -1.0)
    batches = {"x": iter([(masked[:16], Y[:16])]), "steps_per_epoch": 1, "epochs": 1}
    given = {"x": masked, "y": Y, **CALL} if kind == "arrays" else batches
    with pytest.raises(paceline.DataError, match="masked array, but Keras has no masks"):
        search(given.pop("x"), **given)


@pytest.mark.parametrize("by_hp", [False, True])
def test_classes_of_steps_have_no_class_weights(by_hp: bool):
    steps = np.eye(3, dtype="float32")[np.random.default_rng(0).integers(0, 3, (len(X), 4))]
    weights = {0: 2.0}
    with pytest.raises((paceline.DataError, paceline.UsageError), match="several classes in each"):
        search(X, y=steps, class_weight=(lambda hp: weights) if by_hp else weights, **CALL)


@pytest.mark.parametrize("weights", ["class_weight", "sample_weight"])
def test_labels_of_weighted_batches_are_checked(weights: str):
    class Weighted(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            part = slice(16 * index, 16 * index + 16)
            y = np.where(np.arange(16) + index == 17, 7, Y[part])
            own = (np.ones(16, "float32"),) if weights == "sample_weight" else ()
            return X[part], y, *own

    given = {"class_weight": {0: 2.0}} if weights == "class_weight" else {}
    with pytest.raises(paceline.DataError, match="labels go from 0 to 7"):
        search(Weighted(), epochs=1, **given)
