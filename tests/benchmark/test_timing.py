"""Timing with a clock that the test moves."""

from __future__ import annotations

import pytest

from paceline.benchmark.measure.timing import LEAST, MOST, RUN, quartiles, time_steps


class Device:
    """Takes so long for a step; the first one longer."""

    def __init__(self, *seconds: float, first: float = 0.0) -> None:
        self.now, self.ran = 0.0, []
        self._seconds, self._first = seconds, first

    def run(self, steps: int) -> None:
        self.now += self._first + steps * self._seconds[len(self.ran) % len(self._seconds)]
        self._first = 0.0
        self.ran.append(steps)

    def clock(self) -> float:
        return self.now


def test_the_first_step_stands_apart():
    device = Device(0.001, first=2.0)
    found = time_steps(device.run, most_steps=1000, patience=1.0, clock=device.clock)
    assert found.first == pytest.approx(2.001)
    assert found.step == pytest.approx(0.001)
    assert (found.low, found.high) == (pytest.approx(0.001), pytest.approx(0.001))


def test_runs_are_long_enough_for_a_clock():
    device = Device(0.001)
    found = time_steps(device.run, most_steps=1000, patience=0.5, clock=device.clock)
    assert found.steps == round(RUN / 0.001)
    assert device.ran == [1, 1, *[found.steps] * (found.runs + 1)]  # one to warm up


def test_a_run_is_no_longer_than_an_epoch():
    device = Device(0.0001)
    assert time_steps(device.run, most_steps=7, patience=0.01, clock=device.clock).steps == 7


def test_patience_ends_the_runs():
    device = Device(0.01)
    found = time_steps(device.run, most_steps=100, patience=1.0, clock=device.clock)
    assert LEAST < found.runs < MOST
    assert device.now < 1.5


def test_a_slow_step_is_still_timed_some_times():
    device = Device(60.0)
    found = time_steps(device.run, most_steps=100, patience=1.0, clock=device.clock)
    assert (found.runs, found.steps) == (LEAST, 1)
    assert device.ran == [1] * (LEAST + 2)


def test_a_fast_step_is_not_timed_for_ever():
    device = Device(1e-9)
    assert time_steps(device.run, most_steps=1, patience=9.0, clock=device.clock).runs == MOST


def test_the_spread_is_that_of_the_runs():
    device = Device(0.05, 0.05, 0.05, 0.1)
    found = time_steps(device.run, most_steps=1, patience=2.0, clock=device.clock)
    assert found.step == pytest.approx(0.05)
    assert found.high > 0.05


def test_quartiles():
    assert quartiles([5.0]) == (5.0, 5.0, 5.0)
    assert quartiles([5.0, 1.0, 2.0, 3.0, 4.0]) == (2.0, 3.0, 4.0)
