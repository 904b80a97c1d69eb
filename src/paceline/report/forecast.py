"""How long a search will take: one model for the prediction before it and for the line beside it.

A search is rounds: in each, everything that trains at once does one epoch. Before the first round
lie building, tracing and compiling. What is counted is how many rounds are left; what is measured
is how long they take. Needs no device.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

#: Trials beyond which their rounds are counted on average, not one by one.
_MANY = 2000


@dataclass(frozen=True)
class Pace:
    """How fast a search goes.

    Attributes:
        at_once: Trials that train at the same time.
        round: Seconds of a round, what lies between rounds included.
    """

    at_once: float
    round: float

    @property
    def rate(self) -> float:
        """Trial-epochs per second."""
        return self.at_once / self.round if self.round else 0.0


@dataclass(frozen=True)
class Costs:
    """What a search costs here, measured on its beginning.

    Attributes:
        batch_size: B.
        ready: Seconds until the first round begins: reading, building, tracing, compiling.
        pace: How fast it goes then.
        finish: Seconds after the last round: the best model is saved.
        programs: Programs that its trials fall into, as far as was tried; each is compiled.
        compile: Seconds for each program beyond the first.
        parts: Where the time of the beginning went: name -> seconds.
        trial_epochs: Trained to measure this.
    """

    batch_size: int
    ready: float
    pace: Pace
    finish: float = 0.0
    programs: float = 1.0
    compile: float = 0.0
    parts: dict[str, float] | None = None
    trial_epochs: int = 0

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Costs:
        """The inverse of ``dataclasses.asdict``."""
        return cls(**{**value, "pace": Pace(**value["pace"])})


@dataclass(frozen=True)
class Prediction:
    """The seconds of a search.

    Attributes:
        ready: Until trials train.
        compiling: Waiting for further programs.
        rounds: Training, validation, and what goes on beside them.
        finish: After the last epoch.
        n_rounds: How many there are.
    """

    ready: float
    compiling: float
    rounds: float
    finish: float
    n_rounds: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.ready + self.compiling + self.rounds + self.finish


def predict(costs: Costs, n_trials: int, epochs: int, share: float = 1.0) -> Prediction:
    """The seconds of a whole search.

    Args:
        costs: Measured.
        n_trials: Trials.
        epochs: Of each.
        share: Of their epochs, those that a pruner lets them train.
    """
    at_once = min(costs.pace.at_once, n_trials)
    n_rounds = rounds_left((), n_trials, epochs * share, at_once)
    further = max(0.0, min(costs.programs, n_trials) - 1)
    return Prediction(
        ready=costs.ready,
        compiling=further * costs.compile,
        rounds=n_rounds * costs.pace.round,
        finish=costs.finish,
        n_rounds=n_rounds,
    )


def rounds_left(running: Sequence[int], to_come: int, epochs: float, at_once: float) -> float:
    """Rounds until all trials have ended, slots being filled as they become free.

    Args:
        running: Epochs left of each trial that is under way.
        to_come: Trials that have not begun.
        epochs: Of each of those.
        at_once: Trials that train at the same time.
    """
    total = sum(running) + to_come * epochs
    if total <= 0:
        return 0.0
    slots = max(1, round(at_once))
    if to_come > _MANY:
        return max(total / at_once, *running, epochs)
    jobs = [*sorted(running, reverse=True), *[epochs] * to_come]
    ends = [0.0] * min(slots, len(jobs))
    for job in jobs:
        heapq.heappush(ends, heapq.heappop(ends) + job)
    # The trials in flight may be fewer than the slots make them: no faster than on average.
    return max(math.ceil(max(ends)), total / at_once)


def pace_of(rounds: Collection[tuple[float, int]]) -> Pace | None:
    """The pace of some rounds; None where there is none.

    Args:
        rounds: Seconds and trials of each.
    """
    if not rounds:
        return None
    seconds, trials = (sum(each) / len(rounds) for each in zip(*rounds, strict=True))
    return Pace(trials, seconds)


def programs_of(distinct: int, tried: int, n_trials: int) -> float:
    """Programs that so many trials fall into, from how many a few of them did.

    Taken as if all programs were equally likely.

    Args:
        distinct: Among those tried.
        tried: At random.
        n_trials: Of the search.
    """
    if distinct <= 1 or tried <= 1:
        return 1.0
    if distinct >= tried:
        return float(n_trials)
    low, high = float(distinct), 1e6
    for _ in range(60):  # the number whose expected distinct ones are those that were seen
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _seen(middle, tried) < distinct else (low, middle)
    return min(float(n_trials), _seen(low, n_trials))


def _seen(kinds: float, draws: int) -> float:
    """How many of so many equally likely kinds come up."""
    return kinds * (1.0 - (1.0 - 1.0 / kinds) ** draws)


def asha_share(epochs: int, min_epochs: int = 1, factor: int = 3) -> float:
    """The share of all epochs that ASHA trains, each rung letting one in ``factor`` go on."""
    trained, rung, alive, before = 0.0, min_epochs, 1.0, 0
    while rung < epochs:
        trained += alive * (rung - before)
        before, rung, alive = rung, rung * factor, alive / factor
    return (trained + alive * (epochs - before)) / epochs
