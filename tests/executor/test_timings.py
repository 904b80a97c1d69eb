"""What an executor has spent, round by round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.executor.reporting import ExecutorTimings
from paceline.pack.pack import EpochTimes


def pack(n_slots: int, n_live: int) -> Any:
    return SimpleNamespace(riders=[None] * n_slots, live=[None] * n_live)


def test_a_round_is_shared_between_training_and_validation():
    timings = ExecutorTimings()
    times = [EpochTimes(3.0, 1.0), EpochTimes(3.0, 1.0)]
    epochs = [({0: {}, 1: {}}, times[0]), ({2: {}}, times[1])]
    timings.add_round(6.0, [pack(2, 2), pack(2, 1)], epochs)
    seconds = timings.seconds
    assert (seconds.train, seconds.validate) == pytest.approx((4.5, 1.5))
    assert (timings.n_rounds, list(timings.rounds)) == (1, [(6.0, 3)])


def test_slots_are_busy_by_epochs_and_none_were_before_the_first():
    timings = ExecutorTimings()
    assert timings.busy_share is None
    timings.add_round(1.0, [pack(4, 4)], [({0: {}}, EpochTimes(1.0, 0.0))])
    timings.add_round(1.0, [pack(4, 1)], [({0: {}}, EpochTimes(1.0, 0.0))])
    assert timings.busy_share == 5 / 8


def test_a_round_in_which_all_packs_fail_took_time_and_trained_nothing():
    timings = ExecutorTimings()
    timings.add_round(2.0, [pack(4, 4)], [])
    assert timings.seconds.train == 2.0
    assert (timings.n_rounds, list(timings.rounds)) == (0, [])
