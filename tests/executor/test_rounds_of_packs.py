"""Threads of packs, and a round: one epoch of several packs, side by side."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.executor.base import PackTimeout
from paceline.executor.training.rounds import EpochRound
from paceline.executor.training.stream import PackThreads

#: Seconds after which what should have come about is given up.
LONG = 30.0


@pytest.fixture
def threads() -> Iterator[PackThreads]:
    made = PackThreads(2)
    yield made
    made.close(LONG)


def pack(run_epoch: Callable[[], Any], *numbers: int, free: int = 0, began: float = 0.0) -> Any:
    """A pack of those trials, each after its second epoch."""
    riders = [SimpleNamespace(number=number, epoch=2) for number in numbers]
    return SimpleNamespace(
        run_epoch=run_epoch,
        slots=riders,
        live=riders,
        free=[None] * free,
        began=began,
        by_batch=False,
    )


def fails() -> Any:
    raise MemoryError("none left")


def nothing() -> bool:
    return False


def test_what_comes_of_each_pack_in_their_order(threads):
    packs = [("a", pack(lambda: "epoch", 0)), ("b", pack(fails, 1))]
    found = EpochRound(packs, threads)
    found.run(nothing, None, lockstep=False)
    assert found.trained == ["epoch"]
    (first, _, epoch), (second, _, error) = found.outcomes
    assert (first, epoch, second) == ("a", "epoch", "b")
    assert isinstance(error, MemoryError)
    assert found.wall > 0


def test_a_full_device_counts_where_nothing_else_was_done(threads):
    full, rest = pack(lambda: "epoch", 0, 1), pack(lambda: "epoch", 2, free=1)
    failed = pack(fails, 3, 4)  # its epoch was short
    for packs, at_once, n in (
        ([full, full], 2, 4),
        ([full], 2, 0),
        ([full, rest], 2, 0),
        ([full, failed], 2, 0),
    ):
        found = EpochRound([("a", each) for each in packs], threads)
        found.run(nothing, None, lockstep=False)
        assert found.n_full(at_once) == n


def test_other_work_is_done_meanwhile_and_to_its_end_in_lockstep(threads):
    left = [None] * 5
    done = threading.Event()

    def meanwhile() -> bool:
        done.set()  # the pack is back before all is done
        return bool(left and [left.pop()])

    found = EpochRound([("a", pack(lambda: done.wait(LONG), 0, 1))], threads)
    found.run(meanwhile, None, lockstep=True)
    assert left == []
    assert found.n_full(1) == 0


def test_packs_that_do_not_come_back_are_named(threads):
    """One has begun a moment ago, the other is late."""
    stop = threading.Event()
    late = pack(lambda: stop.wait(LONG), 3, 5, began=time.perf_counter() - 100)
    begun = pack(lambda: stop.wait(LONG), 7, began=time.perf_counter() + LONG)
    found = EpochRound([("a", late), ("b", begun)], threads)
    try:
        with pytest.raises(PackTimeout, match="1 packs do not come back") as hung:
            found.run(nothing, 10.0, lockstep=False)
    finally:
        stop.set()
    assert hung.value.packs == [{3: 2, 5: 2}]
