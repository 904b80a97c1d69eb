"""Predicts how long a search takes, before it begins and while it runs, with the same model.

The model: a search consists of rounds. In each round, all trials that train at once do one epoch.
Before the first round there is time for building, tracing and compiling. The number of rounds that
are left is counted, the seconds of a round are measured. Needs no device.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

#: With more trials than this, rounds are worked out from averages and not counted trial by trial.
_MANY = 2000
# What a file may hold.
_Seconds = Annotated[float, Meta(ge=0, le=1e12)]
_Number = Annotated[float, Meta(gt=0, le=1e9)]


@dataclass(frozen=True)
class Pace:
    """The speed at which a search trains."""

    at_once: _Number  # trials that train at the same time
    round: _Seconds  # from the beginning of a round to that of the next

    @property
    def rate(self) -> float:
        """Trial-epochs per second."""
        return self.at_once / self.round if self.round else 0.0


@dataclass(frozen=True)
class Costs:
    """The costs of a search on a device, measured on the beginning of that search."""

    batch_size: Annotated[int, Meta(ge=1, le=2**40)]  # examples per trial and step
    ready: _Seconds  # until the first round begins: reading, building, tracing, compiling
    pace: Pace  # from then on
    finish: _Seconds = 0.0  # after the last round, in which the best model is saved
    programs: _Number = 1.0  # that the trials need, estimated; each has to be compiled
    compile: _Seconds = 0.0  # of each program but the first
    # Of the time of the beginning: name -> seconds; None if unknown.
    parts: dict[str, float] | None = None
    # Trained for this measurement, summed over trials.
    trial_epochs: Annotated[int, Meta(ge=0, le=2**53)] = 0
    # Until a worker of a cluster has loaded its libraries; None: not measured.
    startup: _Seconds | None = None


@dataclass(frozen=True)
class TimePrediction:
    """The predicted seconds of a search, in parts."""

    ready: float  # until the first trials train
    compiling: float  # of further programs
    rounds: float  # of all: training, validation, and the work between rounds
    finish: float  # after the last epoch
    n_rounds: float

    @property
    def total(self) -> float:
        """Seconds of the whole search."""
        return self.ready + self.compiling + self.rounds + self.finish


def predict(costs: Costs, n_trials: int, epochs: int, share: float = 1.0) -> TimePrediction:
    """Predict the seconds of a search whose pruner lets trials train ``share`` of all epochs."""
    at_once = min(costs.pace.at_once, n_trials)
    n_rounds = rounds_left((), n_trials, epochs * share, at_once)
    further = max(0.0, min(costs.programs, n_trials) - 1)
    return TimePrediction(
        ready=costs.ready,
        compiling=further * costs.compile,
        rounds=n_rounds * costs.pace.round,
        finish=costs.finish,
        n_rounds=n_rounds,
    )


def rounds_left(running: Sequence[int], to_come: int, epochs: float, at_once: float) -> float:
    """Count the rounds until all trials have ended; a slot is filled again once it is free.

    ``running``: epochs that are left of each unfinished trial. ``epochs``: those of each of the
    ``to_come`` trials, which have not begun. ``at_once``: trials that train at the same time.
    """
    total = sum(running) + to_come * epochs
    if total <= 0:
        return 0.0
    slots = max(1, round(at_once))
    if to_come > _MANY:
        return max(total / at_once, *running, epochs)
    # Trials that have trained are in slots; other unfinished ones may still wait for a slot.
    begun = sorted((left for left in running if left < epochs), reverse=True)
    waiting = [left for left in running if left >= epochs]
    jobs = [*begun, *waiting, *[epochs] * to_come]
    ends = [0.0] * min(slots, len(jobs))
    for job in jobs:
        heapq.heappush(ends, heapq.heappop(ends) + job)
    # ``at_once`` is an average and may be lower than the number of slots: never predict fewer
    # rounds than the average allows.
    return max(math.ceil(max(ends)), total / at_once)


def pace_of(rounds: Collection[tuple[float, float]]) -> Pace | None:
    """Return the mean pace of rounds, given as (seconds, number of trials); None without rounds."""
    if not rounds:
        return None
    seconds, trials = (sum(each) / len(rounds) for each in zip(*rounds, strict=True))
    return Pace(trials, seconds)


def programs_of(distinct: int, tried: int, n_trials: int) -> float:
    """Estimate how many different programs the trials of a search need, from a random sample.

    ``tried`` configurations had ``distinct`` programs. The estimate assumes that all programs are
    equally likely.
    """
    if distinct <= 1 or tried <= 1:
        return 1.0
    if distinct >= tried:
        return float(n_trials)
    low, high = float(distinct), 1e6
    for _ in range(60):  # bisect for the number of programs that would show ``distinct`` of them
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _seen(middle, tried) < distinct else (low, middle)
    return min(float(n_trials), _seen(low, n_trials))


def _seen(kinds: float, draws: int) -> float:
    """The expected number of different kinds in a number of draws, all kinds equally likely."""
    return kinds * (1.0 - (1.0 - 1.0 / kinds) ** draws)


def asha_share(epochs: int, min_epochs: int = 1, factor: int = 3) -> float:
    """Return the share of all epochs that ASHA trains; a trial that it never stops has ``epochs``.

    The first rung has ``min_epochs``; at each rung, one in ``factor`` trials continues.
    """
    trained, rung, alive, before = 0.0, min_epochs, 1.0, 0
    while rung < epochs:
        trained += alive * (rung - before)
        before, rung, alive = rung, rung * factor, alive / factor
    return (trained + alive * (epochs - before)) / epochs
