"""Gives each job callbacks of its own in place of those that scikit-learn gives to all fits."""

from __future__ import annotations

import copy
from typing import Any

import keras

#: Callbacks of Keras' that forget, when a fit begins, what the fit before has left in them.
_BEGIN_ANEW = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.TerminateOnNaN,
)
#: Containers within containers that are followed: fit parameters hold a list of callbacks.
_DEEPEST = 4


def give_own_callbacks(job: Any) -> list[tuple[Any, Any]]:
    """Replaces callbacks in the arguments of a job by copies; returns (callback, copy) pairs.

    Only callbacks of which each fit begins anew: one after the other, jobs would see no more of
    the job before. ``job`` is a batch of joblib's.
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
    """The value with copies in it; the value itself where there are none."""
    if type(value) in _BEGIN_ANEW:
        return copies.setdefault(id(value), (value, copy.copy(value)))[1]
    if type(value) not in (dict, list, tuple) or depth == _DEEPEST:
        return value
    parts = list(value.values() if isinstance(value, dict) else value)
    new = [_replaced(part, copies, depth + 1) for part in parts]
    if all(one is other for one, other in zip(new, parts, strict=True)):
        return value
    return dict(zip(value, new, strict=True)) if isinstance(value, dict) else type(value)(new)
