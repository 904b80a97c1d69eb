"""Small models on random data, one of each kind: the cost of a step depends on shapes alone."""

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
#: Share of each of the ten classes.
FREQUENCIES = np.arange(10, 0, -1) / 55


@dataclass(frozen=True)
class Model:
    """One kind of model.

    Attributes:
        title: Name of the model in tables.
        build: ``build(hp)`` for ten classes; hp has ``dropout`` and ``lr``.
        inputs: N -> inputs [N, ...].
        batch_size: Examples per step.
        n_steps: Steps of a timed epoch.
    """

    title: str
    build: Callable[[Any], keras.Model]
    inputs: Callable[[int], np.ndarray]
    batch_size: int
    n_steps: int = 40

    def data(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return N inputs and labels; only the frequencies of the classes can be learned."""
        return self.inputs(n), RNG.choice(10, n, p=FREQUENCIES)


def classifier(hp: Any, *body: Any) -> keras.Model:
    """Return a compiled model: the layers, a softmax over ten classes, Adam."""
    return compiled(hp, keras.Sequential([*body, layers.Dense(10, activation="softmax")]))


def compiled(hp: Any, model: keras.Model) -> keras.Model:
    """Compile a model with Adam, for classes that are whole numbers; return it."""
    lr = hp.Float("lr", 1e-4, 1e-2, sampling="log")
    model.compile(
        keras.optimizers.Adam(lr), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def rate(hp: Any) -> float:
    """Declare the dropout rate and return it."""
    return hp.Float("dropout", 0.1, 0.5)


def digits(hp: Any) -> keras.Model:
    """Build a model with two hidden layers on 64 numbers."""
    hidden = [[layers.Dense(64, "relu"), layers.Dropout(rate(hp))] for _ in range(2)]
    return classifier(hp, keras.Input((64,)), *hidden[0], *hidden[1])


def mnist(hp: Any) -> keras.Model:
    """Build a dense model 784-128-10."""
    return classifier(hp, keras.Input((784,)), layers.Dense(128, "relu"), layers.Dropout(rate(hp)))


def wide(hp: Any) -> keras.Model:
    """Build a dense model 784-512-10."""
    return classifier(hp, keras.Input((784,)), layers.Dense(512, "relu"), layers.Dropout(rate(hp)))


def cnn(hp: Any) -> keras.Model:
    """Build a model with two 3x3 convolutions, of 16 and 32 filters, on 28x28 images."""
    body = []
    for filters in (16, 32):
        body += [layers.Conv2D(filters, 3, padding="same", activation="relu")]
        body += [layers.MaxPooling2D(2), layers.Dropout(rate(hp))]
    return classifier(hp, keras.Input((28, 28, 1)), *body, layers.Flatten())


def fashion(hp: Any) -> keras.Model:
    """Build the CNN of ``examples/fashion_mnist_cnn.py``."""
    body = [layers.Rescaling(1 / 255), layers.Reshape((28, 28, 1))]
    for filters in (64, 128, 256):
        body += [layers.BatchNormalization()]
        body += [layers.Conv2D(filters, 5, padding="same", activation="relu")]
        body += [layers.MaxPooling2D(2), layers.Dropout(rate(hp))]
    return classifier(hp, keras.Input((28, 28)), *body, layers.Flatten(), layers.Dense(256, "relu"))


def gru(hp: Any) -> keras.Model:
    """Build a GRU over 40 characters."""
    body = (layers.Embedding(60, 16), layers.GRU(32, dropout=rate(hp)))
    return classifier(hp, keras.Input((40,)), *body)


def attention(hp: Any) -> keras.Model:
    """Build a model with one attention block over 20 positions."""
    inputs = keras.Input((20, 16))
    x = layers.MultiHeadAttention(2, 8, dropout=rate(hp))(inputs, inputs)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x + inputs))
    return compiled(hp, keras.Model(inputs, layers.Dense(10, activation="softmax")(x)))


def uniform(*shape: int) -> Callable[[int], np.ndarray]:
    """Return a function: N -> N arrays of numbers from 0 to 1."""
    return lambda n: RNG.random((n, *shape), np.float32)


#: Of these a step takes a second on a CPU.
LARGE = ("fashion",)

MODELS = {
    "digits": Model("dense 64-64-64-10, batch 32", digits, uniform(64), 32),
    "mnist": Model("dense 784-128-10, batch 128", mnist, uniform(784), 128),
    "wide": Model("dense 784-512-10, batch 32", wide, uniform(784), 32),
    "cnn": Model("CNN 3x3 16/32 on 28x28, batch 32", cnn, uniform(28, 28, 1), 32, 16),
    "fashion": Model(
        "Fashion CNN 5x5 64/128/256, batch 32",
        fashion,
        lambda n: 255 * RNG.random((n, 28, 28)),
        32,
        64,
    ),
    "gru": Model(
        "GRU 32 over 40 letters, batch 32", gru, lambda n: RNG.integers(0, 60, (n, 40)), 32
    ),
    "attention": Model("attention over 20 positions, batch 32", attention, uniform(20, 16), 32),
}
