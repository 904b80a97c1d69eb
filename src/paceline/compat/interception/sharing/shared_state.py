"""A picture of what functions share, for a comparison with a later one."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import keras
import numpy as np

from paceline.compat.interception.model_variables import fixed_value
from paceline.pack.callbacks.reachable import ReachableObjects, is_of_user, parts_of

#: Elements of a container that are compared, and containers within containers.
_MOST, _DEEPEST = 1000, 4
#: Bytes of an array whose contents are compared each time, at most.
_SMALL = 1 << 16
#: Kinds of values that hold nothing else.
PLAIN = (bool, int, float, complex, str, bytes, type(None))


class SharedState:
    """What names and objects outside of functions hold, at the moment this object is made.

    ``found`` is what the functions reach. ``arrays``: whether the contents of large arrays
    are compared, which takes about a second for a gigabyte.
    """

    def __init__(self, found: ReachableObjects, *, arrays: bool) -> None:
        self._kept: list[Any] = []  # so that no id is used twice
        self._noted = False  # whether all that is to be kept is
        self._arrays = arrays
        self._names: dict[str, Callable[[], Any]] = {
            **found.names,
            "the working directory": os.getcwd,
            **{label: (lambda v=value: v) for label, value in found.instances.items()},
        }
        self._state = {label: self._of(read(), 0) for label, read in self._names.items()}
        self._noted = True
        self._layers = {
            label: (value, _variables(value), _flags(value))
            for label, value in found.keras.items()
            if isinstance(value, (keras.layers.Layer, keras.Variable))
        }

    def changed(self) -> str | None:
        """Returns the label of something that has another state now; None if nothing has."""
        for label, read in self._names.items():
            if self._of(read(), 0) != self._state[label]:
                return label
        for label, (layer, before, flags) in self._layers.items():
            now = _variables(layer)
            if flags != _flags(layer) or before.keys() != now.keys():
                return label
            if not all(_equal(before[key][1], value) for key, (_, value) in now.items()):
                return label
            before.update(now)  # equal arrays need not be compared again
        return None

    def constants(self) -> list[Any]:
        """Returns the variables of layers that were made outside."""
        return [v for _, before, _ in self._layers.values() for v, _ in before.values()]

    def _of(self, value: Any, depth: int) -> Any:
        """A value that is equal for equal states."""
        if isinstance(value, PLAIN):
            return type(value), repr(value)
        if not self._noted:
            self._kept.append(value)
        deeper = depth < _DEEPEST
        if isinstance(value, np.ndarray):
            return id(value), value.shape, value.dtype.str, self._digest(value)
        # Of pandas. Some objects of other libraries have any attribute that one asks them for.
        if hasattr(type(value), "to_numpy") and hasattr(type(value), "shape"):
            digest = self._digest(value.to_numpy()) if self._arrays else None
            return id(value), value.shape, digest
        if isinstance(value, Mapping) and deeper:
            few = islice(value.items(), _MOST)
            return id(value), len(value), [(repr(k), self._of(v, depth + 1)) for k, v in few]
        if isinstance(value, (list, tuple, deque)) and deeper:
            few = [self._of(part, depth + 1) for part in islice(value, _MOST)]
            return id(value), len(value), few
        if isinstance(value, (set, frozenset)):
            return id(value), len(value), list(map(repr, islice(value, _MOST)))
        if is_of_user(type(value)) and deeper:
            return id(value), [(k, self._of(v, depth + 1)) for k, v in parts_of(value).items()]
        return id(value)

    def _digest(self, array: Any) -> bytes | None:
        # An array on disk is data that functions read; to read all of it would take too long.
        if array.dtype.hasobject or getattr(array, "filename", None):
            return None
        if not self._arrays and array.nbytes > _SMALL:
            return None
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        return hashlib.blake2b(content, digest_size=16).digest()


def _variables(layer: Any) -> dict[int, tuple[Any, Any]]:
    """The variables of a layer, and their arrays, which JAX never changes."""
    found = [layer] if isinstance(layer, keras.Variable) else layer.variables
    return {id(variable): (variable, fixed_value(variable)) for variable in found}


def _flags(layer: Any) -> list[bool]:
    """Whether the layer, and each layer within it, is to be trained."""
    waiting, flags = [layer], []
    while waiting:
        one = waiting.pop()
        flags.append(bool(one.trainable))
        waiting += list(getattr(one, "layers", ()))
    return flags


def _equal(before: Any, now: Any) -> bool:
    return before is now or np.array_equal(np.asarray(before), np.asarray(now), equal_nan=True)
