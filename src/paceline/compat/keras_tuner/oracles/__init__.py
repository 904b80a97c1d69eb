"""The oracles, under the names of ``keras_tuner.oracles``."""

from paceline.compat.keras_tuner.oracles.bayesian import BayesianOptimizationOracle
from paceline.compat.keras_tuner.oracles.gridsearch import GridSearchOracle
from paceline.compat.keras_tuner.oracles.hyperband import HyperbandOracle
from paceline.compat.keras_tuner.oracles.randomsearch import RandomSearchOracle

__all__ = [
    "BayesianOptimizationOracle",
    "GridSearchOracle",
    "HyperbandOracle",
    "RandomSearchOracle",
]
