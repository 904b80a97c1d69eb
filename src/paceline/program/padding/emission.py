"""The program of a walked step: its first trace, with padding filled where the walk says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.program import jax_compat as jv
from paceline.program.padding.axes import Axis
from paceline.program.padding.elementwise import to_zero
from paceline.program.padding.lockstep import (
    DifferingConstant,
    Fill,
    Padding,
    PlannedEquation,
    Symbol,
    WalkedJaxpr,
)
from paceline.program.rewrites.splice import inlined


def emit(
    body: WalkedJaxpr, symbols: Sequence[Symbol], replaced: Mapping[int, int] | None = None
) -> Any:
    """The closed jaxpr of a walked body: inputs are the symbols' values, then those of the body.

    ``symbols``: the open axes whose extents are inputs, and the constants that are. ``replaced``:
    for results whose padding must hold zeros: which input of the same axes, whose padding holds
    zeros, each of them replaces.
    """
    return _PaddedJaxprEmitter(body, symbols).closed(replaced or {})


class _PaddedJaxprEmitter:
    def __init__(self, body: WalkedJaxpr, symbols: Sequence[Symbol]) -> None:
        self._body, self._symbols = body, symbols
        self._eqns: list[Any] = []
        self._inputs = {symbol: jv.Var(_aval(symbol)) for symbol in symbols}
        self._instead: dict[Any, Any] = {}
        for var, choice in body.choices.items():
            if not isinstance(var, int):
                self._instead[var] = self._inputs[choice]
        self._masks: dict[Axis, Any] = {}
        self._filled: dict[tuple[Any, tuple[int, ...], float | int], Any] = {}
        # Variables whose padding is zero for all that read them -> along which dimensions.
        self._zeroed: dict[Any, tuple[int, ...]] = {}

    def closed(self, replaced: Mapping[int, int]) -> Any:
        jaxpr = self._body.jaxpr
        early = self._to_fill_early(replaced)
        self._zeroed = self._to_zero(early)
        for var in (*jaxpr.constvars, *jaxpr.invars):
            if var in self._zeroed:
                self._instead[var] = self._fill(var, self._zeroed[var], 0)
        for plan in self._body.planned:
            operands = [self._read(atom) for atom in plan.eqn.invars]
            for i, choice in plan.choices.items():
                operands[i] = self._inputs[choice]
            within = self._operands_to_zero(plan)
            for fill in (*plan.fills, *(within or ())):
                atom = plan.eqn.invars[fill.operand]
                if fill.number != 0 or not {*fill.dims} <= {*self._zeroed.get(atom, ())}:
                    operands[fill.operand] = self._fill(atom, fill.dims, fill.number)
            if plan.replacement is None:
                self._eqns.append(plan.eqn.replace(invars=operands))
            else:
                results = self._traced(plan.replacement, operands)
                self._instead.update(zip(plan.eqn.outvars, results, strict=True))
            for var in plan.eqn.outvars:
                if var in early:
                    self._instead[var] = self._fill_from(early[var], var)
                elif var in self._zeroed and within is None:
                    self._instead[var] = self._fill(var, self._zeroed[var], 0)
        outs = [
            self._inputs[self._body.choices[i]] if i in self._body.choices else self._read(atom)
            for i, atom in enumerate(jaxpr.outvars)
        ]
        for i in replaced:
            value, atom = self._body.outs[i], jaxpr.outvars[i]
            if value.content is not Padding.ZERO and (jv.is_literal(atom) or atom not in early):
                outs[i] = self._fill(atom, value.padded, 0)
        invars = [*self._inputs.values(), *jaxpr.invars]
        made = jv.rewritten(jaxpr, invars, outs, self._eqns, jaxpr.constvars)
        return jv.ClosedJaxpr(made, list(self._body.consts))

    def _to_fill_early(self, replaced: Mapping[int, int]) -> dict[Any, Any]:
        """Results that are filled as soon as they are made -> the inputs that they replace.

        So later equations read the filled result. If they read another one, XLA's CPU compiler
        would compute it again for them, and copy the variable that it replaces in every step.
        """
        jaxpr, found = self._body.jaxpr, {}
        for i, place in replaced.items():
            atom, value, source = jaxpr.outvars[i], self._body.outs[i], jaxpr.invars[place]
            # One whose elements are all one known number must keep it until the end.
            if jv.is_literal(atom) or value.content is Padding.ZERO or value.number is not None:
                continue
            if atom.aval.shape == source.aval.shape and atom.aval.dtype == source.aval.dtype:
                found[atom] = source
        return found

    def _to_zero(self, early: Mapping[Any, Any]) -> dict[Any, tuple[int, ...]]:
        """Variables some reader of which needs zeros in their padding, and where.

        All their readers then get the zeros, which are within what is known of the padding. Made
        for one reader alone, the filled array would be a second array with its own kernel to
        compile and run.
        """
        found: dict[Any, set[int]] = {}
        for plan in self._body.planned:
            for fill in plan.fills:
                atom = plan.eqn.invars[fill.operand]
                if (
                    fill.number != 0
                    or jv.is_literal(atom)
                    or atom in early
                    or atom in self._instead
                ):
                    continue
                # One whose elements are all one known number must keep it.
                if self._body.known[atom].number is None:
                    found.setdefault(atom, set()).update(fill.dims)
        return {atom: tuple(sorted(dims)) for atom, dims in found.items()}

    def _operands_to_zero(self, plan: PlannedEquation) -> list[Fill] | None:
        """What to fill before an equation so that its result is zero; None: fill the result.

        XLA's CPU compiler takes a select for cheap, and computes it again for every reader, before
        which the array without the zeros is stored too. Within the kernel of the result it is not.
        """
        out, *more = plan.eqn.outvars
        if plan.replacement is not None or more or out not in self._zeroed:
            return None
        if any(atom.aval.shape not in ((), out.aval.shape) for atom in plan.eqn.invars):
            return None
        operands = to_zero(plan.eqn.primitive.name, plan.ins)
        return None if operands is None else [Fill(i, self._zeroed[out], 0) for i in operands]

    def _fill_from(self, source: Any, atom: Any) -> Any:
        """A variable with the padding of an input, which holds zeros.

        Not zeros themselves: XLA would take the select for cheap then, and compute it twice.
        """
        value = self._body.known[atom]
        masks = [self._mask(value.axes[i]) for i in value.padded]
        aval = atom.aval
        closed = _choosing(aval.shape, aval.dtype, value.padded)
        return inlined([self._read(atom), source, *masks], closed, self._eqns)[0]

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
    like = symbol.values[0] if isinstance(symbol, DifferingConstant) else np.int32(0)
    return jv.aval_of(like)


def _shape(atom: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)


@lru_cache(maxsize=1000)
def _filling(shape: tuple[int, ...], dtype: Any, dims: tuple[int, ...], number: float) -> Any:
    """``(array, masks) -> array`` with a number where some mask is false, as a closed jaxpr."""

    def fill(array: Any, *masks: Any) -> Any:
        return jnp.where(_inside(masks, dims, len(shape)), array, jnp.asarray(number, dtype))

    masks = [jax.ShapeDtypeStruct((shape[i],), np.bool_) for i in dims]
    return jax.make_jaxpr(fill)(jax.ShapeDtypeStruct(shape, dtype), *masks)


@lru_cache(maxsize=1000)
def _choosing(shape: tuple[int, ...], dtype: Any, dims: tuple[int, ...]) -> Any:
    """``(array, other, masks) -> array`` with the other one where some mask is false."""

    def choose(array: Any, other: Any, *masks: Any) -> Any:
        return jnp.where(_inside(masks, dims, len(shape)), array, other)

    like = jax.ShapeDtypeStruct(shape, dtype)
    masks = [jax.ShapeDtypeStruct((shape[i],), np.bool_) for i in dims]
    return jax.make_jaxpr(choose)(like, like, *masks)


def _inside(masks: Sequence[Any], dims: tuple[int, ...], n_dims: int) -> Any:
    """Where all masks are true, each along its dimension of an array."""
    inside = jnp.bool_(True)
    for i, mask in zip(dims, masks, strict=True):
        inside = inside & mask.reshape([-1 if j == i else 1 for j in range(n_dims)])
    return inside
