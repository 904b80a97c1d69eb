"""What other workers and programs do to the trials of a search.

Trials of workers that die are taken over; trials of this search that others have ended, end here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from paceline.errors import StorageError
from paceline.study.sharing.peers import PeerChanges
from paceline.study.trials.trial import Trial
from paceline.tuner.search.context import SearchContext
from paceline.tuner.search.events import TrialEvents


class TrialAdopter(Protocol):
    """What can train trials on that another worker has left: the launcher."""

    def adopt(self, number: int) -> int:
        """Begins such a trial; returns the epoch after which it continues."""
        ...


class PeerWatcher:
    """Sees what other workers of a study have done, and takes over trials of those that die."""

    #: Seconds between two looks.
    EVERY = 0.5
    #: The number of trials left from which on every ask looks first, so that workers do not begin
    #: more trials than the study lacks.
    LAST = 16

    def __init__(
        self,
        context: SearchContext,
        launcher: TrialAdopter,
        events: TrialEvents,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._context, self._launcher, self._sleep = context, launcher, sleep
        self._events, self._watch = events, context.study.watch
        self._study, self._peers = context.study, context.study.peers
        self._trials, self._pruner = context.trials, context.pruner
        self._next, self._waits = 0.0, False
        self._took = False  # whether trials were taken over since ``wait`` last returned False
        self._to_begin: list[int] = []  # unfinished trials that have got another number
        self.stopped_by: str | None = None  # the program that asked the search to stop, in words

    def look(self, n_left: int | None = None) -> None:
        """Takes in what others did, unless just done; the study lacks ``n_left`` trials."""
        self._take_numbers()
        self.hear()
        if not self._peers.shared:
            return
        now = time.monotonic()
        if now < self._next and (n_left is None or n_left > self.LAST):
            return
        self._next = now + self.EVERY
        self._act_on(self._study.sync_workers())

    def look_last(self) -> None:
        """At the end of a search, takes in how other programs have ended its last trials."""
        with suppress(StorageError):  # the study tells when it closes
            self._study.writer.flush()
            self._watch.look()
        self._take_numbers()
        self.hear()

    @property
    def paused(self) -> bool:
        """Whether another program has the study paused."""
        return self._watch.request == "pause"

    def rest(self) -> None:
        """Waits a moment, and looks what has changed."""
        self._sleep(0.1)
        self._next = 0.0
        self.look()

    def hear(self) -> None:
        """Takes in what other programs did: plain Optuna, a dashboard, `paceline stop`."""
        if self._watch.request == "stop":
            self._watch.request = None
            self.stopped_by = "stopped by `paceline stop`"
            self._context.stop.asked = True
        self._act_on(self._peers.hear())

    def _take_numbers(self) -> None:
        """Takes up the storage's numbers of trials that were begun while it did not answer."""
        moved = self._study.take_renumbered()
        for number, now in sorted(moved.items(), reverse=True):  # they only grow
            if self._trials.get(number) is not None:
                self._events.leave(number)
                if self._context.packs is not None:
                    self._context.packs.timeline.forget(self._context.members.jobs_of(number))
                if self._pruner is not None:
                    self._pruner.restart({number})
                self._to_begin.insert(0, now)
            else:
                self._context.models.best.renumber(number, now)
            self._context.notes(
                f"trial {number} is now trial {now}, because another program added trials while "
                "the storage did not respond"
            )
        # What is in a slot under that number is another trial, which was called so before.
        for now in [now for now in self._to_begin if not self._context.members.in_slot(now)]:
            self._to_begin.remove(now)
            self._launcher.adopt(now)

    def wait(self) -> bool:
        """With nothing to do, waits a moment for workers whose trials may have to be taken over.

        True if the search must continue: a moment was waited, or trials of a dead worker have just
        begun here. False if there is nothing to wait for: no trial runs elsewhere, or each worker
        with a trial has sent a heartbeat since.
        """
        peers, worker = self._peers, self._peers.worker
        if not peers.shared or worker is None:
            return False
        if not self._waits:
            self._waits = True
            worker.watch_peers()
        if not peers.waits and (not self._trials.n_theirs or worker.all_peers_alive()):
            self._waits = self._took = False
            self._next = 0.0
            self.look()  # takes over the trials of a worker that was found dead a moment ago
            return self._took
        self.rest()
        return True

    def _act_on(self, changes: PeerChanges | None) -> None:
        if changes is None:
            return
        for number in changes.lost:
            self._lose(number)
        for stored in changes.told:
            self._events.told(stored)
        if self._pruner is not None:
            for trial in changes.ended:
                self._pruner.learn_trial(trial, trial.by_epoch(self._context.objective.name))
        self._trials.share(self._study.trials, changes.n_theirs)
        for number in changes.adopted:
            epoch = self._launcher.adopt(number)
            self._context.notes(
                f"trial {number} continues a trial of a lost worker, "
                + (f"after epoch {epoch}" if epoch else "from its first epoch")
            )
        if changes.adopted:
            self._took = True
            if self._context.handoff is not None:
                self._context.handoff.forget()  # what was read is used up, and may be large

    def _lose(self, number: int) -> None:
        """Stops a trial that another worker has taken over."""
        if self._events.leave(number):
            self._context.notes(
                f"another worker has taken over trial {number}, because this process missed its "
                "heartbeats"
            )
        if self._pruner is not None:
            self._pruner.end_trial(Trial(number, "failed"))
