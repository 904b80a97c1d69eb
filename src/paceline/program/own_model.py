"""Copies of models that share layers with other models, which loaded weights must not change."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np

from paceline.program import keras_private
from paceline.program.initial_weights import leave_changes, shared_variables, values_kept


def own_model(model: Any, load: Callable[[Any], None]) -> tuple[Any, bool]:
    """A model with other weights, which changes no layer that other models have as well.

    ``model`` is from ``build``, with its optimizer's variables; ``load`` puts the weights into a
    model. Returns the model, or where it shares variables a copy of it; and whether it is on its
    own. False if Keras cannot copy it: then the layers that it shares have the weights too.
    """
    if not shared_variables(model):
        load(model)
        return model, True
    with values_kept(model):
        load(model)
        # Keras cannot write everything down, as the user's own classes without config.
        with suppress(Exception):
            return _copied(model), True
    load(model)
    leave_changes()  # the flags of its layers stay as this build has set them
    return model, False


def _copied(model: Any) -> Any:
    """A model like this one with layers of its own, compiled with the same losses and metrics.

    It goes through a file: that holds what layers have learnt beside weights, such as words.
    """
    classes = {type(layer).__name__: type(layer) for layer in keras_private.all_layers(model)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        # The file is from here, so that what it holds may run.
        copied: Any = keras.models.load_model(path, classes, compile=False, safe_mode=False)
    if _values_of(copied.trainable_variables) != _values_of(model.trainable_variables):
        raise ValueError("the copy has other weights")
    for variable, value in zip(copied.variables, model.variables, strict=True):
        variable.assign(value)  # the states of seeds are in no file
    optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
    copied.compile(**{**keras_private.compile_arguments(model), "optimizer": optimizer})
    optimizer.build(copied.trainable_variables)
    for variable, value in zip(optimizer.variables, model.optimizer.variables, strict=True):
        variable.assign(value)
    return copied


def _values_of(variables: list[Any]) -> list[bytes]:
    return [np.asarray(keras.ops.convert_to_numpy(v)).tobytes() for v in variables]
