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
    torch: Any  # the state of PyTorch's generator; None without PyTorch
    tensorflow: dict[str, Any]  # its seed, and what it draws the seeds of operations from

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
            None if "torch" not in sys.modules else sys.modules["torch"].get_rng_state(),
            {name: getattr(_tensorflow(), name, None) for name in _TENSORFLOW},
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
        if self.torch is not None:
            sys.modules["torch"].set_rng_state(self.torch)
        for name, value in self.tensorflow.items():
            if value is not None:
                setattr(_tensorflow(), name, value)


#: TensorFlow 2.16 to 2.21 keeps its seed, and a ``random.Random``, in these attributes of its
#: context. It has no public way to put them back. ``set_random_seed`` replaces both. Under other
#: names, functions that draw by ``tf.random`` would draw from one sequence.
_TENSORFLOW = ("_seed", "_rng")


def _tensorflow() -> Any:
    """TensorFlow's context; None where TensorFlow is not imported."""
    module = sys.modules.get("tensorflow.python.eager.context")
    return None if module is None else module.context()
