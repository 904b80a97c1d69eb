"""The program of a walked step: its first trace, with padding filled where the walk says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.program import jax_compat as jv
from paceline.program.padding.axes import Axis
from paceline.program.padding.lockstep import Body, Differing, Padding, Symbol
from paceline.program.rewrites.splice import inlined


def emit(body: Body, symbols: Sequence[Symbol], *, zero: bool = False) -> Any:
    """The jaxpr of a walked body, with the extents of a slot as inputs.

    Args:
        body: What was walked.
        symbols: The open axes whose extents are inputs, and the constants that are.
        zero: Fill the padding of the results with zeros.

    Returns:
        A closed jaxpr; its inputs are the symbols' values, and then those of the body.
    """
    return _Emission(body, symbols).closed(zero)


class _Emission:
    def __init__(self, body: Body, symbols: Sequence[Symbol]) -> None:
        self._body, self._symbols = body, symbols
        self._eqns: list[Any] = []
        self._inputs = {symbol: jv.new_var(_aval(symbol)) for symbol in symbols}
        self._instead: dict[Any, Any] = {}
        for var, choice in body.choices.items():
            if not isinstance(var, int):
                self._instead[var] = self._inputs[choice]
        self._masks: dict[Axis, Any] = {}
        self._filled: dict[tuple[Any, tuple[int, ...], float | int], Any] = {}

    def closed(self, zero: bool) -> Any:
        jaxpr = self._body.jaxpr
        for plan in self._body.planned:
            operands = [self._read(atom) for atom in plan.eqn.invars]
            for i, choice in plan.choices.items():
                operands[i] = self._inputs[choice]
            for fill in plan.fills:
                atom = plan.eqn.invars[fill.operand]
                operands[fill.operand] = self._fill(atom, fill.dims, fill.number)
            if plan.replacement is None:
                self._eqns.append(plan.eqn.replace(invars=operands))
                continue
            results = self._traced(plan.replacement, operands)
            self._instead.update(zip(plan.eqn.outvars, results, strict=True))
        outs = [
            self._inputs[self._body.choices[i]] if i in self._body.choices else self._read(atom)
            for i, atom in enumerate(jaxpr.outvars)
        ]
        if zero:
            for i, value in enumerate(self._body.outs):
                if value.content is not Padding.ZERO:
                    outs[i] = self._fill(jaxpr.outvars[i], value.padded, 0)
        invars = [*self._inputs.values(), *jaxpr.invars]
        made = jaxpr.replace(
            invars=invars,
            outvars=outs,
            eqns=self._eqns,
            debug_info=jv.no_debug(jaxpr, len(invars)),
        )
        return jv.make_closed(made, list(self._body.consts))

    def _read(self, atom: Any) -> Any:
        return atom if jv.is_literal(atom) else self._instead.get(atom, atom)

    def _traced(self, function: Any, operands: Sequence[Any]) -> list[Any]:
        """Adds the trace of a function of the symbols' values and the operands."""
        inputs = list(self._inputs.values())

        def run(given: Sequence[Any], *values: Any) -> Any:
            return function(dict(zip(self._symbols, given, strict=True)), *values)

        shapes = [_shape(atom) for atom in operands]
        closed = jax.make_jaxpr(run)([_shape(var) for var in inputs], *shapes)
        return inlined([*inputs, *operands], closed, self._eqns)

    def _mask(self, axis: Axis) -> Any:
        root = axis.root()
        if root not in self._masks:
            self._masks[root] = self._traced(root.mask, [])[0]
        return self._masks[root]

    def _fill(self, atom: Any, dims: tuple[int, ...], number: float | int) -> Any:
        key = (atom, dims, number)
        if key not in self._filled:
            operand = self._read(atom)
            masks = [self._mask(self._body.known[atom].axes[i]) for i in dims]
            aval = operand.aval
            closed = _filling(aval.shape, aval.dtype, dims, number)
            self._filled[key] = inlined([operand, *masks], closed, self._eqns)[0]
        return self._filled[key]


def _aval(symbol: Symbol) -> Any:
    """The abstract value of a symbol's input."""
    like = symbol.values[0] if isinstance(symbol, Differing) else np.int32(0)
    return jv.aval_of(like)


def _shape(atom: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)


@lru_cache(maxsize=1000)
def _filling(shape: tuple[int, ...], dtype: Any, dims: tuple[int, ...], number: float) -> Any:
    """``(array, masks) -> array`` with a number where some mask is false, as a closed jaxpr."""

    def fill(array: Any, *masks: Any) -> Any:
        inside = jnp.bool_(True)
        for i, mask in zip(dims, masks, strict=True):
            inside = inside & mask.reshape([-1 if j == i else 1 for j in range(len(shape))])
        return jnp.where(inside, array, jnp.asarray(number, dtype))

    masks = [jax.ShapeDtypeStruct((shape[i],), np.bool_) for i in dims]
    return jax.make_jaxpr(fill)(jax.ShapeDtypeStruct(shape, dtype), *masks)
