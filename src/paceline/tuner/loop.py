"""One call of ``search``: ask, build, train, report, until the study has its trials."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from paceline.errors import ObjectiveError, SpaceError, TrialTimeoutError
from paceline.executor.base import Answer, EpochReport, LateAnswer, PackTimeout
from paceline.executor.fit import FitExecutor
from paceline.executor.local import LocalExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.report.progress import Progress
from paceline.study.objective import Objective
from paceline.study.pruners.pruners import Pruner
from paceline.study.study import Study
from paceline.tuner.arguments import SearchArguments
from paceline.tuner.checkpoint.best_models import BestModels
from paceline.tuner.checkpoint.handoff import TrialHandoff
from paceline.tuner.checkpoint.last_variables import LastVariables
from paceline.tuner.checkpoint.policy import SavePolicy
from paceline.tuner.checkpointer import SearchCheckpointer
from paceline.tuner.launcher import TrialLauncher
from paceline.tuner.members import MemberReports
from paceline.tuner.peers import PeerWatcher
from paceline.tuner.prefetch import TrialPrefetch
from paceline.tuner.progress import ProgressReporter
from paceline.tuner.running_trials import RunningTrials
from paceline.tuner.search_state import SearchState
from paceline.tuner.signals import StopSignal
from paceline.tuner.timeouts import TrialTimeout, shielded
from paceline.tuner.trial_end import FailureLimit, PrunerVerdicts, TrialEnd


class SearchLoop:
    """The loop between the study, which decides, and the executors, which train.

    Attributes:
        continuation: Keeps it, and goes on with one that was kept.
        done: ``run`` has come to an end, and nothing is under way.
        stuck: The device does not answer any more.
        each_round: Called between epochs.
    """

    def __init__(
        self,
        *,
        builder: ModelBuilder,
        study: Study,
        objective: Objective,
        best: BestModels,
        arguments: SearchArguments,
        packs: LocalExecutor | None,
        fit: FitExecutor,
        pruner: Pruner | None,
        progress: Callable[[Progress], None] | None,
        notes: Callable[[str], None],
        watch: TrialTimeout,
        ends: LastVariables,
        keeper: SavePolicy | None = None,
        relay: TrialHandoff | None = None,
    ) -> None:
        self._watch, self._ends = watch, ends
        self._study, self._objective = study, objective
        self._best, self._arguments = best, arguments
        self._packs, self._fit = packs, fit
        if packs is not None:
            study.proposer.families.fill(max(1, packs.max_slots // arguments.n_members))
        self._note = notes
        self._roster = RunningTrials(study.trials)
        self._teams = MemberReports(
            arguments.n_members, pruner is not None, packs, fit, self._report
        )
        self._strategy = study.strategy
        limits = self._strategy.limits_failures
        self._failures = FailureLimit(math.inf) if limits else FailureLimit()
        self._finisher = TrialEnd(
            study=study,
            roster=self._roster,
            teams=self._teams,
            best=best,
            ends=ends,
            failures=self._failures,
            pruner=pruner,
            note=notes,
        )
        self._judging = PrunerVerdicts(
            pruner, study, self._roster, self._teams, self._finisher.prune
        )
        self._starter = TrialLauncher(
            builder=builder,
            study=study,
            arguments=arguments,
            packs=packs,
            fit=fit,
            roster=self._roster,
            teams=self._teams,
            ends=ends,
            watch=watch,
            relay=relay,
            best=best,
            doomed=self._finisher.training_failed,
            failed=self._finisher.build_failed,
            began=self._failures.began,
            say_once=self._say_once,
        )
        suspension = SearchState(study, self._roster, self._teams, packs, fit, best, pruner, notes)
        self._others = PeerWatcher(
            study,
            self._roster,
            self._teams,
            best,
            pruner,
            objective.name,
            self._starter.adopt,
            notes,
            adopted=lambda: None if relay is None else relay.forget(),
        )
        self._outlook = ProgressReporter(
            study, self._roster, objective.name, arguments.n_trials, packs, progress
        )
        self._supply = TrialPrefetch(
            study=study,
            arguments=arguments,
            packs=packs,
            fit=fit,
            roster=self._roster,
            starter=self._starter,
            failures=self._failures,
            others=self._others,
            outlook=self._outlook,
            pruned=pruner is not None,
            timed_out=self._timed_out,
        )
        self.continuation = SearchCheckpointer(
            keeper=keeper,
            study=study,
            arguments=arguments,
            suspension=suspension,
            ends=ends,
            failures=self._failures,
            starter=self._starter,
            supply=self._supply,
            outlook=self._outlook,
        )
        self._stopped = False
        self.done = self.stuck = False
        self._noted: set[str] = set()
        self._round = 0.0  # seconds of the last round
        self._began = time.perf_counter()
        self.each_round: Callable[[], None] = lambda: None

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Searches until the study has its trials, the space is exhausted or the time is up.

        Raises:
            BuildError: Trials failed several times in a row; the message holds the cause.
            StuckError: A step does not come back; all that can be told is in storage.
        """
        with StopSignal() as self._stop:
            try:
                while self._go_on():
                    pass
            except KeyboardInterrupt:
                self._say_stopped("interrupted")
                raise
            except PackTimeout as hung:
                self.stuck = True
                for number, text in self._watch.hung(hung, self._teams.trial_of):
                    self._finisher.training_failed(number, TrialTimeoutError(text))
                raise self._watch.error(hung, self._teams.trial_of) from None
            except SpaceError:
                self.continuation.refuse()
                raise

    def _go_on(self) -> bool:
        """One round: asks for trials, trains for an epoch; False at the end of the search."""
        self.each_round()
        self._study.writer.check_storage()
        self._others.hear()
        if self._stop.asked:
            self.continuation.keep()
            raise KeyboardInterrupt
        self.continuation.between_rounds()
        self._judging.bring_back()
        self._supply.fill()
        if self._timed_out():
            self.continuation.keep()
            self._say_stopped("stopped by the timeout")
            return False
        if self._packs is not None and self._packs.busy:
            self._supply.begin_round(self._packs)
            times = self._packs.timings.seconds
            before = times.train + times.validate  # a compile is waited for once
            self._supply.training = True
            self._packs.advance(self._receive, self._ahead, self._job_failed)
            self._supply.training = False
            self._round = times.train + times.validate - before
        elif self._fit.busy:
            self._advance_fit()
        elif not self._finish_one() and not self._others.wait():
            self._judging.give_up(list(self._roster.paused))
            self._raise_cause()
            self._ends.awaited.clear()
            self.done = True
            return False
        if self._failures.of_all(self._roster.healthy):
            self._raise_cause()
        return True

    def _raise_cause(self) -> None:
        found = self._failures.error(self._starter.over)  # which is never so under a searcher
        if found is not None:
            self.continuation.keep()  # what failed has ended: mended, the search goes on after it
            raise found[0] from found[1]

    def _say_stopped(self, how: str) -> None:
        if n := len(self._roster.running) + len(self._roster.paused):
            how += f" with {n} trials under way; the next search of this study goes on with them"
        self._note(how)

    def _timed_out(self) -> bool:
        """Whether time is up, or would be before another round has ended and been saved."""
        limit = self._arguments.timeout
        return limit is not None and time.perf_counter() - self._began + self._round > limit

    def _ahead(self) -> bool:
        """While the device works: get one more trial ready."""
        packs = self._packs
        assert packs is not None
        self._outlook.show("compiling" if packs.compiling else "training")
        if self._stop.asked and packs.compiling:  # nothing trains: the round has not begun
            self._supply.break_off()
            self.continuation.keep()
            raise KeyboardInterrupt
        return self._supply.one_more(packs)

    # -- what comes back ---------------------------------------------------------------------------

    def _advance_fit(self) -> None:
        job = self._fit.next_number
        number = self._teams.trial_of(job)
        try:
            self._watch.fit(
                number,
                lambda: self._fit.advance(self._receive_in_fit, lambda: False, self._job_failed),
            )
        except TrialTimeoutError as error:
            self._finisher.training_failed(number, error)
        if number in self._roster.running and not self._stopped:
            if not self._teams.trained(job):
                self._finisher.training_failed(number, RuntimeError("fit ended without an epoch"))
            elif self._teams.is_first(job):  # a callback of the user's stopped it early
                self._finisher.complete(number)

    def _receive_in_fit(self, report: EpochReport) -> LateAnswer:
        with shielded():
            answer = self._receive(report)
            if answer == "continue":
                self.continuation.keep_if_due()
            return answer

    def _receive(self, report: EpochReport) -> LateAnswer:
        """Handles what an executor reports of a job: of a trial, or of a member of one."""
        if self._teams.size == 1:
            return self._teams.receive(report)
        number = self._teams.trial_of(report.number)
        if number not in self._roster.running:
            return "stop"
        value = self._value_of(report.logs)
        member = self._teams.name_of(report.number, len(self._arguments.folds))
        error = self._not_finite(
            report, value, self._study.trials.by_number(number).hparams, member
        )
        if error is not None:
            self._finisher.training_failed(number, error)
            return "stop"
        self._strategy.on_member_result(number, value, report.weights)
        answer = self._teams.receive(report)
        if number in self._roster.running and self._must_leave(report):
            return "stop"
        return answer

    def _job_failed(self, job: int, error: BaseException) -> None:
        self._finisher.training_failed(self._teams.trial_of(job), error)

    def _value_of(self, logs: Mapping[str, float]) -> float | None:
        """The objective; None in an epoch without validation."""
        value = logs.get(self._objective.name)
        if value is None and not self._arguments.fit.get("validation_freq"):
            raise ObjectiveError(
                f'objective "{self._objective.name}" is no metric of this model; an epoch has: '
                f"{', '.join(logs)}."
            )
        return value

    def _not_finite(
        self,
        report: EpochReport,
        value: float | None,
        hparams: Mapping[str, Any],
        member: str = "",
    ) -> FloatingPointError | None:
        for name, number in (("loss", report.logs.get("loss")), (self._objective.name, value)):
            if number is not None and not math.isfinite(number):
                text = f"{name}{member} is {number} in epoch {report.epoch}, with {hparams}"
                return FloatingPointError(text)
        return None

    def _report(self, report: EpochReport) -> Answer:
        running, logs = self._roster.running[report.number], report.logs
        value = self._value_of(logs)
        self._roster.trial_epochs += 1
        running.seconds += report.seconds
        running.wall += report.wall
        running.epoch = report.epoch
        running.plan, running.program = report.plan, report.program
        trial = self._study.trials.by_number(report.number)
        before = trial.value
        objective = self._objective.name
        members = [member.get(objective, math.nan) for member in report.members]
        self._study.updates.report(report.number, report.epoch, logs, value, members)
        self._strategy.on_trial_result(report.number, report.members or [logs])
        error = self._not_finite(report, value, trial.hparams)
        if error is not None:
            self._finisher.training_failed(report.number, error)
            return "stop"
        if value is not None and self._objective.better(value, before):
            self._best.offer(report.number, report.epoch, value, report.weights)
        self._outlook.show("training")
        if report.epoch >= running.epochs or report.last:
            self._finisher.complete(report.number, report.state)
            return "stop"
        late = self._watch.late(running.wall, report.epoch)
        if late is not None:
            self._finisher.training_failed(report.number, late)
            return "stop"
        if self._must_leave(report):
            return "stop"
        return "continue" if value is None else self._judging.of(report, value)

    def _must_leave(self, report: EpochReport) -> bool:
        """Whether time is up for a trial that nobody else could stop; packs stop by themselves."""
        if report.plan == "fit" and (self._timed_out() or self._stop.asked):
            self._stopped = True
        return self._stopped

    def _finish_one(self) -> bool:
        return self._failures.cause is None and self._judging.finish_one()

    # -- what people see ---------------------------------------------------------------------------

    def _say_once(self, text: str, key: str) -> None:
        if key not in self._noted:
            self._noted.add(key)
            self._note(text)

    def progress(self, phase: str) -> Progress:
        """The search at this moment."""
        return self._outlook.progress(phase)

    def summary(self, seconds: float) -> dict[str, Any]:
        """What ``--json`` prints.

        Args:
            seconds: The whole call, data and probe included.
        """
        waited, built = self.continuation.seconds, self._starter.seconds
        return self._outlook.summary(seconds, built, waited, self._packs, self._fit)
