"""The sampler ``cmaes``: CMA-ES on the ``cmaes`` package, its state replayed from told trials.

Optuna's own CmaEsSampler keeps the state as a pickle in the storage. Here the state is a function
of the trials that have ended: nothing is stored, and a resumed search draws what it would have.

d: numeric hyperparameters that all trials share, as shares of their ranges (f64[d], in 0 to 1).
p: trials of a generation.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from cmaes import CMA
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from paceline.study.samplers.earlier_studies import EarlierStudy
from paceline.study.samplers.told_trials import SeenTrial, ToldTrials
from paceline.study.samplers.tpe import Tpe
from paceline.study.samplers.values import RESTART, seeded_bits, value_at

#: The first standard deviation in each direction, as a share of the range: two thirds of the first
#: draws are in the middle half. From a configuration that was learnt a smaller one.
SIGMA, SIGMA_LEARNT = 0.25, 0.12
#: A population has converged where a generation is not wider in any direction, as a share of the
#: range: hyperparameters that are closer train alike.
CONVERGED = 1e-3
# A share of 1 would be the first value beyond a range.
_BELOW_ONE = math.nextafter(1.0, 0.0)


class CmaEs(BaseSampler):
    """CMA-ES over the numbers that all trials share; TPE chooses everything else.

    Trials that have ended are told in the order of their numbers, p at a time. So trials of the
    generation before, which end late where many train at once, count as well (Optuna's sampler
    drops them). Only their order counts: complete trials by their loss, then pruned trials, those
    that trained longest first, then trials that violate a constraint.

    Where a population has converged, the next one begins at a random place with twice as many
    trials (Auger and Hansen 2005).
    """

    def __init__(self, seed: int, told: ToldTrials) -> None:
        self._seed, self._told = seed, told
        self._others = Tpe(told)
        self._draw = 0
        # Without pruned trials, as Optuna's own: some are rejected before they declare all.
        self._shared = optuna.search_space.IntersectionSearchSpace()
        self._replay: _Replay | None = None

    def seeded(self, seed: int) -> CmaEs:
        """Return this sampler, about to choose from ``seed``."""
        self._draw = seed
        self._others.seeded(seed)
        return self

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the numbers that all trials share; none where that is fewer than two."""
        shared = self._shared.calculate(study)
        found: dict[str, BaseDistribution] = {
            name: kind
            for name, kind in shared.items()
            if isinstance(kind, FloatDistribution | IntDistribution) and not kind.single()
        }
        return found if len(found) > 1 else {}  # one number has no covariance

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the stored values of shared numbers."""
        if not search_space:
            return {}
        if self._replay is None or self._replay.space != search_space:
            self._replay = _Replay(search_space, self._seed, self._told.learnt)
        optimizer = self._replay.after(self._told.all_ended)
        optimizer.reseed_rng(self._draw)
        shares = np.minimum(optimizer.ask(), _BELOW_ONE)
        return {
            name: value_at(kind, float(share))
            for (name, kind), share in zip(search_space.items(), shares, strict=True)
        }

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return the stored value of a choice, or of a number that not all trials have."""
        return self._others.sample_independent(study, trial, param_name, param_distribution)


class _Replay:
    """CMA-ES after the trials that have ended, told from the first one on.

    ``space`` are the numbers, ``seed`` is of the places where populations begin again, and the best
    of the ``learnt`` trials is where the search begins.
    """

    def __init__(
        self, space: Mapping[str, BaseDistribution], seed: int, learnt: Sequence[EarlierStudy]
    ) -> None:
        self.space = dict(space)
        self._seed = seed
        self._n_restarts = 0
        known = _best_of(learnt, space)
        mean = np.array([_share(kind, known.get(name)) for name, kind in self.space.items()])
        first = self._begun(mean, SIGMA_LEARNT if known else SIGMA, population_size=None)
        # After each generation: the trials told up to there, how often it has begun again, and the
        # optimizer. A trial that ends late may belong to an earlier generation than the last.
        self._after: list[tuple[int, int, CMA]] = [(0, 0, first)]
        self._told: list[int] = []

    def after(self, ended: Sequence[SeenTrial]) -> CMA:
        """Return the optimizer after these trials, by number."""
        trials = [trial for trial in ended if self.space.keys() <= trial.params.keys()]
        numbers = [trial.number for trial in trials]
        same = min(len(self._told), len(numbers))
        if self._told[:same] != numbers[:same]:
            pairs = zip(self._told, numbers, strict=False)
            same = next(i for i, (before, now) in enumerate(pairs) if before != now)
        while self._after[-1][0] > same:
            self._after.pop()
        n_told, n_restarts, optimizer = self._after[-1]
        while n_told + optimizer.population_size <= len(trials):
            optimizer = copy.deepcopy(optimizer)
            generation = trials[n_told : n_told + optimizer.population_size]
            n_told += len(generation)
            ranked = sorted(generation, key=lambda trial: trial.order)
            points = [self._point(trial) for trial in ranked]
            optimizer.tell([(point, float(i)) for i, point in enumerate(points)])
            if np.ptp(points, axis=0).max() < CONVERGED or optimizer.should_stop():
                n_restarts += 1
                optimizer = self._again(n_restarts, 2 * optimizer.population_size)
            self._after.append((n_told, n_restarts, optimizer))
        self._told = numbers
        return optimizer

    def _again(self, n_restarts: int, population_size: int) -> CMA:
        place = [seeded_bits(self._seed, RESTART, n_restarts, i) for i in range(len(self.space))]
        return self._begun(np.array(place) / 2**32, SIGMA, population_size)

    def _begun(self, mean: np.ndarray, sigma: float, population_size: int | None) -> CMA:
        d = len(self.space)
        return CMA(
            mean=mean,
            sigma=sigma,
            bounds=np.array([[0.0, 1.0]] * d),
            seed=0,  # each draw has a seed of its own
            n_max_resampling=10 * d,
            population_size=population_size,
        )

    def _point(self, trial: SeenTrial) -> np.ndarray:
        return np.array([_share(kind, trial.params[name]) for name, kind in self.space.items()])


def _best_of(
    learnt: Sequence[EarlierStudy], space: Mapping[str, BaseDistribution]
) -> dict[str, Any]:
    """Return the values that the best trial of earlier studies has; empty without such trials."""
    ranked = sorted(
        ((trial.rank, i, study, trial) for i, study in enumerate(learnt) for trial in study.trials),
        key=lambda each: each[:2],
    )
    return next((found for *_, study, trial in ranked if (found := study.values(trial, space))), {})


def _share(kind: BaseDistribution, value: Any) -> float:
    """Return where a stored value is in its range, the middle of what ``value_at`` makes of it.

    ``kind`` is a range of numbers; the value None is for the middle of the range.
    """
    if value is None:
        return 0.5
    assert isinstance(kind, FloatDistribution | IntDistribution)
    low, high, value = float(kind.low), float(kind.high), float(value)
    if kind.log:
        half = 0.5 if isinstance(kind, IntDistribution) else 0.0
        low, high, value = math.log(low - half), math.log(high + half), math.log(value)
    elif kind.step is not None:
        low, high = low - kind.step / 2, high + kind.step / 2
    return min(max((value - low) / (high - low), 0.0), 1.0)
