"""Times steps: runs of enough steps each, their median and their quartiles.

The clock is an argument, so that a test can move it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]

#: Seconds of a run at least, if an epoch has enough steps. In so long a run the resolution of the
#: clock and the time to dispatch a step do not matter.
RUN = 0.05
#: Runs of a cell: at most MOST, and at least LEAST, however slow they are.
MOST, LEAST = 40, 3


@dataclass(frozen=True)
class Timing:
    """The time of repeated runs, in seconds per step; the names are those of ``Measurement``."""

    first: float  # of the very first step, which belongs to no run
    low: float  # the lower quartile over the runs
    step: float  # the median
    high: float  # the upper one
    runs: int
    steps: int  # of each run


def time_steps(
    run: Callable[[int], None],
    *,
    most_steps: int,
    patience: float,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Times the first step, then some steps to warm up, then runs until the patience is used up.

    ``run`` does a number of steps, and returns when the device has done them. A run has
    ``most_steps`` at most, those of an epoch. No run begins after ``patience`` seconds, but there
    are ``LEAST``.
    """

    def timed(steps: int) -> float:
        began = clock()
        run(steps)
        return clock() - began

    first = timed(1)
    warm = timed(1)
    steps = max(1, min(most_steps, round(RUN / warm) if warm > 0 else most_steps))
    began = clock()
    if steps > 1 and warm < patience / LEAST:
        timed(steps)  # the first run of a new length may compile: it is not counted
    each: list[float] = []
    while len(each) < LEAST or (len(each) < MOST and clock() - began < patience):
        each.append(timed(steps) / steps)
    return Timing(first, *quartiles(each), len(each), steps)


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Returns lower quartile, median and upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high
