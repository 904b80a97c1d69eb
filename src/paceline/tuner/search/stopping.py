"""When a whole search ends before its last trial: a target, no gain for long, epochs used up.

All rules are read from the study's trials, never from the clock or from what trains in which slot.
So a search that was interrupted, or that other workers share, ends where it would have ended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.errors import UsageError
from paceline.report import formats
from paceline.study.objectives import Objective
from paceline.study.trials.table import TrialTable
from paceline.study.trials.trial import UNDER_WAY, Trial
from paceline.tuner.search.running_trials import UnfinishedTrials, has_ended


@dataclass(frozen=True)
class StoppingRules:
    """The rules of one call of ``search``; see there. None: no such rule."""

    target_value: float | None = None  # a value of the objective that is good enough
    patience_trials: int | None = None  # in a row, by number, that may end without a better value
    max_total_epochs: int | None = None  # of all trials of the study

    def check(self, epochs: Any, initial_epoch: Any = 0, continue_best: int | None = None) -> None:
        """Refuses rules that cannot work with other arguments of ``search``."""
        total, first = self.max_total_epochs, initial_epoch
        if total is None:
            return
        for name, value in (("epochs", epochs), ("initial_epoch", first)):
            # A trial would have to be built to know whether it fits. One that does not would be
            # drawn again when the search continues, from other results, so another might begin.
            if callable(value):
                raise UsageError(
                    f"max_total_epochs={total:,} needs {name} as a number, got a function of hp. "
                    "Pass a number, or use n_trials or timeout instead of max_total_epochs."
                )
        if total < epochs - first:
            of = f"epochs, {epochs}"
            if first:
                of = f"the {epochs - first} epochs of a trial, {epochs} less initial_epoch, {first}"
            raise UsageError(
                f"max_total_epochs: {total} is below {of}, so no trial fits. Raise it, or lower "
                "epochs."
            )
        if continue_best:  # a trial whose last variables are not kept trains from its first epoch
            raise UsageError(
                f"continue_best: the best {continue_best} may train their first epochs again, "
                f"which max_total_epochs ({total:,}) cannot bound. Leave it out "
                "(on the command line --max-total-epochs none), and use timeout."
            )

    def check_population(self) -> None:
        """Refuses a population where a rule counts trials that end one after another."""
        if self.patience_trials is not None:
            raise UsageError(
                f"patience_trials ({self.patience_trials:,}) does not work with pbt, whose "
                "members train side by side. Leave it out (on the command line --patience-trials "
                "none), or use target_value or timeout."
            )


def check_target(value: Any, name: str) -> float:
    """Checks ``target_value``."""
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise UsageError(f"{name} must be a value of the objective, such as 0.98, got {value!r}.")
    return float(value)


@dataclass(frozen=True)
class SearchEnd:
    """Why a search has ended."""

    # Of ``STOPPING_RULES``, or "n_trials", "space", "timeout", "interrupted", "progress".
    rule: str
    text: str = ""  # a sentence for the user, without a full stop; empty: nothing to say


@dataclass(eq=False, repr=False)
class StoppingCheck:
    """Says whether the rules end a search now."""

    rules: StoppingRules
    trials: TrialTable
    running: UnfinishedTrials
    objective: Objective
    epochs: int | None  # None if they depend on hp
    _seen: tuple[Any, ...] = field(init=False, default=())
    _found: SearchEnd | None = field(init=False, default=None)  # by the trials that have ended
    _ended_epochs: int = field(init=False, default=0)

    def check_population(self, n_new: int, copies: Sequence[Trial]) -> None:
        """Checks before a search that a population can train to its last epoch under the rules.

        ``n_new`` members train from their first epoch, or continue from a checkpoint; ``copies``
        continue other trials. All train side by side, whatever the others reach.
        """
        rules = self.rules
        rules.check_population()
        n_members = n_new + len(copies)
        if rules.max_total_epochs is None or self.epochs is None or not n_members:
            return
        self._look()
        total = self._ended_epochs + self.epochs * n_members - sum(map(self._copied, copies))
        if total > rules.max_total_epochs:
            raise UsageError(
                f"max_total_epochs must be at least {total:,} for pbt's population of "
                f"{n_members:,} members with {self.epochs:,} epochs each, got "
                f"{rules.max_total_epochs:,}. Raise it, or lower n_trials or epochs."
            )

    def reaches_target(self, value: float | None) -> bool:
        """Whether a value of the objective is good enough to end the search."""
        target_value = self.rules.target_value
        if target_value is None or value is None:
            return False
        return value == target_value or self.objective.better(value, target_value)

    @property
    def verdict(self) -> SearchEnd | None:
        """Why the search ends now; None if the search continues."""
        self._look()
        return self._found or self._out_of_epochs()

    @property
    def n_may_begin(self) -> int | None:
        """How many more trials have epochs to train; None without ``max_total_epochs``."""
        if self.rules.max_total_epochs is None:
            return None
        self._look()
        planned = self._ended_epochs + self._under_way(planned=True)
        assert self.epochs is not None  # ``check`` of the rules refuses a function of hp
        return max(0, self.rules.max_total_epochs - planned) // self.epochs

    @property
    def epochs_used(self) -> SearchEnd:
        """The end of a search that may begin no more trials."""
        trained = self._ended_epochs + self._under_way(planned=False)
        limit = self.rules.max_total_epochs
        return SearchEnd(
            "max_total_epochs", f"{trained:,} of {limit:,} epochs are trained (max_total_epochs)"
        )

    def _look(self) -> None:
        """Reads the trials, if any has ended or was paused since the last look."""
        running = self.running
        seen = (len(self.trials), running.ended.total(), sorted(running.paused))
        if seen == self._seen:
            return
        self._seen = seen
        self._found = self._at_target() or self._no_gain()
        ended = [trial for trial in self.trials if has_ended(trial)]
        self._ended_epochs = sum(trial.epochs - self._copied(trial) for trial in ended)

    def _at_target(self) -> SearchEnd | None:
        best = self.trials.best if self.rules.target_value is not None else None
        if best is None or not self.reaches_target(best.value):
            return None
        return SearchEnd(
            "target_value",
            f"target {formats.metric(self.rules.target_value)} reached: trial {best.number} has "
            f"{self.objective.name} {formats.metric(best.value)}",
        )

    def _no_gain(self) -> SearchEnd | None:
        """Counts trials without gain in the order of their numbers, up to the first that trains.

        A paused trial counts with the value that it has: it may never continue. A trial that
        another program trains counts once it has ended: nobody here knows whether that program
        still runs.
        """
        most = self.rules.patience_trials
        if most is None:
            return None
        best: Trial | None = None
        n_without = 0
        for trial in self.trials:
            if trial.rejected is not None or (trial.error is not None and not has_ended(trial)):
                continue  # it was never trained; or its process ended, and another one replaces it
            if trial.by_others and trial.state == "running":
                continue
            if not has_ended(trial) and trial.number not in self.running.paused:
                return None
            value = trial.value if self.trials.may_be_best(trial) else None
            if self.objective.better(value, None if best is None else best.value):
                best, n_without = trial, 0
                continue
            n_without += 1
            if n_without >= most:
                found = "none has a value" if best is None else f"the best is trial {best.number}"
                return SearchEnd(
                    "patience_trials",
                    f"no better trial in {most:,} trials up to trial {trial.number}: {found}",
                )
        return None

    def _out_of_epochs(self) -> SearchEnd | None:
        limit = self.rules.max_total_epochs
        if limit is None or self._ended_epochs + self._under_way(planned=False) < limit:
            return None
        return self.epochs_used

    def _under_way(self, *, planned: bool) -> int:
        """Epochs of the trials that have not ended: trained, or those that running ones will be."""
        total = 0
        for number, here in [*self.running.running.items(), *self.running.paused.items()]:
            all_of_them = planned and number in self.running.running
            total += here.epochs if all_of_them else here.epoch
            total -= self._copied(self.trials.get(number))
        if self.running.n_theirs:
            mine = self.running.running.keys() | self.running.paused.keys()
            for trial in self.trials:
                if trial.number not in mine and trial.state in UNDER_WAY:
                    epochs = self.epochs if planned and self.epochs else trial.epochs
                    total += epochs - self._copied(trial)
        return total

    def _copied(self, trial: Trial | None) -> int:
        """Epochs that a trial has from the one that it continues."""
        if trial is None or trial.continued_from is None:
            return 0
        if trial.continued_at is not None:
            return trial.continued_at
        source = self.trials.get(trial.continued_from)
        return 0 if source is None else min(source.epochs, trial.epochs)
