"""Steps that differ in an activation, a dropout layer or the like, as one step with a choice.

Each variant is the step of one model. Numbers of the step that stand in one place in several
variants become one input. Which variant a slot is of is an input like a constant.

Notation
    V: variants. lead: the first inputs of a variant's step, extents and constants.
    number: constants of several variants that stand in one place, as one constant of the step.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.program import jax_compat as jv
from paceline.program.canonical import Canonical, Constant, lift
from paceline.program.padding.elementwise import RULES as CHEAP
from paceline.program.padding.widths import PaddedStep
from paceline.program.variants.emission import JaxprEmitter
from paceline.program.variants.layout import NotMergeable, VariantLayout
from paceline.program.variants.merging import EXTRAS, Graph, Variant
from paceline.program.variants.values import (
    InlineConstant,
    Node,
    VariantConstant,
    VariantSelect,
    alike,
)

#: Operations on one element that take as long as one of the random bits, and of functions.
_RANDOM, _FUNCTION = 10, 5
_FUNCTIONS = frozenset(
    "tanh exp exp2 expm1 log log1p logistic erf erfc erf_inv pow sin cos tan atan2 lgamma "
    "digamma cbrt sinh cosh asinh acosh atanh".split()
)


class Variants:
    """The train or the test step of several variants as one.

    Raises NotMergeable where they cannot become one.

    Args:
        steps: An example of each variant; all with as many extents.
        layout: Of their variables.
        optimizer: Whether the steps take the optimizer's variables.
        like: The same variants on another batch size, whose constants go together in the same way.
        others: Further examples of some variants: variant -> step. Constants that differ between
            examples are inputs from the beginning, so that the program need not be made again.
    """

    def __init__(
        self,
        steps: Sequence[PaddedStep],
        layout: VariantLayout,
        *,
        optimizer: bool,
        like: Variants | None = None,
        others: Mapping[int, PaddedStep] | None = None,
    ) -> None:
        self._steps = list(steps)
        self._n_widths = steps[0].n_widths
        if any(step.n_widths != self._n_widths for step in steps):
            raise NotMergeable("the variants have other numbers of extents")
        if any(step.log_names != steps[0].log_names for step in steps):
            raise NotMergeable("the variants log other metrics")
        self._flat = [layout.flat(v, optimizer=optimizer) for v in range(len(steps))]
        self._closeds = [lift(step.closed, ()) for step in steps]
        if like is None:
            found = [self._constants(v) for v in range(len(steps))]
            graph, leading, rest = self._merged(found, pairs=True)
            self._numbers = [n for each in found for n in each if n.same is None]
        else:
            self._numbers = like._numbers
            if any(a.n_constants != b.n_constants for a, b in zip(steps, like._steps, strict=True)):
                raise NotMergeable("a variant has other constants on another batch size")
            if any(_mixes(number, like._steps, steps) for number in self._numbers):
                raise NotMergeable("a number follows from the batch size in some variants only")
            graph, leading, rest = self._merged(self._given({}), pairs=False)
        # The common step with all its constants as inputs: which variant, extents, numbers.
        self.closed = JaxprEmitter(graph).closed([*leading, *self._numbers, *rest])
        digest = hashlib.sha256(repr(layout.places).encode())
        digest.update(repr([sorted(number.members.items()) for number in self._numbers]).encode())
        for step in steps:
            digest.update(step.canonical.fingerprint.encode())
        self._fingerprint = digest.hexdigest()
        examples = [*enumerate(steps), *(others or {}).items()]
        self._differing = [i for i, n in enumerate(self._numbers) if _differs(n, examples)]

    def _constants(self, variant: int) -> list[VariantConstant]:
        """The constants of a variant, apart from those of the others."""
        constants = self._steps[variant].canonical.constants
        return [
            VariantConstant(constant.aval, {variant: i}, constant.value)
            for i, constant in enumerate(constants)
            if i >= self._n_widths
        ]

    @property
    def always_lifted(self) -> tuple[int, ...]:
        """Numbers of the constants that differ between slots of different variants or widths."""
        first = 1 + self._n_widths
        return (*range(first), *(first + i for i in self._differing))

    def step(self, variant: int, own: PaddedStep) -> VariantStep:
        """The common step of a trial, of which ``own`` is the step as one of its variant."""
        flag = np.asarray(variant, np.int32)
        constants = [Constant(flag, jv.aval_of(flag)), *own.canonical.constants[: self._n_widths]]
        for number in self._numbers:
            other, index = min(number.members.items())
            source = self._steps[other]
            if variant in number.members:
                source, index = own, number.members[variant]
            constants.append(source.canonical.constants[index])
        flags = [step.canonical for step in self._steps]
        canonical = Canonical(
            self._fingerprint,
            tuple(constants),
            any(each.batched_rng_differs for each in flags),
            any(each.convolves for each in flags),
        )
        return VariantStep(self.closed, canonical, own.log_names, self._n_widths, self)

    def lift(self, constants: Sequence[Constant], indices: Sequence[int]) -> Any:
        """As ``canonical.lift``; ``constants`` are those of a trial's common step."""
        first = 1 + self._n_widths
        kept = {
            i: each.value for i, each in enumerate(constants[first:]) if first + i not in indices
        }
        graph, leading, rest = self._merged(self._given(kept), pairs=False)
        inputs = [leading[i] if i < first else self._numbers[i - first] for i in indices]
        return JaxprEmitter(graph).closed([*inputs, *rest])

    def _given(self, kept: Mapping[int, np.ndarray]) -> list[list[Node]]:
        """The constants of each variant: numbers, or values of those that are written into it."""
        found: list[list[Node]] = []
        for variant, step in enumerate(self._steps):
            places = {n.members.get(variant): i for i, n in enumerate(self._numbers)}
            order = [places[i] for i in range(self._n_widths, step.n_constants)]
            found.append(
                [
                    InlineConstant(self._numbers[i].aval, kept[i])
                    if i in kept
                    else self._numbers[i]
                    for i in order
                ]
            )
        return found

    def _merged(
        self, constants: Sequence[Sequence[Node]], *, pairs: bool
    ) -> tuple[Graph, list[Node], list[Node]]:
        """The common step; its inputs before the numbers, and those after them."""
        graph = Graph(pairs=pairs)
        flag = Node(jv.aval_of(np.int32(0)))
        invars = [closed.jaxpr.invars for closed in self._closeds]
        extents = [Node(var.aval) for var in invars[0][: self._n_widths]]
        state: dict[int, Node] = {}
        batch: list[Node] = []
        for v, found in enumerate(constants):
            n_lead = self._n_widths + len(found)
            n_own = n_lead + len(self._flat[v])
            for place, var in zip(self._flat[v], invars[v][n_lead:n_own], strict=True):
                state.setdefault(place, Node(var.aval))
            batch = batch or [Node(var.aval) for var in invars[v][n_own:]]
        order = [state[place] for place in sorted(state)]
        for v, found in enumerate(constants):
            values = [
                graph.literal(c.value, c.aval) if isinstance(c, InlineConstant) else c
                for c in found
            ]
            given = [*extents, *values, *(state[place] for place in self._flat[v]), *batch]
            if len(given) != len(invars[v]) or not all(
                alike(value.aval, var.aval) for value, var in zip(given, invars[v], strict=True)
            ):
                raise NotMergeable("the variants have other inputs")
            variant = Variant(graph, v, self._closeds[v], given)
            at = {place: 1 + i for i, place in enumerate(self._flat[v])}
            numbers = [0, *(at.get(place) for place in sorted(state))]
            if v == 0:
                variant.begin()
                outs = graph.outs
                graph.outs = [
                    state_in if i is None else outs[i]
                    for i, state_in in zip(numbers, [outs[0], *order], strict=True)
                ]
                continue
            variant.join(numbers)
            for i, state_in in enumerate(order, start=1):
                value = graph.outs[i]
                if numbers[i] is None and value is not state_in:
                    graph.outs[i] = VariantSelect(value.aval, value, state_in, v)
        return graph, [flag, *extents], [*order, *batch]


@dataclass(frozen=True)
class VariantStep(PaddedStep):
    """A trial's step as one of several variants. Its first constant is which one."""

    variants: Variants | None = None  # the common step

    @property
    def n_leading(self) -> int:
        """How many of its constants, the first ones, tell its structure."""
        return 1 + self.n_widths

    @property
    def always_lifted(self) -> tuple[int, ...]:
        """Numbers of the constants that are inputs whatever has been seen of them."""
        assert self.variants is not None
        return self.variants.always_lifted

    def lift(self, indices: Sequence[int]) -> Any:
        """The step with constants as inputs; see ``canonical.lift``."""
        assert self.variants is not None
        return self.variants.lift(self.canonical.constants, indices)


def _differs(number: VariantConstant, examples: Sequence[tuple[int, PaddedStep]]) -> bool:
    """Whether a number differs between some steps of variants."""
    values = {
        step.canonical.constants[number.members[variant]].value.tobytes()
        for variant, step in examples
        if variant in number.members
    }
    return len(values) > 1


def _mixes(
    number: VariantConstant, full: Sequence[PaddedStep], small: Sequence[PaddedStep]
) -> bool:
    """Whether a number depends on the batch size in one variant, and not or otherwise in another.

    A program takes a number's value on the smaller batch from a trial of any variant, or from the
    full batch.
    """
    values = {
        tuple(steps[variant].canonical.constants[i].value.tobytes() for steps in (full, small))
        for variant, i in number.members.items()
    }
    return len(values) > 1 and any(a != b for a, b in values)


def elementwise_work(closed: Any) -> int:
    """Operations on single elements in a step, apart from products: a cheap one counts as one."""
    total = 0
    for eqn in lift(closed, ()).jaxpr.eqns:
        name = eqn.primitive.name
        if name in ("random_bits", "threefry2x32"):
            weight = _RANDOM
        elif name in CHEAP or name in EXTRAS:
            weight = _FUNCTION if name in _FUNCTIONS else 1
        else:
            continue
        total += weight * sum(math.prod(var.aval.shape) for var in eqn.outvars)
    return total
