"""Callbacks and results of tuners, under the names of ``keras_tuner.engine.tuner_utils``."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import keras
import numpy as np

from paceline.compat.keras_tuner.engine.display import Display
from paceline.compat.keras_tuner.engine.objective import DefaultObjective, MultiObjective, Objective
from paceline.compat.keras_tuner.engine.trial import Trial
from paceline.compat.keras_tuner.errors import FatalTypeError, FatalValueError
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

Logs = Mapping[str, Any]


# -- callbacks of the ``fit`` of a trial ---------------------------------------------------------


class EpochCallback(keras.callbacks.Callback):
    """Calls the hooks of a tuner when an epoch begins and ends."""

    def __init__(self, tuner: Any, trial: Trial) -> None:
        super().__init__()
        self.tuner, self.trial = tuner, trial

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Keras calls this method, with its own arguments."""
        self.tuner.on_epoch_begin(self.trial, self.model, epoch, logs=logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keras calls this method, with its own arguments."""
        self.tuner.on_epoch_end(self.trial, self.model, epoch, logs=logs)


class TunerCallback(EpochCallback):
    """Calls the hooks of a tuner for batches, too; such a ``fit`` trains batch by batch."""

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Keras calls this method, with its own arguments."""
        self.tuner.on_batch_begin(self.trial, self.model, batch, logs)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keras calls this method, with its own arguments."""
        self.tuner.on_batch_end(self.trial, self.model, batch, logs)


class SaveBestEpoch(keras.callbacks.Callback):
    """Saves the weights of the best epoch, over all ``fit`` calls with this callback.

    Args:
        objective: Decides which epoch is best; if the logs lack it, the last epoch counts.
        filepath: File for the weights.
    """

    def __init__(self, objective: Objective, filepath: str) -> None:
        super().__init__()
        self.objective, self.filepath = objective, filepath
        self.best_value = float("-inf" if objective.direction == "max" else "inf")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keras calls this method, with its own arguments."""
        if self.objective.has_value(logs or {}):
            value = self.objective.get_value(logs)
            if not self.objective.better_than(value, self.best_value):
                return
            self.best_value = value
        assert self.model is not None
        self.model.save_weights(self.filepath)


# -- results of ``run_trial`` or ``fit`` ---------------------------------------------------------


def validate_trial_results(results: Any, objective: Objective, function: str) -> None:
    """Checks that the results of a user's function, with this name, can be scored.

    Raises:
        FatalTypeError: The results are None, or not a number, dict or history.
        FatalValueError: A dict lacks the objective.
        ValueError: A history lacks it.
    """
    if isinstance(results, list) and results:
        for each in results:
            validate_trial_results(each, objective, function)
        return
    if isinstance(results, int | float | np.floating):
        return
    if results is None:
        raise FatalTypeError(
            f"The return value of {function} is None. Did you forget to return the metrics? End it "
            "with `return model.fit(...)`, a dict of metrics, or a float."
        )
    history = isinstance(results, keras.callbacks.History)
    named = isinstance(results, dict) and objective.name in results
    if isinstance(objective, DefaultObjective) and not named:
        raise FatalTypeError(
            f"Expected the return value of {function} to be a single float when `objective` is "
            f"left unspecified. Received return value: {results} of type {type(results)}."
        )
    if history or isinstance(results, dict):
        found = results.history if history else results
        if found and not named and not objective.has_value(found):
            what = "history" if history else "dictionary"
            # Other trials may have validation, so a history fails only its own trial, as in
            # KerasTuner.
            raise (ValueError if history else FatalValueError)(
                f"Expected the returned {what} from {function} to have the specified objective, "
                f"{objective.name}, as one of the keys. Received: {', '.join(map(str, found))}."
            )
        return
    raise FatalTypeError(
        f"Expected the return value of {function} to be one of float, dict, "
        "keras.callbacks.History, or a list of one of these types. Received return value: "
        f"{results} of type {type(results)}."
    )


def convert_to_metrics_dict(results: Any, objective: Objective) -> dict[str, Any]:
    """Returns the metrics of results: name -> value.

    Of a history, these are the values of its best epoch; of several executions, the means.
    """
    if isinstance(results, list):
        return average_metrics_dicts([convert_to_metrics_dict(each, objective) for each in results])
    if isinstance(results, int | float | np.floating):
        return {objective.name: float(results)}
    if isinstance(results, dict):
        return with_sum(results, objective)
    epochs = _epochs(results)
    return with_sum(epochs[best_epoch(epochs, objective)], objective) if epochs else {}


def get_best_step(results: Any, objective: Objective) -> int:
    """Returns the best epoch, from 0; of several executions the mean, rounded down."""
    if isinstance(results, list):
        return int(statistics.mean(get_best_step(each, objective) for each in results))
    if isinstance(results, keras.callbacks.History):
        return best_epoch(_epochs(results), objective)
    return 0


def best_epoch(epochs: Sequence[Logs], objective: Objective) -> int:
    """Returns the epoch, from 0, with the best objective; the first one of several equal ones."""
    known = [epoch for epoch, logs in enumerate(epochs) if objective.has_value(logs)]
    best = known[0] if known else 0
    for epoch in known:
        if objective.better_than(
            objective.get_value(epochs[epoch]), objective.get_value(epochs[best])
        ):
            best = epoch
    return best


def average_metrics_dicts(dicts: Sequence[Logs]) -> dict[str, Any]:
    """Returns the mean of every metric."""
    values: dict[str, list[Any]] = defaultdict(list)
    for each in dicts:
        for name, value in each.items():
            values[name].append(value)
    return {name: np.mean(found) for name, found in values.items()}


def with_sum(metrics: Logs, objective: Objective) -> dict[str, Any]:
    """Returns the metrics; of several objectives, with their sum among them."""
    found = dict(metrics)
    if isinstance(objective, MultiObjective) and objective.has_value(found):
        found[objective.name] = objective.get_value(found)
    return found


def _epochs(history: Any) -> list[dict[str, Any]]:
    """The logs of a history, epoch by epoch."""
    columns = history.history
    length = max(map(len, columns.values()), default=0)
    return [
        {name: column[epoch] for name, column in columns.items() if epoch < len(column)}
        for epoch in range(length)
    ]


# -- TensorBoard ---------------------------------------------------------------------------------


def convert_hyperparams_to_hparams(
    hyperparams: HyperParameters, hparams_api: Any = None
) -> dict[Any, Any]:
    """Returns the active hyperparameters as those of TensorBoard: ``HParam`` -> value.

    ``hparams_api`` is the module ``tensorboard.plugins.hparams.api``; None: imported now.
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
    if hp.kind == "Int" and (hp.step is None or (hp.sampling == "linear" and hp.step == 1)):
        return hparams_api.IntInterval(hp.min_value, hp.max_value)
    if hp.kind == "Float" and hp.step is None:
        return hparams_api.RealInterval(hp.min_value, hp.max_value)
    return hparams_api.Discrete(list(hp.values))
