"""The works of ``quality_per_second.py``: spaces as people write them, with data to test on.

Each has a ``build(hp)`` with KerasTuner's methods of hp only, and three parts of the data: to train
on, to validate, and to test the best model. Fashion-MNIST and the sentences come from the folder
that ``works.py`` describes; the digits ship inside scikit-learn; the table is made here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import open_ended
from works import LENGTH, LETTERS, data_file, digits, sentences

Pair = tuple[Any, np.ndarray]
Splits = tuple[Pair, Pair, Pair]


@dataclass(frozen=True)
class QualityWork:
    """A search that time ends; its objective is val_accuracy."""

    title: str
    build: Callable[[Any], Any]
    data: Callable[[], Splits]  # to train, to validate, to test
    epochs: int
    batch_size: int


def fashion_parts(n: int, n_val: int) -> Splits:
    """Return images f32[N, 784] in 0..1; V others of the training part validate, 10,000 test."""
    with np.load(data_file("fashion_mnist.npz")) as file:
        x, y = file["x_train"][: n + n_val], file["y_train"][: n + n_val]
        x_test, y_test = file["x_test"], file["y_test"]
    x, x_test = (a.reshape(len(a), -1).astype("float32") / 255 for a in (x, x_test))
    return (x[:n], y[:n]), (x[n:], y[n:]), (x_test, y_test)


def layers_data() -> Splits:
    """Return what ``open_ended.py`` searches, and the 10,000 test images."""
    return fashion_parts(12_000, 2_000)


def images_data() -> Splits:
    """Return 6,000 images, f32[6000, 28, 28, 1]; 2,000 validate and 10,000 test."""
    train, val, test = fashion_parts(6_000, 2_000)
    (x, y), (x_val, y_val), (x_test, y_test) = train, val, test
    shape = (-1, 28, 28, 1)
    return (x.reshape(shape), y), (x_val.reshape(shape), y_val), (x_test.reshape(shape), y_test)


def sentences_data() -> Splits:
    """Return the sentences of ``works.py``: 5,600 to train, 1,200 to validate, 1,200 to test."""
    (x, y), (x_val, y_val) = sentences()
    x, y = np.concatenate([x, x_val]), np.concatenate([y, y_val])
    return (x[:5600], y[:5600]), (x[5600:6800], y[5600:6800]), (x[6800:], y[6800:])


def digits_data() -> Splits:
    """Return the digits: 1,077 to train, 360 to validate, 360 to test."""
    (x, y), validation = digits()
    return (x[:1077], y[:1077]), validation, (x[1077:], y[1077:])


#: How many values each column of categories of the table has.
CATEGORIES = (3, 5, 8, 12, 24, 40)
NUMBERS = 8


def table_data() -> Splits:
    """Return a made-up table: 8,000 rows to train, 2,000 to validate, 10,000 to test.

    The class is 1 where a sum of effects is above its median: of categories, of numbers, of numbers
    within categories, and of noise. The rows are a dictionary of columns: "numbers", f32[N, 8], and
    "c0" to "c5", int32[N].
    """
    rng = np.random.default_rng(0)
    n = 20_000
    numbers = rng.normal(size=(n, NUMBERS)).astype("float32")
    columns = [rng.integers(0, k, n).astype("int32") for k in CATEGORIES]
    score = np.sin(2 * numbers[:, 0]) + 0.5 * numbers[:, 1] * numbers[:, 2]
    score += np.abs(numbers[:, 3]) * (columns[0] - 1)
    for k, column in zip(CATEGORIES, columns, strict=True):
        score += rng.normal(size=k)[column] * 0.7
    score += rng.normal(size=(CATEGORIES[1], CATEGORIES[2]))[columns[1], columns[2]] * 0.8
    score += rng.normal(size=n) * 0.6
    y = (score > np.median(score)).astype("int32")
    x = {"numbers": numbers, **{f"c{i}": column for i, column in enumerate(columns)}}

    def part(begin: int, end: int) -> Pair:
        return {name: column[begin:end] for name, column in x.items()}, y[begin:end]

    return part(0, 8_000), part(8_000, 10_000), part(10_000, n)


def _optimizer(hp: Any, low: float = 1e-5, high: float = 1e-1) -> Any:
    import keras

    return keras.optimizers.get(
        {
            "class_name": hp.Choice("optimizer", ["adam", "sgd", "rmsprop"]),
            "config": {"learning_rate": hp.Float("lr", low, high, sampling="log")},
        }
    )


def sentences_build(hp: Any) -> Any:
    """Build a GRU over letters: sizes, dropout, optimizer and rate are searched."""
    import keras

    model = keras.Sequential(
        [
            keras.layers.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(
                len(LETTERS) + 1, hp.Int("embedding", 8, 32, step=8), mask_zero=True
            ),
            keras.layers.GRU(hp.Int("units", 16, 64, step=16)),
            keras.layers.Dropout(hp.Float("dropout", 0.05, 0.5)),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(optimizer=_optimizer(hp), loss="binary_crossentropy", metrics=["accuracy"])
    return model


def images_build(hp: Any) -> Any:
    """Build a small convolutional network: one or two blocks, filters, units, dropout."""
    import keras
    from keras.layers import Conv2D, Dense, Dropout, Flatten, MaxPooling2D

    layers: list[Any] = [keras.layers.Input((28, 28, 1))]
    for i in range(hp.Int("blocks", 1, 2)):
        layers += [
            Conv2D(hp.Int(f"filters_{i}", 8, 32, step=8), 3, activation="relu"),
            MaxPooling2D(2),
        ]
    layers += [
        Flatten(),
        Dense(hp.Int("units", 32, 128, step=32), activation="relu"),
        Dropout(hp.Float("dropout", 0.0, 0.5)),
        Dense(10, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile(
        optimizer=_optimizer(hp),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def table_build(hp: Any) -> Any:
    """Build a model of embeddings and dense layers over a table."""
    import keras
    from keras.layers import Concatenate, Dense, Dropout, Embedding, Flatten

    size = hp.Choice("embedding", [2, 4, 8])
    inputs = {"numbers": keras.Input((NUMBERS,), name="numbers")}
    parts = [inputs["numbers"]]
    for i, k in enumerate(CATEGORIES):
        inputs[f"c{i}"] = column = keras.Input((1,), dtype="int32", name=f"c{i}")
        parts.append(Flatten()(Embedding(k, size)(column)))
    y = Concatenate()(parts)
    activation = hp.Choice("activation", ["relu", "tanh"])
    for i in range(hp.Int("layers", 1, 3)):
        y = Dense(hp.Int(f"units_{i}", 16, 256, sampling="log"), activation=activation)(y)
    y = Dropout(hp.Float("dropout", 0.0, 0.5))(y)
    model = keras.Model(inputs, Dense(1, activation="sigmoid")(y))
    model.compile(optimizer=_optimizer(hp), loss="binary_crossentropy", metrics=["accuracy"])
    return model


def digits_build(hp: Any) -> Any:
    """Build a dense model 64-64-64-10 of which numbers only are searched."""
    import keras
    from keras.layers import Dense, Dropout

    l2 = keras.regularizers.L2(hp.Float("l2", 1e-6, 1e-2, sampling="log"))
    model = keras.Sequential(
        [
            keras.layers.Input((64,)),
            Dense(64, activation="relu", kernel_regularizer=l2),
            Dropout(hp.Float("dropout", 0.05, 0.6)),
            Dense(64, activation="relu"),
            Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(
            hp.Float("lr", 1e-5, 1e-1, sampling="log"), beta_1=hp.Float("beta_1", 0.8, 0.99)
        ),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


WORKS: dict[str, QualityWork] = {
    "layers": QualityWork(
        "Fashion-MNIST, 1 to 3 dense layers of own widths, activations, optimizers, rates",
        open_ended.build,
        layers_data,
        open_ended.EPOCHS,
        open_ended.BATCH,
    ),
    "sentences": QualityWork(
        "two languages, a GRU: sizes, dropout, optimizers, rates",
        sentences_build,
        sentences_data,
        12,
        64,
    ),
    "images": QualityWork(
        "Fashion-MNIST, a small CNN: blocks, filters, units, dropout, optimizers, rates",
        images_build,
        images_data,
        10,
        64,
    ),
    "table": QualityWork(
        "a table with categories: embeddings, 1 to 3 layers, dropout, optimizers, rates",
        table_build,
        table_data,
        12,
        64,
    ),
    "digits": QualityWork(
        "digits, numbers only: rate, momentum, dropout, L2", digits_build, digits_data, 20, 32
    ),
}
