"""The jaxpr of a common step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax import lax

from paceline.program import jax_compat as jv
from paceline.program.rewrites.splice import inlined
from paceline.program.variants.merging import Graph
from paceline.program.variants.values import (
    EquationResult,
    InlineConstant,
    Node,
    VariantSelect,
    root,
)


class JaxprEmitter:
    """The closed jaxpr of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._atoms: dict[int, Any] = {}
        self._arrays: list[tuple[Any, np.ndarray]] = []
        self._eqns: list[Any] = []
        self._is: dict[int, Any] = {}  # variant -> whether the slot is of it

    def closed(self, inputs: Sequence[Node]) -> Any:
        """The jaxpr with these inputs, the first of which says which variant a slot is of."""
        self._atoms = {id(value): jv.Var(value.aval) for value in inputs}
        flag = self._atoms[id(inputs[0])]
        for out in self._graph.outs:
            self._make(out, flag)
        template = jax.make_jaxpr(lambda: ())().jaxpr
        invars = [self._atoms[id(value)] for value in inputs]
        outvars = [self._atom(out) for out in self._graph.outs]
        constvars = [var for var, _ in self._arrays]
        made = jv.rewritten(template, invars, outvars, self._eqns, constvars)
        return jv.ClosedJaxpr(made, [array for _, array in self._arrays])

    def _atom(self, value: Node) -> Any:
        value = root(value)
        if isinstance(value, InlineConstant) and id(value) not in self._atoms:
            if value.value.ndim or jv.is_key(value.aval):
                var = jv.Var(value.aval)
                self._arrays.append((var, value.value))
                self._atoms[id(value)] = var
            else:
                self._atoms[id(value)] = jv.Literal(value.value[()], value.aval)
        return self._atoms[id(value)]

    def _make(self, value: Node, flag: Any) -> None:
        """Adds the equations that a value needs, without recursion: steps are deep."""
        stack = [value]
        while stack:
            each = root(stack[-1])
            if isinstance(each, InlineConstant) or id(each) in self._atoms:
                stack.pop()
                continue
            needed = each.op.inputs if isinstance(each, EquationResult) else _operands(each)
            missing = [
                one
                for one in map(root, needed)
                if not isinstance(one, InlineConstant) and id(one) not in self._atoms
            ]
            if missing:
                stack += missing
                continue
            stack.pop()
            operands = [self._atom(one) for one in needed]
            if isinstance(each, EquationResult):
                outvars = [jv.Var(out.aval) for out in each.op.outs]
                self._eqns.append(each.op.eqn.replace(invars=operands, outvars=outvars))
                self._atoms |= {
                    id(out): var for out, var in zip(each.op.outs, outvars, strict=True)
                }
            elif isinstance(each, VariantSelect):
                if each.variant not in self._is:
                    self._is[each.variant] = inlined([flag], _is_variant(each.variant), self._eqns)[
                        0
                    ]
                closed = _choosing(each.aval.shape, each.aval.dtype)
                self._atoms[id(each)] = inlined(
                    [self._is[each.variant], *operands], closed, self._eqns
                )[0]


def _operands(value: Node) -> list[Node]:
    assert isinstance(value, VariantSelect), value
    return [value.others, value.own]


@lru_cache(maxsize=100)
def _is_variant(variant: int) -> Any:
    return jax.make_jaxpr(lambda flag: flag == np.int32(variant))(
        jax.ShapeDtypeStruct((), np.int32)
    )


@lru_cache(maxsize=1000)
def _choosing(shape: tuple[int, ...], dtype: Any) -> Any:
    """``(is_own, others, own) -> value``, as a closed jaxpr."""
    like = jax.ShapeDtypeStruct(shape, dtype)
    return jax.make_jaxpr(lax.select_n)(jax.ShapeDtypeStruct((), np.bool_), like, like)
