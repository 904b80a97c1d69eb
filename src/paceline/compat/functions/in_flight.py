"""How many trials of an Optuna study are in flight at once: as many as its sampler can afford."""

from __future__ import annotations

import math
from typing import Any

import jax
import keras
import optuna
from optuna.samplers import BruteForceSampler, GridSampler, QMCSampler, RandomSampler

#: Trials of a sampler that learns from none of them, if the number of trials is unknown.
_UNKNOWN = 32
#: Trials of a sampler that learns, at least.
_LEAST = 8
#: Keys of the attributes in which ``GridSampler`` keeps its grid and a trial's place in it.
_SPACE, _PLACE = "search_space", "grid_id"


class TrialsInFlight:
    """How many trials may be in flight in one run of a study; ``given`` by the user, or None."""

    def __init__(self, study: optuna.Study, n_trials: int | None, given: int | None) -> None:
        self._study, self._n_trials, self._given = study, n_trials, given
        # By class, not by ``isinstance``: a subclass may learn.
        kind = type(study.sampler)
        self._learns = kind not in (RandomSampler, GridSampler, QMCSampler, BruteForceSampler)
        # Before Optuna 5 this sampler took its space from the first finished trial.
        older = int(optuna.__version__.partition(".")[0]) < 5
        self._waits_for_first = kind is QMCSampler and older

    def most(self, n_ended: int) -> int:
        """Returns how many may be in flight after ``n_ended`` trials of this run have ended."""
        if self._given is not None:
            return self._given
        if self._learns:
            return allowed(n_ended, on_cpu=_on_cpu())
        if self._waits_for_first and not n_ended:
            return 1
        return _UNKNOWN if self._n_trials is None else max(1, self._n_trials)

    def has_room(self, n_open: int, n_ended: int) -> bool:
        """Whether one more trial may be asked for now."""
        if n_open >= self.most(n_ended):
            return False
        return not (n_open and type(self._study.sampler) is GridSampler and self._grid_is_taken())

    def _grid_is_taken(self) -> bool:
        """Whether every place of the grid has a trial, so that the next one would be a repetition.

        ``GridSampler`` stops the study only when the trial of the last place has ended.
        """
        places: dict[str, tuple[int, set[Any]]] = {}
        for trial in self._study.get_trials(deepcopy=False):
            attributes = trial.system_attrs
            if _PLACE in attributes and _SPACE in attributes:
                space = attributes[_SPACE]
                n_places = math.prod(len(values) for values in space.values())
                places.setdefault(repr(space), (n_places, set()))[1].add(attributes[_PLACE])
        if not places:
            return False
        n_places, taken = list(places.values())[-1]
        return len(taken) >= n_places


def _on_cpu() -> bool:
    """Whether trials train on a CPU, as far as is known."""
    # In a session on TensorFlow or PyTorch they train in another process. To ask JAX for its
    # device here would take memory of that device in this process, too.
    return keras.backend.backend() != "jax" or jax.default_backend() == "cpu"


def allowed(n_ended: int, *, on_cpu: bool) -> int:
    """Returns how many trials a sampler that learns may have in flight after ``n_ended`` ended.

    8 cost little, because TPE and CMA-ES begin with random trials anyway. On a CPU more trials
    save hardly any time. An accelerator trains more in the same time, so the number grows.
    ``benchmarks/in_flight.py`` measures the cost (docs/decisions/0057).
    """
    return _LEAST if on_cpu else _LEAST + n_ended // 8
