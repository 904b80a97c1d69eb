"""MNIST with a dense network of 784-128-10 and dropout.

    paceline search examples/mnist_dense.py --data keras:mnist --epochs 5 --batch-size 128
    paceline search examples/mnist_dense.py --data mnist.npz --epochs 5 --batch-size 128

The images stay uint8, which takes a quarter of the memory, until the model scales them.
"""

import keras


def build(hp):
    model = keras.Sequential(
        [
            keras.layers.Input((28, 28), dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(hp.Float("dropout", 0.1, 0.5)),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(hp.Float("lr", 1e-4, 1e-2, sampling="log")),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model
