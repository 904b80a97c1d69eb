"""What functions of the user change outside of themselves, so that the session sees it.

Lists, dicts and objects that functions reach by globals and closures are sent with them. What has
changed when a call ends comes back, and the session's own objects are changed in place.
"""

from __future__ import annotations

import collections
import hashlib
import io
import pickle
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import cloudpickle
import keras

from paceline.pack.callbacks.changes import CONTAINERS
from paceline.pack.callbacks.reachable import MISSING, UserFunction, reached

#: What Keras calls on objects of the user's classes.
_ENTRIES = (
    "__call__",
    "build",
    "call",
    "train_step",
    "test_step",
    "update_state",
    "result",
    *(name for name in dir(keras.callbacks.Callback) if name.startswith("on_")),
)
#: Keras' objects: training changes them, and each trial has its own.
_KERAS = (keras.layers.Layer, keras.Variable, keras.optimizers.Optimizer, keras.metrics.Metric)
#: Bytes of an array from which on its numbers are not compared, its size alone.
_LARGE = 1 << 20


@dataclass(frozen=True)
class OutsideChanges:
    """What has changed, by label."""

    objects: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.objects or self.names)


@dataclass(frozen=True)
class OutsideState:
    """What functions reach outside of themselves, and may change."""

    objects: Mapping[str, Any] = field(default_factory=dict)  # containers, and the user's objects
    # A function and one of its outer names, whose value is a number, a text or None.
    names: Mapping[str, tuple[Any, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, roots: Mapping[str, Any]) -> OutsideState:
        """Of functions and objects of the user, by label."""
        found = reached(roots, _ENTRIES)
        values = {label: read() for label, read in found.names.items()}
        objects = {n: value for n, value in values.items() if isinstance(value, CONTAINERS)}
        objects |= {n: of for n, of in found.instances.items() if not isinstance(of, _KERAS)}
        names = {}
        for user in found.functions:
            for name in sorted(user.outer_names()):
                if _is_plain(user.value(name)):
                    names[f"{name} of {user.function.__qualname__}"] = (user.function, name)
        return cls(objects, names)


class OutsideWatch:
    """What one of the two processes has changed since both had the same values."""

    def __init__(self, state: OutsideState) -> None:
        self._state = state
        self._before = self._look()
        # Labels of what both have changed: each process keeps its own values.
        self.both: set[str] = set()

    def take_changes(self) -> OutsideChanges:
        """What has changed here, for the other process, which has it from now on."""
        before, self._before = self._before, self._look()
        return self._changed(before, self._before)

    def put_back(self, changes: OutsideChanges) -> None:
        """The other process does not have these changes, after all."""
        self._before |= dict.fromkeys([*changes.objects, *changes.names], MISSING)

    def bring_back(self, changes: OutsideChanges) -> None:
        """Gives the objects and names of this process the values that the other one reports."""
        here = self._changed(self._before, self._look())
        self.both |= (here.objects.keys() | here.names) & (changes.objects.keys() | changes.names)
        merge = _Merge()
        for label, value in changes.objects.items():
            if label not in self.both:
                merge(self._state.objects[label], value)
        for label, value in changes.names.items():
            if label in self.both:
                continue
            function, name = self._state.names[label]
            code = function.__code__
            if name in code.co_freevars:
                function.__closure__[code.co_freevars.index(name)].cell_contents = value
            else:
                function.__globals__[name] = value
        self._before = self._look()

    def _look(self) -> dict[str, Any]:
        state = self._state
        now: dict[str, Any] = {label: _digest(value) for label, value in state.objects.items()}
        return now | {label: _value(*of) for label, of in state.names.items()}

    def _changed(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> OutsideChanges:
        """What differs between two looks."""
        objects = {
            label: value
            for label, value in self._state.objects.items()
            if now[label] is not None and now[label] != before[label]
        }
        names = {}
        for label in self._state.names:
            value = now[label]
            if value is not before[label] and value != before[label] and _is_plain(value):
                names[label] = value
        return OutsideChanges(objects, names)


def _value(function: Any, name: str) -> Any:
    return UserFunction(function, False).value(name)


def _is_plain(value: Any) -> bool:
    return value is not MISSING and isinstance(value, bool | int | float | str | None)


class _DigestPickler(cloudpickle.Pickler):
    """Pickles what is compared and never read: of code, only what tells it from other code."""

    def reducer_override(self, obj: Any) -> Any:
        """See ``pickle.Pickler``."""
        if isinstance(obj, type | types.FunctionType):
            return len, (f"{obj.__module__}.{obj.__qualname__}",)  # any function of Python's own
        return super().reducer_override(obj)


def _digest(value: Any) -> bytes | None:
    """Tells contents of an object apart; None where it cannot be sent."""
    buffers: list[pickle.PickleBuffer] = []
    written = io.BytesIO()
    try:
        _DigestPickler(written, protocol=5, buffer_callback=buffers.append).dump(value)
        views = [buffer.raw() for buffer in buffers]
    except Exception:  # an object may raise anything when it is pickled
        return None
    parts = [bytes(view) if view.nbytes < _LARGE else b"%d" % view.nbytes for view in views]
    return hashlib.sha256(b"".join([written.getvalue(), *parts])).digest()


class _Merge:
    """Makes an object equal to another one, in place; returns the other one if that is impossible.

    What the user's other names refer to stays the same object, also in containers and objects.
    """

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        self._kept: list[Any] = []

    def __call__(self, old: Any, new: Any) -> Any:
        if id(new) in self._seen:
            return self._seen[id(new)]
        if isinstance(old, _KERAS):
            return old  # its variables are of this process' backend
        if isinstance(old, types.FunctionType) and getattr(new, "__name__", 0) == old.__name__:
            return old  # the other one has globals of its own
        if old is new or type(old) is not type(new) or isinstance(new, type):
            return new
        self._kept.append(new)
        if isinstance(new, dict):
            self._seen[id(new)] = old
            merged = {key: self(old.get(key), part) for key, part in new.items()}
            old.clear()
            old.update(merged)
        elif isinstance(new, list | collections.deque):
            self._seen[id(new)] = old
            before: list[Any] = [*cast(Any, old)]
            parts = [self(before[i] if i < len(before) else None, p) for i, p in enumerate(new)]
            old.clear()
            old.extend(parts)
        elif isinstance(new, set):
            self._seen[id(new)] = old
            old.clear()
            old.update(new)
        elif isinstance(getattr(new, "__dict__", None), dict):
            self._seen[id(new)] = old
            self(vars(old), vars(new))
        else:
            return new
        return old
