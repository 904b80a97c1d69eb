"""KerasTuner's ready-made hypermodels (HyperResNet and so on), if KerasTuner itself is installed.

They are KerasTuner's own, and work with the tuners of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        # Not by the public path: a user may have given this package the name ``keras_tuner``.
        theirs = import_module("keras_tuner.src.applications")
    except ImportError as error:
        # Not an AttributeError, of which `from ... import` says "cannot import name" and no more.
        raise ImportError(
            f"{name} is a hypermodel of KerasTuner, which Python cannot import ({error}). Install "
            "KerasTuner or the missing package: pip install keras-tuner. Then the hypermodel works "
            "in paceline.compat.keras_tuner."
        ) from error
    return getattr(theirs, name)
