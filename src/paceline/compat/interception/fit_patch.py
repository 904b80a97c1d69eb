"""Replaces ``keras.Model.fit`` by a function that hands the fits of some threads to a handler."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from paceline.executor.batch_checks import methods_patched
from paceline.program.keras_private import RefCountedPatch

#: The type of Keras' own ``fit``, or of what another library has put in its place.
Fit = Callable[..., Any]
#: Returns what ``model.fit(*args, **kwargs)`` would return: given model, Keras' own ``fit``, args
#: and kwargs.
FitInterceptor = Callable[[Any, Fit, tuple[Any, ...], dict[str, Any]], Any]

_here = threading.local()


@contextmanager
def intercepted() -> Iterator[None]:
    """A block in which ``keras.Model.fit`` asks the handler of its thread; blocks may overlap."""
    # The patch of ``fit`` that looks at batches comes first, and goes last.
    with methods_patched(), _patch.applied():
        yield


@contextmanager
def handled_by(handler: FitInterceptor) -> Iterator[None]:
    """A block in which fits of this thread go to ``handler``; a fit inside a fit does not."""
    _here.handler = handler
    try:
        yield
    finally:
        _here.handler = None


def is_intercepted() -> bool:
    """Whether this thread runs a function of an engine, whose fits go to a handler."""
    return getattr(_here, "handler", None) is not None


_before: Fit | None = None
_ours: Fit | None = None


def _install() -> None:
    global _before, _ours
    _before = vars(keras.Model).get("fit")  # None unless another library has patched it
    original = keras.Model.fit

    @functools.wraps(original)
    def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
        handler: FitInterceptor | None = getattr(_here, "handler", None)
        if handler is None:
            return original(model, *args, **kwargs)
        _here.handler = None  # a fit that a callback calls is Keras' own
        try:
            return handler(model, original, args, kwargs)
        finally:
            _here.handler = handler

    _ours = fit
    setattr(keras.Model, "fit", fit)  # noqa: B010 - its signature is that of any fit


def _remove() -> None:
    if vars(keras.Model).get("fit") is not _ours:
        return  # another library has patched ``fit`` since; under its patch ours has no effect
    if _before is None:
        del keras.Model.fit
    else:
        setattr(keras.Model, "fit", _before)  # noqa: B010 - as above


_patch = RefCountedPatch(_install, _remove)
