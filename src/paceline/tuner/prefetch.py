"""New trials for a search: whether one may be asked for, and how many are got ready in a round."""

from __future__ import annotations

from collections.abc import Callable

from paceline.executor.fit import FitExecutor
from paceline.executor.local import LocalExecutor
from paceline.study.study import Study
from paceline.tuner.arguments import SearchArguments
from paceline.tuner.launcher import TrialLauncher
from paceline.tuner.peers import PeerWatcher
from paceline.tuner.progress import ProgressReporter
from paceline.tuner.running_trials import RunningTrials
from paceline.tuner.trial_end import FailureLimit


class TrialPrefetch:
    """Asks for the trials of one search.

    Args:
        study: Decides what is tried.
        arguments: Of the search.
        packs: Where trials train; None when none can be packed.
        fit: Where the others do.
        roster: Who is under way.
        starter: Begins trials.
        failures: Counts those that fail.
        others: The study's other workers.
        outlook: Told what the search does meanwhile.
        pruned: Whether trials are judged.
        timed_out: Whether time is up.

    Attributes:
        owed: Trials left over when a round was broken off; None where none was.
        training: Within a round's training.
    """

    def __init__(
        self,
        *,
        study: Study,
        arguments: SearchArguments,
        packs: LocalExecutor | None,
        fit: FitExecutor,
        roster: RunningTrials,
        starter: TrialLauncher,
        failures: FailureLimit,
        others: PeerWatcher,
        outlook: ProgressReporter,
        pruned: bool,
        timed_out: Callable[[], bool],
    ) -> None:
        self._asker, self._proposer, self._peers = study.asker, study.proposer, study.peers
        self._arguments, self._packs, self._fit = arguments, packs, fit
        self._roster, self._starter, self._failures = roster, starter, failures
        self._others, self._outlook = others, outlook
        self._pruned, self._timed_out = pruned, timed_out
        self._due: int | None = None  # trials to get ready in this round; None: as many as can be
        self.owed: int | None = None
        self.training = False

    def fill(self) -> None:
        """Between two rounds: asks for as many trials as are to be there when packs train."""
        packs = self._packs
        while (packs is None or packs.demand.hungry or not packs.busy) and self.ask():
            self._finish_family()
        if packs is not None and packs.demand.uncompiled:
            self._finish_family()

    def begin_round(self, packs: LocalExecutor) -> None:
        """Works out how many trials are got ready while packs train."""
        demand = packs.demand
        demand.all_asked = self.all_asked()
        free = demand.one_program and self._asker.max_open is None and not self._pruned
        # Trials may leave early where there is somebody to stop them.
        steady = not self._pruned and self._arguments.callbacks is None
        self._due = None if free else demand.ahead(steady=steady)
        if self.owed is not None:
            self._due, self.owed = self.owed, None
        packs.lockstep = not free

    def break_off(self) -> None:
        """The round that has begun comes again, with what was still to be got ready in it."""
        self.owed = self._due

    def one_more(self, packs: LocalExecutor) -> bool:
        """While packs train: gets one more trial ready; False when there is none to."""
        if self._due is None:
            return packs.demand.room and self.ask()
        self._due -= 1
        return self._due >= 0 and self.ask()

    def ask(self) -> bool:
        """Asks for one trial, builds it and hands it to an executor; False when there is none."""
        limit = self._arguments.n_trials
        self._others.hear(None if limit is None else limit - self._roster.n_counted)
        if not self._may_ask():
            return False
        if self._roster.trial_epochs == 0 and not (self._packs and self._packs.compiling):
            self._outlook.show("building")
        if self._starter.to_go_on:
            self._starter.go_on()
            return True
        return self._starter.ask()

    def all_asked(self) -> bool:
        """Whether no trial will be asked for any more."""
        # What a round asks for beside its training is the same however late it is.
        if self._failures.cause is not None or (not self.training and self._timed_out()):
            return True
        if self._starter.to_go_on:
            return False
        if self._starter.over or self._proposer.exhausted:
            return True
        return self._starter.to_come == 0

    def _may_ask(self) -> bool:
        if self._peers.waits or self.all_asked():
            return False
        # Those for fit are trained one by one: no more of them than may wait.
        if self._fit.waiting >= (self._packs.max_slots if self._packs and self._packs.busy else 1):
            return False
        if self._starter.to_go_on:
            return True
        most = self._asker.max_open
        return most is None or len(self._roster.running) < most

    def _finish_family(self) -> None:
        """Asks for those that go on with the last trial's structure.

        Their program is compiled for as many as there are: it is not when some are still to come.
        """
        size = self._arguments.n_members
        for _ in range(1, self._packs.max_slots // size if self._packs else 1):
            if not self._proposer.in_family or not self.ask():
                break
