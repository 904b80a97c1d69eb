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
        # Not by the public path: a user may have made ``keras_tuner`` a name of this package.
        theirs = import_module("keras_tuner.src.applications")
    except ImportError as error:
        # Not an AttributeError, of which `from ... import` says "cannot import name" and no more.
        raise ImportError(
            f"paceline.compat.keras_tuner.applications has no {name} of its own: KerasTuner's "
            f"hypermodels work here where KerasTuner itself can be imported ({error}); pip install "
            "keras-tuner, or the package that is missing."
        ) from error
    return getattr(theirs, name)
