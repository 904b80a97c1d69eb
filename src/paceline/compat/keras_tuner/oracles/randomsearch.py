"""Random search."""

from __future__ import annotations

from typing import Any

from paceline.compat.keras_tuner.engine.oracle import Oracle, running


class RandomSearchOracle(Oracle):
    """An oracle that draws configurations at random, those of KerasTuner for the same seed.

    Arguments that are not named here are those of ``Oracle``.

    Args:
        objective: The objective, as for ``Oracle``.
        max_trials: Number of trials at most.
    """

    def __init__(
        self,
        objective: Any = None,
        max_trials: int | None = 10,
        seed: int | None = None,
        hyperparameters: Any = None,
        allow_new_entries: bool = True,
        tune_new_entries: bool = True,
        max_retries_per_trial: int = 0,
        max_consecutive_failed_trials: int = 3,
    ) -> None:
        super().__init__(
            objective=objective,
            max_trials=max_trials,
            seed=seed,
            hyperparameters=hyperparameters,
            allow_new_entries=allow_new_entries,
            tune_new_entries=tune_new_entries,
            max_retries_per_trial=max_retries_per_trial,
            max_consecutive_failed_trials=max_consecutive_failed_trials,
        )

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Returns random values that have not been tried."""
        return running(self._random_values())

    @property
    def max_parallel(self) -> int | None:
        """None, for any number: random draws do not depend on results."""
        return None
