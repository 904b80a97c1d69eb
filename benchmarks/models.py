"""Small models on random data, one of each kind: what a step costs hangs on shapes alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers

RNG = np.random.default_rng(0)
#: Of the ten classes.
FREQUENCIES = np.arange(10, 0, -1) / 55


@dataclass(frozen=True)
class Model:
    """One kind of model.

    Attributes:
        title: as printed.
        build: as for a search; hp has ``dropout`` and ``lr``. Ten classes.
        inputs: N -> inputs, first axis N.
        batch_size: examples per step.
        n_steps: of an epoch, where it is timed.
    """

    title: str
    build: Callable[[Any], keras.Model]
    inputs: Callable[[int], np.ndarray]
    batch_size: int
    n_steps: int = 40

    def data(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """N inputs and labels; how frequent the classes are is all there is to learn."""
        return self.inputs(n), RNG.choice(10, n, p=FREQUENCIES)


def classifier(hp: Any, *body: Any) -> keras.Model:
    """The layers, a softmax over ten classes, Adam."""
    return compiled(hp, keras.Sequential([*body, layers.Dense(10, activation="softmax")]))


def compiled(hp: Any, model: keras.Model) -> keras.Model:
    """The model with Adam, for whole numbers as classes."""
    lr = hp.Float("lr", 1e-4, 1e-2, sampling="log")
    model.compile(
        keras.optimizers.Adam(lr), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def rate(hp: Any) -> float:
    """The dropout rate."""
    return hp.Float("dropout", 0.1, 0.5)


def digits(hp: Any) -> keras.Model:
    """Two hidden layers on 64 numbers."""
    hidden = [[layers.Dense(64, "relu"), layers.Dropout(rate(hp))] for _ in range(2)]
    return classifier(hp, keras.Input((64,)), *hidden[0], *hidden[1])


def mnist(hp: Any) -> keras.Model:
    """784-128-10."""
    return classifier(hp, keras.Input((784,)), layers.Dense(128, "relu"), layers.Dropout(rate(hp)))


def cnn(hp: Any) -> keras.Model:
    """Two 3x3 convolutions of 16 and 32 filters on images of 28x28, each with max-pooling."""
    body = []
    for filters in (16, 32):
        body += [layers.Conv2D(filters, 3, padding="same", activation="relu")]
        body += [layers.MaxPooling2D(2), layers.Dropout(rate(hp))]
    return classifier(hp, keras.Input((28, 28, 1)), *body, layers.Flatten())


def gru(hp: Any) -> keras.Model:
    """A GRU over 40 characters."""
    body = (layers.Embedding(60, 16), layers.GRU(32, dropout=rate(hp)))
    return classifier(hp, keras.Input((40,)), *body)


def attention(hp: Any) -> keras.Model:
    """One attention block over 20 positions."""
    inputs = keras.Input((20, 16))
    x = layers.MultiHeadAttention(2, 8, dropout=rate(hp))(inputs, inputs)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x + inputs))
    return compiled(hp, keras.Model(inputs, layers.Dense(10, activation="softmax")(x)))


def uniform(*shape: int) -> Callable[[int], np.ndarray]:
    """N -> N arrays of numbers in 0..1."""
    return lambda n: RNG.random((n, *shape), np.float32)


MODELS = {
    "digits": Model("dense 64-64-64-10, batch 32", digits, uniform(64), 32),
    "mnist": Model("dense 784-128-10, batch 128", mnist, uniform(784), 128),
    "cnn": Model("CNN 3x3 16/32 on 28x28, batch 32", cnn, uniform(28, 28, 1), 32, 16),
    "gru": Model(
        "GRU 32 over 40 letters, batch 32", gru, lambda n: RNG.integers(0, 60, (n, 40)), 32
    ),
    "attention": Model("attention over 20 positions, batch 32", attention, uniform(20, 16), 32),
}
