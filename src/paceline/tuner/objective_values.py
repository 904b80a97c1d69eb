"""How trials end where there are several objectives: with the values of all of them.

A plain search never loads this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from paceline.errors import ObjectiveError
from paceline.study.objectives import Objectives
from paceline.tuner.context import SearchContext


class EndsTrials(Protocol):
    """What ends the trials of a search: ``TrialEvents``."""

    def completed_with(self, number: int, values: Sequence[float], **attrs: Any) -> None:
        """A trial is complete, with values of several objectives."""
        ...

    def training_failed(self, number: int, error: BaseException) -> None:
        """A trial failed."""
        ...


class SeveralValues:
    """Ends complete trials with the values of all objectives, at the best epoch of the first."""

    def __init__(self, context: SearchContext, objectives: Objectives, events: EndsTrials) -> None:
        self._study, self._trials, self._costs = context.study, context.trials, context.costs
        self._objectives, self._events = objectives, events

    def completed(self, number: int) -> None:
        """A trial has trained all its epochs; it ends once its latency is known."""
        if self._costs is None or not self._costs.must_wait(number):
            self._end(number)

    def measure_due(self) -> None:
        """Measures the trials that wait for it, and ends them; between two rounds."""
        for number in [] if self._costs is None else self._costs.take_due():
            assert self._costs is not None
            if number not in self._trials.running:
                continue
            known = self._study.updates.costs_before(number)
            try:
                self._costs.measure(self._study.trials.by_number(number), known)
            except Exception as error:  # the user's build or layers may raise anything
                self._events.training_failed(number, error)
            else:
                self._end(number)

    def _end(self, number: int) -> None:
        trial, values = self._study.trials.by_number(number), []
        costs = {} if self._costs is None else self._costs.of(number)
        if trial.best_epoch is not None:
            try:
                values = self._objectives.values(trial.history, trial.best_epoch, costs)
            except ObjectiveError as error:
                self._events.training_failed(number, error)
                return
        self._events.completed_with(number, values, **({"costs": costs} if costs else {}))
        if self._costs is not None:
            self._costs.forget(number)
