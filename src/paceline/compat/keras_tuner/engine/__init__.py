"""The parts of tuners, as ``keras_tuner.engine`` names them."""

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
