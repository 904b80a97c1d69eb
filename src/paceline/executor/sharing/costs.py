"""What trials of several structures cost in one program, and what that saves.

A program does the arithmetic of its largest widths for every trial that shares it. If that takes
longer than to compile another program, the values of a width are split into bands. Each band has
its own program: narrow models share one, and wide models another. If even that takes too long, each
structure has its own.

The choice follows from the search space, the first trial of its kind, and the study's planned
number of trials at its beginning. Neither the clock nor the cache of programs counts: a search that
continues has to choose the same.

A short step leaves most of an accelerator idle: launching its kernels takes longer than their
arithmetic. So there trials gain from each other's company even where no compile is saved. The
numbers are those of an H100 (docs/decisions/0046-sharing-on-a-gpu.md); of a TPU nothing has been
measured.

Notation
    width: a hyperparameter that decides extents of variables.
    top: the largest value of a band.
    structure: as a unit, what takes as long as to trace and compile one.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.executor.base import SiblingModelBuilder

#: Structures that compile as long as a program of several: it has masks.
PADDED = 2
#: What each combination of choices adds: two models are traced, and the program has parts for it.
_CHOOSING = 0.5
#: Padding has to save this many times its cost. It costs in every search, while programs compile
#: only in the first, and fewer trials than expected may be of the kind.
MARGIN = 2
#: What it takes to build a trial and to take it into a family.
_TAKEN_IN = 0.03
#: If time ends a search, sharing must train this many times the trials: few may be of the kind, and
#: the family is made first.
_MANY_MORE = 1.2
#: Bands of one width, at most: more would save little, and choosing them takes time.
_MOST_BANDS = 8
#: On an accelerator: floating-point operations a second, in the products and convolutions of a
#: pack of eight trials.
_PRODUCTS = 4e13
#: Simple operations on single elements a second, in kernels that read and write them anyway.
_ELEMENTS = 1e12
#: Seconds of a step that do not depend on its size.
_LAUNCHES = 5e-5
#: Seconds to trace and compile one more structure.
_STRUCTURE = 4.0
#: Compiles have to save this many times their cost: few trials may fall into a family.
_SAVES = 2
#: The tops of each width, ascending.
Bands = Mapping[str, Sequence[int]]


def tops_of(bands: Bands, hparams: Mapping[str, Any]) -> tuple[int, ...]:
    """The tops of the bands of a trial of these values."""
    return tuple(_top(tops, hparams[name]) for name, tops in bands.items())


def within(
    ranges: Mapping[str, Sequence[int]], bands: Bands, hparams: Mapping[str, Any]
) -> dict[str, Sequence[int]]:
    """The values of each width in the bands of a trial of these values; other ranges as given."""
    tops = dict(zip(bands, tops_of(bands, hparams), strict=True))
    return {
        name: [v for v in values if name not in bands or _top(bands[name], v) == tops[name]]
        for name, values in ranges.items()
    }


def _top(tops: Sequence[int], value: int) -> int:
    """The top of a value's band; a value beyond all of them is in the last."""
    return tops[min(bisect_left(tops, value), len(tops) - 1)]


@dataclass(frozen=True)
class WidthValues:
    """The values that a width may have."""

    values: Sequence[int]  # ascending
    weights: Sequence[float]  # how likely each of them is, beside the others

    @property
    def mean(self) -> float:
        """The mean value."""
        return self._mean(self.values)

    def tops(self, count: int) -> list[int]:
        """The tops of ``count`` bands, each as likely; fewer where one value fills two of them."""
        found, full, reached, total = [], 0, 0.0, sum(self.weights)
        for value, weight in zip(self.values, self.weights, strict=True):
            reached += weight * count / total
            if int(reached + 1e-6) > full:
                full = int(reached + 1e-6)
                found.append(value)
        return found

    def mean_top(self, count: int) -> float:
        """The mean top, over all values, of the bands that ``tops`` returns."""
        tops = self.tops(count)
        return self._mean([_top(tops, value) for value in self.values])

    def _mean(self, values: Sequence[int]) -> float:
        pairs = zip(values, self.weights, strict=True)
        return sum(value * weight for value, weight in pairs) / sum(self.weights)


def spread(models: SiblingModelBuilder, names: Sequence[str]) -> dict[str, WidthValues]:
    """The widths of these names, as a sampler draws them that has learnt nothing."""
    found, ranges = {}, models.ranges()
    for parameter in models.parameters:
        if parameter.name in names:
            values = ranges[parameter.name]
            weights = [1.0] * len(values)
            if getattr(parameter.distribution, "log", False):
                ends = values[0] + values[-1] if parameter.mirrored else 0
                weights = [1 / abs(ends - value) for value in values]
            found[parameter.name] = WidthValues(values, weights)
    return found


class WorkByWidths:
    """How the work of a trial follows from its widths: as the numbers of its weights do.

    ``others`` holds, by width, the shapes that the trial's variables have at another value of it.
    """

    def __init__(
        self,
        widths: Mapping[str, int],
        shapes: Sequence[Sequence[int]],
        others: Mapping[str, Sequence[Sequence[int]]],
    ) -> None:
        self._widths = dict(widths)
        # Numbers in matrices and larger arrays -> by how many of its axes each width multiplies it.
        self._terms: list[tuple[int, dict[str, int]]] = []
        for i, shape in enumerate(shapes):
            if len(shape) > 1:
                powers = {
                    name: sum(a != b for a, b in zip(shape, theirs[i], strict=True))
                    for name, theirs in others.items()
                }
                self._terms.append((math.prod(shape), powers))

    def share(self, widths: Mapping[str, float]) -> float:
        """The work at other widths, as a share of the trial's own."""
        growth = {name: value / self._widths[name] for name, value in widths.items()}
        found = sum(
            size * math.prod(growth[name] ** power for name, power in powers.items())
            for size, powers in self._terms
        )
        return found / max(1, sum(size for size, _ in self._terms))


@dataclass(frozen=True, kw_only=True)
class ToExpect:
    """What is to be expected of the trials of a kind."""

    cost: float  # structures that compile while the first one trains
    trials: int  # of the kind; of no account where ``time`` is given
    choices: int  # combinations that would share a program
    time: float = 0.0  # structures that compile in the time for the kind; 0.0: time is not a limit
    # Trials that have one structure in any case, as long as they train shorter than it compiles.
    alike: int = 1


def choose_bands(
    widths: Mapping[str, WidthValues], work: WorkByWidths, expected: ToExpect
) -> dict[str, list[int]] | None:
    """The bands that take least; None if programs of their own take less.

    Where time ends the search, those by which most trials are trained. ``work`` is that of the
    first trial.
    """
    cost, trials, choices = expected.cost, expected.trials, expected.choices
    program = PADDED if choices == 1 else PADDED + _CHOOSING * choices
    usual = work.share({name: width.mean for name, width in widths.items()})

    @functools.cache
    def mean_top(name: str, count: int) -> float:
        return widths[name].mean_top(count)

    def work_of(counts: Mapping[str, int]) -> float:
        return work.share({name: mean_top(name, count) for name, count in counts.items()})

    def takes(counts: Mapping[str, int], margin: float = 1) -> float:
        n_bands = math.prod(counts.values())
        if expected.time:
            left = max(0.0, expected.time - program * n_bands)
            return -left / (cost * work_of(counts) + _TAKEN_IN)
        padding = cost * trials * (work_of(counts) - usual)
        return program * structures_met(n_bands, trials) + margin * padding

    counts = dict.fromkeys(widths, 1)
    least = takes(counts)
    while True:
        tries = [
            counts | {name: count + 1}
            for name, count in counts.items()
            if count < min(len(widths[name].values), _MOST_BANDS)
        ]
        best = min(tries, key=takes, default=counts)
        if (taken := takes(best)) >= least:
            break
        counts, least = best, taken
    if expected.time:
        own = 1 / expected.alike if cost <= 1 else 1.0  # structures to compile for each trial
        if -least < _MANY_MORE * expected.time / (own + cost * usual):
            return None
        return {name: width.tops(counts[name]) for name, width in widths.items()}
    structures = choices * math.prod(len(width.values) for width in widths.values())
    if takes(counts, MARGIN) >= structures_met(structures, trials):
        return None
    return {name: width.tops(counts[name]) for name, width in widths.items()}


def structures_met(n: int, trials: int) -> float:
    """How many of ``n`` equally likely structures are among this many trials, on average."""
    return 1.0 if n == 1 else -n * math.expm1(trials * math.log1p(-1 / n))


def sharing_pays(
    *, flops: float, elements: float, steps: int, structures: float, trials: int
) -> bool:
    """Whether trials of several structures are trained sooner in one program.

    Args:
        flops: Floating-point operations that each step of a trial makes more than alone.
        elements: Operations on single elements that each step makes more than alone.
        steps: Training steps of a trial.
        structures: Structures that a trial of the family saves from being compiled, on average.
        trials: Trials that the family is judged by.
    """
    more = flops / _PRODUCTS + elements / _ELEMENTS
    less = _LAUNCHES * (1 - 1 / trials)
    return (more - less) * steps < structures * _STRUCTURE / _SAVES
