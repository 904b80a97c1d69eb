"""A model's step on the smaller batch, without a trace: as that of a model of the same classes.

Two models may differ in widths and other numbers alone, while all their classes take the same steps
at any widths (``ModelStructure.any_width``). Where their steps on the full batch have the same
equations, so have those on the smaller one. Extents and numbers that are equal in both steps of the
first model do not depend on the batch: the second model has its own. Those that are equal in both
models on the full batch depend only on the batch: the second model has those of the first. Those
that depend on both, such as an axis of all rows times a width, are unknown.

Notation
    whole, part: the first model's step on the full and on the smaller batch.
    own: the second model's step on the full batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import eq
from typing import Any

import numpy as np

from paceline.program import jax_compat as jv
from paceline.program.canonical import canonicalise
from paceline.program.step_template import same
from paceline.program.trace import Step


class _Unknown(Exception):
    """It does not follow what the second model has on the smaller batch."""


def step_like(whole: Step, part: Step, own: Step) -> Step | None:
    """A model's step on the smaller batch; None if it does not follow.

    ``whole`` and ``part`` are another model's steps on the full and on the smaller batch, ``own``
    is the model's on the full batch. The models are the same but for numbers, and all their classes
    take the same steps at any widths.
    """
    if not whole.log_names == part.log_names == own.log_names:
        return None
    try:
        closed = _closed(whole.closed, part.closed, own.closed)
    except _Unknown:
        return None
    return Step(closed, canonicalise(closed), own.log_names)


def _closed(whole: Any, part: Any, own: Any) -> Any:
    if any(jv.is_key(var.aval) for var in own.jaxpr.constvars):
        raise _Unknown
    consts = [_number(*each) for each in _zip(whole.consts, part.consts, own.consts)]
    return jv.ClosedJaxpr(_jaxpr(whole.jaxpr, part.jaxpr, own.jaxpr), consts)


def _jaxpr(whole: Any, part: Any, own: Any) -> Any:
    """The jaxpr, and proof that what an equation works on is the same value in all three."""
    places: dict[Any, tuple[Any, Any]] = {}  # variable of ``own`` -> those in its place
    made: dict[Any, Any] = {}

    def define(*variables: Sequence[Any]) -> list[Any]:
        found = []
        for a, b, var in _zip(*variables):
            places[var], made[var] = (a, b), jv.Var(_aval(a.aval, b.aval, var.aval))
            found.append(made[var])
        return found

    def read(*atoms: Sequence[Any]) -> list[Any]:
        return [read_one(*each) for each in _zip(*atoms)]

    def read_one(a: Any, b: Any, atom: Any) -> Any:
        if jv.is_literal(atom):
            if not jv.is_literal(a) or not jv.is_literal(b) or jv.is_key(atom.aval):
                raise _Unknown
            return jv.Literal(_number(a.val, b.val, atom.val), _aval(a.aval, b.aval, atom.aval))
        if places.get(atom) != (a, b):
            raise _Unknown
        return made[atom]

    constvars = define(whole.constvars, part.constvars, own.constvars)
    invars = define(whole.invars, part.invars, own.invars)
    eqns = []
    for a, b, eqn in _zip(whole.eqns, part.eqns, own.eqns):
        if not a.primitive is b.primitive is eqn.primitive:
            raise _Unknown
        params = _params(eqn.primitive.name, a.params, b.params, eqn.params)
        operands = read(a.invars, b.invars, eqn.invars)
        results = define(a.outvars, b.outvars, eqn.outvars)
        eqns.append(eqn.replace(invars=operands, outvars=results, params=params))
    outvars = read(whole.outvars, part.outvars, own.outvars)
    return own.replace(constvars=constvars, invars=invars, outvars=outvars, eqns=eqns)


def _params(
    name: str, whole: Mapping[str, Any], part: Mapping[str, Any], own: Mapping[str, Any]
) -> dict[str, Any]:
    if not whole.keys() == part.keys() == own.keys():
        raise _Unknown
    found = dict(own)
    for key, value in own.items():
        # Of a call its body alone counts: derivatives have been taken, and the rest are names.
        if name not in jv.CALLS or isinstance(value, jv.ClosedJaxpr | jv.Jaxpr):
            found[key] = _param(whole[key], part[key], value)
    return found


def _param(whole: Any, part: Any, own: Any) -> Any:
    kind = type(own)
    if not type(whole) is type(part) is kind:
        raise _Unknown
    if isinstance(own, jv.ClosedJaxpr):
        return _closed(whole, part, own)
    if isinstance(own, jv.Jaxpr):
        return _jaxpr(whole, part, own)
    if isinstance(own, tuple):
        parts = [_param(*each) for each in _zip(whole, part, own)]
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    try:
        return _following(whole, part, own, eq)
    except ValueError as error:  # arrays, whose comparison is not an answer
        raise _Unknown from error


def _aval(whole: Any, part: Any, own: Any) -> Any:
    kinds = {(aval.dtype, getattr(aval, "weak_type", False)) for aval in (whole, part, own)}
    if len(kinds) > 1:
        raise _Unknown
    shape = _param(whole.shape, part.shape, own.shape)
    return own if shape == own.shape else own.update(shape=shape)


def _number(whole: Any, part: Any, own: Any) -> Any:
    return _following(whole, part, own, lambda a, b: same(np.asarray(a), np.asarray(b)))


def _following(whole: Any, part: Any, own: Any, equal: Callable[[Any, Any], bool]) -> Any:
    """What the second model has on the smaller batch, of one extent, parameter or number."""
    if equal(whole, part):
        return own
    if equal(whole, own):
        return part
    raise _Unknown


def _zip(*each: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    if len({len(one) for one in each}) > 1:
        raise _Unknown
    return zip(*each, strict=True)
