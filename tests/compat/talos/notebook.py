"""What a Talos user's notebook holds: data, params, a model function."""

from __future__ import annotations

import keras

from toys import CLASSES, data

X, Y = data(90, seed=3)


def classifier(x_train, y_train, x_val, y_val, params):
    model = keras.Sequential(
        [
            keras.layers.Dense(params["first_neuron"], activation="relu"),
            keras.layers.Dropout(params["dropout"]),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(params["lr"]), "sparse_categorical_crossentropy", metrics=["acc"]
    )
    history = model.fit(
        x_train,
        y_train,
        validation_data=[x_val, y_val],
        batch_size=16,
        epochs=params.get("epochs", 2),
        verbose=0,
    )
    return history, model


def no_training(x_train, y_train, x_val, y_val, params):
    """Results that follow from the params alone: tests of what is tried need not train."""
    loss = sum(v if isinstance(v, (int, float)) else 0.0 for v in params.values())
    return {"loss": [2.0 * loss, loss], "val_acc": [0.0, 1.0 / (1.0 + loss)]}, None


PARAMS = {"first_neuron": [6], "dropout": (0.1, 0.5, 2), "lr": [0.001, 0.03]}
