"""The checkpoint of a search: what is in it, when it is taken, and a search that continues from it.

Trials that have ended after the checkpoint are taken back and repeated. The search decides again
from the same state, and a trial's numbers depend only on its hparams and seed. So a killed search
ends as it would have ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from paceline.errors import StorageError
from paceline.executor.state.facts import FitFacts, PackFacts
from paceline.executor.training.memory import host_bytes
from paceline.study.storage.schema import Count
from paceline.tuner.checkpoint.best_models import BestFacts
from paceline.tuner.checkpoint.files import SavePolicy, Snapshot
from paceline.tuner.checkpoint.trial_variables import HandedOverTrial, HandedOverTrials
from paceline.tuner.search.context import SearchContext
from paceline.tuner.search.launcher import TrialLauncher, TrialPrefetch
from paceline.tuner.search.progress import ProgressReporter
from paceline.tuner.search.running_trials import FailureLimit, UnfinishedTrial

#: The share of the host's free memory that a snapshot may take.
_SHARE = 0.5


class SearchFacts(Struct, kw_only=True):
    """A search between two rounds."""

    study: dict[str, Any]  # see ``Study.state``
    packs: PackFacts | None  # None if nothing is packed
    fit: FitFacts | None  # None if nothing trains in ``fit``
    trials: dict[Count, UnfinishedTrial]  # that run or are paused
    trial_epochs: Count
    n_begun: Count
    n_extra: Count
    best: BestFacts
    pruner: Any
    succeeded: Count  # trials that were complete or pruned
    # ``n_trials`` as the call has it, and the number that it stands for.
    limit: tuple[Count | str | None, Count | None]
    carried_over: Count | None  # trials that the round has still to ask for
    steps_due: Count  # steps towards families that it has still to make
    continued: list[Count] | None  # see ``SearchCheckpointer.continue_trials``
    to_continue: list[Count]


class SearchCheckpointer:
    """Saves one search between its rounds, and restores it when it continues."""

    def __init__(
        self,
        context: SearchContext,
        failures: FailureLimit,
        launcher: TrialLauncher,
        prefetch: TrialPrefetch,
        progress: ProgressReporter,
    ) -> None:
        self._policy, self._arguments = context.policy, context.arguments
        self._study, self._trials, self._members = context.study, context.trials, context.members
        self._packs, self._fit, self._pruner = context.packs, context.fit, context.pruner
        self._best, self._last_variables = context.models.best, context.models.last_variables
        self._failures, self._launcher, self._notes = failures, launcher, context.notes
        self._prefetch, self._progress = prefetch, progress
        self._shared = False  # whether the study had other workers when it was last looked at
        self._said = False  # that variables do not fit into memory
        # How ``continue_best`` asked for trials to be trained longer, as in ``continue_trials``.
        self._continued: list[int] | None = None

    def continue_trials(self, numbers: Sequence[int], asked: list[int]) -> None:
        """Trains complete trials longer, before new trials are asked for.

        ``asked`` is ``continue_best`` and epochs: a search that continues with the same two does
        not add to the trials of its checkpoint.
        """
        self._continued = asked
        self._launcher.to_continue.extend(numbers)
        self._last_variables.awaited.update(numbers)

    def save_if_due(self) -> None:
        """Saves the search between two rounds, where that is due."""
        if self._policy is not None and self._study.peers.shared and not self._shared:
            self._shared = True
            # The checkpoint of a search alone is of no use to a worker that takes trials over.
            self._policy.hasten()
        self.save_fit_if_due()

    def save_fit_if_due(self) -> None:
        """Saves the search between two epochs of ``fit``, where that is due."""
        if self._policy is not None and self._policy.due:
            self.save()

    def save(self) -> None:
        """Saves the search as it is, once the storage has all trials that have ended."""
        if self._policy is None or not self._study.writer.check_storage():
            return
        with self._policy.timed():
            if self._study.peers.shared:
                self._save_trials(self._policy)
            else:
                self._save_search(self._policy)

    def resume(self, snapshot: Snapshot[SearchFacts]) -> None:
        """Puts the trials of a checkpoint back to where they were, and continues with them."""
        facts = snapshot.facts
        self._failures.succeeded = facts.succeeded
        self._prefetch.carried_over = facts.carried_over
        self._prefetch.steps_due = facts.steps_due
        if self._continued is None or self._continued == facts.continued:  # the same call as before
            self._continued = facts.continued
            self._launcher.to_continue.clear()
        self._last_variables.awaited.update(facts.to_continue)
        self._launcher.to_continue.extendleft(
            number
            for number in reversed(facts.to_continue)
            if number not in self._launcher.to_continue
        )
        self._restore_trials(facts, snapshot.arrays)
        self._progress.resumed()

    def forget_enqueued(self) -> None:
        """Removes enqueued values that are an error from the checkpoint: they would be repeated."""
        if self._policy is not None:
            self._policy.forget_enqueued(self._study.proposer.enqueued.refused)

    @property
    def seconds(self) -> float:
        """Seconds that the search has waited for its checkpoints."""
        return 0.0 if self._policy is None else self._policy.seconds

    def _save_trials(self, policy: SavePolicy) -> None:
        """Saves each running trial by itself.

        Other workers change the study, so that the search cannot go back to a checkpoint.
        """
        with contextlib.suppress(StorageError):  # the study has told the user
            self._study.writer.flush()  # a trial that has ended need not be kept
            trials = self._capture_trials()
            if trials:
                policy.save(Snapshot(HandedOverTrials(trials)))
            else:
                policy.clear()

    def _save_search(self, policy: SavePolicy) -> None:
        with contextlib.suppress(OSError):  # ``TrainedModels.save`` tells the user
            self._last_variables.save()
        with contextlib.suppress(StorageError):  # the study tells the user; the one before stays
            policy.save(self._capture())

    def _capture(self) -> Snapshot[SearchFacts]:
        """The search as it is."""
        arrays: dict[str, np.ndarray] = {}
        shared_files: dict[str, dict[str, np.ndarray]] = {}
        under_way = {**self._trials.running, **self._trials.paused}
        packs, packed = self._packs, None
        large = packs is not None and packs.state_bytes > _SHARE * host_bytes()
        if large and not self._said:
            self._said = True
            self._notes(
                "checkpoints omit the variables of trials, which do not fit into the host's "
                "memory. Unfinished trials would restart after a stop"
            )
        if packs is not None:
            packed = packs.programs_snapshot() if large else packs.snapshot(arrays, shared_files)
        # In fit the members of a trial wait for one another, so none of them can continue by
        # itself.
        fitted = self._fit.snapshot(arrays, under_way if self._members.size == 1 else ())
        # Trials whose variables are not in the snapshot: they would begin again.
        afresh = {number for number, was in under_way.items() if was.fallback_reason or large}
        if fitted is not None:
            afresh.discard(fitted.job)
        facts = SearchFacts(
            study=self._study.state(afresh),
            packs=packed,
            fit=fitted,
            trials={
                number: UnfinishedTrial(was.epochs) if number in afresh else was
                for number, was in under_way.items()
            },
            trial_epochs=self._trials.trial_epochs,
            n_begun=self._trials.n_begun,
            n_extra=self._trials.n_extra,
            best=self._best.snapshot(afresh),
            pruner=None if self._pruner is None else self._pruner.state(),
            succeeded=self._failures.succeeded,
            limit=(self._arguments.wanted, self._arguments.n_trials),
            carried_over=self._prefetch.carried_over,
            steps_due=self._prefetch.steps_due,
            continued=self._continued,
            to_continue=list(self._launcher.to_continue),
        )
        return Snapshot(facts, arrays, shared_files)

    def _capture_trials(self) -> list[HandedOverTrial]:
        """The running trials one by one, for a worker that takes them over; none if none could.

        What a pruner has seen of a trial, and which members wait for which, only this search knows.
        """
        packs = self._packs
        if packs is None or self._pruner is not None or self._members.size > 1:
            return []
        if packs.state_bytes > _SHARE * host_bytes():
            return []
        trials = []
        for number, (epoch, state) in packs.states().items():
            running = self._trials.running.get(number)
            if running is not None and running.epoch == epoch:
                trial = self._study.trials.by_number(number)
                best = self._best.held(number)
                trials.append(HandedOverTrial.of(trial, epoch, running.seconds, state, best))
        return trials

    def _restore_trials(self, facts: SearchFacts, arrays: dict[str, np.ndarray]) -> None:
        """Restores running and paused trials."""
        under_way, running = sorted(facts.trials.items()), self._trials.running
        running.update(under_way)
        self._best.restore(facts.best)
        if facts.fit is not None:
            self._fit.restore(facts.fit, arrays)
        for number in self._restore_packs(facts, arrays):
            running[number] = UnfinishedTrial(facts.trials[number].epochs)
            self._study.updates.restart(number)
            self._best.forget(number)
        if self._pruner is not None:
            self._pruner.load_state(facts.pruner)
            self._pruner.restart({number for number, was in running.items() if was.epoch == 0})
            for number, _ in under_way:
                if number not in running:  # its build failed this time
                    self._pruner.end_trial(self._study.trials.by_number(number))
        for number in list(running):
            if self._study.trials.by_number(number).state == "paused":
                self._trials.pause(number)
                self._study.proposer.sampled.pause(number, paused=True)
        # They may be large, and what is needed of them is held elsewhere by now.
        arrays.clear()
        facts.best, facts.trials = BestFacts(), {}
        self._trials.trial_epochs, self._trials.n_begun = facts.trial_epochs, facts.n_begun
        if facts.n_extra > len(self._study.trials):
            raise ValueError(f"n_extra is {facts.n_extra}, but there are fewer trials")
        self._trials.n_extra = facts.n_extra

    def _restore_packs(self, facts: SearchFacts, arrays: dict[str, np.ndarray]) -> list[int]:
        """Submits trials and puts them into their slots; returns those that must begin again."""
        packs, launcher, numbers = self._packs, self._launcher, sorted(facts.trials)
        if packs is None or facts.packs is None:
            for number in numbers:
                launcher.resubmit(number)
            return []
        with packs.resubmitting(facts.packs, launcher.example):
            for number in numbers:
                launcher.resubmit(number)
        for was in facts.trials.values():
            # Members that had trained all their epochs, while others of their trial had not.
            for job in () if was.members is None else was.members.ended:
                packs.drop(job)
        jobs = packs.restore(facts.packs, arrays, launcher.example)
        trials = dict.fromkeys(map(self._members.trial_of, jobs))
        lost = [number for number in trials if number in self._trials.running]
        for number in lost if self._members.size > 1 else ():
            for job in self._members.jobs_of(number):  # members that are not lost as well
                packs.withdraw(job)
            launcher.resubmit(number)
        if lost:
            self._notes(
                f"{len(lost)} unfinished trials restart: the step of their model has changed "
                "since the search stopped (its code or a library)"
            )
        # A second build may have failed where the first one did not.
        return [number for number in lost if number in self._trials.running]
