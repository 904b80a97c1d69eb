"""Samplers: who chooses the values of a trial.

``tpe`` and ``gp`` are Optuna's, made afresh for every trial from the study's seed and the trial's
number, so that what is chosen does not hang on the clock or on a restart. ``random`` is ours
(``Draws``), because what Optuna's draws for one parameter hangs on which were asked for before it;
``qmc``, because Optuna's knows no conditions and needs a finished trial to go by; ``grid``
(``Odometer``), because Optuna's wants the space before the first build.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.trial import FrozenTrial

from paceline.director import Director
from paceline.errors import MissingExtraError, SamplerError, UsageError
from paceline.search_space import Parameter

NAMES = ("random", "qmc", "tpe", "gp", "grid")
Chooser = Callable[[Parameter], Any]

# Streams of random numbers that a study's seed gives.
_TRIAL, _SAMPLER, _SHIFT, _VALUE = range(4)


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
    return _draw(seed, _TRIAL, number) >> 1


@dataclass(frozen=True)
class Sampler:
    """What a study needs to know of its sampler.

    Attributes:
        name: One of ``NAMES``, or the class of an Optuna sampler.
        adaptive: Whether it goes by values: few trials may then be open at once.
        users: Whether it is an object of the user's, which wants to be told of ended trials.
        make: Trial number and attempt -> the Optuna sampler that chooses; None where none does.
        points: Chooses instead of ``make``'s sampler where it is given.
        director: Decides instead of any sampler.
    """

    name: str
    adaptive: bool
    make: Callable[[int, int], BaseSampler] | None
    users: bool = False
    points: Sobol | None = None
    director: Director | None = None


def resolve_sampler(sampler: Any, seed: int) -> Sampler:
    """Return the sampler meant.

    Args:
        sampler: One of ``NAMES``, an Optuna sampler object (seed it yourself), or a ``Director``.
        seed: The study's seed.

    Raises:
        SamplerError: An unknown name, or a sampler that cannot be used here.
        MissingExtraError: gp without torch.
    """
    if isinstance(sampler, BaseSampler):
        return _given(sampler)
    if isinstance(sampler, Director):
        return Sampler(type(sampler).__name__, adaptive=False, make=None, director=sampler)
    if sampler not in NAMES:
        raise SamplerError(
            f"sampler is {sampler!r}; choose one of {', '.join(NAMES)}, or pass an object of "
            "optuna.samplers."
        )
    if sampler == "gp" and importlib.util.find_spec("torch") is None:
        raise MissingExtraError(
            'sampler "gp" needs torch, which is not installed: pip install "paceline[gp]"'
        )
    points = Sobol(seed) if sampler == "qmc" else None
    if sampler not in ("tpe", "gp"):
        return Sampler(sampler, adaptive=False, make=None, points=points)
    new = Tpe().seeded if sampler == "tpe" else _gp
    return Sampler(
        sampler,
        adaptive=True,
        make=lambda number, attempt: new(_draw(seed, _SAMPLER, number, attempt)),
    )


def random_value(parameter: Parameter, seed: int, *stream: int) -> Any:
    """Return the real value of a parameter in one stream of a study's random draws.

    It does not hang on what else is drawn: a parameter has it whatever was asked for before.
    """
    name = hashlib.sha256(parameter.storage_name.encode()).digest()[:8]
    key = (_VALUE, *stream, int.from_bytes(name, "big"))
    bits = np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)[0]
    return parameter.from_storage(value_at(parameter.distribution, (int(bits) >> 11) / 2**53))


def random_chooser(seed: int, *stream: int) -> Chooser:
    """Return a chooser at random: ``random_value`` of one stream."""
    return lambda parameter: random_value(parameter, seed, *stream)


def fixed(values: Mapping[str, Any], sampler: BaseSampler) -> BaseSampler:
    """Return a sampler that chooses as another one does, but for what is given.

    Args:
        values: Storage name -> stored value.
        sampler: Chooses the others.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.PartialFixedSampler(dict(values), sampler)


class Tpe(BaseSampler):
    """Optuna's TPE with a seed for every trial.

    A new TPE sampler would go through all trials to find the parameters that they share; this one
    remembers them. (At 1,000 trials that is a third of the time of a proposal.)
    """

    def __init__(self) -> None:
        self._shared = IntersectionSearchSpace(include_pruned=True)
        self._tpe = optuna.samplers.TPESampler(seed=0)

    def seeded(self, seed: int) -> Tpe:
        """Return this sampler, about to choose from ``seed``."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # Both are the defaults from Optuna 5 on. The liar keeps trials that are open at once
            # apart.
            self._tpe = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
        return self

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that all trials share, to be chosen together."""
        shared = self._shared.calculate(study)
        return {name: known for name, known in shared.items() if not known.single()}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the stored values of shared parameters."""
        return self._tpe.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return the stored value of a parameter that not all trials have."""
        return self._tpe.sample_independent(study, trial, param_name, param_distribution)


class Sobol:
    """A Sobol sequence over parameters that are met one by one.

    Each storage name has a coordinate of its own, so that conditional parameters have their place
    too. Trial n takes point n: nothing has to be stored to go on. Coordinates are shifted digit by
    digit (an XOR with a number of their own from the seed), which keeps the sequence's evenness.
    """

    _BITS = 30
    _BLOCK = 16

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._coordinates: dict[str, int] = {}

    def know(self, names: Iterable[str]) -> None:
        """Give coordinates to parameters of an earlier session, in the order then met."""
        for name in names:
            self._coordinate(name)

    @property
    def names(self) -> list[str]:
        """The parameters that have coordinates, in their order."""
        return list(self._coordinates)

    def chooser(self, number: int) -> Chooser:
        """Return the chooser of point ``number``."""
        point = np.empty(0)

        def choose(parameter: Parameter) -> Any:
            nonlocal point
            index = self._coordinate(parameter.storage_name)
            if index >= len(point):
                point = self._point(number, index + 1)
            shift = _draw(self._seed, _SHIFT, index) >> (32 - self._BITS)
            share = (int(point[index] * 2**self._BITS) ^ shift) / 2**self._BITS
            return parameter.from_storage(value_at(parameter.distribution, share))

        return choose

    def _coordinate(self, name: str) -> int:
        return self._coordinates.setdefault(name, len(self._coordinates))

    def _point(self, number: int, dimensions: int) -> np.ndarray:
        """Return point ``number``, f64[at least ``dimensions``] in [0, 1), not shifted."""
        from scipy.stats import qmc  # a second to import, for this sampler alone

        # More dimensions do not change the first ones: take a block more seldom.
        blocks = -(-dimensions // self._BLOCK)
        engine = qmc.Sobol(blocks * self._BLOCK, scramble=False, bits=self._BITS)
        if number:
            engine.fast_forward(number)
        return engine.random(1)[0]


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


class Tried:
    """The configurations that builds of this process have met, as paths of choices.

    A build that makes the same choices asks for the same parameters, so a path that is known from
    end to end needs no build to be recognised. Paths of an earlier process are not taken: the user
    may have changed the build since.
    """

    def __init__(self) -> None:
        # Values chosen so far -> the parameter asked for next; None where the build ended.
        self._next: dict[tuple[Any, ...], Parameter | None] = {}

    def add(self, choices: Iterable[tuple[Parameter, Any]]) -> None:
        """Note a build that ended well, with the choices it asked for, in order."""
        path: tuple[Any, ...] = ()
        for parameter, value in choices:
            self._next[path] = parameter
            path += (value,)
        self._next[path] = None

    def leads_to_known(self, choose: Chooser) -> bool:
        """Return whether the choices of ``choose`` are those of a known configuration."""
        path: tuple[Any, ...] = ()
        while path in self._next:
            parameter = self._next[path]
            if parameter is None:
                return True
            path += (choose(parameter),)
        return False


def _draw(seed: int, *stream: int) -> int:
    """Return 32 random bits of one stream of a seed."""
    return int(np.random.SeedSequence(seed, spawn_key=stream).generate_state(1)[0])


def _log_between(low: float, high: float, share: float) -> float:
    return math.exp(math.log(low) + (math.log(high) - math.log(low)) * share)


def _gp(seed: int) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.GPSampler(seed=seed)


def _given(sampler: BaseSampler) -> Sampler:
    name = type(sampler).__name__
    refused = (optuna.samplers.GridSampler, optuna.samplers.BruteForceSampler)
    if isinstance(sampler, refused):
        raise SamplerError(
            f"sampler is a {name}, which ends Optuna's own loop when it is done; use "
            'sampler="grid".'
        )
    even = (RandomSampler, optuna.samplers.QMCSampler)
    adaptive = not isinstance(sampler, even)
    return Sampler(name, adaptive, make=lambda number, attempt: sampler, users=True)
