"""Functions that many notebooks use to build a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from paceline.compat.talos.errors import TalosModelError, TalosParamsError

#: For each optimizer, the number that a learning rate near 1 is divided by.
_DIVISORS = {
    "SGD": 100,
    "Adagrad": 100,
    "RMSprop": 1000,
    "Adam": 1000,
    "Adamax": 500,
    "Nadam": 500,
    "Adadelta": 1,
}
#: Arguments of ``Dense`` that ``hidden_layers`` takes from the params, if they are there.
_DENSE = (
    "kernel_initializer",
    "kernel_regularizer",
    "bias_initializer",
    "bias_regularizer",
    "use_bias",
    "activity_regularizer",
    "kernel_constraint",
    "bias_constraint",
)
_MODES = ("lazy", "moderate", "strict")


def lr_normalizer(lr: float, optimizer: Any) -> float:
    """Returns a learning rate for an optimizer.

    Args:
        lr: A number near 1; 1 stands for the usual learning rate of the optimizer.
        optimizer: A class of ``keras.optimizers``, an object of such a class, or its name.

    Raises:
        TalosModelError: The optimizer is unknown.
    """
    kind = optimizer if isinstance(optimizer, type) else type(optimizer)
    name = optimizer if isinstance(optimizer, str) else kind.__name__
    divisors = {known.lower(): divisor for known, divisor in _DIVISORS.items()}
    if str(name).lower() not in divisors:
        raise TalosModelError(
            f"optimizer must be one of {', '.join(_DIVISORS)}, got {name}. Pass the learning rate "
            "to other optimizers yourself."
        )
    return lr / divisors[str(name).lower()]


def network_shape(params: Mapping[str, Any], last_neuron: int) -> list[int]:
    """Returns the widths of the hidden layers.

    Args:
        params: ``first_neuron``, ``hidden_layers`` and ``shapes``. A shape is "brick", "funnel",
            "triangle", or a float: how much narrower each layer is than the one before.
        last_neuron: Width of the output layer.

    Raises:
        TalosParamsError: The shape is unknown.
    """
    n, shape, first = params["hidden_layers"], params["shapes"], params["first_neuron"]
    if n == 0:
        return [0]
    if isinstance(shape, float):
        widths, width = [], float(first)
        for _ in range(n):
            width *= 1 - shape
            widths.append(int(width) if width > last_neuron else last_neuron)
        return widths
    if shape == "brick":
        return [first] * n
    if shape == "funnel":
        step = int((first - last_neuron) / n)
        return [first - step * (i + 1) for i in range(n)]
    if shape == "triangle":
        return np.linspace(first, last_neuron, n + 2, dtype=int)[1:-1][::-1].tolist()
    raise TalosParamsError(
        f"shapes must be 'brick', 'funnel', 'triangle' or a float, got {shape!r}."
    )


def hidden_layers(model: Any, params: Mapping[str, Any], last_neuron: int) -> None:
    """Adds dense layers, each with dropout, to a sequential model.

    Args:
        model: A ``keras.Sequential``.
        params: ``hidden_layers``, ``first_neuron``, ``shapes``, ``dropout``, ``activation``, and
            perhaps other arguments of ``Dense``.
        last_neuron: Width of the output layer, which the user adds.

    Raises:
        TalosParamsError: ``params`` lacks one of them.
    """
    for name in ("shapes", "first_neuron", "dropout", "hidden_layers", "activation"):
        if name not in params:
            raise TalosParamsError(
                f"hidden_layers: params must have {name!r}. Add it to the params dictionary."
            )
    widths = network_shape(params, last_neuron)
    more = {name: params[name] for name in _DENSE if name in params}
    for i in range(params["hidden_layers"]):
        model.add(keras.layers.Dense(widths[i], activation=params["activation"], **more))
        model.add(keras.layers.Dropout(params["dropout"]))


def early_stopper(
    epochs: int | None = None,
    monitor: str = "val_loss",
    mode: Any = "moderate",
    min_delta: float | None = None,
    patience: int | None = None,
    backend: str = "keras",
) -> keras.callbacks.EarlyStopping:
    """Returns an ``EarlyStopping`` callback.

    Args:
        epochs: Epochs of the fit.
        monitor: The metric to watch.
        mode: How long to wait for an improvement. "lazy": a third of the epochs. "moderate": a
            tenth. "strict": two epochs. Or ``[min_delta, patience]``, or None.
        min_delta: Least change that counts as an improvement; None: that of the mode.
        patience: Epochs to wait; None: those of the mode.
        backend: Has no effect: all models are Keras models.

    Raises:
        TalosParamsError: The mode is unknown, or needs ``epochs``.
    """
    if isinstance(mode, (list, tuple)) and len(mode) == 2:
        min_delta, patience = mode
    elif mode in _MODES:
        if patience is None:
            if mode != "strict" and epochs is None:
                raise TalosParamsError(f"early_stopper: mode {mode!r} needs epochs. Pass epochs=.")
            patience = 2 if mode == "strict" else int((epochs or 0) / (3 if mode == "lazy" else 10))
    elif mode is not None:
        raise TalosParamsError(
            f"early_stopper: mode must be {', '.join(_MODES)}, [min_delta, patience] or None, got "
            f"{mode!r}."
        )
    least: Any = min_delta or 0
    return keras.callbacks.EarlyStopping(monitor=monitor, min_delta=least, patience=patience or 0)


def output_layer(task: str, last_activation: Any, y_train: Any, y_val: Any) -> tuple[Any, int]:
    """Returns activation and width of the output layer.

    Args:
        task: "binary", "multi_class", "multi_label" or "continuous".
        last_activation: An activation to use instead of the usual one; None: the usual one.
        y_train: Training targets.
        y_val: Validation targets.

    Raises:
        TalosParamsError: The task is unknown.
    """
    if task == "binary":
        return last_activation, 1
    if task == "multi_class":
        return last_activation, len(np.unique(np.concatenate([np.ravel(y_train), np.ravel(y_val)])))
    if task == "multi_label":
        return last_activation, np.shape(y_train)[1]
    if task == "continuous":
        return None, 1
    raise TalosParamsError(
        f"task must be 'binary', 'multi_class', 'multi_label' or 'continuous', got {task!r}."
    )


def trained(
    model: Any,
    params: Mapping[str, Any],
    measures: list[Any],
    data: Sequence[Any],
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> tuple[Any, Any]:
    """Returns history and model, compiled and fitted; data: x_train, y_train, x_val, y_val."""
    optimizer: Any = params["optimizer"]
    if isinstance(optimizer, type):
        made: Any = optimizer
        optimizer = made(learning_rate=lr_normalizer(params["lr"], made))
    model.compile(optimizer, loss=params["losses"], metrics=measures)
    x_train, y_train, x_val, y_val = data
    history = model.fit(
        x_train,
        y_train,
        batch_size=int(params["batch_size"]),
        epochs=params["epochs"],
        verbose=0,
        callbacks=list(callbacks),
        validation_data=(x_val, y_val),
    )
    return history, model
