"""Samplers: who chooses the values of a trial.

``tpe`` and ``gp`` are Optuna's, made afresh for every trial from the study's seed and the trial's
number, so that what is chosen does not depend on the clock or on a restart. ``random`` is ours
(``Draws``), because what Optuna's draws for one parameter depends on which it drew before;
``qmc``, because Optuna's knows no conditions and needs a finished trial to go by; ``grid``
(``Odometer``), because Optuna's wants the space before the first build.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.samplers import BaseSampler, RandomSampler

from paceline.errors import MissingExtraError, SamplerError
from paceline.study.samplers.sobol import Sobol
from paceline.study.samplers.tpe import Tpe
from paceline.study.samplers.values import SAMPLER, seeded_bits
from paceline.study.searcher import Searcher

NAMES = ("random", "qmc", "tpe", "gp", "grid")


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
    director: Searcher | None = None


def resolve_sampler(sampler: Any, seed: int) -> Sampler:
    """Return the sampler meant.

    Args:
        sampler: One of ``NAMES``, an Optuna sampler object (seed it yourself), or a ``Searcher``.
        seed: The study's seed.

    Raises:
        SamplerError: An unknown name, or a sampler that cannot be used here.
        MissingExtraError: gp without torch.
    """
    if isinstance(sampler, BaseSampler):
        return _given(sampler)
    if isinstance(sampler, Searcher):
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
        make=lambda number, attempt: new(seeded_bits(seed, SAMPLER, number, attempt)),
    )


def fixed(values: Mapping[str, Any], sampler: BaseSampler) -> BaseSampler:
    """Return a sampler that chooses as another one does, but for what is given.

    Args:
        values: Storage name -> stored value.
        sampler: Chooses the others.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.PartialFixedSampler(dict(values), sampler)


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
