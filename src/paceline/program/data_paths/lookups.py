"""The numbers of a batch that a model looks up in its Embeddings, where it only moves them before.

A number beyond an Embedding is NaN on JAX, and a negative one is another row, without a word. The
path from the data to each Embedding is traced, and followed with NumPy for a few examples. It may
have moves (``reshape``), casts, and sums with constants (offsets of several features in one table).
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import keras
import numpy as np

from paceline.program import keras_private
from paceline.program.jax_compat import CALLS, call_body, is_literal


@dataclass(frozen=True)
class Lookup:
    """One call of an Embedding."""

    name: str  # of the layer
    rows: int  # it knows the numbers from 0 up to this one
    mask_zero: bool  # whether 0 stands for no number
    _jaxpr: Any
    _consts: Sequence[Any]
    _number: int  # which of the jaxpr's results
    _n_leaves: int  # of its inputs, the first ones; the others are variables

    def numbers(self, leaves: Sequence[np.ndarray]) -> np.ndarray | None:
        """What is looked up for a batch, arrays in the order of the leaves of x.

        The arrays have the shapes of the trace. None if more than moves, casts and constants lies
        between.
        """
        return self._found(leaves, _VALUES)

    def places(self) -> np.ndarray | None:
        """Where each number comes from: its place among all elements of the leaves, in order."""
        shapes = [v.aval.shape for v in self._jaxpr.invars[: self._n_leaves]]
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        places = [
            np.arange(end - math.prod(shape), end).reshape(shape)
            for end, shape in zip(ends, shapes, strict=True)
        ]
        return self._found(places, _PLACES)

    def _found(self, leaves: Sequence[np.ndarray], rules: Any) -> np.ndarray | None:
        variables = [None] * (len(self._jaxpr.invars) - self._n_leaves)
        given = [*(_Operand(leaf, True) for leaf in leaves), *variables]
        found = _followed(self._jaxpr, self._consts, given, rules)[self._number]
        return found.array if found is not None and found.of_data else None


def lookups(model: Any, x: Any) -> list[Lookup]:
    """All calls of Embeddings by a built model; none where it cannot be traced.

    ``x``: shapes and dtypes of a batch, a nest of [B, ...].
    """
    calls: list[tuple[Any, Any]] = []

    def indices(x: Any, values: Sequence[Any]) -> list[Any]:
        del calls[:]  # JAX may trace more than once
        state = list(zip(model.variables, values, strict=True))
        with _recording(calls), keras.StatelessScope(state_mapping=state):
            model(x, training=False)
        return [keras.ops.convert_to_tensor(numbers) for _, numbers in calls]

    try:
        # Their values are gone while ``fit`` trains.
        values = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in model.variables]
        closed = jax.make_jaxpr(indices)(x, values)
    except Exception:  # the user's layers may raise anything, and need not take x alone
        return []
    n = len(jax.tree.leaves(x))
    return [
        Lookup(each.name, each.input_dim, each.mask_zero, closed.jaxpr, closed.consts, number, n)
        for number, (each, _) in enumerate(calls)
    ]


# -- calls of Embeddings ---------------------------------------------------------------------------

_here = threading.local()


def _recording(calls: list[tuple[Any, Any]]) -> AbstractContextManager[None]:
    """A block that notes each Embedding which this thread calls, and what it is given."""
    return _noted_calls.applied_in_thread(_here, "calls", calls)


@keras_private.SharedChange
def _noted_calls() -> Iterator[None]:
    original = keras.layers.Embedding.call

    @functools.wraps(original)
    def call(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        calls = getattr(_here, "calls", None)
        if calls is not None:
            calls.append((self, inputs))
        return original(self, inputs, *args, **kwargs)

    keras.layers.Embedding.call = call
    yield
    keras.layers.Embedding.call = original


# -- what lies between -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Operand:
    """What an atom of a jaxpr stands for."""

    array: Any
    of_data: bool  # whether it follows from the data; else it is a constant


#: Given an equation's parameters and operands, of which one follows from the data, or none: what
#: the equation makes of them.
_Rule = Callable[..., Any]
#: Elements of a constant that a rule may be applied to.
_SMALL = 2**16


def _elementwise(function: Callable[..., Any]) -> _Rule:
    return lambda params, *operands: function(*operands)


def _broadcast(params: Mapping[str, Any], a: np.ndarray) -> np.ndarray:
    spread = [1] * len(params["shape"])
    for axis, size in zip(params["broadcast_dimensions"], a.shape, strict=True):
        spread[axis] = size
    return np.broadcast_to(a.reshape(spread), params["shape"])


def _slice(params: Mapping[str, Any], a: np.ndarray) -> np.ndarray:
    steps = params["strides"] or [1] * a.ndim
    ends = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
    return a[tuple(slice(*each) for each in ends)]


def _split(params: Mapping[str, Any], a: np.ndarray) -> list[np.ndarray]:
    return np.split(a, np.cumsum(params["sizes"])[:-1], axis=params["axis"])


def _cast(params: Mapping[str, Any], a: np.ndarray) -> np.ndarray:
    dtype = np.dtype(params["new_dtype"])
    if dtype.kind not in "iu":
        return a.astype(dtype)
    return np.trunc(np.nan_to_num(a)).astype(np.int64) if a.dtype.kind == "f" else a.astype("int64")


_MOVES: dict[str, _Rule] = {
    "reshape": lambda params, a: a.reshape(params["new_sizes"]),
    "squeeze": lambda params, a: np.squeeze(a, tuple(params["dimensions"])),
    "expand_dims": lambda params, a: np.expand_dims(a, tuple(params["dimensions"])),
    "transpose": lambda params, a: np.transpose(a, params["permutation"]),
    "rev": lambda params, a: np.flip(a, params["dimensions"]),
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "split": _split,
    "copy": lambda params, a: a,
    "stop_gradient": lambda params, a: a,
}
#: Each of these keeps or reverses the order of numbers. So a bound on the smallest and the largest
#: number of a place holds for all between.
_VALUES: dict[str, _Rule] = {
    **_MOVES,
    "convert_element_type": _cast,
    "add": _elementwise(np.add),
    "sub": _elementwise(np.subtract),
    "mul": _elementwise(np.multiply),
    "max": _elementwise(np.maximum),
    "min": _elementwise(np.minimum),
    "clamp": _elementwise(lambda low, a, high: np.minimum(np.maximum(a, low), high)),
    "floor": _elementwise(np.floor),
    "ceil": _elementwise(np.ceil),
    "round": _elementwise(np.round),
}
_PLACES: dict[str, _Rule] = {name: _elementwise(lambda *a: a[0]) for name in _VALUES} | _MOVES


def _followed(
    jaxpr: Any,
    consts: Sequence[Any],
    given: Sequence[_Operand | None],
    rules: Mapping[str, _Rule],
) -> list[_Operand | None]:
    """The results of a jaxpr that follow from values by rules; None for the others."""
    known: dict[Any, _Operand | None] = dict(zip(jaxpr.invars, given, strict=True))
    known |= {v: _Operand(c, False) for v, c in zip(jaxpr.constvars, consts, strict=True)}

    def value(atom: Any) -> _Operand | None:
        return _Operand(atom.val, False) if is_literal(atom) else known.get(atom)

    for eqn in jaxpr.eqns:
        operands = [value(atom) for atom in eqn.invars]
        if None in operands:
            continue
        if eqn.primitive.name in CALLS:
            body, inner = call_body(eqn.params)
            same = len(body.invars) == len(operands)
            results = _followed(body, inner, operands, rules) if same else []
        else:
            results = _applied(eqn, [each for each in operands if each is not None], rules)
        known.update(zip(eqn.outvars, results, strict=False))
    return [value(atom) for atom in jaxpr.outvars]


def _applied(eqn: Any, operands: Sequence[_Operand], rules: Mapping[str, _Rule]) -> list[_Operand]:
    """The results of an equation; empty where no rule says what they are."""
    name, of_data = eqn.primitive.name, [each.of_data for each in operands]
    if name == "concatenate" and all(of_data):
        arrays = [each.array for each in operands]
        return [_Operand(np.concatenate(arrays, axis=eqn.params["dimension"]), True)]
    small = all(np.size(each.array) <= _SMALL for each in operands)
    if name not in rules or sum(of_data) > 1 or not (any(of_data) or small):
        return []
    if rules is _PLACES and name not in _MOVES:
        operands = [each for each in operands if each.of_data] or operands
    made = rules[name](eqn.params, *(np.asarray(each.array) for each in operands))
    return [_Operand(a, any(of_data)) for a in (made if isinstance(made, list) else [made])]
