"""How trials begin: how many are asked for, how they are built, and which executor trains them."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import optuna

from paceline.data.arrays import ArrayData
from paceline.data.inputs import TrialInputs
from paceline.data.labels import check_labels
from paceline.errors import SamplerError, SpaceError, TrialCrashError, TrialRejected
from paceline.executor.base import Job, SiblingModelBuilder
from paceline.executor.pack_executor import PackExecutor
from paceline.program import keras_private
from paceline.program.canonical import Unpackable
from paceline.program.foreign.operations import ForeignOperationError
from paceline.program.trace import refusal
from paceline.search_space import HyperParameters
from paceline.study.proposer import BuildFailed, Proposal
from paceline.study.pruners.pbt import PopulationPruner
from paceline.study.sharing.peers import ClaimLost
from paceline.study.trials.trial import Trial
from paceline.tuner.arguments.constraints import Constraints
from paceline.tuner.checkpoint.trial_variables import HandedOverTrial, HeldTrial, note_batch
from paceline.tuner.search.context import SearchContext
from paceline.tuner.search.events import TrialEvents
from paceline.tuner.search.first_build import make_variables
from paceline.tuner.search.members import BuiltTrial, jobs_of, other_models
from paceline.tuner.search.peers import PeerWatcher
from paceline.tuner.search.progress import ProgressReporter
from paceline.tuner.search.running_trials import UnfinishedTrial
from paceline.tuner.search.session import is_of_memory, what_stands_in_the_way

if TYPE_CHECKING:
    from paceline.executor.tokens import TokenChecks


class TrialLauncher:
    """Begins the trials of one search."""

    def __init__(self, context: SearchContext, events: TrialEvents) -> None:
        self._context, self._events = context, events
        self._study, self._strategy = context.study, context.study.strategy
        self._asker, self._proposer = context.study.asker, context.study.proposer
        self._arguments, self._timeout = context.arguments, context.trial_timeout
        self._packs, self._fit = context.packs, context.fit
        self._trials, self._members = context.trials, context.members
        self._said: set[str | None] = {refusal()}  # of the backend, the search itself has told
        self._tokens: TokenChecks | None = None  # once a model has an Embedding
        self.seconds = 0.0  # in the user's build, until now
        self.over = False  # whether every configuration of the space has been tried
        # Complete trials that this search is to train longer.
        self.to_continue: deque[int] = deque()

    def ask(self) -> bool:
        """Begins the trial that the study proposes; returns False when there is none."""
        try:
            proposal = self._asker.propose(self.build)
        except BuildFailed as failed:
            self.begin_failed(failed)
            return True
        if proposal is None:
            if not self._proposer.exhausted:  # a searcher has no more, or waits for results
                return False
            self.over = True
            self._say_once("every configuration of the space has been tried")
            return False
        accepted, hp, built = proposal
        try:
            number = self._study.accept(accepted, hp, self.n_may_begin)
        except ClaimLost:
            return True
        self.start(number, built)
        return True

    def continue_next(self) -> None:
        """Begins a trial that continues the next of ``to_continue``."""
        from paceline.study.trials.lineage import (  # most searches continue nothing
            copied_line,
            line_of,
        )

        source = self._study.trials.by_number(self.to_continue.popleft())
        called, kept = self._arguments.callbacks is not None, self._context.models.last_variables
        parts = None if called else kept.load(source.number, source.epochs)
        lost = "the state of its callbacks is" if called else "its last variables are"
        if parts is None and len(copied_line(line_of(source, self._study.trials.get))) > 1:
            self._say_once(f"trial {source.number}, a copy, is not continued: {lost} not kept")
            return
        try:
            proposal, hp, built = self._proposer.propose_continuation(
                source.number, source.hparams, source.seed, self.build
            )
        except BuildFailed as failed:
            self.begin_failed(failed, extra=True)
            return
        if built.epochs <= source.epochs:
            self._proposer.reject(proposal)
            why = f"it already has {source.epochs} epochs"
            self._say_once(f"trial {source.number} is not continued: {why}")
            return
        try:
            number = self._study.accept(proposal, hp)
        except ClaimLost:
            if self._study.peers.waits:
                self.to_continue.appendleft(source.number)
            return
        running = self.start(number, built, extra=True)
        if running is None:
            return
        packed = running.fallback_reason is None and self._packs is not None
        if parts is None or not packed or self._members.size > 1:
            why = f"trial {number} continues trial {source.number} but retrains it"
            self._say_once(f"{why} from its first epoch, because {lost} not kept")
            return
        assert self._packs is not None
        if self._packs.start_from(number, source.epochs, parts):
            self.has_trained(number, source.epochs, source.history, source.train_seconds)

    def has_trained(
        self,
        number: int,
        epoch: int,
        history: Mapping[str, Sequence[float]],
        seconds: float,
        best: HeldTrial | None = None,
    ) -> None:
        """Puts a trial that has just begun after an epoch that another trial has trained for it."""
        running = self._trials.running[number]
        self._study.updates.copy_epochs(number, history, epoch)
        running.epoch, running.seconds = epoch, seconds
        if best is not None and best.arrays is not None:
            models = self._context.models.best
            models.offer(number, best.epoch, best.value, lambda: best.arrays)

    def keep_structure(self) -> None:
        """Gives further trials the structure of the best one, whose program is compiled."""
        order = self._proposer.structure_order
        # Of several objectives, the first one does not say which structure is best.
        if not order.in_waves or self._context.objectives is not None:
            return
        best = self._study.trials.best
        if best is not None:
            order.keep(best.number)

    @property
    def to_come(self) -> int | None:
        """Trials still to be asked for; None if only time or the space is a limit."""
        limit = self._arguments.n_trials
        waiting = self._study.watch.n_waiting  # which run whatever the limit is
        n_left = None if limit is None else max(waiting, limit - self._trials.n_counted)
        limits = [n for n in (n_left, self.n_may_begin) if n is not None]
        return self._strategy.n_to_come(min(limits, default=None))

    @property
    def n_may_begin(self) -> int | None:
        """Trials that have epochs to train, as far as this worker knows; None for any number."""
        return None if (rules := self._context.stopping) is None else rules.n_may_begin

    def adopt(self, number: int) -> int:
        """Begins a trial of a worker that died; returns the epoch after which it continues."""
        trial = self._study.trials.by_number(number)
        extra = trial.continued_from is not None
        try:
            if trial.rejected is not None:
                self._trials.begin(number, 0)
                self._events.rejected(number, TrialRejected(trial.rejected))
                return 0
            built = self._build_again(trial)
        except Exception as error:
            self._trials.begin(number, 0, extra=extra)
            self._events.build_failed(number, error)
            return 0
        running = self.start(number, built, extra=extra)
        handoff = self._context.handoff
        left = None if handoff is None else handoff.take(trial)
        return 0 if running is None or left is None else self._take_up(number, running, left)

    def _take_up(self, number: int, running: UnfinishedTrial, left: HandedOverTrial) -> int:
        """Puts a trial that has been submitted to where its worker left it."""
        packs = self._packs
        if running.fallback_reason is not None or packs is None:
            return 0
        if self._members.size > 1 or left.epoch >= running.epochs:
            return 0
        if not packs.start_from(number, left.epoch, left.parts):
            return 0
        self.has_trained(number, left.epoch, left.history, left.seconds, left.best)
        return left.epoch

    def resubmit(self, number: int) -> None:
        """Builds a running trial again, and hands it to an executor once more."""
        trial, epochs = self._study.trials.by_number(number), self._trials.running[number].epochs
        try:
            built = self._build_again(trial)
        except Exception as error:
            self._events.build_failed(number, error)
            return
        self._submit(trial, built._replace(epochs=epochs))

    def move_to_fit(self, number: int, why: str) -> None:
        """Trains a running trial in ``fit`` from its start, since a callback needs it."""
        trial = self._study.trials.by_number(number)
        try:
            built = self._build_again(trial)
        except Exception as error:
            self._events.build_failed(number, error)
            return
        here = self._context.session is None
        self._send_to_fit(number, self._jobs(trial, built, here=here), why)

    def example(self, job: int) -> tuple[Any, TrialInputs, SiblingModelBuilder | None] | None:
        """What shows the program of a trial that has ended; see ``restored.Example``."""
        try:
            trial = self._study.trials.by_number(self._members.trial_of(job))
            built = self._build_again(trial)
            widths = self.other_models(trial.number, trial.seed, trial.hparams, built)
        except Exception:  # the program that it would have shown is compiled when it is needed
            return None
        return None if built.model is None else (built.model, built.inputs, widths)

    def begin_failed(self, failed: BuildFailed, *, extra: bool = False) -> None:
        """Begins a trial whose build has raised, so that the study has it as a failed one."""
        proposal, cause = failed.proposal, failed.cause
        # What ended processes would end the session, too.
        verdicts = optuna.TrialPruned, TrialRejected, TrialCrashError
        session = self._context.session
        told = isinstance(cause, verdicts) or self._may_train_there(cause)  # it failed there, too
        if session is not None and not told:
            session.check_build(proposal.number, failed.hp.hparams, proposal.seed, cause)
        # Searchers decide by themselves, and know of pruned trials only. A trial that is continued
        # was allowed before.
        rejected: TrialRejected | None = None
        if isinstance(cause, TrialRejected) and self._strategy.resumable and not extra:
            rejected = cause
            proposal.rejected = str(rejected)
            constraints, proposal.constraints = self._context.constraints, rejected.amounts
            if constraints:
                proposal.constraints = constraints.amounts_of(rejected)
        with suppress(ClaimLost):
            number = self._study.accept(proposal, failed.hp)
            self._trials.begin(number, 0, extra=extra)
            if rejected is not None:
                self._events.rejected(number, rejected)
                if proposal.values:  # of the user, or of a search that was interrupted
                    self._context.notes(f"the enqueued trial {number} is rejected: {cause}")
            elif isinstance(cause, optuna.TrialPruned | TrialRejected):
                self._events.pruned(number)  # the user's build thinks little of it
            else:
                self._events.build_failed(number, cause)

    def _build_again(self, trial: Trial) -> BuiltTrial:
        return self.build(HyperParameters(values=trial.hparams), trial)

    def build(self, hp: HyperParameters, proposal: Proposal | Trial) -> BuiltTrial:
        """Calls the user's build for a trial; raises whatever that raises."""
        began = time.perf_counter()
        try:
            with self._context.guard.building(proposal.number, hp):
                return self._timeout.build(lambda: self._built(hp, proposal))
        finally:
            self.seconds += time.perf_counter() - began

    def _built(self, hp: HyperParameters, proposal: Proposal | Trial) -> BuiltTrial:
        session, why_fit = self._context.session, None
        try:
            model = self._context.builder(hp, proposal.seed)
        except Exception as error:
            if session is None or not self._may_train_there(error):
                raise
            model, why_fit = None, session.build(hp, proposal.seed, error)
        epochs, inputs = self._arguments.asked(hp, model)
        if model is None:
            parameters = tuple(hp.parameters.values())
            return BuiltTrial(None, epochs, inputs, parameters, why_fit=why_fit)
        # A trial that was allowed once stays so: one that continues, or is taken over.
        constraints = self._context.constraints
        goes_on = proposal.continued_from is not None and proposal.continued_at is None
        if constraints and isinstance(proposal, Proposal) and not goes_on:
            model = self._allowed(constraints, model, hp, proposal, inputs)
        if isinstance(inputs.data, ArrayData):
            check_labels(model, inputs.data, "training data")
        again = partial(self._build_at, proposal.number, hp.hparams, proposal.seed)
        tables = keras_private.embeddings(model)
        if tables and self._checks_tokens(model, tables, inputs, again):
            model = again()  # whose variables are yet to be drawn, as if nothing had been checked
        costs = {}
        if self._context.costs is not None:
            costs = self._context.costs.of_build(model, inputs, again)
        return BuiltTrial(model, epochs, inputs, tuple(hp.parameters.values()), costs)

    def _may_train_there(self, error: Exception) -> bool:
        """Whether a trial whose build has failed may train in the session by itself."""
        kinds = TrialRejected, TrialCrashError, optuna.TrialPruned, SpaceError, SamplerError
        mild = isinstance(error, kinds)
        # These look at the model, which is not here.
        looks = self._context.constraints or self._context.costs is not None
        fits = self._context.session is not None and self._context.session.fits
        return fits and not mild and not looks and not is_of_memory(error)

    def _checks_tokens(
        self, model: Any, tables: list[Any], inputs: TrialInputs, again: Callable[[], Any]
    ) -> bool:
        """Checks what a trial's Embeddings look up; returns whether ``again`` was called."""
        from paceline.executor.tokens import TokenChecks

        tokens = self._tokens = self._tokens or TokenChecks()
        checked = tokens.check(model, tables, inputs.data, "training data", again)
        return tokens.check(model, tables, inputs.validation, "validation data", again) or checked

    def _allowed(
        self,
        constraints: Constraints,
        model: Any,
        hp: HyperParameters,
        proposal: Proposal,
        inputs: TrialInputs,
    ) -> Any:
        """The trial's model, if it satisfies the constraints; raises TrialRejected if not."""
        built = model.built
        if not built:
            # Tracing creates the variables of the trial's model from random numbers that nothing
            # else may draw, so draws of another model are counted.
            make_variables(model, inputs, self._arguments)
        proposal.constraints = constraints.check(model, hp.hparams)
        return model if built else self._build_at(proposal.number, hp.hparams, proposal.seed)

    def _build_at(self, number: int, hparams: Mapping[str, Any], seed: int) -> Any:
        """Builds the model of a trial once more."""
        return self._context.builder(self._strategy.hp_again(number, hparams), seed)

    def other_models(
        self, number: int, seed: int, hparams: dict[str, Any], built: BuiltTrial
    ) -> SiblingModelBuilder | None:
        """Builds models like a trial's; None if it is to have a program of its own."""

        def build(values: Mapping[str, Any]) -> Any:
            with self._context.guard.tracing(number, values):
                return self._build_at(number, values, seed)

        return other_models(
            build,
            hparams,
            built,
            self._context.share_widths,
            self._context.outlook,
            number * self._members.size,
        )

    def start(
        self, number: int, built: BuiltTrial, *, extra: bool = False
    ) -> UnfinishedTrial | None:
        """Begins a trial, which may continue another, in an executor; None if it fails at once."""
        self._trials.begin(number, built.epochs, extra=extra)
        self._context.timeout.trial_begins(number)
        self._submit(self._study.trials.by_number(number), built)
        return self._trials.running.get(number)

    def _submit(self, trial: Trial, built: BuiltTrial) -> None:
        """Hands a trial that has begun to an executor; one that cannot be traced fails."""
        number = trial.number
        self._trials.running[number].costs = dict(built.costs)
        if built.model is not None:
            note_batch(self._study, number, built.model, built.inputs)
        stuck = self._timeout.known_stuck(number)
        if stuck is not None:
            self._events.training_failed(number, stuck)
            return
        try:
            with self._context.guard.tracing(number, trial.hparams):
                self._timeout.trace(lambda: self._hand_over(trial, built))
        except Exception as error:  # the user's train_step may raise anything while it is traced
            if self._context.session is not None and not is_of_memory(error):
                self._context.session.refuse(number, error)
            self._events.build_failed(number, error)
            return
        self._events.failures.began()

    def _hand_over(self, trial: Trial, built: BuiltTrial) -> None:
        """Submits a trial to the executor that can train it."""
        number = trial.number
        if built.why_fit is not None:
            self._send_to_fit(number, self._jobs(trial, built, here=False), built.why_fit)
            return
        began = time.perf_counter()
        widths = self.other_models(number, trial.seed, trial.hparams, built)
        jobs = self._jobs(trial, built, here=True, widths=widths)
        self.seconds += time.perf_counter() - began
        if self._packs is None:
            why = self._arguments.why_fit or "they are not arrays"
            if self._context.session is None:
                self._say_once(f"trials run in Keras' own fit, one at a time: {why}", key=why)
            self._submit_to_fit(number, jobs, why)
        else:
            self._submit_to_packs(self._packs, number, jobs)

    def _jobs(
        self,
        trial: Trial,
        built: BuiltTrial,
        *,
        here: bool,
        widths: SiblingModelBuilder | None = None,
    ) -> list[Job]:
        """A job for each repeat of a trial; ``here``: not only the session builds its models."""
        number, hparams = trial.number, trial.hparams
        build = partial(self._build_at, number, hparams) if here else lambda seed: None
        return jobs_of(number, trial.seed, built, self._arguments, build, hparams, widths=widths)

    def _submit_to_packs(self, packs: PackExecutor, number: int, jobs: list[Job]) -> None:
        to_come, size, most = self.to_come, self._members.size, self._asker.max_open
        expected = self._asker.n_expected
        if to_come is not None or expected is not None:
            left = min(
                math.inf if to_come is None else to_come,
                math.inf if expected is None else max(0, expected - self._trials.n_counted),
            )
            left = int(left) + len(self.to_continue)
            packs.demand.expected = packs.waiting + size * (1 + left)
            if most is not None:
                packs.demand.expected = min(packs.demand.expected, size * most)
        else:
            packs.demand.expected = size * most if most else packs.max_slots
        packs.demand.alike = size * self._proposer.structure_order.wave
        try:
            if self._context.session is not None:
                self._context.session.check_widths(jobs[-1].model)
            for job in jobs:
                packs.submit(job)
            if (program := jobs[0].program) is not None:
                self._study.updates.learn_program(number, program)
                epochs = jobs[0].epochs * self._context.outlook.trained
                order = self._proposer.structure_order
                if order.early_leader == number and packs.demand.trains_long(program, epochs):
                    order.end_wave()
        except Unpackable as why:
            if isinstance(why, ForeignOperationError) and self._context.session is None:
                raise  # ``fit`` runs on JAX, too
            self._members.withdraw(number)
            self._send_to_fit(number, jobs, str(why))
        except Exception as error:  # of the user's steps
            session = self._context.session
            if session is None or not session.fits or is_of_memory(error):
                raise
            self._members.withdraw(number)
            self._send_to_fit(number, jobs, what_stands_in_the_way(error))

    def _send_to_fit(self, number: int, jobs: list[Job], why: str) -> None:
        if self._context.session is None:
            text = f"trial {number} and its like run in Keras' own fit, one at a time: {why}"
            self._say_once(text, key=why)
        else:
            # Sizes of a trial in it make no other kind.
            key = re.sub(r"\d+", "", why)
            self._say_once(self._context.session.note_on(number, why), key=key)
        self._submit_to_fit(number, jobs, why)

    def _submit_to_fit(self, number: int, jobs: list[Job], why: str) -> None:
        if self._context.session is not None and not self._context.session.fits:
            self._context.session.refuse(number, why)
        self._trials.running[number].fallback_reason = why
        for job in jobs:
            self._fit.submit(job)

    def _say_once(self, text: str, key: str | None = None) -> None:
        """Tells the user, unless a text of the same key was told before."""
        if (key := key or text) not in self._said:
            self._said.add(key)
            self._context.notes(text)


#: Steps towards families in a round, and in the first one, in which programs compile. A step takes
#: 0.05 to 0.3 s, and the round lasts at least as long.
STEPS, FIRST_STEPS = 3, 12


class TrialPrefetch:
    """Decides how many trials are asked for before packs train, and while they train."""

    def __init__(
        self,
        context: SearchContext,
        events: TrialEvents,
        launcher: TrialLauncher,
        peers: PeerWatcher,
        progress: ProgressReporter,
    ) -> None:
        self._asker, self._proposer = context.study.asker, context.study.proposer
        self._study_peers, self._watch = context.study.peers, context.study.watch
        self._arguments, self._packs, self._fit = context.arguments, context.packs, context.fit
        self._trials, self._timeout = context.trials, context.timeout
        self._pruned = context.pruner is not None
        # Whether one trial at a time is in memory. The members of a population wait for each other.
        population = isinstance(context.pruner, PopulationPruner)
        self._alone = context.guard.precautions.alone and not population
        self._failures, self._launcher, self._peers = events.failures, launcher, peers
        self._stop, self._progress = context.stop, progress
        self._may_begin: int | None = None  # trials that this round may begin; None: any number
        self._due: int | None = None  # trials to ask for in this round; None: as many as have room
        # Trials that were still to be asked for when a round was broken off: they are asked for
        # when it begins again.
        self.carried_over: int | None = None
        # Steps towards families that this round has still to make; see ``PackExecutor.work_ahead``.
        self.steps_due = 0
        self._training = False  # whether a round has begun and not ended
        # Whether no trial begins any more, since none would end an epoch before the time is over.
        self.closing = False

    def fill(self) -> None:
        """Between two rounds, asks for the trials that must be there before packs train."""
        packs = self._packs
        while (packs is None or packs.demand.hungry or not packs.busy) and self.ask():
            self._ask_of_structure()
            if self._stop.asked and self._failures.last_was_rejected:
                return  # many may be rejected before one is trained
        if packs is not None and packs.demand.uncompiled:
            self._ask_of_structure()

    def begin_round(self, packs: PackExecutor) -> None:
        """Works out how many trials to ask for while packs train."""
        demand = packs.demand
        demand.all_asked = self.all_asked()
        free = demand.one_program and self._asker.max_open is None and not self._pruned
        # A pruner or a callback may end a trial early, and its slot must be filled then.
        steady = not self._pruned and self._arguments.callbacks is None
        self._due = None if free or packs.streaming else demand.ahead(steady=steady)
        if self.carried_over is not None:
            self._due, self.carried_over = self.carried_over, None
        elif demand.begins and not packs.streaming:
            self._due, self.steps_due = demand.packs_at_once - 1, FIRST_STEPS
        else:
            self.steps_due = STEPS
        packs.lockstep = not free
        packs.judged = self._pruned or self._arguments.n_members > 1
        # Not looked at again until the round ends. Trials may end early, at a time that depends on
        # the device, but a resumed search must ask for the same trials in a round.
        self._may_begin = self._launcher.n_may_begin
        self._training = True

    def end_round(self) -> None:
        """Packs have trained for an epoch."""
        self._training = False

    def break_off(self) -> None:
        """Notes what this round has still to ask for: the round will begin again."""
        self.carried_over = self._due

    def ask_ahead(self, packs: PackExecutor) -> bool:
        """While packs train, asks for one more trial; returns False when the round has enough."""
        if self.steps_due:
            self.steps_due -= 1
            if packs.work_ahead():
                return True
            self.steps_due = 0
        if self._due is None:
            asked = packs.demand.room and self.ask()
            # A stream waits for more until it hears that no more come.
            packs.demand.all_asked |= packs.streaming and not asked and self.all_asked()
            return asked
        if self._due <= 0:  # asked again and again while a program is compiled
            return False
        self._due -= 1
        return self.ask()

    def ask(self) -> bool:
        """Asks for one trial, builds it and submits it; returns False when there is none."""
        self._peers.look(self._launcher.to_come)
        if self._may_begin is not None and self._study_peers.shared:
            # Other workers begin trials meanwhile; no search goes back to a round of its own then.
            self._may_begin = min(self._may_begin, self._launcher.n_may_begin or 0)
        if not self._may_ask():
            return False
        if self._may_begin is not None:
            self._may_begin -= 1
        if self._trials.trial_epochs == 0 and not (self._packs and self._packs.compiling):
            self._progress.show("building")
        if self._launcher.to_continue:
            self._launcher.continue_next()
            return True
        return self._launcher.ask()

    def all_asked(self) -> bool:
        """Whether this search will ask for no more trials."""
        # While packs train the time is ignored: a search that resumes from a checkpoint must ask
        # for the same trials in the same round.
        if self._failures.cause is not None or (not self._training and self._timeout.over):
            return True
        if self.closing:
            return True
        if (self._may_begin if self._training else self._launcher.n_may_begin) == 0:
            return True
        if self._launcher.to_continue or self._watch.n_waiting:
            return False
        if self._launcher.over or self._proposer.exhausted:
            return True
        return self._launcher.to_come == 0

    def _may_ask(self) -> bool:
        if self._study_peers.waits or self.all_asked():
            return False
        # Trials in ``fit`` are trained one by one: only a few may wait for their turn.
        if self._fit.waiting >= (self._packs.max_slots if self._packs and self._packs.busy else 1):
            return False
        if self._alone and self._trials.running:
            return False
        if self._launcher.to_continue:
            return True
        most = self._asker.max_open
        return most is None or len(self._trials.running) < most

    def _ask_of_structure(self) -> None:
        """Asks for the other trials that share the structure of the last one.

        A program is compiled for as many trials as wait for it, so all of them should be there.
        """
        size = self._arguments.n_members
        for _ in range(1, self._packs.max_slots // size if self._packs else 1):
            if not self._proposer.keeps_structure or not self.ask():
                break
