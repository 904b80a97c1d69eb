"""Initial weights: drawn by a few programs, and put back where several models share them.

A layer made outside of ``build``, such as a backbone, is part of every model that ``build``
returns. Each trial begins with the values that its variables have when the search begins. So
whoever trains a model or loads weights into it does so within ``values_kept``, and a callback of a
packed trial sees the values of its slot only while it is called
(``pack/callbacks/slot_model.py``).

On a CPU XLA takes a third of a second to two seconds to compile ``jax.random.uniform`` for a shape
that it has not met, often longer than a small model trains. Number i of a draw follows from the key
and i alone, so many shapes can be cut from draws of a few lengths: to the bit the same.

Keras' initializers look the functions up in ``jax.random`` at every call. While a search is on,
these names stand for the ones here.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from paceline.program import jax_compat as jv
from paceline.program import keras_private
from paceline.program.keras_private import RefCountedPatch

#: Functions of ``jax.random`` whose numbers follow from the key and their position alone.
NAMES = ("uniform", "normal", "truncated_normal")
#: Lengths that are drawn: the smallest, the ratio between two, and from where they only double.
_LEAST, _RATIO, _LARGE = 4096, 8, 1 << 18
#: Beyond, drawing numbers that are not needed costs more than a compile.
_MOST = 1 << 24

_before: dict[str, Any] = {}
_ours: dict[str, Any] = {}


@contextmanager
def shared_initializer_programs() -> Iterator[None]:
    """Has initial weights drawn so inside, on a CPU; searches may overlap."""
    if keras.backend.backend() != "jax" or jax.default_backend() != "cpu":
        yield
        return
    with _patch.applied():
        yield


def _install() -> None:
    outside = jv.trace_state()
    for name in NAMES:
        _before[name] = getattr(jax.random, name)
        _ours[name] = _cutting(_before[name], outside)
        setattr(jax.random, name, _ours[name])


def _remove() -> None:
    for name in NAMES:
        if getattr(jax.random, name) is _ours[name]:  # else patched by another since
            setattr(jax.random, name, _before[name])


_patch = RefCountedPatch(_install, _remove)


def _cutting(original: Callable[..., Any], outside: Any) -> Callable[..., Any]:
    """The function, with the numbers of a shape cut from a longer draw where that is the same.

    Args:
        original: JAX' own.
        outside: The state of tracing where nothing is traced.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def draw(*args: Any, **kwargs: Any) -> Any:
        if jv.trace_state() != outside:  # of a step: its numbers are drawn when it runs
            return original(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        shape = _shape(bound.arguments)
        if shape is None:
            return original(*args, **kwargs)
        n = math.prod(shape)
        bound.arguments["shape"] = (_length(n),)
        drawn = original(*bound.args, **bound.kwargs)
        return jnp.array(np.asarray(drawn)[:n].reshape(shape))

    return draw


def _shape(arguments: dict[str, Any]) -> tuple[int, ...] | None:
    """The shape that is asked for; None where it is not cut from another draw."""
    found = dict(arguments)
    key, shape, dtype = found.pop("key"), found.pop("shape"), found.pop("dtype")
    if not isinstance(shape, (tuple, list)) or not all(isinstance(size, int) for size in shape):
        return None
    # Words of another width are counted otherwise.
    if not _is_float32(dtype) or not 0 < math.prod(shape) <= _MOST:
        return None
    if not all(value is None or _is_number(value) for value in found.values()):
        return None
    return tuple(shape) if jv.counts_by_position(key) else None


def _is_float32(dtype: Any) -> bool:
    try:
        return dtype is not None and np.dtype(dtype) == np.float32
    except TypeError:  # a type that NumPy does not know
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.generic, np.ndarray, jax.Array)) and not np.ndim(value)


def _length(n: int) -> int:
    """How many numbers are drawn for n."""
    length = _LEAST
    while length < n:
        length *= _RATIO if length < _LARGE else 2
    return length


# -- variables that models share -------------------------------------------------------------------


@contextmanager
def values_kept(model: Any) -> Iterator[None]:
    """A block that may change the variables of a model; afterwards they are as they were.

    Args:
        model: A model; variables that are made within the block are not put back.
    """
    # Copies: ``fit`` gives the arrays of variables away to its steps.
    before = [(v, np.array(keras.ops.convert_to_numpy(v))) for v in _variables_of(model)]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def _variables_of(model: Any) -> list[Any]:
    found = [*model.variables, *model.metrics_variables]
    if model.optimizer is not None:
        found += model.optimizer.variables
    return list({id(variable): variable for variable in found}.values())


#: Counts the builds of all searches.
_builds = itertools.count(1)
_last_build = 0
#: Model -> number of the build that made it.
_built: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_reused: weakref.WeakSet[Any] = weakref.WeakSet()
#: Id of a variable -> a reference, which forgets it, and the last build before it was made.
_made: dict[int, tuple[weakref.ref[Any], int]] = {}
_init_before: dict[str, Any] = {}


@contextmanager
def variables_noted() -> Iterator[None]:
    """Has ``shared_variables`` know what is made inside."""
    with _notes_patch.applied():
        yield


def noted_build(build: Callable[[], Any]) -> Any:
    """Calls ``build``, and returns the model that it makes."""
    global _last_build
    with variables_noted():
        number = _last_build = next(_builds)
        model = build()
        if isinstance(model, keras.Model):
            if model in _built:
                _reused.add(model)
            _built[model] = number
        return model


def is_reused(model: Any) -> bool:
    """Whether several calls of ``build`` returned this model."""
    return model in _reused


def shared_variables(model: Any) -> list[Any]:
    """The variables of a model that were there before ``build`` was called; other models have them.

    Args:
        model: A model that ``noted_build`` returned; any other one shares nothing.
    """
    number = _built.get(model)
    if number is None:
        return []
    return [v for v in _variables_of(model) if _made.get(id(v), (None, 0))[1] < number]


def own_model(model: Any, load: Callable[[Any], None]) -> tuple[Any, bool]:
    """A model with other weights, which changes no layer that other models have as well.

    Args:
        model: A model from ``build``, with its optimizer's variables.
        load: Puts the weights into a model.

    Returns:
        The model, or where it shares variables a copy of it; and whether it is on its own. False
        where Keras cannot copy it: then the layers that it shares have the weights too.
    """
    if not shared_variables(model):
        load(model)
        return model, True
    with values_kept(model):
        load(model)
        try:
            copied = _copied(model)
        except Exception:  # what Keras cannot write down, as the user's own classes without config
            copied = None
        if copied is not None:
            return copied, True
    load(model)
    return model, False


def _copied(model: Any) -> Any:
    """A model like this one with layers of its own, compiled with the same losses and metrics.

    It goes through a file: that holds what layers have learnt beside weights, such as words.
    """
    classes = {type(layer).__name__: type(layer) for layer in keras_private.all_layers(model)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        # The file is from here, so that what it holds may run.
        copied: Any = keras.models.load_model(path, classes, compile=False, safe_mode=False)
    if _values_of(copied.trainable_variables) != _values_of(model.trainable_variables):
        raise ValueError("the copy has other weights")
    for variable, value in zip(copied.variables, model.variables, strict=True):
        variable.assign(value)  # the states of seeds are in no file
    optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
    copied.compile(**{**keras_private.compile_arguments(model), "optimizer": optimizer})
    optimizer.build(copied.trainable_variables)
    for variable, value in zip(optimizer.variables, model.optimizer.variables, strict=True):
        variable.assign(value)
    return copied


def _values_of(variables: list[Any]) -> list[bytes]:
    return [np.asarray(keras.ops.convert_to_numpy(v)).tobytes() for v in variables]


def _note_variables() -> None:
    own = vars(keras.Variable).get("__init__")
    original = keras.Variable.__init__

    @functools.wraps(original)
    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        key = id(self)
        _made[key] = weakref.ref(self, lambda _: _made.pop(key, None)), _last_build
        original(self, *args, **kwargs)

    _init_before["it"] = own
    setattr(keras.Variable, "__init__", noting)  # noqa: B010


def _stop_noting() -> None:
    if _init_before["it"] is None:
        delattr(keras.Variable, "__init__")
    else:
        setattr(keras.Variable, "__init__", _init_before["it"])  # noqa: B010


_notes_patch = RefCountedPatch(_note_variables, _stop_noting)
