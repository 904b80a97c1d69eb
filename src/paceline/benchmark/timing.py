"""Timing: runs of enough steps, their median and quartiles. Time enters through a seam."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]

#: Seconds of a run at least, where an epoch has the steps: clocks and dispatching do not show then.
RUN = 0.05
#: Runs of a cell at most; and at least, however slow they are.
MOST, LEAST = 40, 3


@dataclass(frozen=True)
class Timing:
    """What repeated runs took, in seconds per step.

    Attributes:
        first: The first step of all, which is not among the runs.
        median, low, high: Median and quartiles over the runs.
        runs: How many.
        steps: Steps of each run.
    """

    first: float
    median: float
    low: float
    high: float
    runs: int
    steps: int


def time_steps(
    run: Callable[[int], None],
    *,
    most_steps: int,
    patience: float,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Times steps: the first one, some to warm up, then runs until patience is at its end.

    Args:
        run: Does so many steps, and returns when the device has done them.
        most_steps: Steps of a run at most: those of an epoch.
        patience: Seconds for all runs together; no run begins after them, beyond the least number.
        clock: Seconds that never go back.
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
        timed(steps)  # longer runs may be of another kind: nothing of them is taken yet
    each: list[float] = []
    while len(each) < LEAST or (len(each) < MOST and clock() - began < patience):
        each.append(timed(steps) / steps)
    low, median, high = quartiles(each)
    return Timing(first, median, low, high, len(each), steps)


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high
