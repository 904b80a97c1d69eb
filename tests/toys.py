"""Small models and data for tests of a whole search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np

N, FEATURES, CLASSES = 50, 6, 3


def data(n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Examples whose class shows in the features: x f32[n, FEATURES], y i64[n]."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, n)
    x = rng.normal(size=(n, FEATURES)).astype("float32")
    x[np.arange(n), y] += 2.0
    return x, y


#: A user's file for the command line: ``dense`` and these data.
MODEL_FILE = f"""\
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import toys

build = toys.dense

def data():
    return toys.data(), toys.data(23, seed=1)
"""

#: A search of some length, but for its trials.
CALL: dict[str, Any] = {"validation_data": data(23, seed=1), "epochs": 6, "batch_size": 16}


def dense(hp: Any) -> keras.Model:
    """Learning rate and dropout: one program for all trials."""
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dropout(hp.Float("dropout", 0.1, 0.5)),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    return compiled(model, hp.Float("lr", 1e-3, 1e-1, sampling="log"))


def wide(hp: Any) -> keras.Model:
    """Two layers, the first of 2 to 8 units."""
    layers = [
        keras.Input((FEATURES,)),
        keras.layers.Dense(hp.Int("units", 2, 8), activation="relu"),
        keras.layers.Dense(CLASSES, activation="softmax"),
    ]
    return compiled(keras.Sequential(layers), hp.Float("lr", 1e-3, 1e-1, sampling="log"))


def n_params(units: int) -> int:
    """The numbers of ``wide``, counted by hand."""
    return (FEATURES + 1) * units + (units + 1) * CLASSES


def dense_with(hp: Any, activation: str) -> keras.Model:
    """As ``softmax``, behind a layer of that activation."""
    layers = [
        keras.Input((FEATURES,)),
        keras.layers.Dense(8, activation=activation),
        keras.layers.Dense(CLASSES, activation="softmax"),
    ]
    return compiled(keras.Sequential(layers), hp.Float("lr", 1e-3, 1e-1, sampling="log"))


def compiled(model: keras.Model, lr: float = 0.01, **arguments: Any) -> keras.Model:
    """Compiles a classifier."""
    model.compile(
        optimizer=keras.optimizers.Adam(lr),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        **arguments,
    )
    return model


def softmax(**arguments: Any) -> keras.Model:
    """The smallest classifier, compiled."""
    layers = [keras.Input((FEATURES,)), keras.layers.Dense(CLASSES, activation="softmax")]
    return compiled(keras.Sequential(layers), **arguments)


def softmax_at(lr: float) -> keras.Model:
    """As ``softmax``, at a learning rate."""
    model = softmax()
    model.optimizer.learning_rate = lr
    return model
