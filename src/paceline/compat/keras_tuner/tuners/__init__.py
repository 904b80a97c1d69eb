"""The tuners, under the names of ``keras_tuner.tuners``."""

from paceline.compat.keras_tuner.engine.tuner import Tuner
from paceline.compat.keras_tuner.tuners.bayesian import BayesianOptimization
from paceline.compat.keras_tuner.tuners.gridsearch import GridSearch
from paceline.compat.keras_tuner.tuners.hyperband import Hyperband
from paceline.compat.keras_tuner.tuners.randomsearch import RandomSearch
from paceline.compat.keras_tuner.tuners.sklearn_tuner import SklearnTuner

__all__ = [
    "BayesianOptimization",
    "GridSearch",
    "Hyperband",
    "RandomSearch",
    "SklearnTuner",
    "Tuner",
]
Sklearn = SklearnTuner  # its name before KerasTuner 1.1
