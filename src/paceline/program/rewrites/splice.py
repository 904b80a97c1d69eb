"""Replaces equations of a jaxpr by the trace of a function of their operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from paceline.program import jax_compat as jv

#: Operands of an equation -> its result.
Replacement = Callable[..., Any]
#: An equation -> what replaces it; None: the equation stays.
Rule = Callable[[Any], Replacement | None]
#: A variable -> the equation that makes it; None: the variable is an input or a literal.
Maker = Callable[[Any], Any | None]


class ReplacementCall(NamedTuple):
    """A replacement that works on other operands than those of the equation."""

    operands: tuple[Any, ...]  # variables that are made before the equation
    function: Replacement  # computes the equation's result from these operands


#: An equation, and what finds the equations before it -> what replaces it; None: it stays.
ChainRule = Callable[[Any, Maker], ReplacementCall | None]

_BODIES = frozenset({"scan", "while", "cond"}) | jv.CALLS | jv.REMAT


def splice(
    closed: Any, rules: Mapping[str, Rule], chains: Mapping[str, ChainRule] | None = None
) -> Any:
    """Applies rules by name of primitive, in loops, branches and called functions too.

    NumPy arrays that a rule's function closes over become literals. A rule of ``chains``, whose
    primitives are not among those of ``rules``, also looks at the equations before. The result is a
    closed jaxpr with the same inputs, constants and results.
    """
    return jv.ClosedJaxpr(_spliced(closed.jaxpr, rules, chains or {}), closed.consts)


def _spliced(jaxpr: Any, rules: Mapping[str, Rule], chains: Mapping[str, ChainRule]) -> Any:
    emit: list[Any] = []
    made: dict[Any, Any] = {}
    # The results of a replaced equation -> the operands that stand for them.
    instead: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return atom if jv.is_literal(atom) else instead.get(atom, atom)

    def maker(atom: Any) -> Any | None:
        return None if jv.is_literal(atom) else made.get(atom)

    for old in jaxpr.eqns:
        name = old.primitive.name
        eqn = old.replace(invars=[read(atom) for atom in old.invars])
        chosen = chains[name](eqn, maker) if name in chains else None
        if name in rules:
            replacement = rules[name](eqn)
            chosen = (
                None if replacement is None else ReplacementCall(tuple(eqn.invars), replacement)
            )
        traced = None if chosen is None else _traced(eqn, chosen)
        if chosen is not None and traced is not None:
            results = inlined(chosen.operands, traced, emit)
            instead.update(zip(eqn.outvars, results, strict=True))
            continue
        if name in _BODIES:
            params = {key: _bodies(value, rules, chains) for key, value in eqn.params.items()}
            eqn = eqn.replace(params=params)
        emit.append(eqn)
        made.update(dict.fromkeys(eqn.outvars, eqn))
    return jaxpr.replace(eqns=emit, outvars=[read(atom) for atom in jaxpr.outvars])


def _bodies(value: Any, rules: Mapping[str, Rule], chains: Mapping[str, ChainRule]) -> Any:
    if isinstance(value, jv.ClosedJaxpr):
        return splice(value, rules, chains)
    if isinstance(value, jv.Jaxpr):
        return _spliced(value, rules, chains)
    if isinstance(value, tuple):
        return tuple(_bodies(part, rules, chains) for part in value)
    return value


def _traced(eqn: Any, chosen: ReplacementCall) -> Any | None:
    """The replacement as a closed jaxpr; None if its results have other shapes or dtypes."""
    avals = [atom.aval for atom in chosen.operands]
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    try:
        closed = jax.make_jaxpr(chosen.function)(*shapes)
    except Exception:  # the rule does not know this case; the equation is right as it is
        return None
    given, wanted = ([(v.aval.shape, v.aval.dtype) for v in e.outvars] for e in (closed.jaxpr, eqn))
    return closed if given == wanted else None


def inlined(operands: Sequence[Any], closed: Any, emit: list[Any]) -> list[Any]:
    """Adds the replacement's equations to ``emit``; returns the operands that hold its results."""
    inner = closed.jaxpr
    names: dict[Any, Any] = dict(zip(inner.invars, operands, strict=True))
    for var, value in zip(inner.constvars, closed.consts, strict=True):
        names[var] = jv.Literal(np.asarray(value), var.aval)

    def read(atom: Any) -> Any:
        return atom if jv.is_literal(atom) else names[atom]

    for one in inner.eqns:
        outvars = [jv.Var(var.aval) for var in one.outvars]
        emit.append(one.replace(invars=[read(atom) for atom in one.invars], outvars=outvars))
        names.update(zip(one.outvars, outvars, strict=True))
    return [read(atom) for atom in inner.outvars]
