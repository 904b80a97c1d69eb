"""Model functions as examples for a scan."""

from __future__ import annotations

from typing import Any

import keras

from paceline.compat.talos.metrics import f1score, matthews, precision, recall
from paceline.compat.talos.model import early_stopper, hidden_layers, trained


def iris(x_train: Any, y_train: Any, x_val: Any, y_val: Any, params: dict[str, Any]) -> Any:
    """Trains a classifier of flowers, with ``datasets.iris`` and ``params.iris``."""
    return _fitted(x_train, y_train, x_val, y_val, params, y_train.shape[1], ["acc", f1score])


def breast_cancer(
    x_train: Any, y_train: Any, x_val: Any, y_val: Any, params: dict[str, Any]
) -> Any:
    """Trains a classifier of tumours, with the data and the params called ``breast_cancer``."""
    measures = ["acc", f1score, recall, precision, matthews]
    return _fitted(x_train, y_train, x_val, y_val, params, 1, measures)


def cervical_cancer(
    x_train: Any, y_train: Any, x_val: Any, y_val: Any, params: dict[str, Any]
) -> Any:
    """Trains a classifier of patients, with the data and the params called ``cervical_cancer``."""
    return breast_cancer(x_train, y_train, x_val, y_val, params)


def titanic(x_train: Any, y_train: Any, x_val: Any, y_val: Any, params: dict[str, Any]) -> Any:
    """Trains a classifier of passengers, with the data and the params called ``titanic``."""
    model: Any = keras.Sequential(
        [
            keras.Input(x_train.shape[1:]),
            keras.layers.Dense(params["first_neuron"], activation="relu"),
            keras.layers.Dropout(params["dropout"]),
            keras.layers.Dense(1, activation=params["last_activation"]),
        ]
    )
    data = [part.astype("float32") for part in (x_train, y_train, x_val, y_val)]
    return trained(model, params, ["acc"], data)


def _fitted(
    x_train: Any,
    y_train: Any,
    x_val: Any,
    y_val: Any,
    params: dict[str, Any],
    n_out: int,
    measures: list[Any],
) -> Any:
    layers = keras.layers
    model: Any = keras.Sequential([keras.Input(x_train.shape[1:])])
    model.add(layers.Dense(params["first_neuron"], activation=params["activation"]))
    model.add(layers.Dropout(params["dropout"]))
    hidden_layers(model, params, n_out)
    model.add(layers.Dense(n_out, activation=params["last_activation"]))
    stopper = early_stopper(params["epochs"], mode="moderate")
    return trained(model, params, measures, (x_train, y_train, x_val, y_val), [stopper])
