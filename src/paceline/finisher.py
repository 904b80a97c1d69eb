"""How a trial ends: complete, pruned or failed, and who is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.best import BestModels
from paceline.ends import Ends
from paceline.failures import Failures, describe
from paceline.members import Teams
from paceline.program.trace import State
from paceline.pruners import Pruner
from paceline.roster import Roster
from paceline.study import Study
from paceline.trial import TrialState


class Finisher:
    """Ends the trials of one search.

    Args:
        study: Its study.
        roster: Who is under way.
        teams: Members of trials.
        best: The best models.
        ends: The last variables of the best trials.
        failures: Counts those that fail.
        pruner: Judges trials; None lets all of them train.
        note: Told what users may want to know.
    """

    def __init__(
        self,
        *,
        study: Study,
        roster: Roster,
        teams: Teams,
        best: BestModels,
        ends: Ends,
        failures: Failures,
        pruner: Pruner | None,
        note: Callable[[str], None],
    ) -> None:
        self._study, self._roster, self._teams = study, roster, teams
        self._best, self._ends, self._failures = best, ends, failures
        self._pruner, self._note = pruner, note
        self._director = study.agenda.director

    def prune(self, number: int) -> None:
        """Ends a trial that is not worth its time."""
        self._failures.ended_well()
        self._finish(number, "pruned")

    def complete(self, number: int, fetch: Callable[[], State] | None = None) -> None:
        """Ends a trial that has trained all its epochs.

        Args:
            number: The trial's.
            fetch: Fetches its variables, to go on with; None where no pack holds them.
        """
        self._failures.ended_well()
        self._best.complete(number)
        self._finish(number, "complete")
        trial = self._study.trial(number)
        if fetch is None or self._director is not None:  # which has no use for them
            return
        if trial.state == "complete" and trial.value is not None:
            self._ends.offer(number, trial.epochs, trial.value, lambda: fetch().lists())

    def build_failed(self, number: int, error: BaseException) -> None:
        """Ends a trial that is under way and could not begin to train."""
        self._failures.of_build(error)
        self._fail(number, error)

    def training_failed(self, number: int, error: BaseException) -> None:
        """Ends a trial that failed while it trained, unless it has ended."""
        if number in self._roster.running:
            self._failures.of_training(error)
            self._fail(number, error)

    def _fail(self, number: int, error: BaseException) -> None:
        text = describe(error)
        if self._director is not None:
            self._director.failed(number, error)
        else:
            self._note(f"trial {number} failed: {text}")
        self._finish(number, "failed", error=text)

    def _finish(self, number: int, state: TrialState, **attrs: Any) -> None:
        running = self._roster.running[number]
        facts = {
            "seconds": round(running.seconds, 6),
            "program": running.program,
            "plan": running.plan,
            **({"not_packed": running.not_packed} if running.not_packed else {}),
            **attrs,
        }
        state = self._study.course.finish(number, state, attrs=facts)
        self._roster.end(number, state)
        self._teams.end(number)
        if state != "complete":
            self._best.forget(number)
        trial = self._study.trial(number)
        if self._pruner is not None:
            self._pruner.ended(trial)
        if self._director is not None:
            self._director.ended(trial)
