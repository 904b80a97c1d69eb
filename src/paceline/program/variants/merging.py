"""Variants of a step, put side by side equation by equation.

Products, reductions and the like of all variants are computed once, on the operands of the slot's
own variant, which a select chooses. What lies between them is computed as each variant has it.

Notation
    anchor: an equation that is more than elementwise work or moving elements about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from paceline.program import jax_compat as jv
from paceline.program.canonical import aval_text
from paceline.program.padding.elementwise import RULES as CHEAP
from paceline.program.variants.layout import NotMergeable, aligned
from paceline.program.variants.values import (
    EquationResult,
    InlineConstant,
    MergedEquation,
    Node,
    VariantConstant,
    VariantSelect,
    alike,
    key_of,
    root,
)

#: Anchors that one variant may have without the others: they cost little, and end on any input.
EXTRAS = frozenset(
    "random_bits random_wrap random_unwrap random_fold_in random_split random_seed random_clone "
    "threefry2x32 cumsum cumprod cummax cummin reduce_sum reduce_max reduce_min reduce_prod "
    "reduce_and reduce_or argmax argmin".split()
)


class Graph:
    """The common step, to which one variant after another is added."""

    def __init__(self, *, pairs: bool) -> None:
        self.pairs = pairs  # whether constants that stand in one place become one
        self.anchors: list[MergedEquation] = []  # in an order in which they can be computed
        self.outs: list[Node] = []  # its results
        self._literals: dict[Any, InlineConstant] = {}
        self._ops: dict[Any, MergedEquation] = {}

    def literal(self, value: np.ndarray, aval: Any) -> InlineConstant:
        """A number or an array that is written into the step."""
        key = (aval_text(aval), value.tobytes())
        if key not in self._literals:
            self._literals[key] = InlineConstant(aval, value)
        return self._literals[key]

    def op(self, eqn: Any, key: Any, inputs: list[Node]) -> MergedEquation:
        """A cheap equation, the one that is there where it is the same."""
        whole = (key, *(id(value) for value in inputs))
        if whole not in self._ops:
            self._ops[whole] = MergedEquation.of(eqn, key, inputs)
        return self._ops[whole]


class Variant:
    """One variant while it is added to a graph."""

    def __init__(self, graph: Graph, index: int, closed: Any, inputs: Sequence[Node]) -> None:
        self._graph, self._index = graph, index
        jaxpr = closed.jaxpr
        self._known: dict[Any, Node] = dict(zip(jaxpr.invars, inputs, strict=True))
        for var, value in zip(jaxpr.constvars, closed.consts, strict=True):
            self._known[var] = graph.literal(np.asarray(value), var.aval)
        self._cheap: dict[Any, tuple[Any, int]] = {}  # variable -> its equation, and which result
        self._keys: dict[int, Any] = {}
        self._anchors = []
        for eqn in jaxpr.eqns:
            self._keys[id(eqn)] = key_of(eqn)
            if eqn.primitive.name not in CHEAP:
                self._anchors.append(eqn)
                continue
            for i, var in enumerate(eqn.outvars):
                self._cheap[var] = (eqn, i)
        self._outs = jaxpr.outvars

    def begin(self) -> None:
        """Makes the graph that of this variant."""
        self._graph.anchors = [self._anchor(eqn) for eqn in self._anchors]
        self._graph.outs = [self._built(atom) for atom in self._outs]

    def join(self, outs: Sequence[int | None]) -> None:
        """Adds this variant to the graph.

        ``outs``: for each result of the graph the number of the variant's; None: the variant has
        none, and the result is what came in.
        """
        graph, old = self._graph, self._graph.anchors
        graph.anchors = []
        for a, b in self._paired(old):
            if a is None and b is not None:
                graph.anchors.append(self._anchor(self._anchors[b]))
                continue
            assert a is not None
            graph.anchors.append(old[a])
            if b is None:
                continue
            eqn = self._anchors[b]
            for i, atom in enumerate(eqn.invars):
                old[a].inputs[i] = self._met(atom, old[a].inputs[i])
            for var, value in zip(eqn.outvars, old[a].outs, strict=True):
                self._known[var] = value
        for i, number in enumerate(outs):
            if number is not None:
                graph.outs[i] = self._met(self._outs[number], graph.outs[i])

    def _paired(self, old: Sequence[MergedEquation]) -> list[tuple[int | None, int | None]]:
        """Which anchors of the graph and of this variant become one; None: there is no other.

        Those that no variant may lack go together one by one. The longest stretches that are alike
        would not always do so: a dropout layer may stand before either of two products.
        """
        ours = [op.key for op in old]
        theirs = [self._keys[id(eqn)] for eqn in self._anchors]
        rest = [[i for i, key in enumerate(keys) if not _is_extra(key)] for keys in (ours, theirs)]
        for a, b in aligned([ours[i] for i in rest[0]], [theirs[i] for i in rest[1]]):
            if a is None or b is None:
                name = ours[rest[0][a]][0] if a is not None else theirs[rest[1][b or 0]][0]
                raise NotMergeable(f"only one of two variants has this {name}")
        found: list[tuple[int | None, int | None]] = []
        i = j = 0
        for a, b in zip(*rest, strict=True):
            found += [*_aligned_between(ours[i:a], theirs[j:b], i, j), (a, b)]
            i, j = a + 1, b + 1
        return [*found, *_aligned_between(ours[i:], theirs[j:], i, j)]

    def _anchor(self, eqn: Any) -> MergedEquation:
        op = MergedEquation.of(eqn, self._keys[id(eqn)], [self._built(atom) for atom in eqn.invars])
        for var, value in zip(eqn.outvars, op.outs, strict=True):
            self._known[var] = value
        return op

    def _met(self, atom: Any, theirs: Node) -> Node:
        """A value of the graph that is the variant's own in its slots."""
        if not alike(atom.aval, theirs.aval):
            raise NotMergeable(f"a value is {atom.aval} in one variant, {theirs.aval} in another")
        for each in _alternatives(theirs):
            found: dict[Any, Node] = {}
            pairs: list[tuple[VariantConstant, VariantConstant]] = []
            if not self._matches(atom, each, found, pairs):
                continue
            self._known.update(found)
            for mine, other in pairs:
                other.members.update(mine.members)
                mine.same = other
            return (
                theirs if each is theirs else VariantSelect(theirs.aval, theirs, each, self._index)
            )
        own = self._built(atom)
        if jv.is_key(theirs.aval):
            raise NotMergeable("the variants draw from other keys at one place")
        return theirs if own is theirs else VariantSelect(theirs.aval, theirs, own, self._index)

    def _matches(
        self,
        atom: Any,
        theirs: Node,
        found: dict[Any, Node],
        pairs: list[tuple[VariantConstant, VariantConstant]],
    ) -> bool:
        """Whether an expression of the variant (``atom``) is one of the graph (``theirs``).

        Adds to ``found`` (variable -> value of the graph) what matches, and to ``pairs`` the
        numbers that are one if it matches.
        """
        graph = self._graph
        if jv.is_literal(atom):
            value = jv.constant_value(atom.val, atom.aval)
            return graph.literal(value, atom.aval) is theirs
        known = found.get(atom) or self._known.get(atom)
        mine, theirs = None if known is None else root(known), root(theirs)
        if mine is theirs:
            return True
        if (
            isinstance(mine, VariantConstant)
            and isinstance(theirs, VariantConstant)
            and graph.pairs
        ):
            if self._index in theirs.members or not _may_pair(mine, theirs):
                return False
            if any(mine is a or theirs is b for a, b in pairs):
                return False
            pairs.append((mine, theirs))
            found[atom] = theirs
            return True
        if mine is not None or not isinstance(theirs, EquationResult) or atom not in self._cheap:
            return False
        eqn, i = self._cheap[atom]
        if i != theirs.index or self._keys[id(eqn)] != theirs.op.key:
            return False
        if not all(
            self._matches(one, other, found, pairs)
            for one, other in zip(eqn.invars, theirs.op.inputs, strict=True)
        ):
            return False
        for var, value in zip(eqn.outvars, theirs.op.outs, strict=True):
            found[var] = value
        return True

    def _built(self, atom: Any) -> Node:
        """The value of the variant, made where the graph has none."""
        if jv.is_literal(atom):
            return self._graph.literal(jv.constant_value(atom.val, atom.aval), atom.aval)
        if atom not in self._known:
            eqn, _ = self._cheap[atom]
            inputs = [self._built(each) for each in eqn.invars]
            op = self._graph.op(eqn, self._keys[id(eqn)], inputs)
            for var, value in zip(eqn.outvars, op.outs, strict=True):
                self._known[var] = value
        return self._known[atom]


def _is_extra(key: Sequence[Any]) -> bool:
    return key[0] in EXTRAS


def _aligned_between(
    ours: Sequence[Any], theirs: Sequence[Any], i: int, j: int
) -> list[tuple[int | None, int | None]]:
    """As ``aligned``, of stretches that begin at positions i and j."""
    return [
        (None if a is None else i + a, None if b is None else j + b)
        for a, b in aligned(ours, theirs)
    ]


def _may_pair(ours: VariantConstant, theirs: VariantConstant) -> bool:
    """Whether two constants may become one input. XLA folds zeros and ones: they stay apart."""
    if aval_text(ours.aval) != aval_text(theirs.aval):
        return False
    plain = ours.value.ndim == 0 and not {float(ours.value), float(theirs.value)} & {0.0, 1.0}
    return plain or ours.value.tobytes() == theirs.value.tobytes()


def _alternatives(value: Node) -> Iterator[Node]:
    """A value, and those that it chooses from."""
    yield value
    while isinstance(value, VariantSelect):
        yield value.own
        value = value.others
        if not isinstance(value, VariantSelect):
            yield value
