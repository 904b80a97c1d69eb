"""A search and the other workers of its study: what it hears of them, when it waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from paceline.study.pruners.pruners import Pruner
from paceline.study.study import Study
from paceline.study.trial import Trial
from paceline.study.workers.shared_study import PeerChanges
from paceline.tuner.checkpoint.best_models import BestModels
from paceline.tuner.running_trials import RunningTrials


class EndsJobs(Protocol):
    """What can end a trial's jobs."""

    def end(self, number: int) -> None:
        """A trial has ended."""
        ...


class PeerWatcher:
    """What a search does about the other workers of its study.

    Args:
        study: The study.
        roster: Who is under way here, and how many elsewhere.
        teams: Ends the jobs of trials that others have taken over.
        best: The best models of this search.
        pruner: Judges trials, or None.
        objective: The objective's name.
        adopt: Begins a trial that another worker left, by its number; returns after which epoch.
        adopted: Called when all that were left have begun.
        note: Told what users may want to know.
        pause: Waits so many seconds.
    """

    #: Seconds between looks, and so many trials before the last at every ask.
    EVERY, LAST = 0.5, 16

    def __init__(
        self,
        study: Study,
        roster: RunningTrials,
        teams: EndsJobs,
        best: BestModels,
        pruner: Pruner | None,
        objective: str,
        adopt: Callable[[int], int],
        note: Callable[[str], None],
        adopted: Callable[[], None] = lambda: None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._study, self._roster, self._teams = study, roster, teams
        self._peers = study.peers
        self._best, self._pruner, self._objective = best, pruner, objective
        self._adopt, self._note, self._pause = adopt, note, pause
        self._adopted = adopted
        self._next = 0.0
        self._waits = False
        self._took = False  # whether trials were taken over since one last asked

    def hear(self, n_left: int | None = None) -> None:
        """Take note of what others did, now and then.

        Args:
            n_left: Trials that the study still lacks: the last few are asked about each time.
        """
        if not self._peers.shared:
            return
        now = time.monotonic()
        if now < self._next and (n_left is None or n_left > self.LAST):
            return
        self._next = now + self.EVERY
        heard = self._study.sync_workers()
        if heard is not None:
            self._heed(heard)

    def wait(self) -> bool:
        """With nothing to do: wait for those whose trials might have to be taken over.

        Returns:
            Whether it has waited; False when nothing is to be waited for: no trial is under way
            elsewhere, or all who train have given a sign of life since there was nothing to do.
            True also where trials of one that is gone have just begun here.
        """
        if not self._peers.shared:
            return False
        if not self._waits:
            self._waits = True
            self._peers.watch_peers()
        peers = self._peers
        if not peers.waits and (not self._roster.n_theirs or peers.all_peers_alive()):
            self._waits = self._took = False
            self._next = 0.0
            self.hear()  # one that was found dead a moment ago is waited for no more
            return self._took
        self._pause(0.1)
        self._next = 0.0
        self.hear()
        return True

    def _heed(self, heard: PeerChanges) -> None:
        for number in heard.lost:
            self._lose(number)
        if self._pruner is not None:
            for trial in heard.ended:
                self._pruner.learn_trial(trial, trial.history.get(self._objective, []))
        self._roster.share(self._study.trials, heard.n_theirs)
        for number in heard.adopted:
            epoch = self._adopt(number)
            self._note(
                f"trial {number} goes on in place of one whose worker is gone, "
                + (f"after epoch {epoch}" if epoch else "from its first epoch")
            )
        if heard.adopted:
            self._took = True
            self._adopted()

    def _lose(self, number: int) -> None:
        if self._roster.forget(number):
            self._teams.end(number)
            self._note(
                f"trial {number} is others' now: this search gave no sign of life for too long"
            )
        self._best.forget(number)
        if self._pruner is not None:
            self._pruner.end_trial(Trial(number, "failed"))
