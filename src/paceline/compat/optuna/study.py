"""``optuna.study``, with studies that train the fits of their objectives in packs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import optuna
from optuna import study as _study

from paceline.imports import imported

if TYPE_CHECKING:
    from optuna.study import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]

__all__ = _study.__all__  # pyright: ignore[reportUnsupportedDunderAll]


class PackedStudy(optuna.Study):
    """A study of Optuna, whose ``optimize`` trains the fits of its objectives in packs."""

    @functools.wraps(optuna.Study.optimize)
    def optimize(self, *args: Any, **kwargs: Any) -> None:
        """Optimizes an objective; arguments as those of Optuna, and see ``paceline.optimize``."""
        # Late: reading a study must not wait for JAX and Keras.
        optimize = imported("paceline.compat.functions.optimize").optimize
        if "func" in kwargs:
            kwargs["objective"] = kwargs.pop("func")
        optimize(self, *args, **kwargs)


def create_study(*args: Any, **kwargs: Any) -> optuna.Study:
    """Creates a study; arguments as those of ``optuna.create_study``."""
    return _packed(_study.create_study(*args, **kwargs))


def load_study(*args: Any, **kwargs: Any) -> optuna.Study:
    """Loads a study; arguments as those of ``optuna.load_study``."""
    return _packed(_study.load_study(*args, **kwargs))


def _packed(study: optuna.Study) -> optuna.Study:
    # Optuna's own object, so that the way in which Optuna makes studies is not repeated here.
    study.__class__ = PackedStudy
    return study


def __getattr__(name: str) -> Any:
    return getattr(_study, name)
