"""Hyperband: many configurations train for a few epochs, the best of them for more.

Source: Li et al., "Hyperband: a novel bandit-based approach to hyperparameter optimization", 2018.
Bracket b begins with trials of ``max_epochs / factor**b`` epochs. Of each round, about one trial in
``factor`` continues: a new trial begins with its weights. The sizes are those of KerasTuner: each
bracket ends with about ``(1 + log(max_epochs, factor)) / (b + 1)`` trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paceline.compat.keras_tuner.engine.oracle import Oracle, given_to, running, waiting
from paceline.compat.keras_tuner.engine.trial import (
    BEGIN,
    BRACKET,
    EPOCHS,
    PARENT,
    ROUND,
    TrialStatus,
)
from paceline.compat.keras_tuner.engine.tuner import Tuner


class HyperbandOracle(Oracle):
    """An oracle that runs brackets of successive halving.

    Arguments that are not named here are those of ``Oracle``.

    Args:
        max_epochs: Epochs of a trial in the last round of a bracket.
        factor: About one trial in ``factor`` reaches the next round, which has ``factor`` times
            the epochs.
        hyperband_iterations: How often all brackets are run; None: without end.

    Raises:
        ValueError: ``factor`` is below 2.
    """

    _own_state = (
        "max_epochs",
        "min_epochs",
        "factor",
        "_brackets",
        "_current_bracket",
        "_current_iteration",
    )

    def __init__(
        self,
        objective: Any = None,
        max_epochs: int = 100,
        factor: int = 3,
        hyperband_iterations: float | None = 1,
        seed: int | None = None,
        hyperparameters: Any = None,
        allow_new_entries: bool = True,
        tune_new_entries: bool = True,
        max_retries_per_trial: int = 0,
        max_consecutive_failed_trials: int = 3,
    ) -> None:
        super().__init__(**given_to(Oracle, locals()))
        if factor < 2:
            raise ValueError(f"factor needs to be an int larger than 1, found {factor!r}.")
        self.hyperband_iterations = hyperband_iterations or math.inf
        self.max_epochs, self.min_epochs, self.factor = max_epochs, 1, factor
        self._current_iteration = 0
        self._current_bracket = self._get_num_brackets() - 1
        self._brackets: list[dict[str, Any]] = []
        self._start_new_bracket()

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Returns a new configuration for a bracket with room, or one of the best of a round."""
        self._brackets = [each for each in self._brackets if not self._is_complete(each)]
        for bracket in self._brackets:
            found = self._in_bracket(bracket, trial_id)
            if found is not None:
                return found
        last = self._current_bracket == 0
        if last and self._current_iteration + 1 >= self.hyperband_iterations:
            return self._idle_or_stopped()
        self._current_bracket -= 1
        if self._current_bracket < 0:
            self._current_bracket = self._get_num_brackets() - 1
            self._current_iteration += 1
        self._start_new_bracket()
        return self._new(self._brackets[-1], trial_id)

    def _in_bracket(self, bracket: dict[str, Any], trial_id: str) -> dict[str, Any] | None:
        """The values that a bracket can try now; None while it waits for results."""
        number, rounds = bracket["bracket_num"], bracket["rounds"]
        if len(rounds[0]) < self._get_size(number, 0):
            return self._new(bracket, trial_id)
        for n in range(1, len(rounds)):
            promoted = {entry["past_id"] for entry in rounds[n]}
            waiting = [self.trials[e["id"]] for e in rounds[n - 1] if e["id"] not in promoted]
            waiting = [trial for trial in waiting if trial.status == TrialStatus.COMPLETED]
            # The best trial of the round before continues once it is certain to be among the best
            # ones, whatever the scores of running trials.
            if len(waiting) <= self._get_size(number, n - 1) - self._get_size(number, n):
                continue
            better = max if self.objective.direction == "max" else min
            best = better(waiting, key=lambda trial: trial.score)
            rounds[n].append({"past_id": best.trial_id, "id": trial_id})
            begin = self._get_epochs(number, n - 1)
            own = {PARENT: best.trial_id, **self._told(number, n, begin)}
            return running({**best.hyperparameters.values, **own})
        return None

    def _new(self, bracket: dict[str, Any], trial_id: str) -> dict[str, Any]:
        values = self._random_values()
        if not values:
            return self._idle_or_stopped()
        bracket["rounds"][0].append({"past_id": None, "id": trial_id})
        return running({**values, **self._told(bracket["bracket_num"], 0, 0)})

    def _told(self, bracket: int, n: int, begin: int) -> dict[str, Any]:
        epochs = self._get_epochs(bracket, n)
        return {EPOCHS: epochs, BEGIN: begin, BRACKET: bracket, ROUND: n}

    def _idle_or_stopped(self) -> dict[str, Any]:
        return waiting() if self.ongoing_trials else running(None)

    def _start_new_bracket(self) -> None:
        number = self._current_bracket
        rounds: list[list[Any]] = [[] for _ in range(self._get_num_rounds(number))]
        self._brackets.append({"bracket_num": number, "rounds": rounds})

    def _is_complete(self, bracket: dict[str, Any]) -> bool:
        number, rounds = bracket["bracket_num"], bracket["rounds"]
        return len(rounds[-1]) == self._get_size(number, len(rounds) - 1)

    def _get_size(self, bracket_num: int, round_num: int) -> int:
        """Number of trials of a round."""
        end = math.ceil(1 + math.log(self.max_epochs, self.factor)) / (bracket_num + 1)
        return math.ceil(end * self.factor ** (bracket_num - round_num))

    def _get_epochs(self, bracket_num: int, round_num: int) -> int:
        """Number of epochs that the trials of a round have trained at its end."""
        return math.ceil(self.max_epochs / self.factor ** (bracket_num - round_num))

    def _get_num_rounds(self, bracket_num: int) -> int:
        return bracket_num + 1

    def _get_num_brackets(self) -> int:
        brackets, epochs = 0, float(self.max_epochs)
        while epochs >= self.min_epochs:
            epochs, brackets = epochs / self.factor, brackets + 1
        return brackets

    def _compute_values_hash(self, values: Mapping[str, Any]) -> str:
        told = (EPOCHS, BEGIN, BRACKET, ROUND)
        return super()._compute_values_hash({k: v for k, v in values.items() if k not in told})

    @property
    def max_parallel(self) -> int | None:
        """None, for any number: ``populate_space`` answers IDLE if it has to wait."""
        return None

    def remaining_trials(self) -> int | None:
        """Returns the largest number of trials that may still begin; None if there is no end."""
        if self.max_trials or self.hyperband_iterations == math.inf:
            return super().remaining_trials()
        once = sum(
            self._get_size(bracket, n)
            for bracket in range(self._get_num_brackets())
            for n in range(bracket + 1)
        )
        return max(0, once * int(self.hyperband_iterations) - len(self.trials))

    def get_state(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        # ``set_state`` does not restore it, so a user can change it.
        return {**super().get_state(), "hyperband_iterations": self.hyperband_iterations}


class Hyperband(Tuner):
    """A tuner that trains many configurations for a few epochs, and the best of them for more.

    The arguments are those of ``HyperbandOracle`` and ``Tuner``.
    """

    def __init__(
        self,
        hypermodel: Any = None,
        objective: Any = None,
        max_epochs: int = 100,
        factor: int = 3,
        hyperband_iterations: float | None = 1,
        seed: int | None = None,
        hyperparameters: Any = None,
        tune_new_entries: bool = True,
        allow_new_entries: bool = True,
        max_retries_per_trial: int = 0,
        max_consecutive_failed_trials: int = 3,
        **kwargs: Any,
    ) -> None:
        self.seed = seed
        oracle = HyperbandOracle(**given_to(HyperbandOracle, locals()))
        super().__init__(oracle, hypermodel, **kwargs)

    def _is_plain(self, fit_kwargs: dict[str, Any]) -> bool:
        # In a pack callbacks see epochs from 0, but a trial that continues starts at a later one.
        return not fit_kwargs.get("callbacks") and super()._is_plain(fit_kwargs)

    def _epochs(self, hp: Any, given: int) -> int:
        values = hp.values
        return values[EPOCHS] - values[BEGIN] if EPOCHS in values else given

    def run_trial(self, trial: Any, *args: Any, **kwargs: Any) -> Any:
        """Builds and trains the model of a trial for the epochs of its round; see ``Tuner``."""
        values = trial.hyperparameters.values
        if EPOCHS in values:
            kwargs |= {"epochs": values[EPOCHS], "initial_epoch": values[BEGIN]}
        return super().run_trial(trial, *args, **kwargs)

    def _build_hypermodel(self, hp: Any) -> Any:
        model = super()._build_hypermodel(hp)
        if PARENT in hp.values:
            self._load_weights(model, hp.values[PARENT])
        return model
