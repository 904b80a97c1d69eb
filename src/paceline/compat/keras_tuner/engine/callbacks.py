"""What a trial's ``fit`` is given beside the user's callbacks."""

from __future__ import annotations

from typing import Any

import keras

from paceline.compat.keras_tuner.engine.objective import Objective
from paceline.compat.keras_tuner.engine.protocols import EpochHooks
from paceline.compat.keras_tuner.engine.trial import Trial


class TunerCallback(keras.callbacks.Callback):
    """Calls a tuner's hooks.

    Args:
        tuner: The tuner.
        trial: The trial that trains.
    """

    def __init__(self, tuner: EpochHooks, trial: Trial) -> None:
        super().__init__()
        self.tuner, self.trial = tuner, trial

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Keras' hook."""
        self.tuner.on_epoch_begin(self.trial, self.model, epoch, logs=logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keras' hook."""
        self.tuner.on_epoch_end(self.trial, self.model, epoch, logs=logs)


class BatchCallback(TunerCallback):
    """Calls a tuner's hooks of batches too, which no pack can.

    Args:
        tuner: The tuner.
        trial: The trial that trains.
    """

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Keras' hook."""
        self.tuner.on_batch_begin(self.trial, self.model, batch, logs)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keras' hook."""
        self.tuner.on_batch_end(self.trial, self.model, batch, logs)


class SaveBestEpoch(keras.callbacks.Callback):
    """Saves the weights of the best epoch, over all ``fit`` calls that it sees.

    Args:
        objective: What is best; where the logs do not have it, the last epoch is.
        filepath: Where they go.
    """

    def __init__(self, objective: Objective, filepath: str) -> None:
        super().__init__()
        self.objective, self.filepath = objective, filepath
        self.best_value = float("-inf" if objective.direction == "max" else "inf")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keras' hook."""
        if self.objective.has_value(logs or {}):
            value = self.objective.get_value(logs)
            if not self.objective.better_than(value, self.best_value):
                return
            self.best_value = value
        assert self.model is not None
        self.model.save_weights(self.filepath)
