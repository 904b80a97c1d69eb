"""Params dictionaries for the models of ``templates.models``."""

from __future__ import annotations

from typing import Any

import keras


def iris() -> dict[str, Any]:
    """Returns params for ``models.iris``."""
    return {
        "lr": (0.5, 5, 10),
        "first_neuron": [4, 8, 16, 32, 64],
        "hidden_layers": [0, 1, 2, 3, 4],
        "batch_size": (2, 30, 10),
        "epochs": [50, 100, 150],
        "dropout": (0, 0.5, 5),
        "shapes": ["brick", "triangle", 0.2],
        "optimizer": [keras.optimizers.Adam, keras.optimizers.Adagrad],
        "losses": ["log_cosh", "categorical_crossentropy"],
        "activation": ["relu", "elu"],
        "last_activation": ["softmax"],
    }


def breast_cancer() -> dict[str, Any]:
    """Returns params for ``models.breast_cancer``."""
    kinds = keras.optimizers
    return iris() | {
        "hidden_layers": [0, 1, 2],
        "shapes": ["brick", "triangle", "funnel"],
        "optimizer": [kinds.Adam, kinds.Adagrad, kinds.RMSprop],
        "losses": ["log_cosh", "binary_crossentropy"],
        "last_activation": ["sigmoid"],
    }


def cervical_cancer() -> dict[str, Any]:
    """Returns params for ``models.cervical_cancer``."""
    return breast_cancer()


def titanic(debug: bool = False) -> dict[str, Any]:
    """Returns params for ``models.titanic``; ``debug``: only few values of each."""
    params: dict[str, Any] = {
        "lr": (0.5, 5, 10),
        "first_neuron": [4, 8, 16],
        "batch_size": [20, 30, 40],
        "dropout": (0, 0.5, 5),
        "optimizer": [keras.optimizers.Adam, keras.optimizers.Adagrad],
        "epochs": [50, 100, 150],
        "losses": ["log_cosh", "binary_crossentropy"],
        "shapes": ["brick", "triangle", 0.2],
        "hidden_layers": [0, 1, 2, 3, 4],
        "activation": ["relu", "elu"],
        "last_activation": ["sigmoid"],
    }
    if debug:
        params |= {
            "lr": [0.1, 0.2],
            "first_neuron": [4, 8],
            "batch_size": [20, 30],
            "dropout": [0.2, 0.3],
            "epochs": [50, 100],
            "hidden_layers": [0, 1],
        }
    return params
