"""Random search."""

from __future__ import annotations

from typing import Any

from paceline.compat.keras_tuner.engine.tuner import Tuner
from paceline.compat.keras_tuner.oracles.randomsearch import RandomSearchOracle


class RandomSearch(Tuner):
    """A tuner that draws every configuration at random.

    Arguments that are not named here are those of ``Oracle``.

    Args:
        hypermodel: The hypermodel, as for ``Tuner``.
        objective: The objective, as for ``Oracle``.
        max_trials: Number of trials at most.
        **kwargs: Arguments of ``Tuner``.
    """

    def __init__(
        self,
        hypermodel: Any = None,
        objective: Any = None,
        max_trials: int | None = 10,
        seed: int | None = None,
        hyperparameters: Any = None,
        tune_new_entries: bool = True,
        allow_new_entries: bool = True,
        max_retries_per_trial: int = 0,
        max_consecutive_failed_trials: int = 3,
        **kwargs: Any,
    ) -> None:
        self.seed = seed
        oracle = RandomSearchOracle(
            objective=objective,
            max_trials=max_trials,
            seed=seed,
            hyperparameters=hyperparameters,
            tune_new_entries=tune_new_entries,
            allow_new_entries=allow_new_entries,
            max_retries_per_trial=max_retries_per_trial,
            max_consecutive_failed_trials=max_consecutive_failed_trials,
        )
        super().__init__(oracle, hypermodel, **kwargs)
