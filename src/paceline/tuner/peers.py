"""A search and the other workers of its study: whose trials it takes over, when it waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from paceline.study.trial import Trial
from paceline.study.workers.shared_study import PeerChanges
from paceline.tuner.context import SearchContext


class AdoptsTrials(Protocol):
    """What can train trials on that another worker has left: the launcher."""

    def adopt(self, number: int) -> int:
        """Begins such a trial; returns the epoch after which it goes on."""
        ...


class PeerWatcher:
    """Looks what the other workers of a study have done, and takes their trials over when they die.

    Args:
        context: The search.
        launcher: Begins trials that are taken over.
        sleep: Waits so many seconds.
    """

    #: Seconds between two looks.
    EVERY = 0.5
    #: The number of trials left from which on every ask looks first, so that workers do not begin
    #: more trials than the study lacks.
    LAST = 16

    def __init__(
        self,
        context: SearchContext,
        launcher: AdoptsTrials,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._context, self._launcher, self._sleep = context, launcher, sleep
        self._study, self._peers = context.study, context.study.peers
        self._trials, self._pruner = context.trials, context.pruner
        self._next = 0.0
        self._waits = False
        self._took = False  # whether trials were taken over since ``wait`` last returned False

    def look(self, n_left: int | None = None) -> None:
        """Takes in what the other workers did, unless that was done less than ``EVERY`` ago.

        Args:
            n_left: Trials that the study still lacks; None where there is no total.
        """
        if not self._peers.shared:
            return
        now = time.monotonic()
        if now < self._next and (n_left is None or n_left > self.LAST):
            return
        self._next = now + self.EVERY
        changes = self._study.sync_workers()
        if changes is not None:
            self._apply(changes)

    def wait(self) -> bool:
        """With nothing to do, waits a moment for workers whose trials may have to be taken over.

        Returns:
            Whether the search must go on: a moment was waited, or trials of a dead worker have
            just begun here. False when there is nothing to wait for: no trial runs elsewhere, or
            every worker with a trial has given a sign of life since this search had nothing to do.
        """
        if not self._peers.shared:
            return False
        if not self._waits:
            self._waits = True
            self._peers.watch_peers()
        peers = self._peers
        if not peers.waits and (not self._trials.n_theirs or peers.all_peers_alive()):
            self._waits = self._took = False
            self._next = 0.0
            self.look()  # takes over the trials of a worker that was found dead a moment ago
            return self._took
        self._sleep(0.1)
        self._next = 0.0
        self.look()
        return True

    def _apply(self, changes: PeerChanges) -> None:
        for number in changes.lost:
            self._lose(number)
        if self._pruner is not None:
            for trial in changes.ended:
                history = trial.history.get(self._context.objective.name, [])
                self._pruner.learn_trial(trial, history)
        self._trials.share(self._study.trials, changes.n_theirs)
        for number in changes.adopted:
            epoch = self._launcher.adopt(number)
            self._context.notes(
                f"trial {number} goes on in place of one whose worker is gone, "
                + (f"after epoch {epoch}" if epoch else "from its first epoch")
            )
        if changes.adopted:
            self._took = True
            if self._context.handoff is not None:
                self._context.handoff.forget()  # what was read is used up, and may be large

    def _lose(self, number: int) -> None:
        """Stops a trial that another worker has taken over."""
        if self._trials.forget(number):
            self._context.members.end(number)
            self._context.notes(
                f"trial {number} is others' now: this search gave no sign of life for too long"
            )
        self._context.models.best.forget(number)
        if self._pruner is not None:
            self._pruner.end_trial(Trial(number, "failed"))
