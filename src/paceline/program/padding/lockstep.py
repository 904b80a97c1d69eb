"""Traces of one step at several extents, walked equation by equation at once.

For each equation the walk proves where a slot's own elements are in the result, and what the
padding around them holds. It notes what must be filled in, so that the own elements are the same as
alone. Without a proof it raises ``NotPaddable``.

Notation
    k: traces. The first one becomes the program; its extents are the largest.
    padding: the elements of an array that lie beyond a slot's own extents, along any axis.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from paceline.program import jax_compat as jv
from paceline.program.canonical import Unpackable, canonical_text, canonicalise
from paceline.program.padding.axes import Axis, NotPaddable, Sizes, fixed


class Padding(enum.IntEnum):
    """What is known of the padding of a value, the better known first."""

    ZERO = 0
    FINITE = 1
    ANYTHING = 2  # NaN and infinity included


@dataclass(frozen=True)
class PaddedValue:
    """What is known of a variable of the step."""

    axes: tuple[Axis, ...]
    padding: Padding = Padding.ANYTHING  # what its padding holds
    number: float | None = None  # all its elements, where they are one known number

    @property
    def padded(self) -> tuple[int, ...]:
        """Numbers of the axes that have padding."""
        return tuple(i for i, axis in enumerate(self.axes) if axis.padded)

    @property
    def content(self) -> Padding:
        """What its padding holds; a value without padding counts as zero there."""
        return self.padding if self.padded else Padding.ZERO

    @property
    def finite(self) -> bool:
        """Whether the padding is finite; for a value without axes, whether its number is."""
        if self.axes:
            return self.content <= Padding.FINITE
        return self.number is not None and math.isfinite(self.number)


@dataclass(frozen=True, eq=False)
class DifferingConstant:
    """A constant that differs between the traces, and becomes an input of the program."""

    values: tuple[np.ndarray, ...]  # the constant in each trace, of one shape and dtype


#: What differs between slots: extents, i32[], and constants.
Symbol = Axis | DifferingConstant


@dataclass(frozen=True)
class Fill:
    """An operand whose padding is replaced by a number before an operation."""

    operand: int  # which one
    dims: tuple[int, ...]  # the dimensions along which padding is replaced
    number: float | int


#: The values of the symbols, and the operands of an equation -> its results.
Replacement = Callable[..., Any]


@dataclass(frozen=True)
class PlannedEquation:
    """What becomes of one equation."""

    eqn: Any
    fills: tuple[Fill, ...] = ()  # applied to its operands first
    # Takes its place; None: the equation of the first trace stays.
    replacement: Replacement | None = None
    bodies: tuple[WalkedJaxpr, ...] = ()  # the loops and branches in it that were walked
    # Operand -> the constant that takes its place.
    choices: Mapping[int, DifferingConstant] = field(default_factory=dict)
    ins: tuple[PaddedValue, ...] = ()  # what is known of its operands


@dataclass(frozen=True)
class WalkedJaxpr:
    """A jaxpr that was walked."""

    jaxpr: Any  # that of the first trace
    consts: Sequence[Any]  # the values of its constants
    ins: tuple[PaddedValue, ...]  # what is known of its inputs
    outs: tuple[PaddedValue, ...]  # what is known of its results
    planned: tuple[PlannedEquation, ...]  # what becomes of its equations
    known: Mapping[Any, PaddedValue]  # what is known of each variable of ``jaxpr``
    # Variable or number of a result -> the constant that takes its place.
    choices: Mapping[Any, DifferingConstant]

    @property
    def changed(self) -> bool:
        """Whether any equation in it is not that of the first trace."""
        return bool(self.choices) or any(
            plan.fills or plan.choices or plan.replacement is not None for plan in self.planned
        )

    def all_choices(self) -> Iterator[DifferingConstant]:
        """The constants that differ, those in loops and branches included."""
        yield from self.choices.values()
        for plan in self.planned:
            yield from plan.choices.values()
            for body in plan.bodies:
                yield from body.all_choices()

    def axes(self) -> Iterator[Axis]:
        """The axes of all values, those in loops and branches included."""
        for value in self.known.values():
            yield from value.axes
        for plan in self.planned:
            for body in plan.bodies:
                yield from body.axes()


#: What is known of the results of an equation, and what becomes of the equation.
Outcome = tuple[Sequence[PaddedValue], PlannedEquation]


class Equation:
    """One equation in all traces, with what is known of its operands (``ins``).

    ``walk`` also walks the bodies of loops and branches.
    """

    def __init__(
        self, eqns: Sequence[Any], ins: Sequence[PaddedValue], walk: MultiTraceWalk
    ) -> None:
        self.first, self.walk = eqns[0], walk
        self.name: str = self.first.primitive.name
        self.ins = tuple(ins)
        self.params: list[dict[str, Any]] = [eqn.params for eqn in eqns]  # in each trace
        self._eqns = eqns
        if any(eqn.primitive.name != self.name for eqn in eqns):
            names = ", ".join(sorted({eqn.primitive.name for eqn in eqns}))
            raise NotPaddable(f"the traces differ: {names} at one place")
        if any(len(eqn.outvars) != len(self.first.outvars) for eqn in eqns):
            raise self.refuse("has another number of results")

    @property
    def traces(self) -> int:
        """How many traces there are."""
        return len(self._eqns)

    def made(
        self,
        values: Sequence[PaddedValue],
        fills: tuple[Fill, ...] = (),
        replacement: Replacement | None = None,
        bodies: tuple[WalkedJaxpr, ...] = (),
    ) -> Outcome:
        """What a rule returns: what is known of the results, the rest as of ``PlannedEquation``."""
        return values, PlannedEquation(self.first, fills, replacement, bodies)

    def refuse(self, why: str) -> NotPaddable:
        """The error of a rule that cannot prove its equation."""
        return NotPaddable(f"{self.name} {why}")

    def out_sizes(self, result: int = 0) -> list[Sizes]:
        """Extents of each axis of a result."""
        shapes = [eqn.outvars[result].aval.shape for eqn in self._eqns]
        if len({len(shape) for shape in shapes}) > 1:
            raise self.refuse("has results of other ranks")
        return list(zip(*shapes, strict=True))

    def operands(self, operand: int) -> list[Any]:
        """An operand in each trace: its variable, or a literal."""
        return [eqn.invars[operand] for eqn in self._eqns]

    def is_float(self, result: int = 0) -> bool:
        """Whether a result holds floating-point numbers."""
        return is_float(self.first.outvars[result].aval)

    def check_params(self, *but: str) -> None:
        """Raises NotPaddable where parameters other than those named differ between traces."""
        ours = self.params[0]
        for other in self.params[1:]:
            for key, value in ours.items():
                if key not in but and not alike(value, other.get(key)):
                    raise self.refuse(f"has another {key}")

    def all_fixed(self) -> bool:
        """Whether neither its operands nor its results have padding."""
        results = range(len(self.first.outvars))
        return not any(value.padded for value in self.ins) and all(
            len(set(sizes)) == 1 for result in results for sizes in self.out_sizes(result)
        )


def is_float(aval: Any) -> bool:
    """Whether an abstract value holds floating-point or complex numbers."""
    return not jv.is_key(aval) and jax.numpy.issubdtype(aval.dtype, np.inexact)


def alike(ours: Any, theirs: Any) -> bool:
    """Whether two parameters of equations are the same."""
    if ours is theirs:
        return True
    if isinstance(ours, (jv.ClosedJaxpr, jv.Jaxpr)):
        return isinstance(theirs, type(ours)) and body_key(ours) == body_key(theirs)
    if isinstance(ours, tuple) and isinstance(theirs, tuple):
        pairs = zip(ours, theirs, strict=False)
        return len(ours) == len(theirs) and all(alike(a, b) for a, b in pairs)
    try:
        if type(ours) is type(theirs) and bool(ours == theirs):
            return True
        return canonical_text(ours) == canonical_text(theirs)
    except (Unpackable, ValueError):
        return False


def body_key(body: Any) -> tuple[Any, ...]:
    """What two jaxprs, closed or not, share that compute the same: operations and constants."""
    closed = body if isinstance(body, jv.ClosedJaxpr) else jv.ClosedJaxpr(body, [])
    found = canonicalise(closed)
    return found.fingerprint, *(constant.value.tobytes() for constant in found.constants)


Rule = Callable[[Equation], Outcome]


class MultiTraceWalk:
    """One walk over k traces.

    ``rules``: primitive -> rule.
    """

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self._rules = rules

    def body(self, closeds: Sequence[Any], ins: Sequence[PaddedValue]) -> WalkedJaxpr:
        """Walks closed jaxprs of one structure, one for each trace.

        ``ins``: what is known of their inputs. Raises NotPaddable where something cannot be proved.
        """
        jaxprs = [closed.jaxpr for closed in closeds]
        first = jaxprs[0]
        if any(
            (len(j.eqns), len(j.invars), len(j.constvars), len(j.outvars))
            != (len(first.eqns), len(first.invars), len(first.constvars), len(first.outvars))
            for j in jaxprs
        ):
            raise NotPaddable("the traces have other numbers of equations")
        if any(j.effects for j in jaxprs):
            raise NotPaddable("the step has side effects")
        known: list[dict[Any, PaddedValue]] = [{} for _ in jaxprs]
        choices: dict[Any, DifferingConstant] = {}
        for i, var in enumerate(first.constvars):
            value, choice = _constant([np.asarray(closed.consts[i]) for closed in closeds])
            _define(known, [j.constvars[i] for j in jaxprs], value)
            if choice is not None:
                choices[var] = choice
        for i, value in enumerate(ins):
            _define(known, [j.invars[i] for j in jaxprs], value)
        planned = []
        for eqns in zip(*(j.eqns for j in jaxprs), strict=True):
            operands, chosen = _operands(known, [eqn.invars for eqn in eqns])
            try:
                outs, plan = self._equation(Equation(eqns, operands, self))
            except NotPaddable as error:
                error.add_note(f"in {str(eqns[0])[:200]}")
                raise
            planned.append(replace(plan, choices=chosen, ins=tuple(operands)))
            for i, value in enumerate(outs):
                _define(known, [eqn.outvars[i] for eqn in eqns], value)
        outs, chosen = _operands(known, [j.outvars for j in jaxprs])
        return WalkedJaxpr(
            first,
            closeds[0].consts,
            tuple(ins),
            tuple(outs),
            tuple(planned),
            known[0],
            choices | chosen,
        )

    def _equation(self, equation: Equation) -> Outcome:
        rule = self._rules.get(equation.name)
        if rule is not None:
            return rule(equation)
        if not equation.all_fixed():
            raise equation.refuse("has no rule for padded operands")
        equation.check_params()
        k = equation.traces
        outs = [
            PaddedValue(tuple(fixed(sizes[0], k) for sizes in equation.out_sizes(i)))
            for i in range(len(equation.first.outvars))
        ]
        return equation.made(outs)


def _operands(
    known: Sequence[Mapping[Any, PaddedValue]], atoms: Sequence[Sequence[Any]]
) -> tuple[list[PaddedValue], dict[int, DifferingConstant]]:
    """What is known of the operands of an equation, and its constants that differ."""
    if len({len(each) for each in atoms}) > 1:
        raise NotPaddable("the traces differ: an operation has another number of operands")
    found: list[PaddedValue] = []
    choices = {}
    for i, each in enumerate(zip(*atoms, strict=True)):
        if all(jv.is_literal(atom) for atom in each):
            value, choice = _constant([jv.constant_value(atom.val, atom.aval) for atom in each])
            found.append(value)
            if choice is not None:
                choices[i] = choice
            continue
        if any(jv.is_literal(atom) for atom in each):
            raise NotPaddable("the traces differ: a number stands for a value")
        values = [known[t][atom] for t, atom in enumerate(each)]
        if any(value is not values[0] for value in values):
            raise NotPaddable("the traces differ: an operation works on another value")
        found.append(values[0])
    return found, choices


def _define(
    known: Sequence[dict[Any, PaddedValue]], atoms: Sequence[Any], value: PaddedValue
) -> None:
    """Notes what is known of a variable, after a look at its shape and dtype in each trace."""
    for t, (env, atom) in enumerate(zip(known, atoms, strict=True)):
        if atom.aval.dtype != atoms[0].aval.dtype:
            raise NotPaddable("the traces differ: a value has another dtype")
        if atom.aval.shape != tuple(axis.sizes[t] for axis in value.axes):
            raise NotPaddable(f"a value of shape {atom.aval.shape} lies otherwise than was derived")
        env[atom] = value


def _constant(values: Sequence[np.ndarray]) -> tuple[PaddedValue, DifferingConstant | None]:
    """What is known of a constant, and the choice that it is where it differs between traces."""
    first = values[0]
    if any(value.shape != first.shape or value.dtype != first.dtype for value in values):
        raise NotPaddable("the traces differ in an array of constants with a padded axis")
    axes = tuple(fixed(size, len(values)) for size in first.shape)
    if any(value.tobytes() != first.tobytes() for value in values):
        return PaddedValue(axes), DifferingConstant(tuple(values))
    plain = first.ndim == 0 and first.dtype.kind in "biuf"
    return PaddedValue(axes, Padding.ZERO, float(first) if plain else None), None
