"""``keras.Model.fit``, intercepted for the threads that ask for it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import keras

from paceline.program.keras_private import RefCountedPatch

#: Keras' own ``fit``, or what another library has put into its place.
Fit = Callable[..., Any]

_here = threading.local()


class Handler(Protocol):
    """Takes the fits of one thread."""

    def fit(self, model: Any, original: Fit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What ``model.fit(*args, **kwargs)`` returns."""
        ...


def intercepted() -> AbstractContextManager[None]:
    """``keras.Model.fit`` asks the thread's handler inside; engines may overlap."""
    return _patch.applied()


@contextmanager
def handled_by(handler: Handler) -> Iterator[None]:
    """The fits of this thread go to the handler; those inside one of them do not."""
    _here.handler = handler
    try:
        yield
    finally:
        _here.handler = None


_before: Fit | None = None
_ours: Fit | None = None


def _install() -> None:
    global _before, _ours
    _before = vars(keras.Model).get("fit")  # where another library has patched it
    original = keras.Model.fit

    @functools.wraps(original)
    def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
        handler: Handler | None = getattr(_here, "handler", None)
        if handler is None:
            return original(model, *args, **kwargs)
        _here.handler = None  # a callback may fit a model of its own
        try:
            return handler.fit(model, original, args, kwargs)
        finally:
            _here.handler = handler

    _ours = fit
    setattr(keras.Model, "fit", fit)  # noqa: B010 - its signature is that of any fit


def _remove() -> None:
    if vars(keras.Model).get("fit") is not _ours:
        return  # patched by another since: what is under it is ours, and does nothing without us
    if _before is None:
        del keras.Model.fit
    else:
        setattr(keras.Model, "fit", _before)  # noqa: B010 - as above


_patch = RefCountedPatch(_install, _remove)
