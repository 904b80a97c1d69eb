"""The checkpoint of a search: what is in it, when it is taken, and a search that goes on from it.

Trials that have ended after the checkpoint are taken back and come again. The search decides anew
from the same state, and a trial's numbers depend on its hparams and seed alone, so a search that
was killed ends as it would have ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paceline.errors import StorageError
from paceline.executor.memory import host_bytes
from paceline.executor.protocol import PackExecutor
from paceline.tuner.checkpoint.files import SavePolicy, Snapshot
from paceline.tuner.checkpoint.trial_variables import HandedOverTrial, capture_trials
from paceline.tuner.context import SearchContext
from paceline.tuner.launcher import TrialLauncher, TrialPrefetch
from paceline.tuner.progress import ProgressReporter
from paceline.tuner.running_trials import FailureLimit, RunningTrial

#: The share of the host's free memory that a snapshot may take.
_SHARE = 0.5


class SearchState:
    """Takes snapshots of one search between two rounds, and restores it from them."""

    def __init__(self, context: SearchContext) -> None:
        self._study, self._trials, self._members = context.study, context.trials, context.members
        self._packs, self._fit, self._best = context.packs, context.fit, context.models.best
        self._pruner, self._notes = context.pruner, context.notes
        self._said = False

    def capture(self) -> Snapshot:
        """The search as it is."""
        arrays: dict[str, np.ndarray] = {}
        shared_files: dict[str, dict[str, np.ndarray]] = {}
        under_way = {**self._trials.running, **self._trials.paused}
        packs, packed = self._packs, None
        large = packs is not None and packs.state_bytes > _SHARE * host_bytes()
        if large and not self._said:
            self._said = True
            self._notes(
                "checkpoints do not hold the variables of trials, which would not fit into the "
                "host's memory: trials under way would begin again"
            )
        if packs is not None:
            packed = packs.programs_snapshot() if large else packs.snapshot(arrays, shared_files)
        # In fit the members of a trial wait for one another, so none of them can go on by itself.
        fitted = self._fit.snapshot(arrays, under_way if self._members.size == 1 else ())
        # Trials whose variables are not in the snapshot: they would begin again.
        afresh = {number for number, was in under_way.items() if was.not_packed or large}
        if fitted is not None:
            afresh.discard(fitted["job"])
        facts: dict[str, Any] = {
            "study": self._study.state(afresh),
            "packs": packed,
            "fit": fitted,
            "teams": self._members.snapshot(sorted({*under_way} - afresh), arrays),
            "trials": {
                str(number): dataclasses.asdict(RunningTrial(r.epochs) if number in afresh else r)
                for number, r in under_way.items()
            },
            "trial_epochs": self._trials.trial_epochs,
            "n_begun": self._trials.n_begun,
            "n_extra": self._trials.n_extra,
            "best": self._best.snapshot(arrays, afresh),
            "pruner": None if self._pruner is None else self._pruner.state(),
        }
        return Snapshot(facts, arrays, shared_files)

    def capture_trials(self) -> Snapshot | None:
        """The running trials one by one, for a worker that takes them over; None if none could.

        What a pruner has seen of a trial, and which members wait for which, only this search knows.
        """
        packs = self._packs
        if packs is None or self._pruner is not None or self._members.size > 1:
            return None
        if packs.state_bytes > _SHARE * host_bytes():
            return None
        trials = []
        for number, (epoch, state) in packs.states().items():
            running = self._trials.running.get(number)
            if running is not None and running.epoch == epoch:
                trial = self._study.trials.by_number(number)
                history = {name: list(column) for name, column in trial.history.items()}
                left = HandedOverTrial(
                    epoch, running.seconds, history, state.lists(), self._best.held(number)
                )
                trials.append((trial, left))
        return capture_trials(trials) if trials else None

    def restore(self, snapshot: Snapshot, launcher: TrialLauncher) -> None:
        """Restores running and paused trials; the study was opened with the snapshot's facts."""
        facts, arrays = snapshot.facts, snapshot.arrays
        under_way = {int(number): RunningTrial(**was) for number, was in facts["trials"].items()}
        for number, was in sorted(under_way.items()):
            self._trials.running[number] = was
            self._members.begin(number, was.epochs)
        self._best.restore(facts["best"], arrays)
        if facts["fit"] is not None:
            self._fit.restore(facts["fit"], arrays)
        lost = self._restore_packs(facts, arrays, sorted(under_way), launcher)
        for number in lost:
            self._trials.running[number] = RunningTrial(under_way[number].epochs)
            self._study.updates.restart(number)
            self._best.drop(number)
        members = facts["teams"]
        running = {str(number) for number in self._trials.running if number not in lost}
        self._members.restore({n: was for n, was in members.items() if n in running}, arrays)
        if self._pruner is not None:
            self._pruner.load_state(facts["pruner"])
            running_now = self._trials.running
            self._pruner.restart({n for n, was in running_now.items() if was.epoch == 0})
            for number in under_way:
                if number not in running_now:  # its build failed this time
                    self._pruner.end_trial(self._study.trials.by_number(number))
        for number in sorted(under_way):
            # The build of a trial may have failed this time.
            if (
                number in self._trials.running
                and self._study.trials.by_number(number).state == "paused"
            ):
                self._trials.pause(number)
        arrays.clear()  # they may be large, and what is needed of them is held elsewhere by now
        self._trials.trial_epochs, self._trials.n_begun = facts["trial_epochs"], facts["n_begun"]
        self._trials.n_extra = facts["n_extra"]

    def _restore_packs(
        self,
        snapshot: Mapping[str, Any],
        arrays: dict[str, np.ndarray],
        numbers: list[int],
        launcher: TrialLauncher,
    ) -> list[int]:
        """Submits trials and puts them into their slots; returns those that must begin again."""
        packs, facts = self._packs, snapshot["packs"]
        if packs is None or facts is None:
            for number in numbers:
                launcher.resubmit(number)
            return []
        with packs.resubmitting(facts, launcher.example):
            for number in numbers:
                launcher.resubmit(number)
        self._drop_ended(packs, facts, snapshot["teams"])
        jobs = packs.restore(facts, arrays, launcher.example)
        trials = dict.fromkeys(map(self._members.trial_of, jobs))
        lost = [number for number in trials if number in self._trials.running]
        for number in lost if self._members.size > 1 else ():
            for job in self._members.jobs_of(number):  # members that are not lost as well
                packs.withdraw(job)
            launcher.resubmit(number)
        if lost:
            self._notes(
                f"{len(lost)} trials under way begin again: the step of their model is not what it "
                "was when the search stopped (its code or a library has changed)"
            )
        return lost

    def _drop_ended(
        self, packs: PackExecutor, facts: Mapping[str, Any], members: Mapping[str, Any]
    ) -> None:
        """Drops members that had trained all their epochs, while others of their trial had not."""
        there = {int(job) for group in facts["groups"] for job in group["epochs"]}
        for number in map(int, members):
            for job in self._members.jobs_of(number):
                if job not in there:
                    packs.drop(job)


class SearchCheckpointer:
    """Saves one search between its rounds, and restores it when it goes on."""

    def __init__(
        self,
        context: SearchContext,
        failures: FailureLimit,
        launcher: TrialLauncher,
        prefetch: TrialPrefetch,
        progress: ProgressReporter,
    ) -> None:
        self._policy, self._study, self._arguments = (
            context.policy,
            context.study,
            context.arguments,
        )
        self._last_variables = context.models.last_variables
        self._state, self._failures = SearchState(context), failures
        self._launcher, self._prefetch, self._progress = launcher, prefetch, progress
        self._shared = False  # whether the study had other workers when it was last looked at
        # How ``continue_best`` asked for trials to be trained longer, as in ``continue_trials``.
        self._continued: list[int] | None = None

    def continue_trials(self, numbers: Sequence[int], asked: list[int]) -> None:
        """Trains complete trials longer, before new trials are asked for.

        ``asked`` is ``continue_best`` and epochs: a search that goes on with the same two does not
        add to the trials of its checkpoint.
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

    def resume(self, snapshot: Snapshot) -> None:
        """Puts the trials of a checkpoint back to where they were, and goes on with them."""
        self._failures.resume(snapshot.facts["succeeded"])
        self._prefetch.carried_over = snapshot.facts["owed"]
        asked, numbers = snapshot.facts["go_on"]
        if self._continued is None or self._continued == asked:  # the same call as before
            self._continued = asked
            self._launcher.to_continue.clear()
        self._last_variables.awaited.update(numbers)
        self._launcher.to_continue.extendleft(
            number for number in reversed(numbers) if number not in self._launcher.to_continue
        )
        self._state.restore(snapshot, self._launcher)
        self._progress.resumed()

    def forget_enqueued(self) -> None:
        """Removes enqueued values that are an error from the checkpoint: they would come again."""
        if self._policy is not None:
            self._policy.forget_enqueued(self._study.proposer.enqueued.refused)

    @property
    def seconds(self) -> float:
        """Seconds that the search has waited for its checkpoints."""
        return 0.0 if self._policy is None else self._policy.seconds

    def _save_trials(self, policy: SavePolicy) -> None:
        """Saves each running trial by itself.

        Other workers change the study meanwhile, so the search cannot go back to a checkpoint, but
        a trial can.
        """
        with contextlib.suppress(StorageError):  # the study has told the user
            self._study.writer.flush()  # a trial that has ended need not be kept
            trials = self._state.capture_trials()
            if trials is None:
                policy.clear()
            else:
                policy.save(trials)

    def _save_search(self, policy: SavePolicy) -> None:
        with contextlib.suppress(OSError):  # ``TrainedModels.save`` tells the user
            self._last_variables.save()
        try:
            snapshot = self._state.capture()
        except StorageError:  # the study has told the user; the checkpoint before stays
            return
        snapshot.facts["succeeded"] = self._failures.succeeded
        snapshot.facts["limit"] = [self._arguments.wanted, self._arguments.n_trials]
        snapshot.facts["owed"] = self._prefetch.carried_over
        snapshot.facts["go_on"] = [self._continued, list(self._launcher.to_continue)]
        policy.save(snapshot)
