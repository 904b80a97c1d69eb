"""Values for the copies of a population that a Gaussian process chooses: ``PBT(explore="gp")``.

How much a trial gains between two perturbations follows from the epoch, from what it has reached,
and from its hyperparameters. A Gaussian process learns that from all trials so far. A copy gets the
values whose gain may be largest: mean plus some standard deviations. The copies of one perturbation
are chosen one after another. For the next ones, each counts as if it had gained what the mean says.

Source: Parker-Holder, Nguyen, Roberts, "Provably efficient online hyperparameter optimization with
population-based bandits", 2020 (PB2). The process is scikit-learn's, with a Matern kernel over all
columns in place of a squared exponential one with a decay in time.

N: intervals. D: hyperparameters. F = D + 2: columns.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.distributions import FloatDistribution, IntDistribution

from paceline.search_space import Parameter
from paceline.study.samplers.values import share_of, value_at
from paceline.study.trials.trial import Trial

#: Legs that are needed: with fewer, values are drawn as without a process.
_LEAST = 4
#: Intervals that are learnt from, the newest ones: the cost grows with the third power.
_MOST = 400
#: Weight of the standard deviation. With one to two, as in the authors' program, populations of 8
#: and 16 members found no more than random search (docs/decisions/0039).
_OPTIMISM = 0.3
#: Values that are compared: over the whole space, and around the trial that is copied.
_ANYWHERE, _NEAR, _NEARNESS = 512, 128, 0.1


@dataclass(frozen=True)
class PerturbationGain:
    """What a trial gained from one perturbation to the next."""

    epoch: int  # at its end
    reached: float  # the loss at its beginning
    gain: float  # by how much the loss fell
    hparams: Mapping[str, Any]  # plain name -> real value


def gains_of(
    trials: Iterable[Trial], metric: str, sign: float, ends: Sequence[int]
) -> list[PerturbationGain]:
    """Return the intervals of all trials; epochs that a copy has of another trial count once.

    ``metric`` is the log that is compared; ``sign`` is 1 where it falls, -1 where it rises;
    ``ends`` are the epochs of perturbations, in order.
    """
    found = []
    for trial in trials:
        losses = [sign * value for value in trial.history.get(metric, ())]
        # The first interval begins with the first epoch: before it, nothing is known.
        for begin, end in zip((1, *ends), ends, strict=False):
            if begin < (trial.continued_at or 0) or end <= begin or len(losses) < end:
                continue
            reached, now = losses[begin - 1], losses[end - 1]
            if math.isfinite(reached) and math.isfinite(now):
                found.append(PerturbationGain(end, reached, reached - now, trial.hparams))
    return sorted(found, key=lambda interval: interval.epoch)


def is_learnt(parameter: Parameter) -> bool:
    """Return whether a process can choose values of a hyperparameter: it is a number of a range."""
    known = parameter.distribution
    numeric = isinstance(known, IntDistribution | FloatDistribution)
    return numeric and bool(known.low < known.high)


def chosen(
    parameters: Mapping[str, Parameter],
    intervals: Sequence[PerturbationGain],
    source: PerturbationGain,
    others: Sequence[Mapping[str, Any]],
    rng: np.random.Generator,
) -> dict[str, Any] | None:
    """Return the values of a copy by plain name, or None if too little is known.

    Each of ``parameters`` is learnt. ``source`` is the trial that is copied, as a future interval:
    the epoch at its end, the trial's result so far, and its values. ``others`` are values of the
    copies that this perturbation has made already.
    """
    known = [interval for interval in intervals if interval.hparams.keys() >= parameters.keys()][
        -_MOST:
    ]
    if len(known) < _LEAST:
        return None
    columns = _PerturbationRows(parameters, known)
    rows, gains = columns.of(known), np.array([interval.gain for interval in known])
    spread = float(gains.std()) or 1.0
    gains = (gains - gains.mean()) / spread  # f64[N]
    model = _fitted(rows, gains, None)
    waiting = [PerturbationGain(source.epoch, source.reached, 0.0, values) for values in others]
    waiting = [interval for interval in waiting if interval.hparams.keys() >= parameters.keys()]
    if waiting:
        extra = columns.of(waiting)
        rows = np.concatenate([rows, extra])
        gains = np.concatenate([gains, model.predict(extra)])
        model = _fitted(rows, gains, model.kernel_)
    shares = _candidates(columns.shares(source), rng)  # f64[C, D]
    beside = np.tile(columns.beside(source), (len(shares), 1))
    mean, deviation = model.predict(np.concatenate([beside, shares], axis=1), return_std=True)
    best = int(np.argmax(mean + _OPTIMISM * deviation))
    return {
        name: parameter.from_storage(value_at(parameter.distribution, float(share)))
        for (name, parameter), share in zip(parameters.items(), shares[best], strict=True)
    }


class _PerturbationRows:
    """Intervals as rows: the epoch, what was reached, and the share of each range. F columns."""

    def __init__(
        self, parameters: Mapping[str, Parameter], known: Sequence[PerturbationGain]
    ) -> None:
        self._parameters = parameters
        reached = np.array([interval.reached for interval in known])
        self._middle, self._spread = float(reached.mean()), float(reached.std()) or 1.0
        self._last = max(interval.epoch for interval in known)

    def beside(self, interval: PerturbationGain) -> list[float]:
        """Return the two columns that are not hyperparameters."""
        return [interval.epoch / self._last, (interval.reached - self._middle) / self._spread]

    def shares(self, interval: PerturbationGain) -> list[float]:
        """Return where in their ranges the values lie."""
        found = []
        for name, parameter in self._parameters.items():
            known: Any = parameter.distribution
            share = share_of(known, parameter.to_storage(interval.hparams[name]))
            found.append(min(max(share, 0.0), 1.0))
        return found

    def of(self, intervals: Sequence[PerturbationGain]) -> np.ndarray:
        """Return f64[N, F]."""
        return np.array(
            [[*self.beside(interval), *self.shares(interval)] for interval in intervals]
        )


def _candidates(around: Sequence[float], rng: np.random.Generator) -> np.ndarray:
    anywhere = rng.random((_ANYWHERE, len(around)))
    near = np.asarray(around) + _NEARNESS * rng.standard_normal((_NEAR, len(around)))
    below = np.nextafter(1.0, 0.0)  # shares are below 1
    return np.clip(np.concatenate([anywhere, near]), 0.0, below)


def _fitted(rows: np.ndarray, gains: np.ndarray, kernel: Any) -> Any:
    """Return a process fitted to the rows, with its kernel's parameters fitted too, or given."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    optimizer: Any = None
    if kernel is None:
        widths: Any = np.ones(rows.shape[1])  # one for each column
        matern = Matern(widths, (0.05, 100.0), nu=2.5)
        kernel = ConstantKernel(1.0, (0.01, 100.0)) * matern + WhiteKernel(0.1, (1e-4, 1.0))
        optimizer = "fmin_l_bfgs_b"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a column that says nothing
        return GaussianProcessRegressor(kernel, optimizer=optimizer, random_state=0).fit(
            rows, gains
        )
