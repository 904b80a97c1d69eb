"""KerasTuner's ready-made hypermodels (HyperResNet and so on), if KerasTuner itself is installed.

They are KerasTuner's own, and work with the tuners of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        # Not by the public path: a user may have made ``keras_tuner`` a name of this package.
        theirs = import_module("keras_tuner.src.applications")
    except ImportError as error:
        raise AttributeError(
            f"paceline.compat.keras_tuner.applications has no {name} of its own; with KerasTuner "
            "installed (pip install keras-tuner) its hypermodels work here."
        ) from error
    return getattr(theirs, name)
