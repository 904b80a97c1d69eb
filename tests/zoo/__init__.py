"""The zoo: small, fast Keras models of every kind that trials must be equal on.

``CASES`` maps a name to a ``Case``; ``reference`` is Keras' own answer; ``self_perturbation`` is
how far Keras moves from itself when its input changes in the last places.
"""

from __future__ import annotations

from zoo import custom, inputs, layers, losses, optimizers, refused, schedules, sequences
from zoo.base import (
    CASES,
    Case,
    EpochWeights,
    Movement,
    distance,
    float64,
    fresh_session,
    reference,
    self_perturbation,
)

__all__ = [
    "CASES",
    "Case",
    "EpochWeights",
    "Movement",
    "custom",
    "distance",
    "float64",
    "fresh_session",
    "inputs",
    "layers",
    "losses",
    "optimizers",
    "reference",
    "refused",
    "schedules",
    "self_perturbation",
    "sequences",
]
