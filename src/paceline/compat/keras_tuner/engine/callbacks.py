"""The callbacks that the ``fit`` of a trial gets in addition to those of the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from paceline.compat.keras_tuner.engine.objective import Objective
from paceline.compat.keras_tuner.engine.trial import Trial

if TYPE_CHECKING:  # tuner.py imports this file
    from paceline.compat.keras_tuner.engine.tuner import Tuner


class TunerCallback(keras.callbacks.Callback):
    """Calls the hooks of a tuner when an epoch begins and ends.

    Args:
        tuner: The tuner.
        trial: The trial that trains.
    """

    def __init__(self, tuner: Tuner, trial: Trial) -> None:
        super().__init__()
        self.tuner, self.trial = tuner, trial

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Keras calls this method, with its own arguments."""
        self.tuner.on_epoch_begin(self.trial, self.model, epoch, logs=logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keras calls this method, with its own arguments."""
        self.tuner.on_epoch_end(self.trial, self.model, epoch, logs=logs)


class BatchCallback(TunerCallback):
    """Calls the hooks of a tuner for batches, too; a ``fit`` with this callback cannot be packed.

    Args:
        tuner: The tuner.
        trial: The trial that trains.
    """

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Keras calls this method, with its own arguments."""
        self.tuner.on_batch_begin(self.trial, self.model, batch, logs)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keras calls this method, with its own arguments."""
        self.tuner.on_batch_end(self.trial, self.model, batch, logs)


class SaveBestEpoch(keras.callbacks.Callback):
    """Saves the weights of the best epoch, over all ``fit`` calls that it takes part in.

    Args:
        objective: Decides which epoch is best; if the logs lack it, the last epoch is.
        filepath: File for the weights.
    """

    def __init__(self, objective: Objective, filepath: str) -> None:
        super().__init__()
        self.objective, self.filepath = objective, filepath
        self.best_value = float("-inf" if objective.direction == "max" else "inf")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keras calls this method, with its own arguments."""
        if self.objective.has_value(logs or {}):
            value = self.objective.get_value(logs)
            if not self.objective.better_than(value, self.best_value):
                return
            self.best_value = value
        assert self.model is not None
        self.model.save_weights(self.filepath)
