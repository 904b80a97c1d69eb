"""Trials that begin as copies of paused ones, for population based training.

A copy takes over the variables of another trial, and the state of its callbacks. What a model is
like with other hyperparameters is found out by building and tracing it: see ``probe``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.data.inputs import TrialInputs
from paceline.executor.base import SiblingModelBuilder
from paceline.executor.sharing.grouping import LocalGroup, TrialGrouper
from paceline.executor.state.paused import PausedStates
from paceline.executor.state.snapshot import Arrays, state_like
from paceline.program.initial_weights import as_built
from paceline.program.trace import State, build_state

#: Given a trial's own first variables and those of a paused one, returns those to begin with.
Compose = Callable[[State, State], State]


class TrialCopies:
    """Begins trials as copies of paused ones."""

    def __init__(self, grouper: TrialGrouper[LocalGroup], paused: PausedStates) -> None:
        self._grouper, self._paused = grouper, paused

    def begin(self, number: int, source: int, compose: Compose) -> list[Any] | None:
        """Begins a trial that has just been submitted where the paused trial ``source`` waits.

        ``source`` stays as it is; ``compose`` chooses the variables. Returns the ``callback_state``
        that the trial's callbacks take over. None if the trial does not wait, or its variables have
        other shapes, so that it starts over. Raises KeyError if the source is not paused.
        """
        waiting = self._grouper.find_waiting(number)
        if waiting is None:
            return None
        group, trial = waiting
        if trial.state is None:
            return None
        other = self._paused.trial(source)
        chosen = compose(trial.state, self._paused.state_of(source))
        state = state_like(trial.shapes(group.state), chosen.lists())
        if state is None:
            return None
        trial.state, trial.epoch = state, other.epoch
        if trial.driver is None or other.driver is None:
            return []
        arrays: Arrays = {}
        facts = other.driver.saved("copy", arrays)
        # Callbacks may change arrays of theirs in place, and both trials train on.
        own_arrays = {name: np.array(array) for name, array in arrays.items()}
        trial.driver.restore("copy", facts, own_arrays)
        return facts["callbacks"]

    def probe(self, model: Any, setting: TrialInputs) -> tuple[LocalGroup, State]:
        """The group of trials like a model that is not to be trained, and that model's variables.

        Raises Unpackable if the model cannot be packed.
        """
        with as_built(model):
            # By itself, since a formula would name the program that trials like it share.
            group = self._grouper.by_itself(model, setting)
            return group, build_state(model, group.work.batch)

    def group_of(
        self, model: Any, setting: TrialInputs, widths: SiblingModelBuilder | None = None
    ) -> LocalGroup:
        """The group in which a trial with this model would train; raises as ``probe`` does."""
        with as_built(model):
            group = self._grouper.pretrace(model, setting, widths)
        assert group is not None
        return group
