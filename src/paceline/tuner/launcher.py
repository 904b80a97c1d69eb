"""How a trial begins: the study is asked, its model is built, and an executor takes it on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from paceline.data.arrays import ArrayData
from paceline.data.inputs import TrialInputs
from paceline.data.labels import check_labels
from paceline.executor.base import Job
from paceline.executor.fit import FitExecutor
from paceline.executor.local import LocalExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.program.canonical import Unpackable
from paceline.search_space import HyperParameters
from paceline.study.draft import BuildFailed, Draft
from paceline.study.study import Study
from paceline.study.trial import Trial
from paceline.study.workers.shared_study import ClaimLost
from paceline.tuner.arguments import SearchArguments
from paceline.tuner.checkpoint.best_models import BestModels
from paceline.tuner.checkpoint.handoff import HandedOverTrial, TrialHandoff
from paceline.tuner.checkpoint.last_variables import LastVariables
from paceline.tuner.members import MemberReports, jobs_of
from paceline.tuner.running_trials import RunningTrials
from paceline.tuner.timeouts import TrialTimeout


class TrialLauncher:
    """Begins the trials of one search.

    Args:
        builder: Builds models.
        study: Decides what is tried.
        arguments: Of the search.
        packs: Where trials train; None when none can be packed.
        fit: Where the others do.
        roster: Who is under way.
        teams: Members of trials.
        ends: The last variables of the best trials.
        watch: How long each may take.
        relay: What other workers have left of their trials; None where there are none.
        best: The best models of this search.
        doomed: Told of a trial that is not to be trained, and why.
        failed: Told of a trial that is under way and could not begin, and why.
        began: Told of one that could.
        say_once: Tells the user; what has the same key only once.

    Attributes:
        seconds: In the user's build.
        over: Every configuration of the space has been tried.
        to_go_on: Numbers of trials that have ended and are to train longer.
    """

    def __init__(
        self,
        *,
        builder: ModelBuilder,
        study: Study,
        arguments: SearchArguments,
        packs: LocalExecutor | None,
        fit: FitExecutor,
        roster: RunningTrials,
        teams: MemberReports,
        ends: LastVariables,
        watch: TrialTimeout,
        relay: TrialHandoff | None,
        best: BestModels,
        doomed: Callable[[int, BaseException], None],
        failed: Callable[[int, BaseException], None],
        began: Callable[[], None],
        say_once: Callable[[str, str], None],
    ) -> None:
        self._builder, self._study, self._arguments = builder, study, arguments
        self._asker, self._proposer = study.asker, study.proposer
        self._packs, self._fit, self._roster, self._teams = packs, fit, roster, teams
        self._ends, self._watch, self._doomed = ends, watch, doomed
        self._relay, self._best = relay, best
        self._failed, self._began, self._say_once = failed, began, say_once
        self.seconds = 0.0
        self.over = False
        self.to_go_on: deque[int] = deque()

    def ask(self) -> bool:
        """Begins the trial that the study proposes; False when it has none."""
        try:
            proposal = self._asker.propose(self._build)
        except BuildFailed as failed:
            self._begin_failed(failed)
            return True
        if proposal is None:
            if not self._proposer.exhausted:  # a searcher has no more, or waits for results
                return False
            self.over = True
            text = "every configuration of the space has been tried"
            self._say_once(text, text)
            return False
        draft, hp, made = proposal
        try:
            number = self._study.accept(draft, hp)
        except ClaimLost:
            return True
        self._begin(number, made[1])
        self._submit(number, draft.seed, hp.hparams, made)
        return True

    def go_on(self) -> None:
        """Begins a trial that goes on with the next of those that are to train longer."""
        source = self._study.trials.by_number(self.to_go_on.popleft())
        try:
            draft, hp, made = self._asker.propose_continuation(source.number, self._build)
        except BuildFailed as failed:
            self._begin_failed(failed, extra=True)
            return
        if made[1] <= source.epochs:
            self._proposer.reject(draft)
            return
        try:
            number = self._study.accept(draft, hp)
        except ClaimLost:
            if self._study.peers.waits:
                self.to_go_on.appendleft(source.number)
            return
        self._begin(number, made[1], extra=True)
        self._submit(number, draft.seed, hp.hparams, made)
        running = self._roster.running.get(number)
        if running is None:
            return  # it has failed
        parts = self._ends.load(source.number, source.epochs)
        packed = running.not_packed is None and self._packs is not None
        if parts is None or not packed or self._teams.size > 1:
            why = f"trial {number} goes on with trial {source.number} by training it from its first"
            self._say_once(f"{why} epoch again: its last variables are not kept", why)
            return
        assert self._packs is not None
        if self._packs.start_from(number, source.epochs, parts):
            self._study.updates.copy_epochs(number, source.history, source.epochs)
            running.epoch, running.seconds = source.epochs, source.seconds

    @property
    def to_come(self) -> int | None:
        """Trials still to be asked for; None where only time or the space is a limit."""
        limit = self._arguments.n_trials
        n_left = None if limit is None else max(0, limit - self._roster.n_counted)
        return self._study.strategy.n_to_come(n_left)

    def adopt(self, number: int) -> int:
        """Begins a trial of the study that another worker had begun.

        Returns:
            After which epoch it goes on: 0 where nothing is left of what was trained.
        """
        trial = self._study.trials.by_number(number)
        extra = trial.continues is not None
        try:
            made = self._build_again(trial)
        except Exception as error:
            self._begin(number, 0, extra=extra)
            self._failed(number, error)
            return 0
        self._begin(number, made[1], extra=extra)
        self._submit(number, trial.seed, trial.hparams, made)
        left = None if self._relay is None else self._relay.take(trial)
        return 0 if left is None else self._take_up(number, left)

    def _take_up(self, number: int, left: HandedOverTrial) -> int:
        """Has a trial that has been submitted go on as its worker left it."""
        running, packs = self._roster.running.get(number), self._packs
        if running is None or running.not_packed is not None or packs is None:
            return 0
        if self._teams.size > 1 or left.epoch >= running.epochs:
            return 0
        if not packs.start_from(number, left.epoch, left.parts):
            return 0
        self._study.updates.copy_epochs(number, left.history, left.epoch)
        running.epoch, running.seconds = left.epoch, left.seconds
        if left.best is not None:
            epoch, value, weights = left.best
            self._best.offer(number, epoch, value, lambda: weights)
        return left.epoch

    def again(self, number: int) -> None:
        """Builds a trial that is under way, and hands it to an executor once more."""
        trial, epochs = self._study.trials.by_number(number), self._roster.running[number].epochs
        try:
            model, _, setting = self._build_again(trial)
        except Exception as error:
            self._failed(number, error)
            return
        self._submit(number, trial.seed, trial.hparams, (model, epochs, setting))

    def example(self, job: int) -> tuple[Any, TrialInputs] | None:
        """The model of a trial that has ended, and its setting."""
        try:
            trial = self._study.trials.by_number(self._teams.trial_of(job))
            model, _, setting = self._build_again(trial)
        except Exception:  # what it was for is compiled anew when it is needed
            return None
        return model, setting

    def _begin(self, number: int, epochs: int, *, extra: bool = False) -> None:
        self._roster.begin(number, epochs, extra=extra)
        self._teams.begin(number, epochs)

    def _begin_failed(self, failed: BuildFailed, *, extra: bool = False) -> None:
        """Begins a trial whose build has raised, and fails it."""
        with suppress(ClaimLost):
            number = self._study.accept(failed.draft, failed.hp)
            self._begin(number, 0, extra=extra)
            self._failed(number, failed.cause)

    def _build_again(self, trial: Trial) -> tuple[Any, int, TrialInputs]:
        """As ``_build``, of values that were chosen before."""
        return self._build(HyperParameters(values=trial.hparams), trial)

    def _build(self, hp: HyperParameters, draft: Draft | Trial) -> tuple[Any, int, TrialInputs]:
        began = time.perf_counter()
        try:
            return self._watch.build(lambda: self._made(hp, draft.seed))
        finally:
            self.seconds += time.perf_counter() - began

    def _made(self, hp: HyperParameters, seed: int) -> tuple[Any, int, TrialInputs]:
        """A trial's model, epochs and setting."""
        model = self._builder(hp, seed)
        epochs = self._arguments.epochs_for(hp)
        setting = self._arguments.setting_for(hp)
        if self._arguments.callbacks is not None:
            self._arguments.callbacks.ask(hp)
        if isinstance(setting.data, ArrayData):
            check_labels(model, setting.data, "training data")
        return model, epochs, setting

    def _rebuilder(self, number: int, hparams: dict[str, Any]) -> Callable[[int], Any]:
        strategy = self._study.strategy
        return lambda seed: self._builder(strategy.hp_again(number, hparams), seed)

    def _submit(
        self, number: int, seed: int, hparams: dict[str, Any], made: tuple[Any, int, TrialInputs]
    ) -> None:
        doomed = self._watch.verdict(number)
        if doomed is not None:
            self._doomed(number, doomed)
            return
        try:
            self._watch.trace(lambda: self._hand_over(number, seed, hparams, made))
        except Exception as error:  # the user's train_step may raise anything while it is traced
            self._failed(number, error)
            return
        self._began()

    def _hand_over(
        self, number: int, seed: int, hparams: dict[str, Any], made: tuple[Any, int, TrialInputs]
    ) -> None:
        """Has the executor that can train a trial take it on."""
        began = time.perf_counter()
        rebuild = self._rebuilder(number, hparams)
        jobs = jobs_of(number, seed, made, self._arguments, rebuild, hparams)
        self.seconds += time.perf_counter() - began
        if self._packs is None:
            why = self._arguments.why_fit or "they are no arrays"
            text = f"trials run in Keras' own fit, one at a time: {why}"
            self._say_once(text, text)
            self._submit_to_fit(number, jobs, why)
        else:
            self._submit_to_packs(self._packs, number, jobs)

    def _submit_to_packs(self, packs: LocalExecutor, number: int, jobs: list[Job]) -> None:
        to_come, size, most = self.to_come, self._teams.size, self._asker.max_open
        if to_come is not None:
            left = to_come + len(self.to_go_on)
            packs.demand.expected = packs.waiting + size * (1 + left)
            if most is not None:
                packs.demand.expected = min(packs.demand.expected, size * most)
        else:
            packs.demand.expected = size * most if most else packs.max_slots
        packs.demand.family = size * self._proposer.families.wave
        try:
            for job in jobs:
                packs.submit(job)
            if jobs[0].program is not None:
                self._study.updates.learn_program(number, jobs[0].program)
        except Unpackable as why:
            self._say_once(
                f"trial {number} and its like run in Keras' own fit, one at a time: {why}",
                str(why),
            )
            self._teams.withdraw(number)
            self._submit_to_fit(number, jobs, str(why))

    def _submit_to_fit(self, number: int, jobs: list[Job], why: str) -> None:
        self._roster.running[number].not_packed = why
        for job in jobs:
            self._fit.submit(job)
