"""What an executor has spent, round by round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.executor.timings import ExecutorTimings
from paceline.pack.pack import EpochTimes


def pack(n_slots: int, n_live: int) -> Any:
    return SimpleNamespace(slots=[None] * n_slots, live=[None] * n_live)


def test_a_round_is_shared_between_training_and_validation():
    accounts = ExecutorTimings()
    times = [EpochTimes(3.0, 1.0), EpochTimes(3.0, 1.0)]
    epochs = [({0: {}, 1: {}}, times[0]), ({2: {}}, times[1])]
    accounts.enter(6.0, [pack(2, 2), pack(2, 1)], epochs)
    seconds = accounts.seconds
    assert (seconds.train, seconds.validate) == pytest.approx((4.5, 1.5))
    assert (accounts.n_rounds, list(accounts.rounds)) == (1, [(6.0, 3)])


def test_slots_are_busy_by_epochs_and_none_were_before_the_first():
    accounts = ExecutorTimings()
    assert accounts.busy_share is None
    accounts.enter(1.0, [pack(4, 4)], [({0: {}}, EpochTimes(1.0, 0.0))])
    accounts.enter(1.0, [pack(4, 1)], [({0: {}}, EpochTimes(1.0, 0.0))])
    assert accounts.busy_share == 5 / 8


def test_a_round_in_which_all_packs_fail_took_time_and_trained_nothing():
    accounts = ExecutorTimings()
    accounts.enter(2.0, [pack(4, 4)], [])
    assert accounts.seconds.train == 2.0
    assert (accounts.n_rounds, list(accounts.rounds)) == (0, [])
