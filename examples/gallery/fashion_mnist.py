r"""Which convolutional network names clothes best, with 6,000 images to learn from?

    PACELINE_DATA=FOLDER python examples/gallery/fashion_mnist.py

FOLDER holds ``fashion_mnist.npz`` with x_train, y_train, x_test and y_test. Without PACELINE_DATA,
Keras downloads Fashion-MNIST.
"""

import os
from pathlib import Path

import paceline  # import it before keras, so that Keras uses JAX

import keras
import numpy as np


def build(hp):
    model = keras.Sequential([keras.Input((28, 28, 1), dtype="uint8")])
    model.add(keras.layers.Rescaling(1 / 255))
    for filters in (16, 32):
        model.add(keras.layers.Conv2D(filters, 3, padding="same", activation="relu"))
        if hp.Boolean("normalize"):
            model.add(keras.layers.BatchNormalization(momentum=0.9))
        model.add(keras.layers.MaxPooling2D(2))
        model.add(keras.layers.Dropout(hp.Float("dropout", 0.05, 0.5)))
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(64, activation="relu"))
    model.add(keras.layers.Dense(10, activation="softmax"))
    model.compile(
        keras.optimizers.Adam(hp.Float("lr", 1e-4, 3e-2, sampling="log")),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def data(n=6000, n_val=2000):
    """Return (x, y), (x_val, y_val), (x_test, y_test): images uint8[N, 28, 28, 1] and classes."""
    if folder := os.environ.get("PACELINE_DATA"):
        with np.load(Path(folder) / "fashion_mnist.npz") as file:
            x, y, x_test, y_test = (file[k] for k in ("x_train", "y_train", "x_test", "y_test"))
    else:
        (x, y), (x_test, y_test) = keras.datasets.fashion_mnist.load_data()
    x, x_test = x[..., None], x_test[..., None]
    end = n + n_val
    return (x[:n], y[:n]), (x[n:end], y[n:end]), (x_test, y_test)


def search(n_trials=18, epochs=9):
    (x, y), validation_data, _ = data()
    tuner = paceline.Tuner(
        build, objective="val_accuracy", study="fashion", sampler="random", pruner="asha", seed=0
    )
    tuner.search(
        x, y, validation_data=validation_data, epochs=epochs, batch_size=64, n_trials=n_trials
    )
    return tuner


def outcome(tuner):
    """Return what the best model does: name -> text."""
    (_, y), _, (x_test, y_test) = data()
    accuracy = tuner.best_model().evaluate(x_test, y_test, verbose=0)[1]
    always = float((y_test == np.bincount(y).argmax()).mean())
    return {
        "accuracy on 10,000 test images": f"{accuracy:.1%}",
        "always naming one class": f"{always:.1%}",
    }


if __name__ == "__main__":
    tuner = search()
    print(tuner.best_trial.hparams, outcome(tuner), tuner.report("fashion.html"), sep="\n")
