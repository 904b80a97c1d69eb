"""Handwritten digits with a small dense network: all that Paceline needs from you.

    paceline search examples/digits.py

Trials differ in numbers only (dropout, learning rate, weight decay), so all of them train in one
compiled program. The data ship with scikit-learn: nothing is downloaded.
"""

import keras

from paceline import datasets


def build(hp):
    model = keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(hp.Float("dropout", 0.05, 0.5)),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(
            learning_rate=hp.Float("lr", 1e-4, 3e-2, sampling="log"),
            weight_decay=hp.Float("weight_decay", 1e-5, 1e-1, sampling="log"),
        ),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def data():
    """Return (x, y), (x_val, y_val): 1,437 and 360 images of 8 x 8 pixels, flat, in 0 to 1."""
    return datasets.digits()
