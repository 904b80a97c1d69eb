"""Small programs, walked at several widths and compared with themselves at one width alone.

Notation
    W, N: extents at the two traces that show which axes are padded. T: those of a trial.
    junk: what padding is filled with before a program runs: whatever the walk was told to expect.

``faults`` says all that is wrong with the padded program: own elements that are not those of the
program alone, and padding that is not as the walk claims. Tests of rules want no fault, and some
fault where they break a rule on purpose.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

import zoo
from paceline.program import jax_compat
from paceline.program.canonical import lift
from paceline.program.padding.axes import Axis, NotPaddable, fixed, joined, multiplied, unify
from paceline.program.padding.emission import emit
from paceline.program.padding.lockstep import (
    Equation,
    MultiTraceWalk,
    Outcome,
    PaddedValue,
    Padding,
    PlannedEquation,
    Rule,
    WalkedJaxpr,
)
from paceline.program.padding.loops import RULES

#: Extents of the axes u and v.
W, N = {"u": 5, "v": 7}, {"u": 2, "v": 4}
TRIALS = [{"u": 3, "v": 7}, {"u": 2, "v": 5}, {"u": 5, "v": 6}]

LOOPS = {"scan", "while", "cond"}

#: Floating-point numbers that padding is filled with.
JUNK = {
    Padding.ZERO: [0.0],
    Padding.FINITE: [0.0, 1.0, -1.0, 0.5, -0.5, 3.0, 1e3, 1.7e308, -1.7e308, 1e-300],
    Padding.ANYTHING: [np.nan, np.inf, -np.inf, 1.7e308, -1.7e308, 0.0, 1.0, -1.0, 1e-300],
}


@dataclass(frozen=True)
class Input:
    """An input of a program.

    Attributes:
        dims: Its axes: an extent, or the letter of a width; ``3*u`` and ``u*3`` are products, the
            last factor counted fastest, and ``u+v`` one axis after another.
        holds: What its padding is said to hold.
        kind: Which numbers it has.
    """

    dims: tuple[int | str, ...] = ()
    holds: Padding = Padding.ANYTHING
    kind: str = "normal"

    def shape(self, widths: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(axis.sizes[0] for axis in self.axes([widths, widths]))

    def axes(self, traces: Sequence[Mapping[str, int]]) -> tuple[Axis, ...]:
        return tuple(_axis(dim, traces) for dim in self.dims)

    def numbers(self, shape: tuple[int, ...], random: np.random.Generator) -> Any:
        """A trial's own elements."""
        match self.kind:
            case "normal":
                return random.normal(size=shape)
            case "positive":
                return random.uniform(0.5, 2.0, shape)
            case "negative":
                return -random.uniform(0.5, 2.0, shape)
            case "unit":
                return random.uniform(0.05, 0.95, shape)
            case "high":
                return random.uniform(1.5, 3.0, shape)
            case "complex":
                return random.normal(size=shape) + 1j * random.normal(size=shape)
            case "float32":
                return random.normal(size=shape).astype(np.float32)
            case "bool":
                return random.random(shape) < 0.6
            case "false" | "true":
                return np.full(shape, self.kind == "true")
            case "lowest":
                return np.full(shape, -np.inf)
            case "key":
                return jax.random.key(random.integers(1000))
            case "index":
                return random.integers(0, 3, shape, np.int32)
            case "odd int32" | "odd uint32":
                return random.choice([1, 3, 5], shape).astype(self.kind.split()[1])
            case "negative int":
                return random.integers(-5, 0, shape, np.int32)
            case _:
                return random.integers(1, 6, shape).astype(self.kind)

    def junk(self, shape: tuple[int, ...], dtype: Any, random: np.random.Generator) -> Any:
        """What padding holds; whole numbers and truth values may be any."""
        if dtype.kind in "fc":
            found = random.choice(JUNK[self.holds], shape)
            if dtype.kind == "c":
                found = found + 1j * random.choice(JUNK[self.holds], shape)
            limit = np.finfo(dtype).max
            parts = np.stack([np.real(found), np.imag(found)])
            parts = np.where(np.isfinite(parts), np.clip(parts, -limit, limit), parts)
            return (parts[0] + 1j * parts[1] if dtype.kind == "c" else parts[0]).astype(dtype)
        if self.holds is Padding.ZERO:
            return np.zeros(shape, dtype)
        if dtype.kind == "b":
            return random.random(shape) < 0.5
        ends = np.iinfo(dtype)
        return random.choice(np.array([0, 1, 2, 3, 7, ends.min, ends.max], dtype), shape)


def _axis(dim: int | str, traces: Sequence[Mapping[str, int]]) -> Axis:
    if isinstance(dim, int):
        return fixed(dim, len(traces))
    for sign, combine in (("+", joined), ("*", multiplied)):
        if sign in dim:
            return combine([_axis(part, traces) for part in dim.split(sign)])
    return fixed(int(dim), len(traces)) if dim.isdigit() else Axis(tuple(t[dim] for t in traces))


@dataclass(frozen=True)
class Case:
    """A small program.

    Attributes:
        run: The extents and the inputs -> the results.
        inputs: Its inputs.
    """

    run: Callable[..., Any]
    inputs: tuple[Input, ...]

    def trace(self, widths: Mapping[str, int]) -> Any:
        random = np.random.default_rng(0)
        arrays = [each.numbers(each.shape(widths), random) for each in self.inputs]
        # Inlines what is called, as in the trace of a step.
        return lift(jax.make_jaxpr(lambda *given: self.run(widths, *given))(*arrays), ())


def program(run: Callable[..., Any], *inputs: tuple[Any, ...] | Input, **same: Any) -> Case:
    """A case; an input is given as its dims, or as an ``Input``."""
    return Case(run, tuple(i if isinstance(i, Input) else Input(tuple(i), **same) for i in inputs))


@contextlib.contextmanager
def float64() -> Iterator[None]:
    with zoo.float64(), np.errstate(all="ignore"):
        yield


def walk(case: Case, traces: Sequence[Mapping[str, int]], rules: Mapping[str, Rule]) -> WalkedJaxpr:
    """Walks a case; axes that meet no input's get the extents of one that is alike."""
    closeds = [case.trace(widths) for widths in traces]
    ins = [PaddedValue(each.axes(traces), each.holds) for each in case.inputs]
    body = MultiTraceWalk(rules).body(closeds, ins)
    for symbol in [symbol for axis in body.axes() for symbol in axis.symbols()]:
        for own in [own for value in ins for axis in value.axes for own in axis.symbols()]:
            if own.sizes == symbol.sizes:
                unify(symbol, own)
                break
    return body


def faults(
    case: Case,
    rules: Mapping[str, Rule] = RULES,
    trial: Mapping[str, int] = TRIALS[0],
    tolerance: float = 1e-9,
) -> list[str]:
    """What is wrong with a trial in the padded program.

    Raises:
        NotPaddable: There is no padded program.
    """
    body = walk(case, [W, N, trial], rules)
    axes = [axis for value in (*body.ins, *body.outs) for axis in value.axes]
    symbols = list(dict.fromkeys(s for axis in (*axes, *body.axes()) for s in axis.symbols()))
    choices = list(dict.fromkeys(body.all_choices()))
    closed = emit(body, [*symbols, *choices])
    first = [np.int32(symbol.sizes[2]) for symbol in symbols]
    first += [choice.values[2] for choice in choices]
    random = np.random.default_rng(1)
    given, padded = [], []
    for each, value in zip(case.inputs, body.ins, strict=True):
        own = each.numbers(each.shape(trial), random)
        given.append(own)
        if value.padded:
            whole = each.junk(each.shape(W), own.dtype, random)
            whole[inside(value)] = own.ravel()
            own = whole
        padded.append(own)
    alone = run(case.trace(trial), *given)
    ours = run(closed, *first, *padded)
    found = []
    for i, (value, mine, own) in enumerate(zip(body.outs, ours, alone, strict=True)):
        found += [f"result {i}: {fault}" for fault in _faults(value, mine, own, tolerance)]
    return found


def inside(value: PaddedValue) -> np.ndarray:
    """Which elements of a value are those of the trial, the third trace."""
    found = np.array(True)
    for axis in value.axes:
        mask = np.asarray(axis.mask({symbol: symbol.sizes[2] for symbol in axis.symbols()}))
        found = np.logical_and.outer(found, mask)
    return found


def _faults(value: PaddedValue, mine: Any, own: Any, tolerance: float) -> Iterator[str]:
    places = np.broadcast_to(inside(value), mine.shape)
    cut = mine[places]
    if cut.shape != own.ravel().shape:
        yield f"{cut.size} elements of its own, not {own.size}"
    elif not np.allclose(cut, own.ravel(), tolerance, tolerance, equal_nan=True):
        yield "other numbers than alone"
    rest = mine[~places]
    if value.content is Padding.ZERO and rest.any():
        yield "padding is not zero"
    if value.content is Padding.FINITE and not np.isfinite(rest).all():
        yield "padding is not finite"
    if value.number is not None and not (mine == value.number).all():
        yield "another number than is known"


def run(closed: Any, *arguments: Any) -> list[np.ndarray]:
    """Runs a program: a short one operation by operation, which need not be compiled again.

    Nor is tanh in float64 rounded to 1e-8 then, by extents, as in a loop at level 0.
    """
    function = jax_compat.jaxpr_as_fun(closed)
    long = len(closed.eqns) > 40 or any(e.primitive.name in LOOPS for e in closed.eqns)
    return [np.asarray(a) for a in (jax.jit(function) if long else function)(*arguments)]


# -- rules that are broken on purpose -------------------------------------------------------------

#: What a rule returns -> what a broken one returns.
Change = Callable[[Equation, Sequence[PaddedValue], PlannedEquation], Outcome]


def broken(names: Collection[str], change: Change) -> dict[str, Rule]:
    """The rules, some of which return something else."""

    def rule(eqn: Equation) -> Outcome:
        return change(eqn, *RULES[eqn.name](eqn))

    return RULES | dict.fromkeys(names, rule)


def without(name: str) -> dict[str, Rule]:
    return {other: rule for other, rule in RULES.items() if other != name}


def stronger(eqn: Equation, outs: Sequence[PaddedValue], plan: PlannedEquation) -> Any:
    """Padding is said to be known better than it is."""
    return [replace(out, padding=Padding(max(out.content - 1, 0))) for out in outs], plan


def elsewhere(eqn: Equation, outs: Sequence[PaddedValue], plan: PlannedEquation) -> Any:
    """The own elements of padded axes are said to be the first ones."""
    return [replace(out, axes=tuple(Axis(a.sizes) for a in out.axes)) for out in outs], plan


def unfilled(eqn: Equation, outs: Sequence[PaddedValue], plan: PlannedEquation) -> Any:
    """Nothing is filled in."""
    return outs, replace(plan, fills=())


def as_traced(eqn: Equation, outs: Sequence[PaddedValue], plan: PlannedEquation) -> Any:
    """The equation of the first trace stays."""
    return outs, replace(plan, replacement=None)


def misfilled(eqn: Equation, outs: Sequence[PaddedValue], plan: PlannedEquation) -> Any:
    """Another number is filled in."""
    fills = tuple(replace(fill, number=0 if fill.number else 1) for fill in plan.fills)
    return outs, replace(plan, fills=fills)


def seen(cases: Sequence[Case], rules: Mapping[str, Rule]) -> bool:
    """Whether some of the cases fail with these rules, or find that they contradict themselves."""
    for case in cases:
        for trial in TRIALS[:2]:
            try:
                if faults(case, rules, trial):
                    return True
            except NotPaddable:
                return True
    return False


def operations(case: Case) -> set[str]:
    """The primitives of a case."""
    return {eqn.primitive.name for eqn in case.trace(W).eqns}
