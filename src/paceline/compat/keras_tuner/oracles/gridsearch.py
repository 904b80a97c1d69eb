"""Grid search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paceline.compat.keras_tuner.engine.hyperparameters import grid_of
from paceline.compat.keras_tuner.engine.oracle import Oracle, running, synchronized
from paceline.compat.keras_tuner.engine.trial import Trial, TrialStatus


class GridSearchOracle(Oracle):
    """Walks every combination, defaults first, the last hyperparameter fastest.

    Args:
        objective: As for ``Oracle``; so are those not named here.
        max_trials: Trials at most; None: all combinations.
    """

    def __init__(
        self,
        objective: Any = None,
        max_trials: int | None = None,
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
        self._known: set[str] = set()  # trials of which it is known what their builds declare

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """The combination after that of the last trial, once its ``build`` has run."""
        if not self.start_order:
            return running(self._defaults())
        last = self.trials[self.start_order[-1]]
        if last.trial_id not in self._known and last.status == TrialStatus.RUNNING:
            return {"status": TrialStatus.IDLE, "values": None}
        values = self._after(last.hyperparameters.values)
        while values is not None and self._duplicate(values):
            values = self._after(values)
        if values is None and self.ongoing_trials:  # one may declare more when it is tried again
            return {"status": TrialStatus.IDLE, "values": None}
        return running(values)

    def _defaults(self) -> dict[str, Any]:
        return self._filled({})

    def _filled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Values for all that is active, in order: the given ones, defaults for the others."""
        values: dict[str, Any] = {}
        for hp in self.hyperparameters.space:
            if all(condition.is_active(values) for condition in hp.conditions):
                values[hp.name] = given.get(hp.name, hp.default)
        return values

    def _after(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """The next combination: the last value that can advance does, those after it begin anew."""
        space = self.hyperparameters.space
        for at in range(len(space) - 1, -1, -1):
            hp = space[at]
            if not all(condition.is_active(values) for condition in hp.conditions):
                continue
            grid = grid_of(hp)
            place = _place(grid, values.get(hp.name, hp.default))
            if place + 1 < len(grid):
                before = {each.name for each in space[:at]} - {hp.name}
                kept = {name: value for name, value in values.items() if name in before}
                return self._filled({**kept, hp.name: grid[place + 1]})
        return None

    @property
    def max_parallel(self) -> int | None:
        """Any number: the walk does not go by results."""
        return None

    def built(self, trial: Trial) -> None:
        """Learns what a trial's ``build`` has declared: the walk can go on."""
        super().built(trial)
        self._known.add(trial.trial_id)

    @synchronized
    def end_trial(self, trial: Trial) -> None:
        """As of every oracle."""
        self._known.add(trial.trial_id)
        super().end_trial(trial)


def _place(grid: list[Any], value: Any) -> int:
    """Where a value stands in a grid; the beginning for one that is not on it."""
    for at, point in enumerate(grid):
        close = isinstance(point, float) and isinstance(value, int | float)
        if point == value or (close and math.isclose(point, value, rel_tol=1e-9)):
            return at
    return 0
