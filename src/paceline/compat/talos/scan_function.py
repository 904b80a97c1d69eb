"""Checks the user's function of a scan: its arguments and what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import keras

from paceline.compat.interception import Outcome
from paceline.compat.talos.errors import TalosParamsError, TalosReturnError, TalosTypeError


class UserCall:
    """A call of the user's function with one permutation.

    Args:
        scan: The ``Scan``.
        params: The permutation.
    """

    def __init__(self, scan: Any, params: dict[str, Any]) -> None:
        self._scan, self.params = scan, params

    def __call__(self) -> Any:
        """Returns what the user's function returns."""
        scan = self._scan
        # A copy, because the function may write to its params, and the log needs them unchanged.
        return scan.model(scan.x_train, scan.y_train, scan.x_val, scan.y_val, dict(self.params))


def check_function(model: Any) -> None:
    """Checks the function of a scan before anything is trained.

    Raises:
        TalosTypeError: ``model`` is no function of five arguments.
    """
    if not callable(model) or isinstance(model, keras.Model):
        raise TalosTypeError(
            f"model: a {type(model).__name__} was given; pass a function "
            "model(x_train, y_train, x_val, y_val, params) that builds, compiles and fits a model, "
            "and returns (history, model)."
        )
    try:
        inspect.signature(model).bind(*range(5))
    except TypeError as error:
        raise TalosTypeError(
            f"model: {_name(model)} cannot be called with x_train, y_train, x_val, y_val, params: "
            f"{error}."
        ) from error
    except ValueError:  # Python knows no signature of this function
        pass


def check_target(target: Any) -> tuple[str, float, bool] | None:
    """Checks ``performance_target``.

    Returns:
        Metric, threshold, and whether low values are better; None without a target.

    Raises:
        TalosParamsError: The target is something else.
    """
    if target is None:
        return None
    fine = (
        isinstance(target, (list, tuple))
        and len(target) == 3
        and isinstance(target[0], str)
        and isinstance(target[1], (int, float))
        and isinstance(target[2], bool)
    )
    if not fine:
        raise TalosParamsError(
            f"performance_target: {target!r} is no [metric, threshold, is_loss] like "
            "['val_acc', 0.9, False]."
        )
    return tuple(target)


def read_outcome(
    outcome: Outcome, function: Callable[..., Any]
) -> tuple[dict[str, list[float]], Any]:
    """Returns the history and the model that the user's function returned.

    Returns:
        Metric -> one float per epoch; and the model.

    Raises:
        TalosReturnError: The function returned something else.
    """
    value, name = outcome.value, _name(function)
    end = "end it with 'return history, model', history being what model.fit returned."
    if isinstance(value, Mapping):  # as functions of Talos 2 may return their results
        value = _history_of_dict(value), value.get("_model", value.get("model"))
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        what = "nothing" if value is None else f"a {type(value).__name__}"
        raise TalosReturnError(f"model: {name} returned {what}; {end}")
    history, model = value
    if hasattr(history, "state_dict") and not isinstance(history, keras.Model):
        model = history  # (module with a history, its parameters), of PyTorch
    if isinstance(history, keras.Model) and not isinstance(model, keras.Model):
        raise TalosReturnError(f"model: {name} returned (model, history); {end}")
    found = getattr(history, "history", history)
    if not isinstance(found, Mapping):
        raise TalosReturnError(
            f"model: {name} returned a {type(history).__name__} for the history; {end}"
        )
    if not found:
        fitted = "never called model.fit" if not outcome.fits else "has an empty history"
        raise TalosReturnError(f"model: {name} {fitted}, so there is nothing to compare; {end}")
    return {str(k): _floats(str(k), values, name) for k, values in found.items()}, model


def _floats(metric: str, values: Any, name: str) -> list[float]:
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError) as error:
        raise TalosReturnError(
            f"model: {name} returned {values!r} for {metric!r} of the history; a metric is a list "
            "of one number for each epoch."
        ) from error


def _history_of_dict(value: Mapping[str, Any]) -> dict[str, Any]:
    """The history in a dictionary of results: metrics that it lacks have their value only."""
    history = value.get("_history", value.get("history")) or {}
    history = dict(getattr(history, "history", history))
    names = ("model", "history", "predictions", "backend", "factory", "model_factory", "metrics")
    metrics = value.get("metrics")
    if metrics is None:
        metrics = {k: v for k, v in value.items() if str(k)[:1] != "_" and k not in names}
    return history | {k: [v] for k, v in metrics.items() if k not in history}


def _name(function: Any) -> str:
    return f"{getattr(function, '__name__', type(function).__name__)}()"
