"""What tuners do with callbacks and results, under the names of ``engine.tuner_utils``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from paceline.compat.keras_tuner.engine.callbacks import BatchCallback as TunerCallback
from paceline.compat.keras_tuner.engine.callbacks import SaveBestEpoch
from paceline.compat.keras_tuner.engine.display import Display
from paceline.compat.keras_tuner.engine.results import best_step as get_best_step
from paceline.compat.keras_tuner.engine.results import check as validate_trial_results
from paceline.compat.keras_tuner.engine.results import mean as average_metrics_dicts
from paceline.compat.keras_tuner.engine.results import metrics_of as convert_to_metrics_dict
from paceline.search_space import HyperParameter, HyperParameters

__all__ = [
    "Display",
    "SaveBestEpoch",
    "TunerCallback",
    "average_metrics_dicts",
    "convert_hyperparams_to_hparams",
    "convert_to_metrics_dict",
    "get_best_step",
    "validate_trial_results",
]


def convert_hyperparams_to_hparams(
    hyperparams: HyperParameters, hparams_api: Any = None
) -> dict[Any, Any]:
    """Returns the active hyperparameters as those of TensorBoard: ``HParam`` -> value.

    Args:
        hyperparams: The hyperparameters of a trial.
        hparams_api: The module ``tensorboard.plugins.hparams.api``; None: it is imported.
    """
    if hparams_api is None:
        hparams_api = import_module("tensorboard.plugins.hparams.api")
    active = [hp for hp in hyperparams.space if hp.name in hyperparams.values]
    return {
        hparams_api.HParam(hp.name, _domain(hp, hparams_api)): hyperparams.values[hp.name]
        for hp in active
    }


def _domain(hp: HyperParameter, hparams_api: Any) -> Any:
    """The values of a hyperparameter, as TensorBoard describes them."""
    if hp.kind == "Int" and hp.sampling == "linear" and hp.step == 1:
        return hparams_api.IntInterval(hp.min_value, hp.max_value)
    if hp.kind == "Int" and hp.step is None:
        return hparams_api.IntInterval(hp.min_value, hp.max_value)
    if hp.kind == "Float" and hp.step is None:
        return hparams_api.RealInterval(hp.min_value, hp.max_value)
    return hparams_api.Discrete(list(hp.values))
