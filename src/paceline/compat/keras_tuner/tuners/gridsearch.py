"""Grid search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paceline.compat.keras_tuner.engine.hyperparameters import grid_of
from paceline.compat.keras_tuner.engine.oracle import (
    Oracle,
    given_to,
    running,
    synchronized,
    waiting,
)
from paceline.compat.keras_tuner.engine.trial import Trial, TrialStatus
from paceline.compat.keras_tuner.engine.tuner import Tuner


class GridSearchOracle(Oracle):
    """An oracle that tries every combination, the defaults first, the last hyperparameter fastest.

    The arguments are those of ``Oracle``. ``max_trials=None`` stands for all combinations.
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
        super().__init__(**given_to(Oracle, locals()))
        self._known: set[str] = set()  # ids of trials whose builds have declared all

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Returns the combination after that of the last trial, once that trial has been built."""
        if not self.start_order:
            return running(self._with({}))
        last = self.trials[self.start_order[-1]]
        if last.trial_id not in self._known and last.status == TrialStatus.RUNNING:
            return waiting()
        values = self._after(last.hyperparameters.values)
        while values is not None and self._duplicate(values):
            values = self._after(values)
        if values is None and self.ongoing_trials:  # the retry of a trial may declare more
            return waiting()
        return running(values)

    def _with(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The values of all active hyperparameters: those in ``given``, else defaults."""
        return self._chosen(lambda hp: given.get(hp.name, hp.default))

    def _after(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """The next combination: the last value that can advances, and those after it start over."""
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
                return self._with({**kept, hp.name: grid[place + 1]})
        return None

    @property
    def max_parallel(self) -> int | None:
        """None, for any number: the grid does not depend on results."""
        return None

    def built(self, trial: Trial) -> None:
        """Learns what the ``build`` of a trial has declared, so that the grid can continue."""
        super().built(trial)
        self._known.add(trial.trial_id)

    @synchronized
    def end_trial(self, trial: Trial) -> None:
        """Ends a trial, as ``Oracle.end_trial`` does."""
        self._known.add(trial.trial_id)
        super().end_trial(trial)


def _place(grid: list[Any], value: Any) -> int:
    """The index of a value in a grid; 0 for a value that is not in it."""
    for at, point in enumerate(grid):
        close = isinstance(point, float) and isinstance(value, int | float)
        if point == value or (close and math.isclose(point, value, rel_tol=1e-9)):
            return at
    return 0


class GridSearch(Tuner):
    """A tuner that tries every combination; of a range without step, it tries 10 values.

    The arguments are those of ``Oracle`` and ``Tuner``. ``max_trials=None`` stands for all
    combinations.
    """

    def __init__(
        self,
        hypermodel: Any = None,
        objective: Any = None,
        max_trials: int | None = None,
        seed: int | None = None,
        hyperparameters: Any = None,
        tune_new_entries: bool = True,
        allow_new_entries: bool = True,
        max_retries_per_trial: int = 0,
        max_consecutive_failed_trials: int = 3,
        **kwargs: Any,
    ) -> None:
        self.seed = seed
        oracle = GridSearchOracle(**given_to(GridSearchOracle, locals()))
        super().__init__(oracle, hypermodel, **kwargs)
