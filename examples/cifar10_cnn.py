r"""Ten kinds of photographs (CIFAR-10) with a convolutional network.

    paceline search examples/cifar10_cnn.py --data cifar10.npz --batch-size 64 --trials 8
    PACELINE_DATA=FOLDER paceline search examples/cifar10_cnn.py --trials 8

Two blocks of two 3 x 3 convolutions, max-pooling and dropout; a dense layer; softmax. The images
stay uint8 until the model scales them. FOLDER holds ``cifar10.npz`` with x_train, y_train, x_test
and y_test; its test part validates the search.
"""

import os
from pathlib import Path

import keras
import numpy as np


def build(hp):
    dropout = hp.Float("dropout", 0.1, 0.5)
    model = keras.Sequential(
        [keras.layers.Input((32, 32, 3), dtype="uint8"), keras.layers.Rescaling(1 / 255)]
    )
    for filters in (32, 64):
        model.add(keras.layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(keras.layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(keras.layers.MaxPooling2D(2))
        model.add(keras.layers.Dropout(dropout))
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(128, activation="relu"))
    model.add(keras.layers.Dropout(dropout))
    model.add(keras.layers.Dense(10, activation="softmax"))
    model.compile(
        optimizer=keras.optimizers.Adam(hp.Float("lr", 2e-4, 3e-3, sampling="log")),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def data(n=None, n_val=None):
    """Return (x, y), (x_val, y_val): uint8 images of 32 x 32 x 3; the first n and n_val of them."""
    with np.load(Path(os.environ.get("PACELINE_DATA", ".")) / "cifar10.npz") as file:
        x, y, x_val, y_val = (file[k] for k in ("x_train", "y_train", "x_test", "y_test"))
    return (x[:n], y[:n]), (x_val[:n_val], y_val[:n_val])
