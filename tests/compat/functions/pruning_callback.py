"""The pruning callback that objectives of Optuna use."""

from __future__ import annotations

import keras
import optuna


class Prunes(keras.callbacks.Callback):
    """As the pruning callbacks of optuna-integration."""

    def __init__(self, trial):
        super().__init__()
        self.trial = trial

    def on_epoch_end(self, epoch, logs=None):
        self.trial.report(logs["val_loss"], epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned(f"Trial was pruned at epoch {epoch}.")
