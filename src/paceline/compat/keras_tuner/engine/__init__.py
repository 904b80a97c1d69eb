"""The base classes of tuners and oracles, under the names of ``keras_tuner.engine``."""

from paceline.compat.keras_tuner.engine import (
    base_tuner,
    conditions,
    hypermodel,
    hyperparameters,
    metrics_tracking,
    objective,
    oracle,
    stateful,
    trial,
    tuner,
    tuner_utils,
)

__all__ = [
    "base_tuner",
    "conditions",
    "hypermodel",
    "hyperparameters",
    "metrics_tracking",
    "objective",
    "oracle",
    "stateful",
    "trial",
    "tuner",
    "tuner_utils",
]
