"""Trials of several widths as slots of one program.

A trial's step is traced at its own widths, but not compiled. The trial shares the program of a
family: the same step, traced at the largest widths that the search allows. The extents of the
trial's axes are inputs of that program, like constants that differ between trials.

Notation
    W, N: the family's step at its largest and at other, smaller widths. Where the two differ in an
        extent, the axis is padded. T: the step of a trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.program import jax_compat as jv
from paceline.program.canonical import Canonical, Constant, canonicalise
from paceline.program.padding.axes import Axis, NotPaddable, outgrown, unify
from paceline.program.padding.emission import emit
from paceline.program.padding.lockstep import (
    DifferingConstant,
    MultiTraceWalk,
    PaddedValue,
    Padding,
    WalkedJaxpr,
)
from paceline.program.padding.loops import RULES
from paceline.program.step_template import same
from paceline.program.trace import State, Step, shapes_only


@dataclass(frozen=True)
class PaddedStep(Step):
    """A step at a family's largest widths. Its constants begin with the extents of a trial.

    All constants are inputs of ``closed``, before the state and the batch.
    """

    n_widths: int = 0  # how many of its constants are extents, or follow from the widths otherwise

    @property
    def n_leading(self) -> int:
        """How many of its constants, the first ones, tell its structure."""
        return self.n_widths

    @property
    def n_constants(self) -> int:
        """How many constants it has, extents included."""
        return len(self.canonical.constants)

    @property
    def always_lifted(self) -> tuple[int, ...]:
        """Numbers of the constants that are inputs whatever has been seen of them."""
        return tuple(range(self.n_widths))

    def lift(self, indices: Sequence[int]) -> Any:
        """The step with constants as inputs; see ``canonical.lift``."""
        constants, jaxpr = self.canonical.constants, self.closed.jaxpr
        invars = jaxpr.invars
        chosen = set(indices)
        literals, arrays = {}, {}
        for i, (var, constant) in enumerate(zip(invars, constants, strict=False)):
            if i in chosen:
                continue
            if constant.value.ndim:
                arrays[var] = constant.value
            else:
                literals[var] = jv.Literal(constant.value[()], var.aval)

        def read(atom: Any) -> Any:
            return atom if jv.is_literal(atom) else literals.get(atom, atom)

        left = [*(invars[i] for i in indices), *invars[len(constants) :]]
        outvars = [read(atom) for atom in jaxpr.outvars]
        eqns = [eqn.replace(invars=[read(atom) for atom in eqn.invars]) for eqn in jaxpr.eqns]
        made = jv.rewritten(jaxpr, left, outvars, eqns, [*jaxpr.constvars, *arrays])
        return jv.ClosedJaxpr(made, [*self.closed.consts, *arrays.values()])


@dataclass(frozen=True)
class PaddedLayout:
    """Where a trial's variables lie within those of its program."""

    # For each list of ``State.lists`` and each of the trial's variables: the places of its elements
    # along each axis. None: the variable has the program's shape.
    places: tuple[tuple[tuple[np.ndarray, ...] | None, ...], ...]
    # Likewise the variable's number among those of the program.
    numbers: tuple[tuple[int, ...], ...]
    program: State  # shapes and dtypes of the program's variables
    own: State  # shapes and dtypes of the trial's variables

    def embed(self, state: State) -> State:
        """The variables as the program takes them, with zeros around the trial's own elements."""
        return State(*(self._embed(part, leaves) for part, leaves in enumerate(state.lists())))

    def _embed(self, part: int, leaves: Sequence[Any]) -> list[Any]:
        whole = self.program.lists()[part]
        numbers = self.numbers[part]
        found = {n: self.embed_leaf(part, i, leaves[i]) for i, n in enumerate(numbers)}
        return [
            found[n] if n in found else np.zeros(leaf.shape, leaf.dtype)
            for n, leaf in enumerate(whole)
        ]

    def embed_leaf(self, part: int, leaf: int, value: Any) -> Any:
        """One of the trial's variables as the program takes it."""
        places = self.places[part][leaf]
        if places is None:
            return value
        value = np.asarray(value)
        shape = self.program.lists()[part][self.numbers[part][leaf]].shape
        found = np.zeros(shape, value.dtype)
        found[np.ix_(*places)] = value
        return found

    def cut(self, part: int, leaves: Sequence[Any]) -> list[Any]:
        """A list of variables as the trial has them, from those of the program."""
        return [self.cut_leaf(part, i, leaves[n]) for i, n in enumerate(self.numbers[part])]

    def cut_leaf(self, part: int, leaf: int, value: Any) -> Any:
        """One of the trial's variables as the trial has it, from that of the program."""
        places = self.places[part][leaf]
        return value if places is None else np.asarray(value)[np.ix_(*places)]


def padded_layout_of(
    own: State,
    family: State,
    axes: Sequence[Sequence[Axis]],
    numbers: Sequence[Sequence[int]] | None = None,
    extents: Mapping[Axis, int] | None = None,
) -> PaddedLayout:
    """Where the variables of a trial lie within those of its family, by shapes and dtypes.

    ``axes``: for each variable its axes, as ``FamilyStep.admit`` returns them. ``numbers``: for
    each list of ``State.lists``, which of the family's each of the trial's variables is; None: the
    family has no others. ``extents``: from ``extents_like``, of a trial that was not walked.
    """

    def own_places(n: int, axis: Axis) -> np.ndarray:
        if not axis.padded:
            return np.arange(n)
        return np.flatnonzero(mask_of(axis) if extents is None else axis.mask(extents))

    def places_of(leaf: Any, each: Sequence[Axis]) -> tuple[np.ndarray, ...] | None:
        if not any(axis.padded for axis in each):
            return None
        return tuple(own_places(n, axis) for n, axis in zip(leaf.shape, each, strict=True))

    rest = iter(axes)
    places = tuple(tuple(places_of(leaf, next(rest)) for leaf in part) for part in own.lists())
    if numbers is None:
        numbers = [range(len(part)) for part in own.lists()]
    return PaddedLayout(places, tuple(map(tuple, numbers)), shapes_only(family), shapes_only(own))


def extents_like(
    shapes: Sequence[tuple[int, ...]], axes: Sequence[Sequence[Axis]]
) -> dict[Axis, int]:
    """The extent of each symbol in a trial that was not walked, from the shapes of its variables.

    ``axes`` are those of another trial's variables. Raises NotPaddable where they would give the
    variables other shapes.
    """
    if [len(shape) for shape in shapes] != [len(each) for each in axes]:
        raise NotPaddable("its variables are not those of the trial that was walked")
    pairs = [
        pair
        for shape, each in zip(shapes, axes, strict=True)
        for pair in zip(shape, each, strict=True)
    ]
    extents: dict[Axis, int] = {}
    for extent, axis in pairs:
        if axis.padded and not axis.root().parts:
            extents[axis.root()] = extent
    for extent, axis in pairs:
        if not all(symbol in extents for symbol in axis.symbols()):
            raise NotPaddable("an axis has the extent of no variable's axis")
        if axis.extent(extents) != extent:
            raise NotPaddable(f"a variable has extent {extent} where {axis.extent(extents)} goes")
        if axis.padded and extent > axis.root().sizes[0]:
            raise NotPaddable(f"a trial has extent {extent} where the family has less")
    return extents


def mask_of(axis: Axis) -> np.ndarray:
    """bool[largest extent]: the elements of an axis that the last of the walked traces has."""
    return np.asarray(axis.mask({symbol: symbol.sizes[-1] for symbol in axis.symbols()}))


@dataclass
class FamilyStep:
    """The train or the test step of a family, and the walks that show which trials share it."""

    traces: tuple[Step, Step]  # W and N on the full batch
    tails: tuple[Step, Step] | None  # W and N on the smaller batch; None if all batches are full
    _lifted: list[Any] = field(init=False)  # the traces, to be walked with every trial
    _full: _Program = field(init=False)
    _small: _Program | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._lifted = [_lifted(step) for step in self.traces]
        self._full = _program(self.traces, self._lifted)
        self._small = None if self.tails is None else _program(self.tails)
        if self._small is not None and self._small.inputs != self._full.inputs:
            raise NotPaddable("the smaller batch has other extents or numbers by width")

    def admit(self, step: Step) -> tuple[PaddedStep, PaddedStep | None, list[list[Axis]]]:
        """A trial's step as one of the family: on the full batch, on the smaller one, and its axes.

        ``step`` is T on the full batch. The axes are of each input of the step that is not a
        constant, and their third extent is the trial's. Raises NotPaddable if it is not proved that
        the trial's results are right.
        """
        return self._admitted_steps(
            step, *self._widths_of(step, self.traces, self._full, self._lifted)
        )

    def check_tail(self, small: PaddedStep, tail: Step) -> None:
        """Raises NotPaddable where T on the smaller batch is not what ``admit`` returned for it."""
        if self.tails is None or self._small is None:
            raise NotPaddable("the family has no smaller batch")
        widths, _ = self._widths_of(tail, self.tails, self._small)
        found = [*widths, *(constant.value for constant in tail.canonical.constants)]
        taken = [constant.value for constant in small.canonical.constants]
        if len(found) != len(taken) or not all(map(same, found, taken)):
            raise NotPaddable("a number on the smaller batch does not follow from the full one")

    def _widths_of(
        self, step: Step, traces: tuple[Step, Step], program: _Program, lifted: Sequence[Any] = ()
    ) -> tuple[list[np.ndarray], list[list[Axis]]]:
        """A trial's extents and numbers by width, and its axes, on the batch of these traces.

        Raises NotPaddable as ``admit`` does.
        """
        body, symbols, choices = _walk([*traces, step], lifted)
        if _inputs(symbols, choices) != program.inputs:
            raise NotPaddable("another axis or number differs than between the family's traces")
        return _widths_and_axes(step, 2, body, symbols, choices)

    @property
    def n_extents(self) -> int:
        """How many extents the constants of a step begin with."""
        return len(self._full.symbols)

    def extents(self, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """The extents that the constants of a trial's step begin with, from its variables' shapes.

        Raises NotPaddable where they do not follow.
        """
        found = extents_like(shapes, self.axes[: len(shapes)])
        if any(symbol not in found for symbol in self._full.symbols):
            raise NotPaddable("an axis has the extent of no variable's axis")
        return [np.asarray(found[symbol], np.int32) for symbol in self._full.symbols]

    @property
    def axes(self) -> list[list[Axis]]:
        """The axes of N's inputs that are not constants."""
        return self._full.examples[1][1]

    def example(self, which: int) -> tuple[PaddedStep, PaddedStep | None, list[list[Axis]]]:
        """W, 0, or N, 1, as ``admit`` would have it, without a walk of three traces.

        The axes have two extents, W's and N's.
        """
        return self._admitted_steps(self.traces[which], *self._full.examples[which])

    def _admitted_steps(
        self, step: Step, widths: list[np.ndarray], axes: list[list[Axis]]
    ) -> tuple[PaddedStep, PaddedStep | None, list[list[Axis]]]:
        """As ``admit`` returns it; ``widths``: T's extents and numbers by width."""
        leading = [Constant(value, jv.aval_of(value)) for value in widths]
        full = self._step(self._full, [*leading, *step.canonical.constants], step, len(widths))
        small = None
        if self.tails is not None and self._small is not None:
            theirs = self._tail_constants(step, self.tails[0])
            small = self._step(self._small, [*leading, *theirs], step, len(widths))
        return full, small, axes

    def _tail_constants(self, step: Step, tail: Step) -> list[Constant]:
        """The constants of a trial's step on the smaller batch, from those on the full batch."""
        found = []
        whole = self.traces[0].canonical.constants
        for own, full, small in zip(
            step.canonical.constants, whole, tail.canonical.constants, strict=True
        ):
            if full.value.tobytes() == small.value.tobytes():
                found.append(own)
            elif own.value.tobytes() == full.value.tobytes():
                found.append(small)
            else:
                raise NotPaddable("a number follows from a width and from the batch size at once")
        return found

    def _step(
        self, program: _Program, constants: list[Constant], step: Step, n_widths: int
    ) -> PaddedStep:
        flags = step.canonical
        canonical = Canonical(
            program.fingerprint, tuple(constants), flags.batched_rng_differs, flags.convolves
        )
        return PaddedStep(program.closed, canonical, step.log_names, n_widths)


@dataclass(frozen=True)
class _Program:
    """A family's program."""

    closed: Any  # all constants are inputs of it
    fingerprint: str  # of the jaxpr
    inputs: tuple[Any, ...]  # what its first inputs are; see ``_inputs``
    symbols: list[Axis]  # the axes that its first inputs are the extents of
    # For each of the family's traces its extents and numbers by width, and its axes.
    examples: list[tuple[list[np.ndarray], list[list[Axis]]]]


def _inputs(symbols: Sequence[Axis], choices: Sequence[DifferingConstant]) -> tuple[Any, ...]:
    """What the first inputs of a program are: extents and numbers in the family's two traces."""
    numbers = (tuple(value.tobytes() for value in choice.values[:2]) for choice in choices)
    return *(symbol.sizes[:2] for symbol in symbols), *numbers


def _program(traces: Sequence[Step], lifted: Sequence[Any] = ()) -> _Program:
    """The family's program with all constants as inputs; ``lifted`` as of ``_walk``."""
    body, symbols, choices = _walk(traces, lifted)
    n = len(traces[0].canonical.constants)
    state = {i: n + i - 1 for i in range(1, len(body.outs))}
    closed = emit(body, [*symbols, *choices], replaced=state)
    examples = [
        _widths_and_axes(step, which, body, symbols, choices) for which, step in enumerate(traces)
    ]
    fingerprint = canonicalise(closed).fingerprint
    return _Program(closed, fingerprint, _inputs(symbols, choices), symbols, examples)


def _widths_and_axes(
    step: Step,
    which: int,
    body: WalkedJaxpr,
    symbols: Sequence[Axis],
    choices: Sequence[DifferingConstant],
) -> tuple[list[np.ndarray], list[list[Axis]]]:
    """The extents and numbers by width of a trace that was walked, and the axes of its inputs.

    The inputs are those that are not constants. ``which`` is the number of the trace among the
    walked ones. The rest is the result of ``_walk``.
    """
    widths = [np.asarray(symbol.sizes[which], np.int32) for symbol in symbols]
    widths += [choice.values[which] for choice in choices]
    n = len(step.canonical.constants)
    return widths, [list(value.axes) for value in body.ins[n:]]


def _lifted(step: Step) -> Any:
    """A step with all constants as inputs."""
    return step.lift(tuple(range(len(step.canonical.constants))))


def _walk(
    traces: Sequence[Step], lifted: Sequence[Any] = ()
) -> tuple[WalkedJaxpr, list[Axis], list[DifferingConstant]]:
    """Walks a step at several widths: what was walked, its symbols, its constants by width.

    ``lifted``: the first of the traces, as ``_lifted`` returns them: that takes as long as the
    walk.
    """
    counts = {len(step.canonical.constants) for step in traces}
    if len(counts) > 1:
        raise NotPaddable("the traces have other numbers of constants")
    n = counts.pop()
    if any(not constant.liftable for step in traces for constant in step.canonical.constants):
        raise NotPaddable("a constant cannot become an input")
    closeds = [*lifted, *map(_lifted, traces[len(lifted) :])]
    ins = []
    for i, variables in enumerate(zip(*(c.jaxpr.invars for c in closeds), strict=True)):
        shapes = [var.aval.shape for var in variables]
        if len({len(shape) for shape in shapes}) > 1:
            raise NotPaddable("the traces differ: an input has another rank")
        axes = tuple(map(Axis, zip(*shapes, strict=True)))
        if i < n and any(len(set(axis.sizes)) > 1 for axis in axes):
            raise NotPaddable("an array of constants has a padded axis")
        ins.append(PaddedValue(axes, Padding.ANYTHING if i < n else Padding.ZERO))
    for value in ins:
        for axis in value.axes:
            _check(axis)
    body = MultiTraceWalk(RULES).body(closeds, ins)
    n_state = len(body.outs) - 1
    for new, old in zip(body.outs[1:], ins[n : n + n_state], strict=True):
        for a, b in zip(new.axes, old.axes, strict=True):
            unify(a, b)
    inputs = [axis for value in ins for axis in value.axes if axis.padded]
    own = _symbols(inputs)
    for axis in body.axes():
        _check(axis)
        for symbol in axis.symbols():
            if symbol in own:
                continue
            # An axis that meets no input's, such as that of initial zeros, has the extent of one
            # that does. The family's traces choose which one, and ``unify`` also checks the trial's
            # extents. Of several plain axes that are alike in W and N any will do.
            alike = [other.root() for other in inputs if other.sizes[:2] == symbol.sizes[:2]]
            if not alike or (len(set(alike)) > 1 and any(other.parts for other in alike)):
                raise NotPaddable("an axis has the extent of no variable's axis")
            unify(symbol, alike[0])
            own = _symbols(inputs)
    return body, list(own), list(dict.fromkeys(body.all_choices()))


def _symbols(axes: Sequence[Axis]) -> dict[Axis, None]:
    """The open axes that others are made of, in order."""
    return dict.fromkeys(symbol for axis in axes for symbol in axis.symbols())


def _check(axis: Axis) -> None:
    """Checks that a trial is not smaller along an axis that is not padded, nor larger at all."""
    sizes = axis.root().sizes
    if outgrown(sizes):
        raise NotPaddable(f"a trial has extent {sizes[-1]} where the family has {sizes[:2]}")
