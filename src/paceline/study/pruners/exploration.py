"""Other values of hyperparameters for a copy of a trial, under population based training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from paceline.search_space import Parameter
from paceline.study.pruners.pbt import PBT, STREAM
from paceline.study.samplers.values import random_value, seeded_bits, stream_of

# Streams within ``STREAM``; 0 is taken by the choice of whom to copy.
_RESAMPLE, _FACTOR, _VALUE, _SEED, _COMPARED = range(1, 6)


def copy_seed(seed: int, replaced: int, epoch: int) -> int:
    """Return the seed of a copy, 31 bits: its dropout and the order of its examples."""
    return seeded_bits(seed, STREAM, _SEED, replaced, epoch) >> 1


def exploration_rng(seed: int, *stream: int) -> np.random.Generator:
    """Return a generator of the values that a Gaussian process compares for one copy."""
    return np.random.default_rng(
        np.random.SeedSequence(seed, spawn_key=(STREAM, _COMPARED, *stream))
    )


def explored(parameter: Parameter, value: Any, settings: PBT, seed: int, *stream: int) -> Any:
    """Return the real value of a hyperparameter in a copy of a trial that has ``value``.

    ``seed`` is the study's; the numbers of ``stream`` tell this draw from all others.
    """
    name = stream_of(parameter)
    bits = seeded_bits(seed, STREAM, _RESAMPLE, *stream, name)
    if bits < settings.resample_probability * 2**32:
        return random_value(parameter, seed, STREAM, _VALUE, *stream)
    upwards = seeded_bits(seed, STREAM, _FACTOR, *stream, name) % 2 == 1
    factor = settings.perturbation_factors[upwards]
    known = parameter.distribution
    if isinstance(known, CategoricalDistribution):
        return _neighbour(known.choices, value, upwards)
    stored: Any = parameter.to_storage(value)
    if stored == 0:  # a factor would leave it there for ever
        return random_value(parameter, seed, STREAM, _VALUE, *stream)
    return parameter.from_storage(_moved(known, stored, factor))


def _neighbour(choices: Sequence[Any], value: Any, upwards: bool) -> Any:
    """The next larger or smaller one of several numbers; values that are not numbers stay."""
    if any(isinstance(each, bool | str | None) for each in choices):
        return value
    ordered = sorted(choices)
    at = ordered.index(value) + (1 if upwards else -1)
    return ordered[min(max(at, 0), len(ordered) - 1)]


def _moved(known: IntDistribution | FloatDistribution, stored: Any, factor: float) -> Any:
    """A number times a factor, within its bounds and on its grid, one step away at least."""
    moved = min(max(stored * factor, known.low), known.high)
    if known.step is None or (isinstance(known, IntDistribution) and known.log):
        if isinstance(known, FloatDistribution):
            return moved
    step = known.step or 1
    n_steps = round((known.high - known.low) / step)
    before, at = round((stored - known.low) / step), round((moved - known.low) / step)
    if at == before and moved != stored:
        at += 1 if moved > stored else -1
    at = min(max(at, 0), n_steps)
    return _grid_value(known, at)


def _grid_value(known: IntDistribution | FloatDistribution, at: int) -> Any:
    if isinstance(known, IntDistribution):
        return known.low + at * known.step
    # The parameter takes the point of its grid that this is next to.
    return min(known.low + at * (known.step or 1.0), known.high)
