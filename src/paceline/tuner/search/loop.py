"""The loop of one search: ask, build, train and report, until the study has its trials."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.errors import (
    ClusterError,
    ObjectiveError,
    SpaceError,
    TrialTimeoutError,
    with_keras_3,
)
from paceline.executor.base import Answer, EpochReport, LateAnswer, PackTimeout
from paceline.executor.pack_executor import PackExecutor
from paceline.program.canonical import Unpackable
from paceline.report.progress import Progress
from paceline.search_space import HyperParameters
from paceline.study.pruners.pbt import PopulationPruner
from paceline.tuner.search.checkpointer import SearchCheckpointer
from paceline.tuner.search.context import SearchContext
from paceline.tuner.search.events import PrunerVerdicts, TrialEvents
from paceline.tuner.search.launcher import TrialLauncher, TrialPrefetch
from paceline.tuner.search.peers import PeerWatcher
from paceline.tuner.search.progress import ProgressReporter, SearchStopped
from paceline.tuner.search.recording import LiveWriter, TimelineRecorder
from paceline.tuner.search.session import is_of_memory, what_stands_in_the_way
from paceline.tuner.search.stopping import SearchEnd
from paceline.tuner.search.timeouts import shielded

if TYPE_CHECKING:
    from paceline.tuner.population.population import Population


class TimeoutReached(BaseException):
    """The timeout is over while the search waits for a compiler."""


#: The end of a search whose timeout is over.
TIMEOUT = SearchEnd("timeout", "the timeout is over")


class SearchLoop:
    """The loop between the study, which decides, and the executors, which train."""

    def __init__(self, context: SearchContext) -> None:
        self._context, self._study = context, context.study
        self._trials, self._timeout = context.trials, context.timeout
        self._packs, self._fit = context.packs, context.fit
        self._events = TrialEvents(context)
        self._failures = self._events.failures
        self._verdicts = PrunerVerdicts(context, self._events)
        self._launcher = TrialLauncher(context, self._events)
        self._peers = PeerWatcher(context, self._launcher, self._events)
        self._progress = ProgressReporter(context)
        self.timeline = TimelineRecorder(context, self._progress.devices)
        self._prefetch = TrialPrefetch(
            context, self._events, self._launcher, self._peers, self._progress
        )
        self._stop, self.trackers = context.stop, context.trackers
        self.live = LiveWriter(context)
        self._reports = EpochReports(
            context,
            self._events,
            self._verdicts,
            self._progress,
            self._peers,
            self._launcher,
        )
        self.checkpointer = SearchCheckpointer(
            context, self._failures, self._launcher, self._prefetch, self._progress
        )
        if self._packs is not None:
            self._packs.steady = _is_steady(context)
            self._packs.demand.by_time = context.arguments.timeout is not None
        self._population: Population | None = None
        if isinstance(context.pruner, PopulationPruner):
            from paceline.tuner.population.population import (
                Population,  # plain searches need none of it
            )

            self._population = Population(context, self._events, self._launcher, self.checkpointer)
        # Done: ``run`` came to its end with no trial open. Stuck: the device answers no more.
        self.done = self.stuck = False
        self._closing = False  # whether the last part of the time has begun
        self.ended: SearchEnd | None = None  # None while it runs, and where it failed

    def check(self, hp: HyperParameters) -> None:
        """Checks before anything is written that the search can work."""
        if self._context.costs is not None:
            self._context.costs.check(hp)
        if self._population is not None:
            self._population.check(hp)

    # -- rounds ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Searches until the study has its trials, the space is exhausted or the search is stopped.

        Raises BuildError and ConstraintError after failures and rejections in a row, and
        ClusterError or TrialHangError where nothing trains any more. What is known is stored.
        """
        try:
            while self._round():
                pass
            self._peers.look_last()
        except KeyboardInterrupt:
            self._peers.look_last()
            self._note_stop(self._peers.stopped_by or "interrupted")
            self.ended = SearchEnd("interrupted")
            raise
        except TimeoutReached:
            self._end_early(TIMEOUT)
        except SearchStopped:
            self._note_stop("stopped by progress")
            self.ended = SearchEnd("progress", "progress returned False")
        except PackTimeout as stuck:
            self.stuck = True
            limit, trial_of = self._context.trial_timeout, self._context.members.trial_of
            for number, text in limit.packs_stuck(stuck, trial_of):
                self._events.training_failed(number, TrialTimeoutError(text))
            raise limit.error(stuck, trial_of) from None
        except ClusterError:
            self.checkpointer.save()  # whatever was told is known, and can continue elsewhere
            raise
        except SpaceError:
            self.checkpointer.forget_enqueued()
            raise

    def _round(self) -> bool:
        """One round: asks for trials, trains for an epoch; False at the end of the search."""
        self._context.models.save_if_due(self._context.notes)
        if self._context.session is not None:
            self._context.session.share_if_due()
        self._study.writer.check_storage()
        self._events.measure_due()
        self._peers.look()
        if self._peers.paused:
            self._pause()
        if self._stop.asked:
            self.checkpointer.save()
            raise KeyboardInterrupt
        self.checkpointer.save_if_due()
        if self.live.due:
            self.live.write(self._progress.progress("training"))
        if self.timeline.due:
            left = self._progress.progress("training").seconds_left
            self.timeline.write(self.summary(time.perf_counter() - self._context.began), left)
        if self.trackers is not None:
            self.trackers.pass_on()
        if self._population is not None:
            self._population.exchange_if_due()
        self._verdicts.apply_late()
        self._finish_leaders()
        if self._timeout.late:
            self._launcher.keep_structure()
        stopping = self._context.stopping
        end = None if stopping is None else stopping.verdict
        if end is None:
            self._prefetch.fill()
            if self._population is not None:
                self._population.look()
            if self._timeout.over:
                end = TIMEOUT
        if end is not None:
            self._end_early(end)
            return False
        if self._packs is not None and self._packs.busy:
            self._train_packs(self._packs)
        elif self._fit.busy:
            self._train_fit()
        elif self._stop.asked and self._failures.last_was_rejected:
            return True  # the next round stops
        elif not self._resume_best() and not self._peers.wait():
            self._verdicts.give_up(list(self._trials.paused))
            self._raise_cause(self._all_failed())
            self._context.models.last_variables.awaited.clear()
            self.done = True
            self.ended = self._natural_end()
            return False
        if self._failures.of_all(self._trials.healthy):
            self._raise_cause()
        return True

    def _finish_leaders(self) -> None:
        """Continues the best trials once no other would end an epoch in time."""
        pruner, packs = self._context.pruner, self._packs
        closing = False
        if pruner is not None and pruner.pauses and self._population is None and packs is not None:
            closing = self._timeout.closing
        if closing and packs is not None:
            self._verdicts.resume_leaders(packs.demand.at_once)
            if not self._closing and self._context.policy is not None:
                # Thousands of paused trials are written while the leaders train, not after the end.
                self._context.policy.hasten()
        if packs is not None:
            packs.demand.closing = closing
        self._closing = closing
        self._prefetch.closing = closing and bool(self._trials.running)

    def _end_early(self, end: SearchEnd) -> None:
        """Ends the search although there may be trials left to train."""
        self.ended = end
        self.checkpointer.save()
        self._note_stop("stopped by the timeout" if end.rule == "timeout" else end.text)
        # Without unfinished trials the next search has nothing to continue.
        self.done = not self._trials.running and not self._trials.paused and end.rule != "timeout"

    def _natural_end(self) -> SearchEnd:
        """Why a search has ended in which no trial is left to train or to ask for."""
        if self._launcher.over:
            return SearchEnd("space", "every configuration of the space has been tried")
        stopping = self._context.stopping
        if stopping is not None and stopping.n_may_begin == 0:
            return stopping.epochs_used
        return SearchEnd("n_trials")

    def _pause(self) -> None:
        """Waits as long as another program has the study paused."""
        self.checkpointer.save()
        self._context.notes(
            f"paused by `paceline pause`. `paceline unpause {self._study.name}` continues the "
            "search. Ctrl-C stops it, and you can resume it later"
        )
        began = time.perf_counter()
        while self._peers.paused and not self._stop.asked and not self._timeout.over:
            self._show("paused")
            self._peers.rest()
        self._progress.rested(time.perf_counter() - began)
        if not self._peers.paused:
            self._context.notes("continuing after the pause")

    def _train_packs(self, packs: PackExecutor) -> None:
        self._prefetch.begin_round(packs)
        packs.advance(self._reports.receive, self._ask_ahead, self._reports.failed)
        self._prefetch.end_round()
        self.timeline.collect()
        self._note_round(packs)

    def _note_round(self, packs: PackExecutor) -> None:
        """Notes how long a round takes: compiling left out, a search waits for a program once."""
        if packs.timings.rounds:
            self._timeout.round_took(packs.timings.rounds[-1][0])

    def _ask_ahead(self) -> bool:
        """While the device works, gets one more trial ready; False when there is none to."""
        packs = self._packs
        assert packs is not None
        if packs.streaming:
            self._note_round(packs)
        packs.hurried = self._stop.asked or self._timeout.over
        self._show("compiling" if packs.compiling else "training")
        if self._context.session is not None:
            self._context.session.share_if_due()
        if packs.compiling:  # nothing trains: the round has not begun
            # Without any epoch the search would have no model, and waits for its first.
            late = self._timeout.over and self._trials.trial_epochs > 0
            if self._stop.asked or late:
                self._prefetch.break_off()
                self.checkpointer.save()
                raise KeyboardInterrupt if self._stop.asked else TimeoutReached
        if self._context.guard.precautions.alone:  # trials are asked for between two rounds
            return False
        return self._prefetch.ask_ahead(packs)

    def _show(self, phase: str) -> None:
        """Shows what the search does now, to its user and to a dashboard."""
        self._progress.show(phase)
        if self.live.due:
            self.live.write(self._progress.progress(phase))

    def _train_fit(self) -> None:
        """Trains one trial in Keras' ``fit``, to its end."""
        members, job = self._context.members, self._fit.next_number
        number, began = members.trial_of(job), time.perf_counter()
        self._context.guard.trains([number])

        def train() -> None:
            self._fit.advance(self._receive_in_fit, lambda: False, self._reports.failed)

        try:
            if self._context.session is None:
                self._context.trial_timeout.fit(number, train)
            else:
                train()  # in the session, which sees to the limit
        except TrialTimeoutError as error:
            self._events.training_failed(number, error)
        self._context.guard.trains([])
        self.timeline.fit_ended(number, began)
        if number in self._trials.running and not self._reports.stopped:
            if not members.trained(job):
                self._events.training_failed(
                    number, RuntimeError("fit stopped before its first epoch ended")
                )
            elif members.is_first(job):  # a callback of the user's stopped it early
                self._events.completed(number)

    def _receive_in_fit(self, report: EpochReport) -> LateAnswer:
        with shielded():
            answer = self._reports.receive(report)
            if answer == "continue":
                self.checkpointer.save_fit_if_due()
            return answer

    def _resume_best(self) -> bool:
        return self._failures.cause is None and self._verdicts.resume_best()

    def _all_failed(self) -> bool:
        """Whether no trial of the study was of use; a searcher decides for itself."""
        if not self._study.strategy.resumable:
            return False
        return all(trial.state in ("failed", "rejected") for trial in self._study.trials)

    def _raise_cause(self, all_failed: bool = False) -> None:
        """Ends the search where too many trials have failed."""
        # A searcher's space is never over.
        useful = bool(self._trials.ended["complete"] + self._trials.ended["pruned"])
        found = self._failures.error(self._launcher.over or all_failed, useful)
        if found is not None:
            # The trials that failed have ended: once the build is mended, the search continues.
            self.checkpointer.save()
            raise found[0] from found[1]

    # -- what people see ---------------------------------------------------------------------------

    def _note_stop(self, how: str) -> None:
        if n := len(self._trials.running) + len(self._trials.paused):
            trials = "1 unfinished trial" if n == 1 else f"{n} unfinished trials"
            how += f" with {trials}, which the next search on this study continues"
        self._context.notes(how)

    def progress(self, phase: str) -> Progress:
        """The search at this moment."""
        return self._progress.progress(phase)

    def summary(self, seconds: float) -> dict[str, Any]:
        """What ``paceline search --json`` prints; ``seconds`` are those of the whole call."""
        return self._progress.summary(
            seconds, self._launcher.seconds, self.checkpointer.seconds, self.ended
        )


def _is_steady(context: SearchContext) -> bool:
    """Whether every trial trains to its last epoch, and no result decides which trials come."""
    arguments, study = context.arguments, context.study
    return (
        context.pruner is context.stopping is None
        and arguments.callbacks is arguments.trial_timeout is None
        and arguments.n_members == 1
        and not (callable(arguments.epochs) or callable(arguments.initial_epoch))
        and not study.peers.shared
        and study.strategy.resumable  # not a searcher, who may choose by results
        and not study.strategy.ends_by_itself  # a grid's first trials have much in common
        and study.asker.max_open is None
    )


class EpochReports:
    """Handles what executors report: records it, and answers what becomes of the trial."""

    def __init__(
        self,
        context: SearchContext,
        events: TrialEvents,
        verdicts: PrunerVerdicts,
        progress: ProgressReporter,
        peers: PeerWatcher,
        launcher: TrialLauncher,
    ) -> None:
        self._context, self._events, self._verdicts = context, events, verdicts
        self._launcher = launcher
        self._study, self._objective = context.study, context.objective
        self._trials, self._members = context.trials, context.members
        self._progress, self._stop = progress, context.stop
        self._strategy, self._peers = context.study.strategy, peers
        self.stopped = False  # whether a training in ``fit`` was told to stop, as the search stops

    def receive(self, report: EpochReport) -> LateAnswer:
        """Handles a report of a job, which is a trial or a member of one."""
        self._peers.hear()
        number = self._members.trial_of(report.number)
        if number not in self._trials.running:
            return "stop"
        if self._members.size == 1:
            return self._members.receive(report, self.of_trial)
        value = self._value_of(report.logs)
        member = self._members.name_of(report.number, self._context.arguments.folds or 0)
        error = self._not_finite(
            report, value, self._study.trials.by_number(number).hparams, member
        )
        if error is not None:
            self._events.training_failed(number, error)
            return "stop"
        self._strategy.on_member_result(number, value, report.weights)
        answer = self._members.receive(report, self.of_trial)
        if number in self._trials.running and self._must_leave(report):
            return "stop"
        return answer

    def failed(self, job: int, error: BaseException) -> None:
        """Fails the trial of a job that has failed, unless ``fit`` can train it from its start."""
        number = self._members.trial_of(job)
        running, session = self._trials.running.get(number), self._context.session
        # What callbacks do may work in the session, whose Keras is another.
        movable = isinstance(error, Unpackable) or (
            session is not None
            and running is not None
            and running.fallback_reason is None
            and not is_of_memory(error)
        )
        if movable and running is not None and self._members.size == 1 and running.epoch == 0:
            why = str(error) if session is None else what_stands_in_the_way(error)
            self._launcher.move_to_fit(number, why)
            return
        self._events.training_failed(number, error)

    def of_trial(self, report: EpochReport) -> Answer:
        """Handles an epoch of a trial, whose logs are means over its members."""
        running, logs = self._trials.running[report.number], report.logs
        value = self._value_of(logs)
        self._trials.trial_epochs += 1
        self._trials.trial_seconds += report.seconds
        running.seconds += report.seconds
        running.wall += report.wall
        running.epoch = report.epoch
        self._context.timeout.trial_has_epoch(report.number)
        running.plan, running.program = report.plan, report.program
        running.worker = report.worker
        trial = self._study.trials.by_number(report.number)
        before = trial.value
        objective = self._objective.name
        members = [member.get(objective, math.nan) for member in report.members]
        self._study.updates.report(report.number, report.epoch, logs, value, members)
        self._strategy.on_trial_result(report.number, report.members or [logs])
        error = self._not_finite(report, value, trial.hparams)
        if error is not None:
            self._events.training_failed(report.number, error)
            return "stop"
        if value is not None and self._objective.better(value, before):
            best = self._context.models.best
            best.offer(report.number, report.epoch, value, report.weights)
        self._progress.show("training")
        stopping = self._context.stopping
        enough = stopping is not None and stopping.reaches_target(value)
        if enough or report.epoch >= running.epochs or report.last:
            self._events.completed(report.number, report.state)
            return "stop"
        late = self._context.trial_timeout.late(running.wall, report.epoch)
        if late is not None:
            self._events.training_failed(report.number, late)
            return "stop"
        if self._must_leave(report):
            return "stop"
        return "continue" if value is None else self._verdicts.of(report, value)

    def _value_of(self, logs: Mapping[str, float]) -> float | None:
        """The objective; None in an epoch without validation."""
        value = logs.get(self._objective.name)
        if value is None and not self._context.arguments.fit.get("validation_freq"):
            raise ObjectiveError(
                with_keras_3(
                    f'objective "{self._objective.name}" is not a metric of this model, which '
                    f"logs {', '.join(logs)}."
                )
            )
        return value

    def _not_finite(
        self,
        report: EpochReport,
        value: float | None,
        hparams: Mapping[str, Any],
        member: str = "",
    ) -> FloatingPointError | None:
        """The error of a loss or an objective that is NaN or infinite."""
        if self._strategy.scores_infinity and value is not None and math.isinf(value):
            value = None
        for name, number in (("loss", report.logs.get("loss")), (self._objective.name, value)):
            if number is not None and not math.isfinite(number):
                text = f"{name}{member} is {number} in epoch {report.epoch}, with {hparams}"
                return FloatingPointError(text)
        return None

    def _must_leave(self, report: EpochReport) -> bool:
        """Whether a training in ``fit`` must stop, because the search does.

        ``fit`` trains to its end otherwise. Packs train for one epoch, and then the loop stops.
        """
        if report.plan == "fit" and (self._context.timeout.over or self._stop.asked):
            self.stopped = True
        return self.stopped
