"""Values from a study's seed: seeds of trials, random values, and values at a share of a range.

A value depends on the seed, on the stream and on what it is drawn for, and on nothing that was
drawn before.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from paceline.errors import UsageError
from paceline.search_space import Parameter

Chooser = Callable[[Parameter], Any]

# Streams of random numbers that a study's seed gives.
TRIAL, SAMPLER, SHIFT, VALUE = range(4)


def check_seed(seed: Any) -> int:
    """Return a study's seed as an int.

    Raises:
        UsageError: It is no whole number from 0.
    """
    try:
        found = -1 if isinstance(seed, bool) else operator.index(seed)
    except TypeError:
        found = -1
    if found < 0:
        raise UsageError(f"seed is {seed!r}; give a whole number from 0.")
    return found


def trial_seed(seed: int, number: int) -> int:
    """Return the seed of a trial, 31 bits: the same for the same study seed and number, always."""
    return seeded_bits(seed, TRIAL, number) >> 1


def random_value(parameter: Parameter, seed: int, *stream: int) -> Any:
    """Return the real value of a parameter in one stream of a study's random draws.

    It does not depend on what else is drawn: a parameter has it whatever was asked for before.
    """
    name = hashlib.sha256(parameter.storage_name.encode()).digest()[:8]
    key = (VALUE, *stream, int.from_bytes(name, "big"))
    bits = np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)[0]
    return parameter.from_storage(value_at(parameter.distribution, (int(bits) >> 11) / 2**53))


def random_chooser(seed: int, *stream: int) -> Chooser:
    """Return a chooser at random: ``random_value`` of one stream."""
    return lambda parameter: random_value(parameter, seed, *stream)


def value_at(distribution: BaseDistribution, share: float) -> Any:
    """Return the stored value at ``share`` of a distribution's range.

    Args:
        distribution: What Optuna sees.
        share: In [0, 1); equal intervals of it are equally probable values.
    """
    match distribution:
        case CategoricalDistribution(choices=choices):
            return choices[int(share * len(choices))]
        case IntDistribution(low=low, high=high, step=step, log=False):
            return low + step * int(share * ((high - low) // step + 1))
        case IntDistribution(low=low, high=high):
            # Half a unit on both sides, so that the bounds are as probable as their neighbours.
            value = round(_log_between(low - 0.5, high + 0.5, share))
            return min(max(value, low), high)
        case FloatDistribution(low=low, high=high, log=True):
            return min(max(_log_between(low, high, share), low), high)
        case FloatDistribution(low=low, high=high, step=float(step)):
            value = low + step * int(share * (round((high - low) / step) + 1))
            return min(value, high)
        case FloatDistribution(low=low, high=high):
            return low + (high - low) * share
    raise TypeError(f"unknown distribution {distribution!r}")


def seeded_bits(seed: int, *stream: int) -> int:
    """Return 32 random bits of one stream of a seed."""
    return int(np.random.SeedSequence(seed, spawn_key=stream).generate_state(1)[0])


def _log_between(low: float, high: float, share: float) -> float:
    return math.exp(math.log(low) + (math.log(high) - math.log(low)) * share)
