"""How a trial ends: complete, pruned or failed, and who is told.

What a pruner's verdicts do to the trials of a search: they end, wait, and come back.

Trials that fail, and whether there is any use in going on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from paceline.errors import BuildError, PacelineError
from paceline.executor.base import Answer, EpochReport
from paceline.program.trace import State
from paceline.study.pruners.pruners import Pruner
from paceline.study.study import Study
from paceline.study.trial import TrialState
from paceline.tuner.checkpoint.best_models import BestModels
from paceline.tuner.checkpoint.last_variables import LastVariables
from paceline.tuner.members import MemberReports
from paceline.tuner.running_trials import RunningTrials


class TrialEnd:
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
        roster: RunningTrials,
        teams: MemberReports,
        best: BestModels,
        ends: LastVariables,
        failures: FailureLimit,
        pruner: Pruner | None,
        note: Callable[[str], None],
    ) -> None:
        self._study, self._roster, self._teams = study, roster, teams
        self._best, self._ends, self._failures = best, ends, failures
        self._pruner, self._note = pruner, note
        self._strategy = study.strategy

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
        trial = self._study.trials.by_number(number)
        if fetch is None or not self._strategy.resumable:  # nobody will continue the trial
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
        if not self._strategy.on_trial_error(number, error):
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
        state = self._study.updates.finish(number, state, attrs=facts)
        self._roster.end(number, state)
        self._teams.end(number)
        if state != "complete":
            self._best.forget(number)
        trial = self._study.trials.by_number(number)
        if self._pruner is not None:
            self._pruner.end_trial(trial)
        self._strategy.on_trial_complete(trial)


class PrunerVerdicts:
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
        roster: RunningTrials,
        teams: MemberReports,
        prune: Callable[[int], None],
    ) -> None:
        self._pruner, self._study, self._roster, self._teams = pruner, study, roster, teams
        self._prune = prune

    def of(self, report: EpochReport, value: float) -> Answer:
        """What becomes of a trial after an epoch that is not its last."""
        pruner, number = self._pruner, report.number
        if pruner is None:
            return "continue"
        running = self._roster.running[number]
        verdict = pruner.judge(
            self._study.trials.by_number(number),
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
            self._study.updates.pause(number)
            return "pause"
        return "continue"

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
            self._study.updates.unpause(number)
            self._teams.resume(number)


#: A space or a data set that fails this often in a row is not going to work.
IN_A_ROW = 5


class FailureLimit:
    """Counts the failures of one search.

    Args:
        in_a_row: So many end it.

    Attributes:
        succeeded: Trials that trained well until they were complete or pruned.
        cause: Why nothing is asked for any more: builds failed one after another.
    """

    def __init__(self, in_a_row: float = IN_A_ROW) -> None:
        self._in_a_row = in_a_row
        # In a row: builds (and traces) that failed, by the order of asking; and trials that failed
        # in training, by the order of ending.
        self._builds = self._trainings = 0
        self._last: BaseException | None = None
        self.succeeded = 0
        self.cause: BaseException | None = None

    def began(self) -> None:
        """A trial was built and traced."""
        self._builds = 0

    def ended_well(self) -> None:
        """A trial is complete, or was pruned."""
        self._trainings = 0
        self.succeeded += 1

    def of_build(self, error: BaseException) -> None:
        """A trial could not begin."""
        self._builds += 1
        self._last = error
        if self._builds >= self._in_a_row:
            self.cause = error

    def of_training(self, error: BaseException) -> None:
        """A trial failed while it trained."""
        self._trainings += 1
        self._last = error

    def of_all(self, healthy: bool) -> bool:
        """Whether training fails one trial after another.

        Args:
            healthy: Whether some trial trains well: then others may fail as they like.
        """
        if self._trainings < self._in_a_row or healthy:
            return False
        self.cause = self._last
        return True

    def error(self, over: bool) -> tuple[BuildError, BaseException] | None:
        """What the search must end with, and its cause; None where all is well.

        Args:
            over: Whether every configuration has been tried.
        """
        cause, text = self.cause, f"{self._in_a_row} trials failed in a row; the last one"
        if cause is None and over and not self.succeeded:
            cause, text = self._last, "every trial of this search failed; the last one"
        return None if cause is None else (BuildError(f"{text}: {describe(cause)}"), cause)


def describe(error: BaseException) -> str:
    """An error as one sentence; ours say all themselves."""
    if isinstance(error, (PacelineError, FloatingPointError)):
        return str(error)
    return f"{type(error).__name__}: {error}"
