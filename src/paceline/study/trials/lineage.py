"""The line of a trial: the trials that it continues, and the hyperparameters of each epoch.

Population based training copies trials on the way, so the weights of a trial may have been trained
under several configurations, one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.study.trials.trial import Trial


@dataclass(frozen=True)
class LineageSegment:
    """The epochs of a line that one trial has trained."""

    trial: Trial
    first: int  # of these epochs, from 1
    last: int  # of them; ``first - 1`` where the trial has trained none yet


def line_of(trial: Trial, by_number: Callable[[int], Trial | None]) -> list[LineageSegment]:
    """Return the line of a trial, its oldest ancestor first; of most trials, the trial alone."""
    found: list[LineageSegment] = []
    last = trial.epochs
    seen = set()
    while True:
        seen.add(trial.number)
        source = None if trial.continued_from is None else by_number(trial.continued_from)
        # A storage may have been written by others: no line leads back to itself.
        if source is None or source.number in seen:
            break
        before = source.epochs if trial.continued_at is None else trial.continued_at
        before = min(before, last)
        found.append(LineageSegment(trial, before + 1, last))
        trial, last = source, before
    found.append(LineageSegment(trial, 1, last))
    return found[::-1]


def first_of(trial: Trial, by_number: Callable[[int], Trial | None]) -> int:
    """Return the number of the trial that a line began with, with the arguments of ``line_of``."""
    return line_of(trial, by_number)[0].trial.number


def copied_line(line: list[LineageSegment]) -> list[LineageSegment]:
    """Return a line in which each trial but the first began as a copy of the one before it.

    Trials that continue with more epochs have the configuration and the seed of their source. So
    they are not copies, and their epochs count for the source.
    """
    found: list[LineageSegment] = []
    for each in line:
        if found and each.trial.continued_at is None:
            found[-1] = LineageSegment(found[-1].trial, found[-1].first, each.last)
        else:
            found.append(each)
    return found if len(found) > 1 else [LineageSegment(line[-1].trial, 1, line[-1].last)]


def schedule_of(line: list[LineageSegment]) -> list[Mapping[str, Any]]:
    """Return the hyperparameters of each epoch of a line, from the first one on."""
    return [each.trial.hparams for each in line for _ in range(each.first, each.last + 1)]
