"""What the fits of functions hold: callbacks, optimizers, variables and paths, until they end."""

from __future__ import annotations

import inspect
import io
import os
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from paceline.compat.interception.function_thread import FunctionThread
from paceline.pack.callbacks.changes import CONTAINERS, written_attributes

#: Parts of names of attributes that hold paths.
_PATH_NAMES = ("path", "file", "dir", "folder")
#: Attributes of Keras' callbacks that may hold a slash without being paths.
_NO_PATHS = frozenset({"monitor", "sep"})


class ObjectClaims:
    """Which function holds which object and path."""

    def __init__(self) -> None:
        self._objects: dict[int, tuple[Callable[[], Any], FunctionThread]] = {}
        self._paths: dict[str, FunctionThread] = {}
        self._constants: dict[int, Any] = {}

    def leave_out(self, variables: Iterable[Any]) -> None:
        """Lets functions share variables that training does not change."""
        self._constants.update((id(variable), variable) for variable in variables)

    def other_holder(
        self, holder: FunctionThread, model: Any, callbacks: list[Any]
    ) -> tuple[FunctionThread, str] | None:
        """Returns who else holds something that a fit needs, and what that is."""
        for path, what in paths(callbacks).items():
            other = self._paths.get(path)
            if other is not None and other is not holder and not other.ended:
                return other, f"{what} of several writes to {os.path.relpath(path)!r}"
        for one, what in self._parts(model, callbacks):
            known, other = self._objects.get(id(one), (None, None))
            if known is None or known() is not one or other is None:
                continue
            if other is not holder and not other.ended:
                return other, f"they share {what}"
        return None

    def is_free(self, path: str, holder: FunctionThread) -> bool:
        """Returns whether no other running function writes to a path."""
        other = self._paths.get(os.path.abspath(path))
        return other is None or other is holder or other.ended

    def take(self, holder: FunctionThread, model: Any, callbacks: list[Any]) -> None:
        """Notes that a function holds what its fit needs, until the function ends."""
        self._paths.update((path, holder) for path in paths(callbacks))
        for one, _ in self._parts(model, callbacks):
            self._objects[id(one)] = _reference(one), holder

    def drop_ended(self) -> None:
        """Forgets what functions held that have ended."""
        self._paths = {path: one for path, one in self._paths.items() if not one.ended}
        self._objects = {key: held for key, held in self._objects.items() if not held[1].ended}

    def _parts(self, model: Any, callbacks: list[Any]) -> list[tuple[Any, str]]:
        """The objects that a fit changes, and what they are."""
        found = [(each, f"one {type(each).__name__}") for each in callbacks]
        # A list, say, that all of them are given and write to, or that stands in their class.
        for callback in callbacks:
            for name in written_attributes(type(callback)):
                value = inspect.getattr_static(callback, name, None)
                if isinstance(value, (*CONTAINERS, np.ndarray)):
                    found.append((value, f"{name!r} of {type(callback).__name__}"))
        found.append((model, "one model"))
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None:
            found.append((optimizer, f"one {type(optimizer).__name__}"))
        # A metric starts over in every epoch, so models may share it.
        metrics = {id(variable) for variable in model.metrics_variables}
        trainable = {id(variable) for variable in model.trainable_variables}
        for variable in model.variables:
            fixed = id(variable) in self._constants and id(variable) not in trainable
            if id(variable) not in metrics and not fixed:
                found.append((variable, f"the variable {variable.path!r}"))
        return found


def _reference(one: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(one)
    except TypeError:  # a list, which stays until its function has ended
        return lambda: one


def paths(callbacks: Iterable[Any]) -> dict[str, str]:
    """Returns the absolute paths that callbacks write to, and the class of each callback."""
    found: dict[str, str] = {}
    for callback in callbacks:
        for name, value in getattr(callback, "__dict__", {}).items():
            path = _path(name, value)
            if path:
                found[os.path.abspath(path)] = type(callback).__name__
    return found


def _path(name: str, value: Any) -> str | None:
    """The path that an attribute of a callback holds; None if it holds none."""
    if isinstance(value, (io.IOBase, Path)):
        text = getattr(value, "name", None) if isinstance(value, io.IOBase) else str(value)
        return text if isinstance(text, str) else None
    if not isinstance(value, str) or not value or "\n" in value or name in _NO_PATHS:
        return None
    named = any(part in name.lower() for part in _PATH_NAMES)
    return value if named or os.sep in value or "/" in value else None


def callbacks_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Returns the callbacks in the arguments of ``fit``."""
    given = kwargs.get("callbacks", args[5] if len(args) > 5 else None)
    if isinstance(given, keras.callbacks.CallbackList):
        return list(given.callbacks)
    return list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
