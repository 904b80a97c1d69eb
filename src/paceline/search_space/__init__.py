"""The search space: what ``build(hp)`` may vary, learnt by running it.

A build declares hyperparameters on a ``HyperParameters`` object, with KerasTuner's methods. Each
active declaration becomes a ``Parameter``, which a sampler chooses and a storage keeps. A ``Space``
is the union of the parameters met so far. A ``GridWalk`` visits every configuration of a space.

Notation: a *real* value is what the user's build receives; a *stored* value is what Optuna sees.
They differ where Optuna has no distribution for what KerasTuner offers (see ``Parameter``).
"""

import importlib
import warnings

with warnings.catch_warnings():
    # In a notebook Optuna's progress bar, which is not used, warns where ipywidgets is missing.
    warnings.filterwarnings("ignore", message="IProgress not found")
    importlib.import_module("optuna.distributions")

from paceline.search_space.declaration import Condition, HyperParameter
from paceline.search_space.grid import GridWalk
from paceline.search_space.hyperparameters import HyperParameters
from paceline.search_space.parameter import Parameter, Space

__all__ = ["Condition", "GridWalk", "HyperParameter", "HyperParameters", "Parameter", "Space"]
