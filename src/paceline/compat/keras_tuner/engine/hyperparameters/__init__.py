"""Hyperparameters, under the names of ``keras_tuner.engine.hyperparameters``."""

from paceline.compat.keras_tuner.engine.hyperparameters.hp_types import (
    Boolean,
    Choice,
    Fixed,
    Float,
    Int,
)
from paceline.compat.keras_tuner.engine.hyperparameters.hyperparameters import (
    HyperParameters,
    deserialize,
    serialize,
)
from paceline.search_space import HyperParameter

__all__ = [
    "Boolean",
    "Choice",
    "Fixed",
    "Float",
    "HyperParameter",
    "HyperParameters",
    "Int",
    "deserialize",
    "serialize",
]
