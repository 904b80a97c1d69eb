"""Tells whether a step traced under float64 rounds something to float32 on the way to its results.

Keras keeps float32 in places whatever floatx says: BatchNorm, LayerNorm, recurrent cells, and
``ops.mean``, ``ops.tanh``, ``ops.cos``, ``ops.floor``, ``ops.norm`` with all that calls them (the
mean squared error, cosine schedules, Adafactor, many metrics). Where such a value reaches a result,
two correct runs agree to about 1e-7 at best. Where it only decides something (the argmax of
accuracy, a dropout mask), they agree as far as float64 does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend import core

# Their bodies are entered with the taint of each operand.
CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def rounds(closed: core.ClosedJaxpr) -> bool:
    """Whether some floating-point result hangs on a value that was rounded below float64."""
    tainted = _walk(closed.jaxpr, [False] * len(closed.jaxpr.invars))
    return any(tainted)


def _walk(jaxpr: Any, inputs: Sequence[bool]) -> list[bool]:
    """Taint of each output of ``jaxpr``, given that of each input."""
    taint: dict[Any, bool] = dict(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> bool:
        return not isinstance(atom, core.Literal) and taint.get(atom, False)

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        outs = _outputs(eqn, operands)
        if _rounds_here(eqn):
            outs = [True] * len(outs)
        for var, out in zip(eqn.outvars, outs, strict=True):
            taint[var] = out and jnp.issubdtype(var.aval.dtype, jnp.floating)
    return [read(atom) for atom in jaxpr.outvars]


def _rounds_here(eqn: Any) -> bool:
    """Conversion of float64 to a narrower float."""
    if eqn.primitive.name != "convert_element_type":
        return False
    before, after = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    return before == jnp.float64 and jnp.issubdtype(after, jnp.floating) and after != before


def _outputs(eqn: Any, operands: list[bool]) -> list[bool]:
    name, params = eqn.primitive.name, eqn.params
    if name == "scan":
        return _loop(params["jaxpr"].jaxpr, operands, params["num_consts"], params["num_carry"])
    if name == "cond":
        branches = [_walk(branch.jaxpr, operands[1:]) for branch in params["branches"]]
        return [any(column) for column in zip(*branches, strict=True)]
    for key in CALLS:
        body = params.get(key)
        if body is not None:
            body = getattr(body, "jaxpr", body)
            if len(body.invars) == len(operands):
                return _walk(body, operands)
    # Unknown bodies (while, custom derivatives with extra operands): any taint taints all.
    inside = any(_rounds_inside(value) for value in params.values())
    return [any(operands) or inside] * len(eqn.outvars)


def _loop(body: Any, operands: list[bool], n_consts: int, n_carry: int) -> list[bool]:
    """A scan: the carry's taint goes round until it grows no more."""
    taint = list(operands)
    while True:
        outs = _walk(body, taint)
        carry = [
            a or b
            for a, b in zip(taint[n_consts : n_consts + n_carry], outs[:n_carry], strict=True)
        ]
        if carry == taint[n_consts : n_consts + n_carry]:
            return outs
        taint[n_consts : n_consts + n_carry] = carry


def _rounds_inside(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_rounds_inside(part) for part in value)
    body = getattr(value, "jaxpr", value)
    equations: Iterable[Any] = getattr(body, "eqns", ())
    return any(
        _rounds_here(eqn) or any(_rounds_inside(v) for v in eqn.params.values())
        for eqn in equations
    )
