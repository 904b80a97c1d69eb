"""The state that a process has only once, saved and restored for functions that take turns."""

from __future__ import annotations

import random
import sys
import warnings
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from paceline.program import keras_private


@dataclass(frozen=True)
class ProcessState:
    """A copy of the state that all functions of a process share, at one moment."""

    python: Any  # the state of ``random``
    numpy: Any  # of ``np.random``
    keras: dict[str, Any]  # what holds Keras' global state (``keras_private.global_state``)
    numbers: tuple[str, float, str]  # Keras' floatx, epsilon and image data format
    filters: Any  # of ``warnings``, as ``showwarning``; ``catch_warnings`` changes both
    showwarning: Any
    streams: tuple[Any, Any]  # standard output and error; ``redirect_stdout`` changes them

    @staticmethod
    def now() -> ProcessState:
        """Returns the present state, for ``restore``."""
        config = keras.config
        return ProcessState(
            random.getstate(),
            np.random.get_state(),
            keras_private.global_state(),
            (config.floatx(), config.epsilon(), config.image_data_format()),
            warnings.filters,
            warnings.showwarning,
            (sys.stdout, sys.stderr),
        )

    def restore(self) -> None:
        """Makes this the state of the process again."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        keras_private.set_global_state(self.keras)
        floatx, epsilon, image_data_format = self.numbers
        keras.config.set_floatx(floatx)
        keras.config.set_epsilon(epsilon)
        keras.config.set_image_data_format(image_data_format)
        warnings.filters = self.filters
        warnings.showwarning = self.showwarning
        sys.stdout, sys.stderr = self.streams
