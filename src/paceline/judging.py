"""What a pruner's verdicts do to the trials of a search: they end, wait, and come back."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from paceline.executor.base import Answer, EpochReport
from paceline.members import Teams
from paceline.pruners import Pruner
from paceline.roster import Roster
from paceline.study import Study


class Judging:
    """Asks the pruner and does what it says.

    Args:
        pruner: Judges trials; None lets all of them train.
        study: Its study.
        roster: Who is under way.
        teams: Members of trials.
        prune: Ends a trial that runs.
    """

    def __init__(
        self,
        pruner: Pruner | None,
        study: Study,
        roster: Roster,
        teams: Teams,
        prune: Callable[[int], None],
    ) -> None:
        self._pruner, self._study, self._roster, self._teams = pruner, study, roster, teams
        self._prune = prune

    def of(self, report: EpochReport, value: float) -> Answer:
        """What becomes of a trial after an epoch that is not its last."""
        pruner, number = self._pruner, report.number
        if pruner is None:
            return "go"
        running = self._roster.running[number]
        verdict = pruner.judge(
            self._study.trial(number),
            report.epoch,
            running.epochs,
            value,
            can_pause=running.not_packed is None,
        )
        if verdict == "prune":
            self._prune(number)
            return "stop"
        if verdict == "pause":
            self._roster.pause(number)
            self._study.course.pause(number)
        return verdict

    def bring_back(self) -> None:
        """Paused trials whose time has come go on; those that have lost for good end."""
        if self._pruner is None or not self._roster.paused:
            return
        self._resume(self._pruner.promoted())
        self.give_up(self._pruner.given_up())

    def finish_one(self) -> bool:
        """With nothing else to do and no complete trial: has the best paused one go on."""
        if self._pruner is None or self._roster.ended["complete"]:
            return False
        best = self._pruner.last()
        self._resume(best)
        return bool(best)

    def give_up(self, numbers: Iterable[int]) -> None:
        """Ends paused trials."""
        for number in numbers:
            self._roster.unpause(number)
            self._prune(number)

    def _resume(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._roster.unpause(number)
            self._study.course.unpause(number)
            self._teams.resume(number)
