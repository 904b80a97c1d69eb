"""The base classes of tuners and oracles, under the names of ``keras_tuner.engine``."""

from paceline.compat.keras_tuner.engine import (
    base_tuner,
    hypermodel,
    hyperparameters,
    metrics_tracking,
    objective,
    oracle,
    trial,
    tuner,
)

__all__ = [
    "base_tuner",
    "hypermodel",
    "hyperparameters",
    "metrics_tracking",
    "objective",
    "oracle",
    "trial",
    "tuner",
]
