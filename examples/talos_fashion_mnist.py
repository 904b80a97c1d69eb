r"""Fashion-MNIST with Talos' names: the scan of 2 x 2 x 2 permutations of an article of 2018.

    KERAS_BACKEND=jax python examples/talos_fashion_mnist.py fashion_mnist.npz
    KERAS_BACKEND=jax python examples/talos_fashion_mnist.py fashion_mnist.npz \
        --images 2048 --epochs 2

Without a file, ``fashion_mnist.npz`` is taken from the folder that PACELINE_DATA names. With
``import talos`` instead of the line below, the same file runs on Talos itself.

The network is the article's. Its notebooks fitted on all 70,000 images, and validated on a part of
them; ``--as-published`` does the same, and its accuracies are too good. Without it, the function
trains on what it is given.
"""

import argparse
import os
from pathlib import Path

import keras
import numpy as np

from paceline.compat import talos


def fashion_model(x_train, y_train, x_val, y_val, params):
    model = keras.Sequential([keras.layers.Input((28, 28, 1))])
    for filters in (64, 128, 256):
        model.add(keras.layers.BatchNormalization())
        model.add(keras.layers.Conv2D(filters, 5, padding="same", activation=params["activation"]))
        model.add(keras.layers.MaxPooling2D(2))
        model.add(keras.layers.Dropout(params["conv_dropout"]))
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(params["dense1_neuron"], activation=params["activation"]))
    model.add(keras.layers.Dropout(0.5))
    model.add(keras.layers.Dense(10, activation="softmax"))
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["acc"])

    history = model.fit(
        x_train,
        y_train,
        epochs=params["epochs"],
        batch_size=params["batch_size"],
        validation_data=(x_val, y_val),
        verbose=0,
    )
    return history, model


def as_published(x_train, y_train, x_val, y_val, params):
    """As the article's notebooks: what is validated on is trained on, too."""
    x, y = np.concatenate([x_train, x_val]), np.concatenate([y_train, y_val])
    return fashion_model(x, y, x_val, y_val, params)


def load(path, n_images):
    """Images as f32[N, 28, 28, 1] in 0 to 1, and labels; training and test."""
    with np.load(path) as data:
        parts = [data[name] for name in ("x_train", "y_train", "x_test", "y_test")]
    n_test = len(parts[2]) if n_images is None else n_images // 6
    images, labels, tests, truth = (
        part[: n_images if i < 2 else n_test] for i, part in enumerate(parts)
    )
    scaled = [part[..., None].astype("float32") / 255 for part in (images, tests)]
    return scaled[0], labels, scaled[1], truth


def main():
    parser = argparse.ArgumentParser(description="Scan Fashion-MNIST.")
    default = Path(os.environ.get("PACELINE_DATA", "."), "fashion_mnist.npz")
    parser.add_argument("data", nargs="?", type=Path, default=default)
    parser.add_argument("--images", type=int, default=None, help="only so many; all by default")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=None, help="only so many permutations")
    parser.add_argument(
        "--as-published",
        action="store_true",
        help="train on the validation images, too, as the article's notebooks did",
    )
    arguments = parser.parse_args()
    x, y, x_test, y_test = load(arguments.data, arguments.images)

    params = {
        "dense1_neuron": [256, 512],
        "activation": ["relu", "elu"],
        "conv_dropout": [0.25, 0.4],
        "epochs": [arguments.epochs],
        "batch_size": [arguments.batch_size],
    }
    scan = talos.Scan(
        x,
        y,
        params,
        as_published if arguments.as_published else fashion_model,
        experiment_name="fashion_mnist",
        x_val=x_test,
        y_val=y_test,
        seed=0,
        round_limit=arguments.rounds,
    )

    report = talos.Reporting(scan)
    columns = ["val_acc", "val_loss", "dense1_neuron", "activation", "conv_dropout"]
    print(report.table("val_acc")[columns].to_string(index=False))
    print(f"best: {report.high('val_acc'):.4f}, permutation {report.rounds2high('val_acc')}")

    model = scan.best_model("val_loss", asc=True)  # or by any other metric
    model.save("fashion_mnist_best.keras")
    again = keras.models.load_model("fashion_mnist_best.keras")
    found = again.predict(x_test, verbose=0).argmax(axis=1)
    print(f"accuracy of the reloaded model: {(found == y_test).mean():.4f}")


if __name__ == "__main__":
    main()
