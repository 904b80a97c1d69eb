"""Bayesian optimization with a Gaussian process."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from paceline.compat.keras_tuner.engine.oracle import Oracle, given_to, running
from paceline.compat.keras_tuner.engine.trial import Trial
from paceline.compat.keras_tuner.engine.tuner import Tuner

#: Points at which the Gaussian process is evaluated, and how many of the best start a local
#: descent.
_LOOKED_AT, _FOLLOWED = 2000, 5


class BayesianOptimizationOracle(Oracle):
    """An oracle that proposes the point with the lowest confidence bound of a Gaussian process.

    Arguments that are not named here are those of ``Oracle``.

    Args:
        num_initial_points: Number of complete random trials before the process is used; None: 3 for
            each hyperparameter.
        alpha: Variance of the noise of a score; added to the diagonal of the kernel's matrix.
        beta: Number of standard deviations of the lower confidence bound below the mean; a larger
            number explores more.
    """

    _own_state = ("num_initial_points", "alpha", "beta")

    def __init__(
        self,
        objective: Any = None,
        max_trials: int | None = 10,
        num_initial_points: int | None = None,
        alpha: float = 1e-4,
        beta: float = 2.6,
        seed: int | None = None,
        hyperparameters: Any = None,
        allow_new_entries: bool = True,
        tune_new_entries: bool = True,
        max_retries_per_trial: int = 0,
        max_consecutive_failed_trials: int = 3,
    ) -> None:
        super().__init__(**given_to(Oracle, locals()))
        self.num_initial_points, self.alpha, self.beta = num_initial_points, alpha, beta

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Returns random values at first, later the values with the lowest confidence bound."""
        complete = self._complete()
        searched = [hp for hp in self.hyperparameters.space if hp.kind != "Fixed"]
        if len(complete) < self._enough() or not searched:
            return running(self._random_values())
        values = self._values_at(self._most_promising(complete, len(searched), len(self.trials)))
        # If the most promising values were tried before, new random ones tell more.
        return running(self._random_values() if self._duplicate(values) else values)

    def _enough(self) -> int:
        """Number of complete trials that the process needs."""
        return self.num_initial_points or max(3 * len(self.hyperparameters.space), 3)

    @property
    def max_parallel(self) -> int | None:
        """A few trials once the process is used; before that, all random ones at once."""
        usual = super().max_parallel
        return usual and max(usual, self._enough() - len(self._complete()))

    def _most_promising(self, complete: list[Trial], dimensions: int, n_trials: int) -> np.ndarray:
        """The point f64[dimensions] in [0, 1) with the lowest confidence bound."""
        from scipy.optimize import minimize

        process = self._process(complete)
        rng = np.random.default_rng([self.seed, n_trials])

        def bound(points: np.ndarray) -> np.ndarray:
            mean, deviation = process.predict(points.reshape(-1, dimensions), return_std=True)
            return mean - self.beta * deviation

        points = rng.random((_LOOKED_AT, dimensions))
        points = points[np.argsort(bound(points))[:_FOLLOWED]]
        found = [
            minimize(
                lambda x: float(bound(x)[0]), x0=x, bounds=[(0, 1)] * dimensions, method="L-BFGS-B"
            )
            for x in points
        ]
        return min(found, key=lambda each: each.fun).x

    def _process(self, complete: list[Trial]) -> Any:
        """The process fitted to the complete trials, and to guesses of running ones.

        Each running trial gets a pessimistic score, so that its neighbourhood is not tried again.
        """
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import Matern

        sign = -1 if self.objective.direction == "max" else 1
        x = np.array([self._vector(trial) for trial in complete])
        y = np.nan_to_num([sign * trial.score for trial in complete], posinf=0, neginf=0)

        def fitted(x: np.ndarray, y: np.ndarray, kernel: Any, **how: Any) -> Any:
            process = GaussianProcessRegressor(
                kernel=kernel, normalize_y=True, alpha=self.alpha, random_state=self.seed, **how
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a length scale is at its bound
                return process.fit(x, y)

        process = fitted(x, y, Matern(nu=2.5), n_restarts_optimizer=4)
        if self.ongoing_trials:
            others = np.array([self._vector(trial) for trial in self.ongoing_trials.values()])
            mean, deviation = process.predict(others, return_std=True)
            x, y = np.concatenate([x, others]), np.concatenate([y, mean + deviation])
            process = fitted(x, y, process.kernel_, optimizer=None)
        return process

    def _vector(self, trial: Trial) -> list[float]:
        """A trial as a point; a hyperparameter without a value has its default."""
        values = trial.hyperparameters.values
        point = []
        for hp in self.hyperparameters.space:
            if hp.kind == "Fixed":
                continue
            active = all(condition.is_active(values) for condition in hp.conditions)
            value = values[hp.name] if active and hp.name in values else hp.default
            point.append(hp.value_to_prob(value))
        return point

    def _values_at(self, point: np.ndarray) -> dict[str, Any]:
        """The values of the active hyperparameters at a point f64[dimensions]."""
        values: dict[str, Any] = {}
        coordinates = iter(np.minimum(point, np.nextafter(1, 0)))
        for hp in self.hyperparameters.space:
            value = hp.default if hp.kind == "Fixed" else hp.prob_to_value(float(next(coordinates)))
            if all(condition.is_active(values) for condition in hp.conditions):
                values[hp.name] = value
        return values


class BayesianOptimization(Tuner):
    """A tuner that searches with a Gaussian process over the trials so far.

    The arguments are those of ``BayesianOptimizationOracle`` and ``Tuner``.
    """

    def __init__(
        self,
        hypermodel: Any = None,
        objective: Any = None,
        max_trials: int | None = 10,
        num_initial_points: int | None = None,
        alpha: float = 1e-4,
        beta: float = 2.6,
        seed: int | None = None,
        hyperparameters: Any = None,
        tune_new_entries: bool = True,
        allow_new_entries: bool = True,
        max_retries_per_trial: int = 0,
        max_consecutive_failed_trials: int = 3,
        **kwargs: Any,
    ) -> None:
        self.seed = seed
        oracle = BayesianOptimizationOracle(**given_to(BayesianOptimizationOracle, locals()))
        super().__init__(oracle, hypermodel, **kwargs)
