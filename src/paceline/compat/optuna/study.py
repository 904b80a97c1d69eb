"""``optuna.study``, with studies that train the fits of their objectives in packs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import optuna
from optuna import study as _study
from optuna.trial import FrozenTrial, Trial

if TYPE_CHECKING:
    from optuna.study import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]

__all__ = _study.__all__  # pyright: ignore[reportUnsupportedDunderAll]


class PackedStudy(optuna.Study):
    """A study of Optuna, whose ``optimize`` trains the fits of its objectives in packs."""

    def optimize(
        self,
        func: Callable[[Trial], float | Sequence[float]],
        n_trials: int | None = None,
        timeout: float | None = None,
        n_jobs: int = 1,
        catch: Iterable[type[Exception]] | type[Exception] = (),
        callbacks: Iterable[Callable[[optuna.Study, FrozenTrial], None]] | None = None,
        gc_after_trial: bool = False,
        show_progress_bar: bool = False,
    ) -> None:
        """Optimizes ``func``; arguments as those of Optuna, and see ``paceline.optimize``."""
        # Late: reading a study must not wait for JAX and Keras.
        from paceline.compat.functions.optimize import optimize

        optimize(
            self,
            func,
            n_trials,
            timeout,
            n_jobs,
            catch,
            callbacks,
            gc_after_trial,
            show_progress_bar,
        )


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
