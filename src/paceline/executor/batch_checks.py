"""Looks at each batch that Keras' own methods give to a model on JAX, in the code of users.

A function, a callback or ``HyperModel.fit`` may call ``fit``, ``evaluate``, ``predict`` and their
like for one batch. JAX would wrap integers beyond 32 bits around, and look other rows up for
numbers beyond an Embedding, without a word: the search would rank trials by wrong numbers.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import keras
import numpy as np

from paceline.data.arrays import ArrayData, find_wide, in_native_order
from paceline.data.batched import size_of
from paceline.data.wide_integers import as_floats, error_of
from paceline.executor.tokens import TokenChecks
from paceline.executor.wide_integers import first_that_is_not_cast
from paceline.program import keras_private, trace

#: Methods of models that take data -> the steps to which they give batches.
_METHODS: dict[str, tuple[Callable[..., Any], ...]] = {
    "fit": (trace.trace_train, trace.trace_test),
    "evaluate": (trace.trace_test,),
    "predict": (trace.trace_predict,),
    "train_on_batch": (trace.trace_train,),
    "test_on_batch": (trace.trace_test,),
    "predict_on_batch": (trace.trace_predict,),
}
_PARTS = "x", "y", "sample_weight"
_WHAT = "a batch of the data"

_here = threading.local()


def batches_checked() -> AbstractContextManager[None]:
    """A block in which models of this thread see integers beyond 32 bits as floats.

    Arrays of the other byte order than this machine's, which JAX refuses, are put into its own.
    The methods of models raise a DataError where the model does not cast such integers at once, and
    for numbers beyond an Embedding.
    """
    if keras.backend.backend() != "jax":
        return nullcontext()
    return _patch.applied_in_thread(_here, "on", True)


def methods_patched() -> AbstractContextManager[None]:
    """A block in which models have the methods that look at batches, in threads that ask for it."""
    return _patch.applied() if keras.backend.backend() == "jax" else nullcontext()


class _Batches:
    """Looks at the batches of one call of a method."""

    def __init__(self, model: Any, name: str) -> None:
        self._model, self._steps = model, _METHODS[name]
        self._predicts = name.startswith("predict")
        self._known: set[Any] = set()  # what wide batches are like that the model casts
        self._tokens = _tokens_of(model)

    def seen(self, batch: Any) -> Any:
        """Returns a batch of NumPy arrays as the model may be given it."""
        batch = in_native_order(batch)
        parts = tuple(batch) if type(batch) in (tuple, list) else (batch,)
        if not self._built():  # Keras looks at shapes alone
            return batch
        rest = parts[1:] if self._predicts else ()  # is not used
        parts = parts[: len(parts) - len(rest)]
        wide = find_wide(parts)
        if not wide:
            self._tokens.check_batch(self._model, parts)
            return batch
        key = jax.tree.structure(parts), *wide
        if key not in self._known:
            n = size_of(parts)
            shapes = [ArrayData(parts, n, wide=cast).batch_shapes(n) for cast in ({}, wide)]
            number = first_that_is_not_cast(self._model, self._steps, shapes, wide)
            if number is not None:
                raise error_of(wide[number], _WHAT)
            self._known.add(key)
        parts = as_floats(parts, wide, _WHAT) + rest
        return type(batch)(parts) if type(batch) in (tuple, list) else parts[0]

    def only(self, given: dict[str, Any]) -> dict[str, Any]:
        """Returns the only batch, by the names of arguments, of a method that takes one."""
        parts = [given.get(name) for name in _PARTS]
        while parts and parts[-1] is None:
            parts.pop()
        arrays = tuple(parts)
        leaves = [leaf for leaf in keras.tree.flatten(parts) if leaf is not None]
        known = all(isinstance(leaf, (np.ndarray, jax.Array)) and leaf.ndim for leaf in leaves)
        if not leaves or not known:
            return given  # such as lists of numbers, of which Keras says what it thinks
        if not self._built():
            arrays = in_native_order(arrays)
            if self._predicts:  # as Keras builds it
                with keras.StatelessScope():
                    self._model(arrays[0])
            else:
                n = size_of(arrays)
                keras_private.symbolic_build(self._model, ArrayData(arrays, n).batch_shapes(n))
        return given | dict(zip(_PARTS, self.seen(arrays), strict=False))

    def _built(self) -> bool:
        if self._predicts:
            return all(layer.built for layer in keras_private.all_layers(self._model))
        return keras_private.is_built(self._model)


def _tokens_of(model: Any) -> TokenChecks:
    """What is known of a model's Embeddings: callbacks may ask the same model many times."""
    names = [layer.name for layer in keras_private.all_layers(model)]
    last, known, tokens = getattr(_here, "last", (None, None, None))
    if last is None or tokens is None or last() is not model or names != known:
        tokens = TokenChecks()
        _here.last = weakref.ref(model), names, tokens
    return tokens


#: Method -> what ``keras.Model`` itself had, None unless another library has patched it; and ours.
_patched: dict[str, tuple[Any, Any]] = {}


def _install() -> None:
    for name in _METHODS:
        ours = _checking(getattr(keras.Model, name), name)
        _patched[name] = vars(keras.Model).get(name), ours
        setattr(keras.Model, name, ours)


@functools.cache
def _checking(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(model: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(_here, "on", False):
            return original(model, *args, **kwargs)
        batches = _Batches(model, name)
        if not name.endswith("_on_batch"):
            with keras_private.batches_through(batches.seen):
                return original(model, *args, **kwargs)
        try:
            given = signature.bind(model, *args, **kwargs)
        except TypeError:
            return original(model, *args, **kwargs)  # which says what is wrong
        _, *rest = given.arguments.items()
        return original(model, **batches.only(dict(rest)))

    return method


def _remove() -> None:
    for name, (before, ours) in _patched.items():
        if vars(keras.Model).get(name) is not ours:
            continue  # patched by another library since; under its patch ours has no effect
        if before is None:
            delattr(keras.Model, name)
        else:
            setattr(keras.Model, name, before)


_patch = keras_private.RefCountedPatch(_install, _remove)
