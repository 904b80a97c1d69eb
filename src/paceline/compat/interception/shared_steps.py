"""Compiled steps that models share: those of ``predict``, ``evaluate`` and Keras' own ``fit``.

Keras compiles the steps of each model, although most models of a search take the same ones: their
weights are inputs of a step. Here a model's step is traced, as Keras would. If a compiled step of
another model has an equal trace, constants included, it is used instead. So results are those of
Keras, bit for bit. Everything around the steps is Keras' own: batches, callbacks, metrics.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import keras
import numpy as np

from paceline.program import jax_compat
from paceline.program.canonical import Unpackable, canonicalise
from paceline.program.keras_private import RefCountedPatch

#: Attribute of a model that holds a function of Keras' -> the step in it.
_STEPS = {
    "train_function": "train_step",
    "test_function": "test_step",
    "predict_function": "predict_step",
}
#: Compiled steps that are kept, of all models.
_MOST = 256


def steps_shared() -> AbstractContextManager[None]:
    """A block in which models share compiled steps; blocks may overlap."""
    return _patch.applied()


class SharedStep:
    """A step of one model, in the form of ``model.predict_function`` and its like."""

    def __init__(self, model: Any, attribute: str) -> None:
        self._model, self._attribute = model, attribute
        self._own: Callable[..., Any] = getattr(model, attribute)  # Keras' function
        self._compiled: dict[Any, Any] = {}  # by structures, shapes, dtypes and settings
        self.settings = ""  # JAX's, at the beginning of this ``fit``, ``evaluate`` or ``predict``
        _in_use.add(self)

    def __call__(self, state: Any, iterator: Any) -> Any:
        """Returns the logs or outputs of the next batch, and the new state."""
        data = next(iterator)
        leaves, tree = jax.tree.flatten((state, data))
        if not all(isinstance(leaf, (jax.Array, np.ndarray)) for leaf in leaves):
            return self._by_keras(state, data)
        key = (tree, tuple(map(_described, leaves)), self.settings)
        step = self._compiled.get(key)
        if step is None:
            step = self._compiled[key] = self._find(key, state, data)
        return step(state, data)

    def put_back(self) -> None:
        """Gives the model the function of Keras' own back."""
        if getattr(self._model, self._attribute, None) is self:
            setattr(self._model, self._attribute, self._own)

    def _by_keras(self, state: Any, data: Any) -> Any:
        return self._own(state, iter((data,)))

    def _find(self, key: Any, state: Any, data: Any) -> Callable[[Any, Any], Any]:
        traced = jax.jit(self._step, donate_argnums=0).trace(state, data)
        try:
            found = canonicalise(traced.jaxpr)
        except Unpackable:  # it calls back to Python, for one, which is the model's own affair
            return self._by_keras
        constants = tuple((str(each.aval), each.value.tobytes()) for each in found.constants)
        whole = key, jax.tree.structure(traced.out_info), found.fingerprint, constants
        with _lock:
            step = _steps.pop(whole, None)
        if step is None:
            step = traced.lower().compile()
        with _lock:
            _steps[whole] = step
            if len(_steps) > _MOST:
                del _steps[next(iter(_steps))]
        return step

    def _step(self, state: Any, data: Any) -> Any:
        step = getattr(self._model, _STEPS[self._attribute])
        if self._attribute != "predict_function":
            return step(state, data)
        outputs, non_trainable_variables = step(state, data)
        return outputs, (state[0], non_trainable_variables)


def _described(array: Any) -> Any:
    """What decides which compiled step takes an array."""
    weak = getattr(getattr(array, "aval", None), "weak_type", False)
    return array.shape, array.dtype, weak, getattr(array, "sharding", None)


def _shares(model: Any) -> bool:
    """Whether Keras compiles a step of one batch for this model, on one device."""
    nnx = getattr(keras.config, "is_nnx_enabled", None)  # since Keras 3.11
    return (
        not model.run_eagerly
        and bool(model.jit_compile)
        and model.steps_per_execution == 1
        and keras.distribution.distribution() is None
        and not (nnx is not None and nnx())
    )


_lock = threading.Lock()
_steps: dict[Any, Any] = {}  # compiled; the one used last comes last
_in_use: weakref.WeakSet[SharedStep] = weakref.WeakSet()
_before: dict[str, Any] = {}


def _install() -> None:
    if keras.backend.backend() != "jax":
        return
    for attribute in _STEPS:
        maker = f"make_{attribute}"
        _before[maker] = vars(keras.Model).get(maker)  # None unless another library has patched it
        setattr(keras.Model, maker, _sharing(getattr(keras.Model, maker), attribute))


def _sharing(original: Callable[..., Any], attribute: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(self: Any, force: bool = False) -> Any:
        new = force or getattr(self, attribute) is None
        function = original(self, force)
        if new and _shares(self):
            setattr(self, attribute, SharedStep(self, attribute))
        if isinstance(getattr(self, attribute), SharedStep):
            getattr(self, attribute).settings = jax_compat.settings()
        return function

    return make


def _remove() -> None:
    for maker, before in _before.items():
        if before is None:
            delattr(keras.Model, maker)
        else:
            setattr(keras.Model, maker, before)
    for step in list(_in_use):
        step.put_back()
    _before.clear()
    _steps.clear()


_patch = RefCountedPatch(_install, _remove)
