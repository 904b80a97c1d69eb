"""Lanes, the threads in which packs train, and a round: one epoch of several packs side by side.

The threads are daemons, unlike those of a ``ThreadPoolExecutor``: a process must be able to end
while one of its threads waits for a step that never returns.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

from paceline.executor.base import PackTimeout
from paceline.executor.grouping import Group
from paceline.pack.pack import EpochTimes, Pack
from paceline.program import jax_compat

#: Seconds between looks at the device when there is nothing else to do.
PAUSE = 0.02
#: One epoch of a pack: job number -> logs, and the seconds that the epoch took.
PackEpoch = tuple[dict[int, dict[str, float]], EpochTimes]

_Task = tuple[Future[Any], Callable[[], Any]]


class LaneThreads:
    """Threads that call functions in the order in which the functions were submitted.

    Args:
        n: Number of threads. A thread starts when there is something for it to do.

    Raises:
        UsageError: JAX has other settings in other threads than in this one.
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
            name = f"paceline-lane_{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()
        return future

    def close(self, patience: float) -> None:
        """Ends each thread after the function that it calls now.

        Args:
            patience: Seconds to wait for the threads.
        """
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


class EpochRound:
    """One epoch of each of several packs; training begins when the round is constructed.

    Args:
        packs: The packs, each with its group. Every pack has at least one trial.
        lanes: The threads in which the packs train.

    Attributes:
        packs: The packs.
        wall: Seconds on the clock that the round took; 0.0 until it has ended.
    """

    def __init__(self, packs: Sequence[tuple[Group, Pack]], lanes: LaneThreads) -> None:
        self._groups = [group for group, _ in packs]
        self.packs = [pack for _, pack in packs]
        self._disturbed = False
        self._began, self.wall = time.perf_counter(), 0.0
        self._epochs: list[Future[PackEpoch]] = [
            lanes.submit(pack.run_epoch) for pack in self.packs
        ]

    def run(self, meanwhile: Callable[[], bool], limit: float | None, *, lockstep: bool) -> None:
        """Waits until all packs have ended their epoch.

        Args:
            meanwhile: Does a piece of useful work in this thread; returns False when none is left.
            limit: Seconds that an epoch may take; None: as long as it needs.
            lockstep: Whether to call ``meanwhile`` until no work is left, even if the packs end
                sooner.

        Raises:
            PackTimeout: Packs have not ended their epoch within the limit.
        """
        while not all(epoch.done() for epoch in self._epochs):
            if meanwhile():
                self._disturbed = True
            else:
                wait(self._epochs, timeout=PAUSE)
            if limit is not None:
                self.check_hung(limit)
        while lockstep and meanwhile():
            self._disturbed = True
        self.wall = time.perf_counter() - self._began

    def check_hung(self, limit: float) -> None:
        """Checks that no pack has trained longer than ``limit`` seconds.

        Raises:
            PackTimeout: Some packs have.
        """
        now = time.perf_counter()
        hung = [
            pack
            for pack, epoch in zip(self.packs, self._epochs, strict=True)
            # A pack that waits for a free thread has not begun, and its time does not count.
            if not epoch.done() and pack.began is not None and now - pack.began > limit
        ]
        if hung:
            raise PackTimeout([{trial.number: trial.epoch for trial in pack.live} for pack in hung])

    @property
    def trained(self) -> list[PackEpoch]:
        """The epochs of the packs that did not fail."""
        return [epoch.result() for epoch in self._epochs if epoch.exception() is None]

    @property
    def outcomes(self) -> list[tuple[Group, Pack, PackEpoch | BaseException]]:
        """Each pack with its group and with its epoch, or with the error that its epoch raised."""
        outcomes = []
        for group, pack, epoch in zip(self._groups, self.packs, self._epochs, strict=True):
            error = epoch.exception()
            outcomes.append((group, pack, epoch.result() if error is None else error))
        return outcomes

    def n_full(self, n_lanes: int) -> int:
        """Number of trials that trained if the round shows how fast a full device is; else 0.

        Args:
            n_lanes: Packs that can train at once.
        """
        full = len(self.packs) == n_lanes and not any(pack.free for pack in self.packs)
        # Building and tracing models during the round took a share of the round's seconds.
        return sum(len(pack.slots) for pack in self.packs) if full and not self._disturbed else 0
