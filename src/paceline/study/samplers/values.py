"""Values from a study's seed: seeds of trials, random values, and values at a share of a range.

A value depends on the seed, on the stream and on the parameter that it is drawn for, and on no
earlier value. So ``RandomDraws`` can try the numbered configurations of random search in any order.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
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

#: Storage name -> stored value of the structural parameters that are active.
StructuralValues = Mapping[str, Any]

# Streams of random numbers that a study's seed gives.
TRIAL, SAMPLER, SHIFT, VALUE, WAITED, LEARNT, RESTART = range(7)


def check_seed(seed: Any) -> int:
    """Return a study's seed as an int; UsageError where it is not an integer from 0."""
    try:
        found = -1 if isinstance(seed, bool) else operator.index(seed)
    except TypeError:
        found = -1
    if found < 0:
        raise UsageError(f"seed must be an integer of at least 0, got {seed!r}.")
    return found


def trial_seed(seed: int, number: int, *, waited: bool = False) -> int:
    """Return the seed of a trial, 31 bits: the same for the same study seed and number, always.

    ``waited``: another program added it; a trial of the search's own may have had its number.
    """
    return seeded_bits(seed, WAITED if waited else TRIAL, number) >> 1


#: How many missing trials in a row the seed of the next trial shows.
MISSING_AT_ONCE = 16


def n_missing(seed: Any, number: int, attrs: Mapping[str, Any]) -> int:
    """Return how many trials are missing before a stored one, whose place is ``number``.

    A trial's seed follows from the study's seed and the number that the trial was to have. Other
    workers may have taken that number and the next ones. So a trial's number may be higher than its
    seed says, but never lower. ``attrs`` are as stored.
    """
    if not isinstance(seed, int) or "seed" not in attrs or "continued_from" in attrs:
        return 0
    for n in range(MISSING_AT_ONCE + 1):
        if trial_seed(seed, number + n) == attrs["seed"]:
            return n
    return 0


def random_value(parameter: Parameter, seed: int, *stream: int) -> Any:
    """Return the real value of a parameter in one stream of a study's random draws.

    It does not depend on what else is drawn: a parameter has it whatever was asked for before.
    """
    key = (VALUE, *stream, stream_of(parameter))
    bits = np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)[0]
    return parameter.from_storage(value_at(parameter.distribution, (int(bits) >> 11) / 2**53))


def stream_of(parameter: Parameter) -> int:
    """Return the number by which a parameter's random draws are its own: of its whole name."""
    digest = hashlib.sha256(parameter.storage_name.encode()).digest()
    return int.from_bytes(digest[:8], "big")


def random_chooser(seed: int, *stream: int) -> Chooser:
    """Return a chooser at random: ``random_value`` of one stream."""
    return lambda parameter: random_value(parameter, seed, *stream)


def middle(parameter: Parameter) -> Any:
    """Return the real value of a parameter from which a search begins that has little time.

    That is the default that the user gave. Without one, it is the middle of a range, on its scale,
    or of the numbers to choose from. Otherwise it is the first choice.
    """
    values = parameter.values()
    if parameter.default != values[0]:
        return parameter.default
    known = parameter.distribution
    if not isinstance(known, CategoricalDistribution):
        return parameter.from_storage(value_at(known, 0.5))
    numbers = all(type(value) in (int, float) for value in values)
    return sorted(values)[len(values) // 2] if numbers else parameter.default


def value_at(distribution: BaseDistribution, share: float) -> Any:
    """Return the stored value at ``share``, in [0, 1), of a range: equal shares are as probable."""
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


def share_of(kind: IntDistribution | FloatDistribution, stored: Any) -> float:
    """Return where a stored value is in its range, from 0 to 1: almost undoes ``value_at``."""
    low, high, value = float(kind.low), float(kind.high), stored
    if kind.log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return (value - low) / (high - low)


def seeded_bits(seed: int, *stream: int) -> int:
    """Return 32 random bits of one stream of a seed."""
    return int(np.random.SeedSequence(seed, spawn_key=stream).generate_state(1)[0])


def _log_between(low: float, high: float, share: float) -> float:
    return math.exp(math.log(low) + (math.log(high) - math.log(low)) * share)


class RandomDraws:
    """A pool of the next draws of random search, from which they are taken by structure.

    The values of draw n depend on the study's seed and n only. The pool is filled in the order of
    numbers and never holds more draws than trials are sure to be run. So when the pool is empty,
    the draws tried are those that the order of numbers would have tried. A search that is resumed
    after a crash fills the pool with the draws that were left.
    """

    def __init__(self, seed: int, used: Iterable[int]) -> None:
        """Begin, or continue: ``used`` are numbers of draws that earlier sessions have tried."""
        taken = frozenset(used)
        self.used = set(taken)  # those that have been tried, or rejected
        self._seed = seed
        self._fresh = (number for number in itertools.count() if number not in taken)
        # Number -> those of its stored values that were computed.
        self._pool: dict[int, dict[str, Any]] = {}

    def fill(self, size: int) -> None:
        """Take draws into the pool, up to ``size``; one at least."""
        while len(self._pool) < max(1, size):
            self._pool[next(self._fresh)] = {}

    def chooser(self, number: int) -> Chooser:
        """Return the chooser of a draw."""
        return random_chooser(self._seed, number)

    def done(self, number: int) -> None:
        """Note that a draw was tried, or had been tried before."""
        del self._pool[number]
        self.used.add(number)

    @property
    def first(self) -> int:
        """The first draw of the pool."""
        return next(iter(self._pool))

    def like(self, values: StructuralValues, parameters: Mapping[str, Parameter]) -> list[int]:
        """Return the draws of the pool that have these values, in the order of numbers."""
        return [
            number
            for number in self._pool
            if all(self._value(number, parameters[name]) == value for name, value in values.items())
        ]

    def of_largest(
        self,
        known: Iterable[StructuralValues],
        names: Sequence[str],
        parameters: Mapping[str, Parameter],
    ) -> int:
        """Return the first draw of the pool's largest structure; of equal ones the first to come.

        ``names`` are the structural parameters. ``known``, the structures of earlier trials, show
        which parameters build would not ask for: draws that differ only in those are alike.
        """
        structures: dict[tuple[Any, ...], list[int]] = {}
        for number in self._pool:
            key = tuple(self._value(number, parameters[name]) for name in names)
            structures.setdefault(key, []).append(number)
        for values in known:
            if len(values) < len(names):
                asked = [(i, values[name]) for i, name in enumerate(names) if name in values]
                alike = [key for key in structures if all(key[i] == value for i, value in asked)]
                if alike:
                    structures[alike[0]] = sorted(n for key in alike for n in structures.pop(key))
        return max(structures.values(), key=lambda found: (len(found), -found[0]))[0]

    def _value(self, number: int, parameter: Parameter) -> Any:
        """Return the stored value that a draw has for a parameter."""
        known, name = self._pool[number], parameter.storage_name
        if name not in known:
            known[name] = parameter.to_storage(random_value(parameter, self._seed, number))
        return known[name]
