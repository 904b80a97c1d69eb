"""NSGA-II and NSGA-III: Optuna's genetic samplers, with a seed for every trial.

They learn in generations: a trial notes in which one it was drawn, and the study which trials are
the parents of a generation. A search that continues from a checkpoint needs both again, since which
parents survive depends on what was drawn before.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import optuna
from optuna.samplers import BaseSampler

from paceline.errors import SamplerError

NSGA = ("nsga2", "nsga3")
#: Trials of a generation, unless the name says otherwise: as in Optuna.
POPULATION = 50
_NAME = re.compile(r"(nsga2|nsga3)(?::(\d{1,9}))?")
#: Where Optuna notes the parents of a generation: from 4.3 on, and before.
_PARENTS = (":parent:", ":population:")


def read_nsga(text: str) -> tuple[str, int] | None:
    """Return the name and the population of ``nsga2[:POPULATION]``; None: another sampler."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    size = POPULATION if match[2] is None else int(match[2])
    if size < 2:
        raise SamplerError(
            f"sampler: a generation must have at least 2 trials, got {text!r}. Write for instance "
            f"{match[1]}:20."
        )
    return match[1], size


def nsga_maker(name: str, population: int) -> Callable[[int], BaseSampler]:
    """Return what makes a sampler from a seed."""
    kind = optuna.samplers.NSGAIISampler if name == "nsga2" else optuna.samplers.NSGAIIISampler

    def make(seed: int) -> BaseSampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return kind(population_size=population, seed=seed)

    return make


def parents_noted(attrs: Mapping[str, Any], renumber: Mapping[int, int]) -> dict[str, Any]:
    """Return those system attributes of a study in memory that name the parents of generations.

    ``renumber``: a trial's number -> that in what is returned. Notes of other trials are made
    again.
    """
    found = {}
    for key, note in attrs.items():
        if not any(part in key for part in _PARENTS) or not isinstance(note, list | tuple):
            continue
        # A list of numbers; before Optuna 4.3 the generation, and such a list.
        *before, numbers = [note] if ":parent:" in key else note
        if isinstance(numbers, list | tuple) and all(number in renumber for number in numbers):
            moved = [renumber[number] for number in numbers]
            found[key] = [*before, moved] if before else moved
    return found
