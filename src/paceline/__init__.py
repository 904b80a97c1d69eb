"""Paceline: hyperparameter search for Keras, many trials training at once in one compiled program.

This module holds names only. JAX and Keras load when ``Tuner`` is first used, so that reports and
``--help`` are quick. It selects the JAX backend for Keras, unless the user has chosen a backend. It
sets an option with which XLA compiles faster for a CPU, unless the user has chosen options. It
registers the backend "paceline" with joblib, and imports Keras without garbage collections.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from paceline.compat.joblib.registration import register
from paceline.errors import (
    BuildError,
    ClusterError,
    ConstraintError,
    DataError,
    MissingExtraError,
    ObjectiveError,
    PacelineError,
    SamplerError,
    SpaceError,
    StorageError,
    StudyError,
    TrialCrashError,
    TrialHangError,
    TrialRejected,
    TrialTimeoutError,
    UsageError,
)
from paceline.imports import import_keras_quickly, imported
from paceline.program.keras_backend import select_jax

if TYPE_CHECKING:
    from paceline.benchmark.api import bench
    from paceline.compat.functions.map import map as map
    from paceline.compat.functions.optimize import optimize
    from paceline.compat.functions.pool import PackPoolExecutor
    from paceline.compat.keras_tuner.projects import from_keras_tuner
    from paceline.compat.talos.logs import from_talos_csv
    from paceline.executor.ray.cluster import Ray
    from paceline.search_space import HyperParameters
    from paceline.study.pruners.asha import ASHA
    from paceline.study.pruners.pbt import PBT
    from paceline.study.trials.trial import Trial
    from paceline.tuner.population.replay_schedule import ReplaySchedule
    from paceline.tuner.tuner import Tuner

    __version__: str

__all__ = [
    "ASHA",
    "PBT",
    "BuildError",
    "ClusterError",
    "ConstraintError",
    "DataError",
    "HyperParameters",
    "MissingExtraError",
    "ObjectiveError",
    "PacelineError",
    "PackPoolExecutor",
    "Ray",
    "ReplaySchedule",
    "SamplerError",
    "SpaceError",
    "StorageError",
    "StudyError",
    "Trial",
    "TrialCrashError",
    "TrialHangError",
    "TrialRejected",
    "TrialTimeoutError",
    "Tuner",
    "UsageError",
    "bench",
    "from_keras_tuner",
    "from_talos_csv",
    "optimize",
]  # and ``map``, which ``from paceline import *`` must not put in place of Python's

_LAZY = {
    "ASHA": "paceline.study.pruners.asha",
    "ReplaySchedule": "paceline.tuner.population.replay_schedule",
    "HyperParameters": "paceline.search_space",
    "PackPoolExecutor": "paceline.compat.functions.pool",
    "PBT": "paceline.study.pruners.pbt",
    "Ray": "paceline.executor.ray.cluster",
    "Trial": "paceline.study.trials.trial",
    "Tuner": "paceline.tuner.tuner",
    "bench": "paceline.benchmark.api",
    "from_keras_tuner": "paceline.compat.keras_tuner.projects",
    "from_talos_csv": "paceline.compat.talos.logs",
    "map": "paceline.compat.functions.map",
    "optimize": "paceline.compat.functions.optimize",
}


def _leave_loops() -> None:
    """Stops XLA from unrolling loops on a CPU, in this process: that is a third of compiling.

    Steps are as fast (docs/decisions/0045). Only XLA_FLAGS says so, which XLA reads once, when JAX
    makes its devices. After that it is left alone, because JAX tells cached programs apart by it.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_backend_extra_options" in flags or os.environ.get("KERAS_BACKEND", "jax") != "jax":
        return
    if flags.strip() and not flags.lstrip().startswith("-"):  # the name of a file that has them
        return
    from paceline.program.jax_private import has_devices

    if not has_devices():
        option = "--xla_backend_extra_options=xla_cpu_disable_loop_unrolling=true"
        os.environ["XLA_FLAGS"] = f"{flags} {option}".strip()


select_jax()
_leave_loops()
register()
import_keras_quickly()


def _installed_version() -> str:
    """The version that was installed; its number is the tag of the release."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("paceline")
    except PackageNotFoundError:  # imported from a source tree that nobody has installed
        return "0+unknown"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _installed_version()
    if name not in _LAZY:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    try:
        return getattr(imported(_LAZY[name]), name)
    except ImportError as error:
        from paceline.errors import missing

        told = missing(error)
        if told is None:
            raise
        raise told from error


class _Alias(ModuleType):
    """A module under a public name whose code is in another module, which loads on first use."""

    def __init__(self, name: str, target: str, names: frozenset[str]) -> None:
        super().__init__(name, f"Another name of ``{target}``.")
        self.__dict__["_target"], self.__dict__["_names"] = target, names
        self.__path__: list[str] = []  # marks a package, so that aliases below it can be imported
        self.__spec__ = ModuleSpec(name, None, is_package=True)

    def __getattr__(self, name: str) -> Any:
        # Only public names load the other module: pickle, for one, asks every module for any name.
        if name not in self.__dict__["_names"]:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(self.__dict__["_target"]), name)


# Public names of modules that are in a folder of the package. Users import the tests for executors
# as ``paceline.testing``, and read data with ``paceline.datasets``.
testing: Any = _Alias(
    "paceline.testing",
    "paceline.executor.testing",
    frozenset({"ExecutorContract", "PackExecutorContract", "Ran"}),
)
datasets: Any = _Alias(
    "paceline.datasets",
    "paceline.cli.datasets",
    frozenset({"FORMS", "Dataset", "digits", "from_function", "load", "portable_spec"}),
)
sys.modules |= {
    "paceline.testing": testing,
    "paceline.testing.executors": testing,
    "paceline.datasets": datasets,
}


def __dir__() -> list[str]:
    return sorted([*__all__, "map", "__version__"])
