"""Reads the metrics from what a user's ``run_trial`` or ``fit`` returns."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from paceline.compat.keras_tuner.engine.objective import DefaultObjective, MultiObjective, Objective
from paceline.compat.keras_tuner.errors import FatalTypeError, FatalValueError

Logs = Mapping[str, Any]


def check(results: Any, objective: Objective, function: str) -> None:
    """Checks that results can be scored.

    Args:
        results: What a user's function has returned.
        objective: The objective.
        function: Name of the function, for the error.

    Raises:
        FatalTypeError: The results are None, or neither a number nor a dict nor a history.
        FatalValueError: A dict or a history lacks the objective.
    """
    if isinstance(results, list) and results:
        for each in results:
            check(each, objective, function)
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
            # Another trial may be validated, so a history fails its own trial, as in KerasTuner.
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


def metrics_of(results: Any, objective: Objective) -> dict[str, Any]:
    """Returns the metrics of results: name -> value.

    Of a history, these are the values of its best epoch; of several executions, the means.
    """
    if isinstance(results, list):
        return mean([metrics_of(each, objective) for each in results])
    if isinstance(results, int | float | np.floating):
        return {objective.name: float(results)}
    if isinstance(results, dict):
        return with_sum(results, objective)
    epochs = _epochs(results)
    return with_sum(epochs[best_epoch(epochs, objective)], objective) if epochs else {}


def best_step(results: Any, objective: Objective) -> int:
    """Returns the best epoch, from 0; of several executions the mean, rounded down."""
    if isinstance(results, list):
        return int(statistics.mean(best_step(each, objective) for each in results))
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


def mean(dicts: Sequence[Logs]) -> dict[str, Any]:
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
