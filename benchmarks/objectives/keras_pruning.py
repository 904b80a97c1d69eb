"""The pruning callback of optuna-integration, or one that does the same where it is missing."""

from __future__ import annotations

from typing import Any

import keras
import optuna

try:
    from optuna_integration import KerasPruningCallback
except ImportError:

    class KerasPruningCallback(keras.callbacks.Callback):
        """Reports a log after each epoch, and prunes."""

        def __init__(self, trial: optuna.Trial, monitor: str) -> None:
            super().__init__()
            self._trial, self._monitor = trial, monitor

        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            self._trial.report(float((logs or {})[self._monitor]), step=epoch)
            if self._trial.should_prune():
                raise optuna.TrialPruned(f"Trial was pruned at epoch {epoch}.")


__all__ = ["KerasPruningCallback"]
