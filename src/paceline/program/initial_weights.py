"""Initial weights: drawn by a few programs, and put back where several models share them.

A layer made outside of ``build``, such as a backbone, is part of every model that ``build``
returns. Each trial begins with the values that its variables have when the search begins. So models
are trained and loaded only within ``values_kept``. A callback of a packed trial sees the values of
its slot only while it is called (``pack/callbacks/slot_model.py``). What a build itself changes of
such layers, their ``trainable`` flags or values that it loads, is put back before the next build.

XLA takes up to two seconds to compile ``jax.random.uniform`` for a shape that it has not met, often
longer than a small model trains. Number i of a draw follows from the key and i alone. So all shapes
can be cut from draws of a few lengths. On a CPU the numbers are the same bit for bit, as tests
show. On an accelerator each function's first matrix is compared with JAX's own.

Keras' initializers look the functions up in ``jax.random`` at every call. While a search is on,
these names stand for the ones here.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from paceline.program import jax_compat as jv
from paceline.program import keras_private
from paceline.program.keras_private import RefCountedPatch, SharedChange

#: Functions of ``jax.random`` whose numbers follow from the key and their position alone.
NAMES = ("uniform", "normal", "truncated_normal")
#: Functions of ``jax.numpy`` that fill an array with one number.
FILLS = ("zeros", "ones", "full")
#: Types that ``asarray`` is asked for -> type of the Python numbers that are put without a program.
_CONVERTED = {"float32": float, "int32": int, "uint32": int}
#: Lengths that are drawn: the smallest, the ratio between two, and from where they only double.
_LEAST, _RATIO, _LARGE = 4096, 8, 1 << 18
#: Beyond, drawing numbers that are not needed costs more than a compile.
_MOST = 1 << 24

#: Function of ``jax.random`` -> whether a cut draw was JAX' own on this accelerator.
_agrees: dict[str, bool] = {}


@contextmanager
def shared_initializer_programs() -> Iterator[None]:
    """Has initial weights drawn so inside; searches may overlap."""
    with _few_programs.applied() if keras.backend.backend() == "jax" else nullcontext():
        yield


@SharedChange
def _few_programs() -> Iterator[None]:
    outside, changed = jv.trace_state(), []
    makers = [(jax.random, name, _cutting) for name in NAMES]
    makers += [(jnp, name, _by_numpy) for name in FILLS]
    makers.append((jnp, "asarray", _put))
    for module, name, make in makers:
        original = getattr(module, name)
        changed.append((module, name, original, make(original, outside)))
        setattr(module, name, changed[-1][-1])
    yield
    for module, name, original, ours in changed:
        if getattr(module, name) is ours:  # else patched by another since
            setattr(module, name, original)


def _cutting(original: Callable[..., Any], outside: Any) -> Callable[..., Any]:
    """JAX's function, with the numbers of a shape cut from a longer draw where that is the same.

    ``outside``: the state of tracing where nothing is traced.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def draw(*args: Any, **kwargs: Any) -> Any:
        if jv.trace_state() != outside:  # of a step: its numbers are drawn when it runs
            return original(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        shape = _shape(bound.arguments)
        name = original.__name__
        if shape is None or not _agrees.get(name, True):
            return original(*args, **kwargs)
        n = math.prod(shape)
        bound.arguments["shape"] = (_length(n),)
        drawn = original(*bound.args, **bound.kwargs)
        # A copy, so that the longer draw does not stay. ``jnp.array`` would compile for the shape.
        cut = np.array(np.asarray(drawn)[:n]).reshape(shape)
        if jax.default_backend() != "cpu" and name not in _agrees:
            theirs = original(*args, **kwargs)
            if len(shape) > 1:  # a vector could agree where numbers depend on the shape
                _agrees[name] = np.array_equal(cut, theirs)
            return theirs
        return jax.device_put(cut)

    return draw


def _by_numpy(original: Callable[..., Any], outside: Any) -> Callable[..., Any]:
    """The function, filling arrays without a program of their shape; arguments as ``_cutting``."""
    signature, make = inspect.signature(original), getattr(np, original.__name__)

    @functools.wraps(original)
    def fill(*args: Any, **kwargs: Any) -> Any:
        found = dict(signature.bind(*args, **kwargs).arguments)
        shape, dtype, number = found.pop("shape"), found.pop("dtype", None), {}
        if "fill_value" in found:
            number["fill_value"] = found.pop("fill_value")
        plain = _is_plain(shape) and _is_float32(dtype) and all(map(_is_number, number.values()))
        if jv.trace_state() != outside or not plain or any(v is not None for v in found.values()):
            return original(*args, **kwargs)
        return jax.device_put(make(shape, **number, dtype=np.float32))

    return fill


def _put(original: Callable[..., Any], outside: Any) -> Callable[..., Any]:
    """``asarray``, without the program that converts a number's type; arguments as ``_cutting``.

    A model has many such numbers: seeds, learning rates, counters. While others train, each of
    these programs waits for its turn.
    """

    @functools.wraps(original)
    def asarray(a: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = str(kwargs.get("dtype")) if len(kwargs) == 1 and not args else ""
        kind, numbers = _CONVERTED.get(dtype), a if type(a) in (list, tuple) else (a,)
        plain = kind is not None and all(type(number) is kind for number in numbers)
        if kind is int:  # beyond, JAX refuses some
            plain = plain and all(0 <= number < 1 << 31 for number in numbers)
        if isinstance(a, np.generic):
            plain = kind is not None and a.dtype == dtype
        elif kind is float and type(a) is int:  # as metrics are reset; beyond, it may be rounded
            plain = abs(a) < 1 << 24
        if not plain or jv.trace_state() != outside:
            return original(a, *args, **kwargs)
        return jax.device_put(np.asarray(a, kwargs["dtype"]))

    return asarray


def _is_plain(shape: Any) -> bool:
    return isinstance(shape, (tuple, list)) and all(isinstance(size, int) for size in shape)


def _shape(arguments: dict[str, Any]) -> tuple[int, ...] | None:
    """The shape that is asked for; None if it is not cut from another draw."""
    found = dict(arguments)
    key, shape, dtype = found.pop("key"), found.pop("shape"), found.pop("dtype")
    # Words of another width are counted otherwise.
    if not (_is_plain(shape) and _is_float32(dtype) and 0 < math.prod(shape) <= _MOST):
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

    Variables that are made within the block are not put back.
    """
    # Copies: ``fit`` gives the arrays of variables away to its steps.
    before = [(v, np.array(keras.ops.convert_to_numpy(v))) for v in all_variables(model)]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def all_variables(model: Any) -> list[Any]:
    """All variables of a model, its metrics and its optimizer, each once."""
    of_optimizer = getattr(model.optimizer, "variables", [])  # a model may be compiled without
    found = [*model.variables, *model.metrics_variables, *of_optimizer]
    return list({id(variable): variable for variable in found}.values())


#: Counts the builds of all searches.
_builds = itertools.count(1)
_last_build = 0
#: Model -> number of the build that made it.
_built: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_reused: weakref.WeakSet[Any] = weakref.WeakSet()
#: Id of a variable -> a reference, which forgets it, the last build, and whether that made it.
_made: dict[int, tuple[weakref.ref[Any], int, bool]] = {}


@contextmanager
def variables_noted() -> Iterator[None]:
    """Has ``shared_variables`` know what is made inside.

    Afterwards layers that were there before are as they were, whatever builds have changed of them.
    """
    with _noting.applied(), _changes.applied():
        yield


def noted_build(build: Callable[[], Any], reserve: Callable[..., None] | None = None) -> Any:
    """Calls ``build``, and returns the model that it makes.

    What the build before has changed of layers that were there before is put back first.
    ``reserve`` is called with the arguments of ``keras.Variable`` before each variable is made,
    also where Keras makes it later; it may raise.
    """
    global _last_build, _builds_now, _reserve
    _reserve = reserve
    with _noting.applied():
        _put_back()
        number = _last_build = next(_builds)
        _builds_now = True
        try:
            model = build()
        finally:
            _builds_now = False
        if isinstance(model, keras.Model):
            if _changed:
                _as_built[model] = [each.now() for each in _changed]
            if model in _built:
                _reused.add(model)
            _built[model] = number
        return model


def is_reused(model: Any) -> bool:
    """Whether several calls of ``build`` returned this model."""
    return model in _reused


def shared_variables(model: Any) -> list[Any]:
    """The variables of a model that were there before ``build`` was called; other models have them.

    Only a model that ``noted_build`` returned shares any.
    """
    number = _built.get(model, 0)
    return [v for v in all_variables(model) if _is_older(v, number)]


def is_of_build(variable: Any) -> bool:
    """Whether a call of ``build`` has made a variable."""
    return _made.get(id(variable), (None, 0, False))[2]


def _is_older(variable: Any, build: int) -> bool:
    """Whether a variable was there before a build began."""
    return _made.get(id(variable), (None, 0))[1] < build


# -- what builds change of layers that were there before -------------------------------------------


class TrainableFlags:
    """Which of these layers and variables are trainable at the moment when this object is made."""

    def __init__(self, layers: Iterable[Any], variables: Iterable[Any]) -> None:
        self._layers = [(each, each.trainable) for each in layers]
        self._variables = [(each, each.trainable) for each in variables]

    def now(self) -> TrainableFlags:
        """The flags of the same layers and variables at this moment."""
        return TrainableFlags(
            [layer for layer, _ in self._layers], [variable for variable, _ in self._variables]
        )

    def restore(self) -> None:
        """Sets the flags as they were."""
        for _ in self._layers:
            # A layer passes its flag on to the layers that it holds, so one pass may not be enough.
            wrong = [(layer, flag) for layer, flag in self._layers if layer.trainable != flag]
            for layer, flag in wrong:
                layer.trainable = flag
            if not wrong:
                break
        for variable, flag in self._variables:
            if variable.trainable != flag:
                variable.trainable = flag


class _Value:
    """A value that a variable has had: a copy, if the variable still has it."""

    def __init__(self, variable: Any, value: Any) -> None:
        self._variable, self._value = variable, value

    def now(self) -> _Value:
        """The value of the same variable at this moment."""
        return _Value(self._variable, np.array(keras.ops.convert_to_numpy(self._variable)))

    def restore(self) -> None:
        """Assigns the value."""
        self._variable.assign(self._value)


#: What the last build has changed of layers that were there before it, as it was, in order.
_changed: list[TrainableFlags | _Value] = []
_builds_now = False  # whether a build runs
#: Model -> what its build has changed of such layers, as the build left it.
_as_built: weakref.WeakKeyDictionary[Any, list[TrainableFlags | _Value]] = (
    weakref.WeakKeyDictionary()
)


def _put_back() -> None:
    while _changed:
        _changed.pop().restore()


def leave_changes() -> None:
    """Leaves what the last build has changed of layers that were there before as it is."""
    _changed.clear()


_changes = RefCountedPatch(lambda: None, _put_back)


@contextmanager
def changes_kept() -> Iterator[None]:
    """A block that builds models while the model of the last build may train.

    Afterwards layers that were there before have the flags and values that this last build and its
    training gave them.
    """
    before, now = list(_changed), [each.now() for each in _changed]
    try:
        yield
    finally:
        _put_back()
        for each in now:
            each.restore()
        _changed[:] = before


@contextmanager
def as_built(model: Any) -> Iterator[None]:
    """A block in which layers that were there before a model are as its ``build`` left them.

    ``noted_build`` returned the model; others may have been built since.
    """
    with changes_kept():
        _put_back()
        own = _as_built.get(model, [])
        _changed.extend(each.now() for each in own)
        for each in own:
            each.restore()
        yield


def _note_trainable(layer: Any) -> None:
    """Notes the flags of a layer that a build is about to set."""
    if not _builds_now:
        return
    older = [v for v in layer.variables if _is_older(v, _last_build)]
    if not older:
        return
    layers = [
        each
        for each in keras_private.all_layers(layer)
        if all(_is_older(v, _last_build) for v in each.variables)
    ]
    _changed.append(TrainableFlags(layers, older))


@SharedChange
def _noting() -> Iterator[None]:
    """Notes which build makes a variable, and what builds change of older ones."""
    variable: Any = keras.Variable
    layer: Any = keras.Layer
    init, assign, trainable = variable.__init__, variable.assign, layer.trainable

    @functools.wraps(init)
    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        key = id(self)
        _made[key] = weakref.ref(self, lambda _: _made.pop(key, None)), _last_build, _builds_now
        if _reserve is not None:
            _reserve(*args, **kwargs)
        init(self, *args, **kwargs)

    @functools.wraps(assign)
    def assigning(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _builds_now or not _is_older(self, _last_build):
            return assign(self, *args, **kwargs)
        before = keras_private.value_of(self)
        result = assign(self, *args, **kwargs)
        # JAX replaces the array, except while Keras only looks at shapes. Other backends write into
        # it, and what they had is not known any more.
        if before is not None and keras_private.value_of(self) is not before:
            _changed.append(_Value(self, before))
        return result

    def setting(self: Any, value: Any) -> None:
        global _builds_now
        _note_trainable(self)
        was, _builds_now = _builds_now, False  # its own layers, which it sets, are noted with it
        try:
            trainable.fset(self, value)
        finally:
            _builds_now = was

    flag = property(trainable.fget, setting, doc=trainable.__doc__)
    ours = (
        (variable, "__init__", noting),
        (variable, "assign", assigning),
        (layer, "trainable", flag),
    )
    own = [vars(cls).get(name, _INHERITED) for cls, name, _ in ours]
    for cls, name, new in ours:
        setattr(cls, name, new)
    yield
    for (cls, name, _), before in zip(ours, own, strict=True):
        if before is _INHERITED:
            delattr(cls, name)
        else:
            setattr(cls, name, before)


#: In place of an attribute that a class has from its base.
_INHERITED: Any = object()
_reserve: Callable[..., None] | None = None
