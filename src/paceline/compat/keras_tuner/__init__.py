"""The names of KerasTuner: change ``import keras_tuner as kt`` to run the same search in packs.

    from paceline.compat import keras_tuner as kt

The package ``keras_tuner`` need not be installed. ``docs/reference/keras_tuner.md`` has the
differences.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import keras

from paceline.compat.keras_tuner import (
    applications,
    distribute,
    engine,
    errors,
    oracles,
    protos,
    tuners,
    utils,
)
from paceline.compat.keras_tuner.engine.hypermodel import HyperModel
from paceline.compat.keras_tuner.engine.hyperparameters import HyperParameters
from paceline.compat.keras_tuner.engine.objective import Objective
from paceline.compat.keras_tuner.engine.oracle import Oracle, synchronized
from paceline.compat.keras_tuner.engine.tuner import Tuner
from paceline.compat.keras_tuner.errors import (
    FailedTrialError,
    FatalError,
    FatalRuntimeError,
    FatalTypeError,
    FatalValueError,
)
from paceline.compat.keras_tuner.oracles import (
    BayesianOptimizationOracle,
    GridSearchOracle,
    HyperbandOracle,
    RandomSearchOracle,
)
from paceline.compat.keras_tuner.tuners import (
    BayesianOptimization,
    GridSearch,
    Hyperband,
    RandomSearch,
    SklearnTuner,
)

#: Files of KerasTuner whose names another module has here -> that module.
_PATHS = {
    "distribute.utils": distribute,
    "engine.hyperparameters.hp_types": engine.hyperparameters,
    **{
        f"engine.hyperparameters.hp_types.{kind}_hp": engine.hyperparameters
        for kind in ("boolean", "choice", "fixed", "float", "int")
    },
    "engine.hyperparameters.hp_utils": engine.hyperparameters,
    "engine.hyperparameters.hyperparameter": engine.hyperparameters,
    "engine.hyperparameters.hyperparameters": engine.hyperparameters,
}
_PATHS |= {f"applications.{file}": applications for file in ("efficientnet", "resnet", "xception")}
for _path, _module in _PATHS.items():
    sys.modules[f"{__name__}.{_path}"] = _module
    setattr(_module, _path.rpartition(".")[2], _module)
#: Further files that scripts import from, of KerasTuner 1.0 too -> their names.
_NAMES: dict[str, dict[str, Any]] = {
    "api_export": {"keras_tuner_export": lambda path: lambda exported: exported},
    "engine.multi_execution_tuner": {"MultiExecutionTuner": Tuner},
}
for _path, _names in _NAMES.items():
    _made = sys.modules[f"{__name__}.{_path}"] = ModuleType(_path)
    vars(_made).update(_names)
    setattr(sys.modules[f"{__name__}.{_path}".rpartition(".")[0]], _path.rpartition(".")[2], _made)

_BACKEND = ModuleType("backend", "Keras and its parts, by the names of ``keras_tuner.backend``.")
vars(_BACKEND).update(keras=keras, ops=keras.ops, random=keras.random, config=keras.config)
backend = sys.modules[f"{__name__}.backend"] = _BACKEND
sys.modules |= {f"{__name__}.backend.{n}": vars(_BACKEND)[n] for n in ("keras", "ops", "random")}
# Many scripts name the place of KerasTuner's own files, ``keras_tuner.src.engine.tuner``.
src = sys.modules[__name__]
for _path, _module in list(sys.modules.items()):
    if _path.startswith(f"{__name__}."):
        sys.modules[_path.replace(__name__, f"{__name__}.src", 1)] = _module
sys.modules[f"{__name__}.src"] = src

#: The release of KerasTuner whose names and files this package has.
__version__ = "1.4.8"

__all__ = [
    "BayesianOptimization",
    "BayesianOptimizationOracle",
    "FailedTrialError",
    "FatalError",
    "FatalRuntimeError",
    "FatalTypeError",
    "FatalValueError",
    "GridSearch",
    "GridSearchOracle",
    "HyperModel",
    "HyperParameters",
    "Hyperband",
    "HyperbandOracle",
    "Objective",
    "Oracle",
    "RandomSearch",
    "RandomSearchOracle",
    "SklearnTuner",
    "Tuner",
    "applications",
    "distribute",
    "engine",
    "errors",
    "oracles",
    "protos",
    "synchronized",
    "tuners",
    "utils",
]
