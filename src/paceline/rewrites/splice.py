"""Replacing equations of a jaxpr by what a function of their operands traces to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from paceline.program import versions as jv

#: Operands of an equation -> its result.
Replacement = Callable[..., Any]
#: What replaces an equation; None: it stays.
Rule = Callable[[Any], Replacement | None]

_BODIES = frozenset({"scan", "while", "cond"}) | jv.CALLS | jv.REMAT


def splice(closed: Any, rules: Mapping[str, Rule]) -> Any:
    """Applies rules by name of primitive, in loops, branches and called functions too.

    Args:
        closed: A closed jaxpr.
        rules: Primitive -> rule. NumPy arrays that a rule's function closes over become literals.

    Returns:
        A closed jaxpr with the same inputs, constants and results.
    """
    return jv.make_closed(_spliced(closed.jaxpr, rules), closed.consts)


def _spliced(jaxpr: Any, rules: Mapping[str, Rule]) -> Any:
    emit: list[Any] = []
    instead: dict[
        Any, Any
    ] = {}  # a replaced equation's results -> the operands that stand for them

    def read(atom: Any) -> Any:
        return atom if jv.is_literal(atom) else instead.get(atom, atom)

    for old in jaxpr.eqns:
        name = old.primitive.name
        eqn = old.replace(invars=[read(atom) for atom in old.invars])
        replacement = rules[name](eqn) if name in rules else None
        traced = None if replacement is None else _traced(eqn, replacement)
        if traced is not None:
            instead.update(zip(eqn.outvars, _inlined(eqn, traced, emit), strict=True))
        elif name in _BODIES:
            params = {key: _bodies(value, rules) for key, value in eqn.params.items()}
            emit.append(eqn.replace(params=params))
        else:
            emit.append(eqn)
    return jaxpr.replace(eqns=emit, outvars=[read(atom) for atom in jaxpr.outvars])


def _bodies(value: Any, rules: Mapping[str, Rule]) -> Any:
    if isinstance(value, jv.ClosedJaxpr):
        return splice(value, rules)
    if isinstance(value, jv.Jaxpr):
        return _spliced(value, rules)
    if isinstance(value, tuple):
        return tuple(_bodies(part, rules) for part in value)
    return value


def _traced(eqn: Any, replacement: Replacement) -> Any | None:
    """The replacement as a closed jaxpr; None where it does not give what the equation gives."""
    shapes = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]
    try:
        closed = jax.make_jaxpr(replacement)(*shapes)
    except Exception:  # a rule that does not know this case: the equation was good enough before
        return None
    given, wanted = ([(v.aval.shape, v.aval.dtype) for v in e.outvars] for e in (closed.jaxpr, eqn))
    return closed if given == wanted else None


def _inlined(eqn: Any, closed: Any, emit: list[Any]) -> list[Any]:
    """Writes down the replacement's equations; returns the operands that hold its results."""
    inner = closed.jaxpr
    names: dict[Any, Any] = dict(zip(inner.invars, eqn.invars, strict=True))
    for var, value in zip(inner.constvars, closed.consts, strict=True):
        names[var] = jv.Literal(np.asarray(value), var.aval)

    def read(atom: Any) -> Any:
        return atom if jv.is_literal(atom) else names[atom]

    for one in inner.eqns:
        outvars = [jv.new_var(var.aval) for var in one.outvars]
        emit.append(one.replace(invars=[read(atom) for atom in one.invars], outvars=outvars))
        names.update(zip(one.outvars, outvars, strict=True))
    return [read(atom) for atom in inner.outvars]
