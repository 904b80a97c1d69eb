"""Data as users have it, in a whole search, against Keras' own ``fit`` on the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest

import toys
from paceline.cli import datasets
from streams import XV, YV, X, Y, alone, same, search

CALL: dict[str, Any] = {"epochs": 2, "shuffle": False, "batch_size": 16}


def frame(x: np.ndarray) -> pd.DataFrame:
    """Columns of several types, and an index that is no order."""
    found = pd.DataFrame(x, columns=list("abcdef"), index=np.arange(len(x))[::-1])
    return found.astype({"b": "float64"}).assign(c=(x[:, 2] * 4).astype("int64"), d=x[:, 3] > 0)


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
