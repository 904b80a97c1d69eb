"""Random search."""

from __future__ import annotations

from typing import Any

from paceline.compat.keras_tuner.engine.oracle import Oracle, running


class RandomSearchOracle(Oracle):
    """Draws every configuration at random; KerasTuner's with the same seed draws the same.

    Args:
        objective: As for ``Oracle``; so are the others.
        max_trials: Trials at most.
        **kwargs: Arguments of ``Oracle``.
    """

    def __init__(self, objective: Any = None, max_trials: int | None = 10, **kwargs: Any) -> None:
        super().__init__(objective=objective, max_trials=max_trials, **kwargs)

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Values drawn at random that have not been tried."""
        return running(self._random_values())

    @property
    def max_parallel(self) -> int | None:
        """Any number: what is drawn does not go by results."""
        return None
