"""Trials that trained for unequal numbers of epochs, compared after equal ones.

A trial that was stopped after one epoch has a worse value than one of 27 epochs whatever its
hyperparameters are. So it is compared with what the others had reached after one epoch. A complete
trial has trained as long as it was to: its value counts at every later epoch, too.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.search_space.html import thin
from paceline.study.trials.table import TrialTable
from paceline.study.trials.trial import Trial

#: Epochs after which trials are compared at most: a pruner may stop trials after any epoch.
_MOST_LEVELS = 50


@dataclass(frozen=True)
class _Reached:
    """What a trial had reached by each epoch, as losses."""

    trial: Trial
    epochs: Sequence[int]  # those with a number, from 1
    losses: Sequence[float]  # the lowest one until each of them
    loss: float  # of the trial's value

    @classmethod
    def by(cls, trial: Trial, table: TrialTable, objective: str) -> _Reached:
        """Return what a trial with a value has reached."""
        known = [(e, table.sign * v) for e, v in trial.by_epoch(objective).items() if v == v]
        losses = list(itertools.accumulate((loss for _, loss in known), min))
        loss = table.sign * (math.nan if trial.value is None else trial.value)
        return cls(trial, [epoch for epoch, _ in known], losses, loss)

    @property
    def last(self) -> float:
        """The epoch after which it is compared last; infinite where it trained to its end."""
        return math.inf if self.trial.state == "complete" else self.epochs[-1]

    def until(self, epoch: float) -> float:
        """The lowest loss until an epoch; infinite if there was none."""
        if epoch == math.inf or not self.epochs:
            return self.loss
        n = bisect_right(self.epochs, epoch)
        return self.losses[n - 1] if n else math.inf


def standings(trials: Sequence[Trial], table: TrialTable, objective: str) -> dict[int, float]:
    """Return number -> the value of the place that a trial has among all, the best place first.

    First all trials are put in the order of what they had reached in the epochs that each of them
    has. Those with more epochs are then put in order again, among the places that they hold, and so
    on. So a trial gets no better place by training longer, only by being better than others after
    as many epochs. The best place has the best value, the next one the second best: of trials that
    all trained to their end each has its own.

    ``trials`` have a value; those that did not train to their end are left out where the epochs of
    their values are not known.
    """
    every = [_Reached.by(trial, table, objective) for trial in trials]
    order = [each for each in every if each.epochs or each.trial.state == "complete"]
    levels = sorted({each.last for each in order} - {math.inf})
    for level in [*thin(levels, _MOST_LEVELS), math.inf]:
        held = [place for place, each in enumerate(order) if each.last >= level]
        # The sort is stable: of equals, the one that was ahead stays ahead.
        again = sorted((order[place] for place in held), key=lambda each: each.until(level))
        for place, each in zip(held, again, strict=True):
            order[place] = each
    values = sorted(each.loss for each in order)
    return {e.trial.number: table.sign * v for e, v in zip(order, values, strict=True)}


def behind(trials: Sequence[Trial], table: TrialTable, objective: str) -> list[float]:
    """Return how far each trial was behind the first one after as many epochs, where it is known.

    The first one itself, with 0, is among them.
    """
    every = [_Reached.by(trial, table, objective) for trial in trials]
    there = [each for each in every if each.epochs or each.trial.state == "complete"]
    return [gap for each in there if math.isfinite(gap := each.loss - every[0].until(each.last))]
