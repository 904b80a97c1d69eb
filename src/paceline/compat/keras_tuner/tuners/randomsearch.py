"""Random search."""

from __future__ import annotations

from typing import Any

from paceline.compat.keras_tuner.engine.oracle import Oracle, given_to, running
from paceline.compat.keras_tuner.engine.tuner import Tuner


class RandomSearchOracle(Oracle):
    """An oracle that draws configurations at random, those of KerasTuner for the same seed.

    The arguments are those of ``Oracle``.
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
        super().__init__(**given_to(Oracle, locals()))

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Returns random values that have not been tried."""
        return running(self._random_values())

    @property
    def max_parallel(self) -> int | None:
        """None, for any number: random draws do not depend on results."""
        return None


class RandomSearch(Tuner):
    """A tuner that draws every configuration at random.

    The arguments are those of ``Oracle`` and ``Tuner``.
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
        oracle = RandomSearchOracle(**given_to(RandomSearchOracle, locals()))
        super().__init__(oracle, hypermodel, **kwargs)
