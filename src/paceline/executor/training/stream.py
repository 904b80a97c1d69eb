"""Threads in which packs train, and a stream of packs, which keeps them busy.

If no trial can end before its last epoch, and no value depends on a result, packs never wait for
each other. A pack is formed as soon as there are enough trials of a program, and trains to its end.
A thread trains its next epoch, or the next pack, while the search's thread builds, traces and
records (docs/decisions/0048). Other searches train in rounds (``executor/training/rounds.py``).

The threads are daemons, unlike those of a ``ThreadPoolExecutor``: a process must be able to end
while a thread waits for a hanging step.
"""

from __future__ import annotations

import math
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.executor.base import EpochLimit, Failed, PackTimeout, Report
from paceline.executor.sharing.grouping import LocalGroup, TrialGrouper
from paceline.executor.training.planner import Planner
from paceline.executor.training.reporting import (
    EpochReporter,
    ExecutorTimings,
    PackEpoch,
    SlotTimeline,
    WaitingEpoch,
)
from paceline.executor.training.slots import FURTHER, SlotAllocator, TrialDemand
from paceline.pack.pack import Pack, SlotTrial
from paceline.program import jax_compat

#: Seconds between looks at the device when there is nothing else to do.
PAUSE = 0.02
#: Seconds after which the packs stop between two epochs, so that the search can save itself.
_SLICE = 1.0
#: Seconds after which Python gives its lock to a thread that waits for it; 0.005 by default.
_SWITCH = 0.0005
#: Bytes of weights that a pack may hold of epochs that the search has not yet seen.
_HELD = 1 << 26

_Task = tuple[Future[Any], Callable[[], Any]]


class PackThreads:
    """``n`` threads, which call functions in the order in which the functions were submitted.

    A thread starts when there is something for it to do. Raises UsageError if JAX has other
    settings in other threads than in this one.
    """

    def __init__(self, n: int) -> None:
        jax_compat.check_threads()
        self._n = n
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Has a function called; the future holds what the function returned or raised."""
        future: Future[Any] = Future()
        self._tasks.put((future, function))
        if len(self._threads) < self._n:
            name = f"paceline-pack-thread-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()
        return future

    def close(self, patience: float) -> None:
        """Ends each thread after its present function; waits ``patience`` seconds at most."""
        for _ in self._threads:
            self._tasks.put(None)
        until = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, function = task
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
            # Otherwise these names would keep an epoch's arrays alive until the next epoch begins.
            del task, future, function


def check_hung(packs: Iterable[Pack], limit: float) -> None:
    """Raises PackTimeout if packs have trained an epoch for longer than ``limit`` seconds."""
    now = time.perf_counter()
    # A pack that waits for a free thread has not begun, and its time does not count.
    hung = [pack for pack in packs if pack.began is not None and now - pack.began > limit]
    if hung:
        raise PackTimeout([{trial.number: trial.epoch for trial in pack.live} for pack in hung])


@dataclass(eq=False)
class _PackRun:
    """Some epochs of a pack, one after another, in a thread."""

    group: LocalGroup
    pack: Pack
    behind: bool  # whether it waits for a thread, and need not begin where time is up
    beside: list[LocalGroup]  # groups of other packs that are in memory meanwhile
    future: Future[None] = field(default_factory=Future)  # done when the pack has stopped
    epochs: deque[WaitingEpoch] = field(default_factory=deque)  # that wait to be reported
    began: bool = False  # whether a thread has taken it up
    leaving: set[int] = field(default_factory=set)  # numbers of the trials whose training is over
    stops: bool = False  # whether it stops after this epoch, for the slots of those that leave


@dataclass(eq=False, repr=False)
class PackTrainer:
    """What packs are trained with, in a stream or in rounds."""

    grouper: TrialGrouper[LocalGroup]
    planner: Planner
    slots: SlotAllocator
    threads: PackThreads
    reporter: EpochReporter
    demand: TrialDemand
    timings: ExecutorTimings  # is told what was trained, as is ``timeline``
    timeline: SlotTimeline
    limit: EpochLimit


@dataclass(eq=False, repr=False)
class PackStream(PackTrainer):
    """Forms packs as trials come, and trains each to its end."""

    _runs: list[_PackRun] = field(init=False, default_factory=list)
    # Programs whose packs fit into the memory, by id: whether twice as many do, too.
    _fitting: dict[int, bool] = field(init=False, default_factory=dict)
    _stop: threading.Event = field(init=False, default_factory=threading.Event)
    _news: threading.Event = field(init=False, default_factory=threading.Event)
    # Whether the search's thread does something else now.
    _search_works: bool = field(init=False, default=False)
    _seconds: float = field(init=False, default=math.inf)  # of the shortest epoch
    _until: float = field(init=False, default=0.0)  # when packs stop, by ``time.perf_counter``
    # Once ``over``, no pack is formed any more; those that are there train to their end.
    over: bool = field(init=False, default=False)
    _leaves: bool = field(init=False, default=False)
    # Whether a pack waits until trials of other groups have left the memory.
    _lacks_memory: bool = field(init=False, default=False)

    # -- forming packs -----------------------------------------------------------------------------

    @property
    def _packs(self) -> list[tuple[LocalGroup, Pack]]:
        """The packs that have trials, in the order in which they were formed."""
        found = [(g, pack) for g in self.grouper.groups for pack in g.packs if pack.live]
        return sorted(found, key=lambda pair: pair[1].live[0].number)

    @property
    def state(self) -> Literal["on", "over"] | None:
        """For a checkpoint: "on" or "over"; None if rounds continue."""
        if self._leaves:
            return None
        return "over" if self.over else "on"

    def ended(self) -> bool:
        """Whether what is left is to be trained in rounds; no pack trains then."""
        if self._runs:
            return False
        if self._leaves:
            for group in self.grouper.groups:
                self.slots.empty_packs(group, begun=False)
        return self._leaves or (self.over and not self._packs)

    def _end(self) -> None:
        """Ends the stream. With several programs it is over when its packs have ended.

        When the first trial is trained in a round, which trials have been taken in must not depend
        on the clock. With one program nothing does.
        """
        if self.demand.one_program:
            self._leaves = True
        else:
            self.over = True

    @property
    def hungry(self) -> bool:
        """Whether nothing can train until more trials are there."""
        self.form()
        return not self._is_ending and not self._packs

    @property
    def _is_ending(self) -> bool:
        return self.over or self._leaves

    @property
    def room(self) -> bool:
        """Whether one more trial is worth building now."""
        if self._is_ending:
            return False
        begun = {id(run.pack) for run in self._runs}
        waiting = [pack for _, pack in self._packs if pack.began is None and id(pack) not in begun]
        most = FURTHER * self.planner.slots_now(self.grouper.groups)
        return sum(len(pack.live) for pack in waiting) < most

    def form(self) -> None:
        """Forms the packs that the trials so far fill; called before another comes."""
        if self._is_ending:
            return
        late = 0  # trials whose program must be compiled again, once its packs have ended
        for group in [group for group in self.grouper.groups if group.queue]:
            if not all(map(_is_plain, group.queue)):
                self._end()
                return
            if lacks_input(group):
                late += len(group.queue)
            else:
                self._form(group)
        waiting = [g for g in self.grouper.groups if g.queue and not lacks_input(g)]
        while waiting and self._has_long_waited(waiting):
            group = min(waiting, key=lambda group: group.queue[0].number)
            if group.program is None:
                of = (
                    self.demand.of_known if len(self.grouper.groups) > 1 else self.demand.of_program
                )
                self.planner.compile(group, *of(group))
            self._form(group, partial=len(waiting) > 1)
            waiting.remove(group)
        if late and (self.demand.one_program or late >= FURTHER * self.planner.max_slots([])):
            self._end()

    def _has_long_waited(self, groups: list[LocalGroup]) -> bool:
        enough = self.planner.slots_of(groups) * self.demand.further
        return sum(len(group.queue) for group in groups) >= enough

    def form_rest(self) -> None:
        """Forms packs of all trials that wait: no more come."""
        for group in self.grouper.groups if not self._is_ending else ():
            if lacks_input(group):
                self._end()
            elif group.queue:
                if group.program is None and group.restored_program is None:
                    self.planner.compile(group, *self.demand.of_program(group))
                self._form(group, partial=True)

    def _form(self, group: LocalGroup, *, partial: bool = False) -> None:
        """Forms the packs that a group's trials fill; with ``partial`` one of the rest, too."""
        if group.restored_program is not None and group.program is None and group.queue:
            self.planner.compile_again(group)
        if group.program is None:
            return
        n_slots = group.program.n_slots
        while len(group.queue) >= n_slots or (partial and group.queue):
            pack = self.slots.new_pack(group)
            group.packs.append(pack)
            while group.queue and pack.free and pack.takes(group.queue[0]):
                pack.admit(group.queue.popleft())

    # -- training ----------------------------------------------------------------------------------

    def train(
        self,
        report: Report,
        meanwhile: Callable[[], bool],
        failed: Failed,
        hurried: Callable[[], bool],
    ) -> None:
        """Trains for about a second, or an epoch where that takes longer; see ``Executor.advance``.

        ``hurried`` says whether the packs are to stop after this epoch. Raises PackTimeout if packs
        have not ended their epoch within the limit, and what a pack's training raised where it
        concerns all trials.
        """
        began = time.perf_counter()
        trained: list[tuple[int, PackEpoch]] = []  # not yet in the timings
        broken: list[_PackRun] = []
        wall, share, any_trained = 0.0, 0.0, False
        self._stop.clear()
        self._until = began + _SLICE
        switch = sys.getswitchinterval()
        # Between two epochs a thread needs Python's lock, which the search's thread has.
        sys.setswitchinterval(min(switch, _SWITCH))
        try:
            while not self._stop.is_set() or self._runs:
                self._news.clear()
                self.form()
                if self.demand.all_asked:
                    self.form_rest()
                if not self._stop.is_set():
                    self._begin(failed)
                took = self._taken_in()
                now = time.perf_counter()
                if took or not self._runs:  # what a compiler takes is not training
                    share, began = (now - began) / max(1, len(took)), now
                for run, epoch in took:
                    wall += share
                    trained.append((len(run.pack.slots), epoch.trained))
                    if len(trained) >= self.planner.packs_at_once:
                        self.timings.add_epochs(wall, trained, self.planner.packs_at_once)
                        wall, trained = 0.0, []
                    self._seconds = min(self._seconds, sum(vars(epoch.trained[1]).values()))
                    self.reporter.report_held(run.group, run.pack, epoch, report, run.leaving)
                    run.stops |= bool(run.leaving and self._waiting_beside(run.group, run.pack))
                    self.timeline.end_round([run.pack], set(epoch.trained[0]))
                broken += self._end_runs()
                if took:
                    self._end_if_long()
                worked = self._work(meanwhile)
                any_trained |= bool(took)
                late = self._is_late(hurried(), any_trained=any_trained)
                late |= self._lacks_memory and not self._runs  # another executor is to train first
                if late or broken or self._leaves or not (worked or self._packs):
                    self._stop.set()
                if not worked and not took:
                    self._news.wait(PAUSE)
                if self.limit.seconds is not None:
                    training = [run for run in self._runs if run.began and not run.future.done()]
                    check_hung([run.pack for run in training], self.limit.seconds)
        finally:
            self._stop.set()
            sys.setswitchinterval(switch)
            self.limit.under_way([])
            self.timings.add_epochs(wall, trained, self.planner.packs_at_once)
        for run in broken:
            self._handle(run, failed)

    def _is_late(self, hurried: bool, *, any_trained: bool) -> bool:
        """Whether packs are to stop: not before one has trained an epoch, where one can."""
        if not (hurried or time.perf_counter() > self._until):
            return False
        return any_trained or (not self._runs and (hurried or not self._packs))

    def _end_if_long(self) -> None:
        """Ends the stream where much is left to train and one program trains all of it.

        Rounds measure which plan is fastest, and compile packs of fewer slots for the last trials.
        """
        if self.demand.one_program and not self._is_ending:
            (group,) = self.grouper.groups
            left, rest = self.demand.epochs_left(group.trials), self.demand.all_asked
            if self.planner.gains_from_rounds(group, left, self._seconds, all_asked=rest):
                self._end()

    def _work(self, meanwhile: Callable[[], bool]) -> bool:
        self._search_works = True
        try:
            return meanwhile()
        finally:
            self._search_works = False

    @property
    def waits(self) -> bool:
        """Whether no pack trains, and some wait for a program to be compiled."""
        return not self._runs and any(not p.program.ready() for _, p in self._packs)

    def _begin(self, failed: Failed) -> None:
        """Hands packs whose program is compiled to the threads, a few more than train at once."""
        at_once, self._lacks_memory = self.planner.packs_at_once, False
        there = {id(run.pack) for run in self._runs}
        begun = False
        # Those that have begun come first: they have their arrays on the device.
        for group, pack in sorted(self._packs, key=lambda pair: pair[1].began is None):
            behind = len(self._runs) >= at_once
            if len(self._runs) >= 2 * at_once or (behind and self._is_ending):
                break
            if id(pack) in there or not pack.program.ready():
                continue
            beside = [run.group for run in self._runs]
            if pack.began is None and self.slots.waits(group, beside):
                self._lacks_memory = True
                if self.demand.by_time:  # else packs of others, of which more may come, keep it out
                    break
                continue
            key = id(pack.program)
            if key not in self._fitting:
                if not self.slots.fits(group, failed):
                    self._end()  # its trials wait again, for smaller packs
                    return
                self._fitting[key] = self.slots.fits_twice(group)
            if behind and not self._fitting[key]:
                break  # its arrays would lie beside those of the pack before it
            run = _PackRun(group, pack, behind, beside)
            for other in self._runs:
                other.beside.append(group)
            run.future = self.threads.submit(lambda run=run: self._run(run))
            run.future.add_done_callback(lambda _: self._news.set())
            self._runs.append(run)
            begun = True
        if begun:
            packs = [run.pack for run in self._runs]
            self.limit.under_way([trial.number for pack in packs for trial in pack.live])
            self.timeline.begin_round((run.group, run.pack) for run in self._runs)

    def _run(self, run: _PackRun) -> None:
        """Trains a pack until a trial ends, or the packs are to stop; called in a thread."""
        pack, held = run.pack, run.group.nbytes * len(run.pack.slots)
        enough = len(pack.live)
        while not (self._stop.is_set() or run.stops) and len(run.leaving) < enough:
            if run.behind and time.perf_counter() > self._until:
                return
            pack.began, run.began = None, True
            trained = pack.run_epoch()
            trials = pack.live
            last = any(trial.epoch >= trial.epochs for trial in trials)
            # Elsewhere than on a CPU copies cost more than it does to wait for the search.
            busy = self._search_works or self.planner.on_cpu
            full = held * (len(run.epochs) + 1) > _HELD
            late = self._stop.is_set() or time.perf_counter() > self._until
            last = last or late or full or not busy
            weights = None if last else {t.number: pack.weights(t.number)() for t in trials}
            epochs = {trial.number: trial.epoch for trial in trials}
            run.epochs.append(WaitingEpoch(trained, epochs, weights))
            self._news.set()
            if last:
                return

    def _taken_in(self) -> list[tuple[_PackRun, WaitingEpoch]]:
        """The epochs that wait to be reported, each with its run, which holds them no more."""
        return [(run, run.epochs.popleft()) for run in self._runs for _ in range(len(run.epochs))]

    def _end_runs(self) -> list[_PackRun]:
        """Lets trials leave the packs that have stopped; returns the runs that failed."""
        broken = []
        for run in [run for run in self._runs if run.future.done() and not run.epochs]:
            self._runs.remove(run)
            if run.future.exception() is not None:
                broken.append(run)
                continue
            for trial in run.pack.live:
                if trial.number in run.leaving or trial.epoch >= trial.epochs:
                    run.pack.evict(trial.number)
            if not run.pack.live:
                run.group.drop_pack(run.pack)
                if not run.group.active:
                    self.reporter.end_group(run.group)
            elif run.pack.free:
                self._refill(run.group, run.pack)
        return broken

    def _waiting_beside(self, group: LocalGroup, pack: Pack) -> list[Pack]:
        """The packs of the same program that have trials and have not begun."""
        begun = {id(run.pack) for run in self._runs}
        return [
            other
            for other in group.packs
            if other.program is pack.program and other.began is None and id(other) not in begun
        ]

    def _refill(self, group: LocalGroup, pack: Pack) -> None:
        """Gives the slots of trials that have failed to trials of packs that have not begun.

        Those of the queue stay there: which packs are formed must not depend on the clock. In which
        slot of a program a trial trains changes nothing.
        """
        for other in self._waiting_beside(group, pack):
            for trial in other.live:
                if pack.free and pack.takes(trial):
                    pack.admit(other.take_out(trial.number))
            if not other.live:
                group.packs.remove(other)

    def _handle(self, run: _PackRun, failed: Failed) -> None:
        """Handles the error of a pack, when no pack trains; raises one that concerns all trials."""
        error = run.future.exception()
        assert error is not None
        if self.slots.recover(run.group, run.pack, error, failed, run.beside):
            self._end()
            self.slots.halve(run.group)


def _is_plain(trial: SlotTrial) -> bool:
    """Whether a trial begins with its first epoch, and nothing acts on it in between."""
    return trial.driver is None and trial.fold is None and trial.epoch == 0


def lacks_input(group: LocalGroup) -> bool:
    """Whether a group's program must be compiled again, with one more of its constants an input."""
    return group.program is not None and any(role.stale for role in group.roles)
