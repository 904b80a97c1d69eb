"""The oracles, under the names of ``keras_tuner.oracles``."""

from paceline.compat.keras_tuner.tuners.bayesian import BayesianOptimizationOracle
from paceline.compat.keras_tuner.tuners.gridsearch import GridSearchOracle
from paceline.compat.keras_tuner.tuners.hyperband import HyperbandOracle
from paceline.compat.keras_tuner.tuners.randomsearch import RandomSearchOracle

__all__ = [
    "BayesianOptimizationOracle",
    "GridSearchOracle",
    "HyperbandOracle",
    "RandomSearchOracle",
]

# Their names before KerasTuner 1.1.
BayesianOptimization = BayesianOptimizationOracle
Hyperband = HyperbandOracle
RandomSearch = RandomSearchOracle
