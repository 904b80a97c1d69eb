"""A round: one epoch of several packs, side by side, while the search gets other things done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait

from paceline.executor.base import PackTimeout
from paceline.executor.group import Group
from paceline.executor.lanes import LaneThreads
from paceline.executor.reporting import Epoch
from paceline.pack.pack import Pack

#: Seconds between looks at the device when there is nothing else to do.
PAUSE = 0.02


class EpochRound:
    """An epoch of packs that have trials in them; it begins to train at once.

    Args:
        packs: They, each with its group.
        lanes: Where they train.

    Attributes:
        wall: Seconds on the clock that it took, once it has ended.
    """

    def __init__(self, packs: Sequence[tuple[Group, Pack]], lanes: LaneThreads) -> None:
        self._groups = [group for group, _ in packs]
        self.packs = [pack for _, pack in packs]
        self._disturbed = False
        self._began, self.wall = time.perf_counter(), 0.0
        self._epochs: list[Future[Epoch]] = [lanes.submit(pack.run_epoch) for pack in self.packs]

    def run(self, meanwhile: Callable[[], bool], limit: float | None, *, lockstep: bool) -> None:
        """Waits until it has ended.

        Args:
            meanwhile: Useful work for this thread; False when there is none.
            limit: Seconds that it may take; None: as long as it likes.
            lockstep: Has all of that work done, however soon the packs are back.

        Raises:
            Hung: Packs do not come back within the limit.
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
        """Raises Hung where packs that have trained for so many seconds are not back."""
        now = time.perf_counter()
        hung = [
            pack
            for pack, epoch in zip(self.packs, self._epochs, strict=True)
            if not epoch.done() and pack.began is not None and now - pack.began > limit
        ]
        if hung:
            raise PackTimeout([{rider.number: rider.epoch for rider in pack.live} for pack in hung])

    @property
    def trained(self) -> list[Epoch]:
        """The epochs of packs that did not fail."""
        return [epoch.result() for epoch in self._epochs if epoch.exception() is None]

    @property
    def outcomes(self) -> list[tuple[Group, Pack, Epoch | BaseException]]:
        """What came of each pack."""
        outcomes = []
        for group, pack, epoch in zip(self._groups, self.packs, self._epochs, strict=True):
            error = epoch.exception()
            outcomes.append((group, pack, epoch.result() if error is None else error))
        return outcomes

    def n_full(self, n_lanes: int) -> int:
        """Trials that trained, where that tells how fast a full device is; else 0.

        Args:
            n_lanes: Packs that can train at once.
        """
        full = len(self.packs) == n_lanes and not any(pack.free for pack in self.packs)
        # What was built and traced meanwhile took its share of the time.
        return sum(len(pack.slots) for pack in self.packs) if full and not self._disturbed else 0
