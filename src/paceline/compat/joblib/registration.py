"""Registers the backend "paceline" with joblib, without importing joblib.

joblib reads backends from a table in its own module. Importing joblib takes as long as ``import
paceline``, so the backend is registered when somebody else imports joblib.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from paceline.imports import around_import

_NAME = "joblib"


def register() -> None:
    """Registers the backend: now if joblib is imported, else at the end of its import."""
    if hasattr(sys.modules.get(_NAME), "register_parallel_backend"):
        _add_to(sys.modules[_NAME])
    around_import(_NAME, _load)


def _load(module: ModuleType, run: Callable[[ModuleType], None]) -> None:
    run(module)
    _add_to(module)


def _add_to(joblib: ModuleType) -> None:
    joblib.register_parallel_backend("paceline", _backend)


def _backend(**options: Any) -> Any:
    from paceline.compat.joblib.backend import PacelineBackend

    return PacelineBackend(**options)
