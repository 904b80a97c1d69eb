"""What happens to the trials of a search: they begin, are paused, complete, are pruned, or fail."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial

from paceline.errors import ObjectiveError, TrialRejected
from paceline.executor.base import Answer, EpochReport
from paceline.executor.training.memory import is_out_of_memory
from paceline.executor.wall.deaths import largest
from paceline.program.trace import State
from paceline.study.trials.trial import Trial, TrialState
from paceline.tuner.arguments.constraints import REJECTED_IN_A_ROW
from paceline.tuner.search.context import SearchContext
from paceline.tuner.search.running_trials import IN_A_ROW, FailureLimit, describe

if TYPE_CHECKING:
    from paceline.study.objectives import Objectives


class TrialEvents:
    """Tells everyone concerned what has happened to a trial of one search."""

    def __init__(self, context: SearchContext) -> None:
        self._study, self._trials, self._members = context.study, context.trials, context.members
        self._models, self._pruner, self._notes = context.models, context.pruner, context.notes
        self._trackers, self._strategy = context.trackers, context.study.strategy
        self._objectives, self._costs = context.objectives, context.costs
        self._guard = context.guard
        self.failures = FailureLimit(
            math.inf if self._strategy.limits_failures else IN_A_ROW,
            # What is allowed of a grid may come behind any number of others.
            math.inf if self._strategy.ends_by_itself else REJECTED_IN_A_ROW,
        )

    def pruned(self, number: int) -> None:
        """A trial that runs is not worth more of the time."""
        self.failures.ended_well()
        self._end(number, "pruned")

    def rejected(self, number: int, why: TrialRejected) -> None:
        """A trial violates a constraint, or its build has rejected it: it is not trained."""
        self.failures.rejected(why)
        self._end(number, "rejected", rejected=str(why))

    def completed(self, number: int, fetch: Callable[[], State] | None = None) -> None:
        """A trial has trained all its epochs; with a latency to measure it ends after that.

        ``fetch`` returns its variables, for a search that trains it longer; None without a pack.
        """
        if self._objectives is not None:
            known = self._trials.running[number].costs
            if self._costs is None or not self._costs.must_wait(number, known):
                self._complete_with_values(number, self._objectives)
            return
        self.failures.ended_well()
        try:
            self._end(number, "complete")
        finally:  # the model is kept even if the sampler then fails
            self._models.best.complete(number)
        trial = self._study.trials.by_number(number)
        if fetch is None or not self._strategy.resumable:  # nobody will continue the trial
            return
        if self._study.trials.may_be_best(trial) and trial.value is not None:
            values = self._models.last_variables
            values.offer(number, trial.epochs, trial.value, lambda: fetch().lists())

    def measure_due(self) -> None:
        """Measures the trials that wait for it, and ends them; between two rounds."""
        if self._objectives is None or self._costs is None:
            return
        for number in self._costs.take_due():
            running = self._trials.running.get(number)
            if running is None:
                continue
            known = self._study.updates.costs_before(number)
            try:
                running.costs |= self._costs.measure(self._study.trials.by_number(number), known)
            except Exception as error:  # the user's build or layers may raise anything
                self.training_failed(number, error)
            else:
                self._complete_with_values(number, self._objectives)

    def _complete_with_values(self, number: int, objectives: Objectives) -> None:
        """A trial is complete, with the values of all objectives at the best epoch of the first."""
        trial, values = self._study.trials.by_number(number), []
        costs = dict(self._trials.running[number].costs)
        if trial.best_epoch is not None:
            try:
                values = objectives.values(trial.history, trial.best_epoch, costs)
            except ObjectiveError as error:
                self.training_failed(number, error)
                return
        self.failures.ended_well()
        self._end(number, "complete", values, **({"costs": costs} if costs else {}))

    def told(self, stored: FrozenTrial) -> None:
        """Another program has ended a trial in the storage, where that end stands."""
        number = stored.number
        before = self._study.trials.by_number(number).state
        trial = self._study.updates.end_as_told(stored)
        if self.leave(number, trial):
            self._tell(trial)
        else:  # it has ended here a moment later
            self._trials.ended[before] -= 1
        self._trials.ended[trial.state] += 1
        self._notes(f"trial {number} ends, {trial.state}: {trial.error}")

    def build_failed(self, number: int, error: BaseException) -> None:
        """A trial could not be built, traced, or handed to an executor."""
        error = self._named(number, error)
        self.failures.of_build(error)
        self._fail(number, error)

    def training_failed(self, number: int, error: BaseException) -> None:
        """A trial failed while it trained; nothing happens when it has ended already."""
        if number in self._trials.running:
            error = self._named(number, error)
            self.failures.of_training(error)
            self._fail(number, error)

    def _named(self, number: int, error: BaseException) -> BaseException:
        """The error of a trial that is too large for the memory, with what may make it so large."""
        inner: BaseException | None = error
        while inner is not None and not (isinstance(inner, MemoryError) or is_out_of_memory(inner)):
            inner = inner.__cause__ or inner.__context__  # Keras raises its own where it builds
        if inner is None:
            return error
        hparams = self._study.trials.by_number(number).hparams
        named = largest(hparams, getattr(inner, "shape", ()))
        if not named:
            return error
        found = MemoryError(f"{inner}. Its largest hyperparameters: {named}")
        found.__cause__ = error
        return found

    def _fail(self, number: int, error: BaseException) -> None:
        text = describe(error)
        if not self._strategy.on_trial_error(number, error):
            self._notes(f"trial {number} failed: {text}")
        self._end(number, "failed", error=text)

    def _end(self, number: int, state: TrialState, values: Any = (), **attrs: Any) -> None:
        running = self._trials.running[number]
        facts = {
            "train_seconds": round(running.seconds, 6),
            "program_id": running.program,
            "plan": running.plan,
            **({"fallback_reason": running.fallback_reason} if running.fallback_reason else {}),
            **({"worker": running.worker} if running.worker else {}),
            **attrs,
        }
        state = self._study.updates.finish(number, state, values=values, attrs=facts)
        self._trials.count_end(state)
        ended = self._trials.ended
        self._guard.ended(number, ended["complete"] + ended["pruned"])
        trial = self._study.trials.by_number(number)
        self.leave(number, trial)
        self._tell(trial)

    def leave(self, number: int, ended: Trial | None = None) -> bool:
        """Drops all that this search holds of a trial; returns whether it ran here or was paused.

        The model of a trial that has ``ended`` may be one of the best. None: it continues
        elsewhere, or restarts.
        """
        was_here = self._trials.forget(number)
        if was_here:
            self._members.end(number)
            if self._costs is not None:
                self._costs.forget(number)
        if ended is not None and self._study.trials.may_be_best(ended):
            self._models.best.complete(number)
        else:
            self._models.best.forget(number)
        return was_here

    def _tell(self, trial: Trial) -> None:
        """Tells the pruner, the strategy and the trackers, in this order, of a trial's end."""
        if self._pruner is not None:
            self._pruner.end_trial(trial)
        self._strategy.on_trial_complete(trial)
        if self._trackers is not None and trial.state != "rejected":
            self._trackers.log_trial(trial)


class PrunerVerdicts:
    """Asks the pruner about trials, and pauses, resumes or ends them as the pruner says."""

    def __init__(self, context: SearchContext, events: TrialEvents) -> None:
        self._pruner, self._study = context.pruner, context.study
        self._trials, self._members, self._events = context.trials, context.members, events

    def of(self, report: EpochReport, value: float) -> Answer:
        """Judges a trial after an epoch that is not its last, whose objective is ``value``."""
        pruner, number = self._pruner, report.number
        if pruner is None:
            return "continue"
        running = self._trials.running[number]
        verdict = pruner.judge(
            self._study.trials.by_number(number),
            report.epoch,
            running.epochs,
            value,
            can_pause=running.fallback_reason is None,
        )
        if verdict == "prune":
            self._events.pruned(number)
            return "stop"
        if verdict == "pause":
            self._trials.pause(number)
            self._study.updates.pause(number)
            return "pause"
        return "continue"

    def apply_late(self) -> None:
        """Resumes paused trials that the pruner has promoted; ends those that it has given up."""
        if self._pruner is None or not self._trials.paused:
            return
        self._resume(self._pruner.promoted())
        self.give_up(self._pruner.given_up())

    def resume_best(self) -> bool:
        """Resumes the best paused trial of an idle search that has no complete one; True if so."""
        if self._pruner is None or self._trials.ended["complete"]:
            return False
        best = self._pruner.last()
        self._resume(best)
        return bool(best)

    def resume_leaders(self, n_at_once: int) -> None:
        """Resumes the best paused trials until this many train.

        Trials that wait for their first epoch do not count. They began when there was more time,
        and would take from the leaders what is left.
        """
        running = self._trials.running
        while self._pruner is not None:
            if sum(trial.epoch > 0 for trial in running.values()) >= n_at_once:
                return
            leader = self._pruner.leader()
            if leader is None:
                return
            self._resume([leader])

    def give_up(self, numbers: Iterable[int]) -> None:
        """Ends paused trials as pruned."""
        for number in numbers:
            self._trials.unpause(number)
            self._events.pruned(number)

    def _resume(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._trials.unpause(number)
            self._study.updates.unpause(number)
            self._members.resume(number)
