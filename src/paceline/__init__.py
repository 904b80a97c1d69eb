"""Paceline: hyperparameter search for Keras, many trials training at once in one compiled program.

Only names are here; JAX and Keras load when ``Tuner`` is first used, so that reports and ``--help``
are quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.errors import (
    BuildError,
    DataError,
    MissingExtraError,
    ObjectiveError,
    PacelineError,
    SamplerError,
    SpaceError,
    StorageError,
    StuckError,
    StudyError,
    TrialTimeoutError,
    UsageError,
)

if TYPE_CHECKING:
    from paceline.asha import ASHA
    from paceline.benchmark.api import bench
    from paceline.compat.keras_tuner.projects import from_keras_tuner
    from paceline.compat.talos.logs import from_talos_csv
    from paceline.search_space import HyperParameters
    from paceline.trial import Trial
    from paceline.tuner import Tuner

__version__ = "0.1.0.dev0"

__all__ = [
    "ASHA",
    "BuildError",
    "DataError",
    "HyperParameters",
    "MissingExtraError",
    "ObjectiveError",
    "PacelineError",
    "SamplerError",
    "SpaceError",
    "StorageError",
    "StuckError",
    "StudyError",
    "Trial",
    "TrialTimeoutError",
    "Tuner",
    "UsageError",
    "bench",
    "from_keras_tuner",
    "from_talos_csv",
]

_LAZY = {
    "ASHA": "paceline.asha",
    "HyperParameters": "paceline.search_space",
    "Trial": "paceline.trial",
    "Tuner": "paceline.tuner",
    "bench": "paceline.benchmark.api",
    "from_keras_tuner": "paceline.compat.keras_tuner.projects",
    "from_talos_csv": "paceline.compat.talos.logs",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(_LAZY[name]), name)
    except ImportError as error:
        from paceline.errors import missing

        told = missing(error)
        if told is None:
            raise
        raise told from error


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
