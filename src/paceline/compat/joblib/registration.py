"""Registers the backend "paceline" with joblib, without importing joblib.

joblib reads backends from a table in its own module. Importing joblib takes as long as ``import
paceline``, so the backend is registered when somebody else imports joblib.
"""

from __future__ import annotations

import importlib.abc
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_NAME = "joblib"


def register() -> None:
    """Registers the backend: now if joblib is imported, else at the end of its import."""
    if hasattr(sys.modules.get(_NAME), "register_parallel_backend"):
        _add_to(sys.modules[_NAME])
    if not any(isinstance(finder, _JoblibFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _JoblibFinder())


def _add_to(joblib: ModuleType) -> None:
    joblib.register_parallel_backend("paceline", _backend)


def _backend(**options: Any) -> Any:
    from paceline.compat.joblib.backend import PacelineBackend

    return PacelineBackend(**options)


class _JoblibFinder(importlib.abc.MetaPathFinder):
    """Finds joblib like the other finders, with a loader that registers the backend."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != _NAME:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    _register_after(spec.loader)
                return spec
        return None


def _register_after(loader: Any) -> None:
    """Registers the backend when this loader, which belongs to one import, has run joblib."""
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        run(module)
        _add_to(module)

    loader.exec_module = exec_module
