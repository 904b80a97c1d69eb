"""Spaces and models that both sides search."""

from __future__ import annotations

from typing import Any

import toys


def every_kind(hp: Any) -> None:
    hp.Int("units", 32, 512, step=32)
    hp.Int("layers", 1, 3)
    hp.Int("width", 8, 64, step=2, sampling="log")
    hp.Int("patience", 1, 100, sampling="log")
    hp.Int("late", 1, 100, sampling="reverse_log")
    hp.Float("dropout", 0.0, 0.5, step=0.1)
    hp.Float("lr", 1e-4, 1e-1, sampling="log", default=1e-3)
    hp.Float("momentum", 0.5, 0.99, sampling="reverse_log")
    hp.Float("decay", 1e-6, 1e-2, step=10, sampling="log")
    hp.Float("noise", 0.0, 1.0)
    hp.Choice("activation", ["relu", "tanh", "elu"], default="tanh")
    hp.Choice("batch", [32, 64, 128])
    hp.Choice("rate", [0.1, 0.01])
    hp.Boolean("bias")
    hp.Fixed("seed", 7)


def conditional(hp: Any) -> None:
    kind = hp.Choice("kind", ["mlp", "cnn"])
    with hp.conditional_scope("kind", ["mlp"]):
        if kind == "mlp":
            hp.Int("cells", 8, 24, step=8)
    with hp.conditional_scope("kind", ["cnn"]):
        if kind == "cnn":
            hp.Choice("filters", [4, 8])
            if hp.Boolean("pool"):
                hp.Int("size", 2, 3, parent_name="pool", parent_values=[True])
    hp.Choice("lr", [0.1, 0.01])


def growing(hp: Any) -> None:
    """What is asked for depends on a value, without conditions."""
    for i in range(hp.Int("layers", 1, 3)):
        hp.Choice(f"units_{i}", [8, 16])


def empty(hp: Any) -> None:
    pass


def small(hp: Any) -> Any:
    """A model with a structural hyperparameter and two that are none."""
    import keras

    layers = [
        keras.Input((toys.FEATURES,)),
        keras.layers.Dense(hp.Int("units", 4, 8, step=4), activation="relu"),
        keras.layers.Dropout(hp.Float("dropout", 0.1, 0.5)),
        keras.layers.Dense(toys.CLASSES, activation="softmax"),
    ]
    return toys.compiled(keras.Sequential(layers), hp.Choice("lr", [1e-2, 1e-3]))
