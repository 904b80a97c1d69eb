"""Gives each job its own copies of callbacks that scikit-learn passes to all fits."""

from __future__ import annotations

import copy
from typing import Any

import keras

#: Callbacks of Keras that reset their state when a fit begins.
_RESET = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.TerminateOnNaN,
)
#: How deep containers within containers are searched: fit parameters hold a list of callbacks.
_DEEPEST = 4


def give_own_callbacks(job: Any) -> list[tuple[Any, Any]]:
    """Replaces callbacks in the arguments of a job by copies; returns (callback, copy) pairs.

    Only callbacks that reset their state: then jobs that run one after another would not see the
    state of the job before. ``job`` is a batch of joblib.
    """
    copies: dict[int, tuple[Any, Any]] = {}
    calls = getattr(job, "items", None)
    if isinstance(calls, list):
        calls[:] = [
            (function, _replaced(args, copies), _replaced(kwargs, copies))
            for function, args, kwargs in calls
        ]
    return list(copies.values())


def _replaced(value: Any, copies: dict[int, tuple[Any, Any]], depth: int = 0) -> Any:
    """The value with copies in it; the value itself if there are none."""
    if type(value) in _RESET:
        return copies.setdefault(id(value), (value, copy.copy(value)))[1]
    if type(value) not in (dict, list, tuple) or depth == _DEEPEST:
        return value
    parts = list(value.values() if isinstance(value, dict) else value)
    new = [_replaced(part, copies, depth + 1) for part in parts]
    if all(one is other for one, other in zip(new, parts, strict=True)):
        return value
    return dict(zip(value, new, strict=True)) if isinstance(value, dict) else type(value)(new)
