"""The values and equations of a common step while it is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.program import jax_compat as jv
from paceline.program.canonical import Unpackable, aval_text, canonical_text
from paceline.program.padding.lockstep import body_key


@dataclass(eq=False)
class Node:
    """A value of the common step; an input that all variants share is nothing more."""

    aval: Any


@dataclass(eq=False)
class VariantConstant(Node):
    """A constant of one or several variants."""

    # Variant -> its number among that variant's constants.
    members: dict[int, int] = field(default_factory=dict)
    value: Any = None  # its value in the example of the first of them
    same: VariantConstant | None = None  # the number that this one has become part of


@dataclass(eq=False)
class InlineConstant(Node):
    """A number or an array that is written into the step."""

    value: np.ndarray


@dataclass(eq=False)
class VariantSelect(Node):
    """One value for the slots of a variant, another one for those of the others."""

    others: Node
    own: Node
    variant: int


@dataclass(eq=False)
class EquationResult(Node):
    """A result of an equation."""

    op: MergedEquation
    index: int


@dataclass(eq=False)
class MergedEquation:
    """An equation of the common step."""

    eqn: Any
    key: Any
    inputs: list[Node]
    outs: list[EquationResult] = field(default_factory=list)

    @classmethod
    def of(cls, eqn: Any, key: Any, inputs: list[Node]) -> MergedEquation:
        """An equation and its results."""
        op = cls(eqn, key, inputs)
        op.outs = [EquationResult(var.aval, op, i) for i, var in enumerate(eqn.outvars)]
        return op


def alike(a: Any, b: Any) -> bool:
    """Whether two abstract values have one shape and dtype."""
    return a.shape == b.shape and a.dtype == b.dtype


def key_of(eqn: Any) -> tuple[Any, ...]:
    """What two equations share that may be one, apart from their operands."""
    params = []
    for name, value in sorted(eqn.params.items()):
        try:
            params.append((name, _param_text(value)))
        except Unpackable:
            params.append((name, f"unlike any other: {id(eqn)}"))
    shapes = tuple(aval_text(atom.aval) for atom in eqn.invars)
    results = tuple(aval_text(var.aval) for var in eqn.outvars)
    return eqn.primitive.name, tuple(params), shapes, results


def _param_text(value: Any) -> str:
    if type(value).__name__ == "PRNGImpl":  # a tuple, whose text holds addresses
        return jv.generator(value)[0]
    if isinstance(value, tuple):
        return f"({','.join(map(_param_text, value))})"
    if not isinstance(value, (jv.ClosedJaxpr, jv.Jaxpr)):
        return canonical_text(value)
    return repr(body_key(value))


def root(value: Node) -> Node:
    """The value itself, or of a number that became part of another one that one."""
    while isinstance(value, VariantConstant) and value.same is not None:
        value = value.same
    return value
