"""A function as it runs alone, and what it returned beside what came of it in packs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

#: Float32: an order of sums differs between one and several slots, 3e-8 after one Adam step; a few
#: epochs of these models make at most 4e-6 of it.
RTOL, ATOL = 1e-4, 1e-5


def alone(function: Callable[[], Any], seed: int) -> Any:
    """What the function returns without an engine."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    return function()


def parts(value: Any) -> dict[str, Any]:
    """Numbers and names in what a function returned."""
    found: dict[str, Any] = {}
    for i, part in enumerate(value if isinstance(value, tuple) else (value,)):
        if isinstance(part, keras.callbacks.History):
            found[f"{i} epochs"] = list(part.epoch)
            found[f"{i} params"] = dict(part.params)
            found[f"{i} names"] = list(part.history)
            for name, values in part.history.items():
                assert all(type(v) is float for v in values)
                found[f"{i} {name}"] = np.array(values)
        elif isinstance(part, keras.Model):
            for at, weights in enumerate(part.get_weights()):
                found[f"{i} weights {at}"] = weights
            for at, variable in enumerate(part.optimizer.variables if part.compiled else ()):
                found[f"{i} optimizer {at}"] = np.asarray(variable)
        elif isinstance(part, list) and part and all(type(value) is float for value in part):
            found[f"{i}"] = np.array(part)
        elif isinstance(part, list) and part and isinstance(part[0], np.ndarray):
            for at, weights in enumerate(part):
                found[f"{i} array {at}"] = weights
        else:
            found[f"{i}"] = part
    return found


def assert_same(value: Any, expected: Any) -> None:
    """Asserts that two runs of a function came to the same."""
    got, want = parts(value), parts(expected)
    assert list(got) == list(want)
    for name, there in want.items():
        if isinstance(there, np.ndarray):
            np.testing.assert_allclose(got[name], there, RTOL, ATOL, err_msg=name)
        else:
            assert got[name] == there, name
