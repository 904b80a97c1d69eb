"""Integers of 64 bits that functions of TensorFlow return, which have 32 bits on JAX.

In a call TensorFlow's types show which operations calculate with them. From one call to the next
they are arrays of JAX like any others. So an entry here marks each for the next call. An equation
marks it in the traced step, where a walk finds out whether anything else calculates with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator
from typing import Any

from jax import numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from paceline.program import jax_compat as jv
from paceline.program.foreign.operations import ForeignOperationError
from paceline.program.rewrites.splice import Replacement, splice

#: Names of the equations at which such integers leave a call, and enter the next one.
_LEAVES, _ENTERS = "int64 of TensorFlow", "given back to TensorFlow"
#: Operations whose results are numbers of their first operand, or of all.
_OF_FIRST = frozenset("dynamic_slice gather split".split())
_OF_ALL = frozenset(
    "broadcast_in_dim clamp concatenate copy max min name pad reduce_max reduce_min reshape rev "
    "select_n slice squeeze transpose".split()
)
#: Operations whose results are truth values.
_COMPARE = frozenset("eq ge gt le lt ne".split())

#: id of a marked array -> the array, and whether it was made of truth values.
_marked: dict[int, tuple[weakref.ref[Any], bool]] = {}


def marked(array: Any, *, of_truth: bool) -> Any:
    """An array that a call returns, with its mark. ``of_truth``: it was made of truth values."""
    array = checkpoint_name(array, _LEAVES)
    key, forget = id(array), _marked.pop
    _marked[key] = weakref.ref(array, lambda _: forget(key, None)), of_truth
    return array


def unmarked(array: Any) -> tuple[Any, bool] | None:
    """What the next call is given for a marked array, and ``of_truth``; None without a mark."""
    found, of_truth = _marked.get(id(array), (None, False))
    if found is None or found() is not array:
        return None
    array = checkpoint_name(array, _ENTERS)
    return (array.astype(bool) if of_truth else array), of_truth


def without_marks(closed: Any) -> Any:
    """A traced step without its marks.

    Raises ForeignOperationError if it calculates with marked integers between calls.
    """
    if not any(_is_mark(eqn) for eqn in _equations(closed.jaxpr)):
        return closed
    _wide(closed.jaxpr, ())
    return splice(closed, {"name": _itself})


def _is_mark(eqn: Any) -> bool:
    return eqn.primitive.name == "name" and eqn.params["name"] in (_LEAVES, _ENTERS)


def _itself(eqn: Any) -> Replacement | None:
    return (lambda x: x) if _is_mark(eqn) else None


def _bodies(eqn: Any) -> Iterator[Any]:
    for value in eqn.params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, jv.ClosedJaxpr | jv.Jaxpr):
                yield getattr(each, "jaxpr", each)


def _equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for body in _bodies(eqn):
            yield from _equations(body)


def _wide(jaxpr: Any, given: Collection[Any]) -> list[bool]:
    """Which results of a jaxpr are marked integers; ``given`` are its inputs that are."""
    wide = set(given)
    for eqn in jaxpr.eqns:
        operands = [not jv.is_literal(v) and v in wide for v in eqn.invars]
        for var, is_wide in zip(eqn.outvars, _results(eqn, operands), strict=True):
            if is_wide:
                wide.add(var)
    return [not jv.is_literal(v) and v in wide for v in jaxpr.outvars]


def _results(eqn: Any, operands: list[bool]) -> list[bool]:
    """Which results of an equation are marked integers, from which operands are."""
    name, n_results = eqn.primitive.name, len(eqn.outvars)
    if _is_mark(eqn):
        return [eqn.params["name"] == _LEAVES]
    if name in jv.CALLS | jv.REMAT:
        body, _ = jv.call_body(eqn.params)
        pairs = zip(body.invars, operands, strict=True)
        return _wide(body, [var for var, is_wide in pairs if is_wide])
    in_loops = [is_wide for body in _bodies(eqn) for is_wide in _wide(body, ())]
    known = not any(in_loops)
    if known and (name in _COMPARE or not any(operands)):
        return [False] * n_results
    if known and name == "convert_element_type":  # to fewer bits both cut off the same
        return [eqn.params["new_dtype"] == jnp.int32]
    if known and name == "sort":
        return operands
    if known and name in _OF_FIRST:
        return [operands[0]] * n_results
    if known and name in _OF_ALL:
        return [True] * n_results
    raise ForeignOperationError(
        "it calculates with 64-bit integers that a function of TensorFlow returned; cast them to "
        "tf.int32"
    )
