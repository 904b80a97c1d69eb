"""The sampler that ``"auto"`` stands for, by what is known of a search before its first trial.

``choose_sampler`` has the rules; docs/decisions/0047-a-sampler-by-rules.md has their reasons.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from optuna.distributions import FloatDistribution, IntDistribution

from paceline.errors import SamplerError
from paceline.search_space import Parameter
from paceline.study.samplers.nsga import read_nsga
from paceline.study.samplers.samplers import NAMES

#: Trials from which CMA-ES finds more than TPE, and the most numbers that it is chosen for.
CMAES_TRIALS, CMAES_NUMBERS = 400, 20
#: Integers with fewer values are too coarse for a normal distribution.
_COARSE = 10


@dataclass(frozen=True)
class SearchOutline:
    """What is known of a search before its first trial."""

    parameters: Collection[Parameter]  # of all models built so far
    conditional: bool = False  # whether some of them are there under a condition alone
    n_trials: int | None = None  # wanted in all; None if something else ends the search
    n_objectives: int = 1
    constrained: bool = False  # whether trials may be rejected
    learns: bool = False  # whether the search is warm-started
    may_end_early: bool = False  # whether a time limit or a rule may end it before ``n_trials``
    population: bool = False  # whether all trials begin before one has ended, as those of PBT do


class SamplerChoice(NamedTuple):
    """A sampler's name, and half a sentence that says why it was chosen."""

    sampler: str
    reason: str


def choose_sampler(outline: SearchOutline) -> SamplerChoice:
    """Return the sampler for a search, by the first rule that fits."""
    n_trials = outline.n_trials
    varied = [parameter for parameter in outline.parameters if parameter.cardinality != 1]
    if outline.learns:
        return SamplerChoice("tpe", "the search is warm-started from earlier studies")
    if n_trials is None:
        return SamplerChoice("tpe", "the number of trials is not known")
    size = _n_configurations(varied, n_trials)
    if size is not None and not outline.may_end_early:
        text = f"{n_trials:,} trials are enough for every configuration, at most {size:,}"
        return SamplerChoice("grid", text)
    if outline.n_objectives > 1:
        return SamplerChoice("tpe", f"there are {outline.n_objectives} objectives")
    if outline.constrained:
        return SamplerChoice("tpe", "it learns from trials that are rejected")
    if outline.population:
        return SamplerChoice("tpe", "the members of a population begin at random")
    if outline.conditional:
        return SamplerChoice("tpe", "some hyperparameters depend on others")
    if coarse := [parameter for parameter in varied if not _is_number(parameter)]:
        first, n = coarse[0], coarse[0].cardinality
        return SamplerChoice("tpe", f"{first.name} has {n} values, and is not a range of numbers")
    if not 2 <= len(varied) <= CMAES_NUMBERS:
        return SamplerChoice("tpe", f"the number of hyperparameters is {len(varied)}")
    if n_trials < CMAES_TRIALS:
        return SamplerChoice("tpe", f"there are fewer than {CMAES_TRIALS} trials")
    if importlib.util.find_spec("cmaes") is None:
        text = 'cmaes would suit but is not installed: pip install "paceline[cmaes]"'
        return SamplerChoice("tpe", text)
    text = f"{n_trials:,} trials vary only numbers, {len(varied)} of them"
    return SamplerChoice("cmaes", text)


def is_name(sampler: Any) -> bool:
    """Whether a text names a sampler, as a study has stored it."""
    try:
        return isinstance(sampler, str) and (sampler in NAMES or read_nsga(sampler) is not None)
    except SamplerError:
        return False


def _n_configurations(parameters: Collection[Parameter], most: int) -> int | None:
    """Return how many configurations a grid tries; None if it leaves some out, or tries more.

    It counts up to ``most``; hyperparameters under a condition are counted as if they had none.
    """
    size = 1
    for parameter in parameters:
        n = parameter.cardinality
        if n is None or (size := size * n) > most or len(parameter.values()) < n:
            return None
    return size if parameters else None


def _is_number(parameter: Parameter) -> bool:
    n = parameter.cardinality
    is_range = isinstance(parameter.distribution, FloatDistribution | IntDistribution)
    return is_range and (n is None or n >= _COARSE)
