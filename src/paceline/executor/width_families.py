"""Families: trials of several widths that ride in one program.

The first trial of its kind shows which of its hyperparameters are widths. Its model is built, and
its steps are traced, at the largest widths of the space and at smaller ones. Each later trial is
traced at its own widths, and a walk over the traces proves that it may ride.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from paceline.executor.base import Notes, OtherWidths
from paceline.executor.model_builder import Tails, TracedModel
from paceline.pack.plan.base import has_loops, step_flops
from paceline.program.padding.axes import Axis, NotPaddable
from paceline.program.padding.widths import (
    Embedding,
    PaddedRole,
    PaddedStep,
    embedding_of,
    mask_of,
)
from paceline.program.trace import State, Step

#: Floating-point operations in matrix products that take as long as tracing and compiling one more
#: structure. On a CPU: 1.8 s of a core, 60 GFLOP/s (docs/decisions/0032); elsewhere an estimate.
_STRUCTURE = {"cpu": 1e11}
_STRUCTURE_ELSEWHERE = 1e13
#: A family is judged as if so many trials fell into it. A search's own number of trials does not
#: count: it may change when the search goes on, and a trial must not change with it.
_TRIALS = 8
#: Structures that compile as long as a family's program: it has masks.
_PADDED = 2
#: Padding has to save so many times what it costs: few trials may fall into a family.
_MARGIN = 2
#: Operations of a trial, in structures, if each width multiplied them.
_HUGE = 1000


@dataclass(frozen=True)
class Ride:
    """A trial's steps within the program of its family.

    Attributes:
        train, test: The steps on the full batch and on the smaller one; None where there is none.
        embedding: Where its variables lie within those of the family.
        family: The variables of the family's largest model.
    """

    train: tuple[PaddedStep, PaddedStep | None]
    test: tuple[PaddedStep | None, PaddedStep | None]
    embedding: Embedding
    family: State


@dataclass(frozen=True)
class _Family:
    train: PaddedRole
    test: PaddedRole | None
    state: State

    def admit(self, traced: TracedModel) -> Ride:
        train, train_tail, axes = self.train.admit(traced.train)
        leaves = [leaf for part in traced.state.lists() for leaf in part]
        test = test_tail = None
        if self.test is not None and traced.test is not None:
            test, test_tail, others = self.test.admit(traced.test)
            counts = [len(part) for part in traced.state.lists()]
            # A validation step has no optimizer variables.
            skipped = range(sum(counts[:2]), sum(counts[:3]))
            ours = [axes[i] for i in range(len(leaves)) if i not in skipped]
            _check_alike(ours, others[: len(ours)])
        embedding = embedding_of(traced.state, self.state, axes[: len(leaves)])
        return Ride((train, train_tail), (test, test_tail), embedding, self.state)


def _check_alike(ours: Sequence[Sequence[Axis]], theirs: Sequence[Sequence[Axis]]) -> None:
    """Checks that variables lie in the training step as in the validation step."""
    for a, b in zip(ours, theirs, strict=True):
        for x, y in zip(a, b, strict=True):
            if x.padded != y.padded or not np.array_equal(mask_of(x), mask_of(y)):
                raise NotPaddable("training and validation place a variable's elements otherwise")


class WidthFamilies:
    """The families of a search.

    Args:
        notes: Told why trials do not ride that should wherever they can.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._families: dict[Any, _Family | None] = {}  # None: such trials do not ride
        self._apart: set[Any] = set()  # kinds and bounds of widths whose padding does not pay
        self._structures: dict[Any, set[str]] = {}  # the training steps that ride in each family

    @property
    def saved(self) -> int:
        """Structures without a program of their own."""
        return sum(len(found) - 1 for found in self._structures.values())

    def admit(
        self,
        traced: TracedModel,
        widths: OtherWidths,
        kind: tuple[Any, ...],
        steps: int,
        trace_sizes: Callable[[Any], tuple[TracedModel, Tails]],
    ) -> Ride | None:
        """A trial's steps within its family's program; None: it has a program of its own.

        Args:
            traced: The trial's steps.
            widths: Builds models like the trial's.
            kind: What the trials of a family share besides their steps.
            steps: Training steps per epoch.
            trace_sizes: Traces a model on the full and on the smaller batches.
        """
        key = (*kind, _operations(traced))
        if key not in self._families:
            self._families[key] = self._begin(traced, widths, kind, steps, trace_sizes)
        family = self._families[key]
        if family is None:
            return None
        try:
            ride = family.admit(traced)
        except NotPaddable as error:
            self._tell(widths, f"a trial has a program of its own: {error}")
            return None
        self._structures.setdefault(key, set()).add(traced.train.canonical.fingerprint)
        return ride

    def _begin(
        self,
        traced: TracedModel,
        widths: OtherWidths,
        kind: tuple[Any, ...],
        steps: int,
        trace_sizes: Callable[[Any], tuple[TracedModel, Tails]],
    ) -> _Family | None:
        """The family of its first trial; arguments as of ``admit``."""
        if not widths.always and _unknown_cost(traced):
            return None
        ranges = widths.ranges()
        bounds = (*kind, *((name, *values) for name, values in ranges.items()))
        if bounds in self._apart:
            return None
        try:
            family = _family(traced, widths, ranges, steps, trace_sizes)
        except Exception as error:
            # A user's build may refuse its largest widths, or what it builds may not fit.
            self._tell(widths, f"widths are not trained together: {error}")
            return None
        if family is None and not widths.always:
            self._apart.add(bounds)
        return family

    def _tell(self, widths: OtherWidths, text: str) -> None:
        if widths.always:
            self._notes.tell_once(text)


def _operations(traced: TracedModel) -> str:
    """A digest of which operations the steps consist of, whatever their extents."""
    digest = hashlib.sha256()
    for step in (traced.train, traced.test):
        if step is not None:
            for eqn in step.closed.jaxpr.eqns:
                digest.update(f"{eqn.primitive.name} {len(eqn.invars)}\0".encode())
    return digest.hexdigest()


def _unknown_cost(traced: TracedModel) -> bool:
    """Whether the cost of a step at other widths is unknown: of loops and of convolutions."""
    return traced.train.canonical.convolves or has_loops(traced.train.closed)


def _family(
    traced: TracedModel,
    widths: OtherWidths,
    ranges: Mapping[str, Sequence[int]],
    steps: int,
    trace_sizes: Callable[[Any], tuple[TracedModel, Tails]],
) -> _Family | None:
    """The family of a trial; None where its widths are few, or padding them takes longer."""
    if not widths.always:
        # A model this large is not even built: it may not fit in memory.
        growth = math.prod(values[-1] / widths.hparams[name] for name, values in ranges.items())
        if _training_cost(traced, widths, steps) * growth > _HUGE:
            return None
    ours = [leaf.shape for part in traced.state.lists()[:2] for leaf in part]
    names = []
    for name, values in ranges.items():
        value = next(v for v in reversed(values) if v != widths.hparams[name])
        model = widths.build({name: value})
        variables = (*model.trainable_variables, *model.non_trainable_variables)
        theirs = [tuple(variable.shape) for variable in variables]
        if [len(s) for s in ours] == [len(s) for s in theirs] and ours != theirs:
            names.append(name)
    if not names:
        return None
    largest = widths.build({name: ranges[name][-1] for name in names})
    full_w, tails_w = trace_sizes(largest)
    if not widths.always:
        mean = widths.build({name: ranges[name][(len(ranges[name]) - 1) // 2] for name in names})
        padded = 1 - _weights(mean) / max(1, _weights(largest))
        saved = _structures_saved([len(ranges[name]) for name in names])
        if _training_cost(full_w, widths, steps) * padded >= saved / _MARGIN:
            return None
    full_n, tails_n = trace_sizes(widths.build(_smaller(names, ranges)))
    train = PaddedRole((full_w.train, full_n.train), _pair(tails_w[0], tails_n[0]))
    test = None
    if full_w.test is not None and full_n.test is not None:
        test = PaddedRole((full_w.test, full_n.test), _pair(tails_w[1], tails_n[1]))
    return _Family(train, test, full_w.state)


def _training_cost(traced: TracedModel, widths: OtherWidths, steps: int) -> float:
    """What training takes, in structures that could be compiled in that time."""
    structure = _STRUCTURE.get(jax.default_backend(), _STRUCTURE_ELSEWHERE)
    return step_flops(traced.train.closed) * steps * widths.epochs / structure


def _weights(model: Any) -> int:
    """Numbers that products read: those of matrices and of larger arrays."""
    shapes = [tuple(variable.shape) for variable in model.trainable_variables]
    return sum(math.prod(shape) for shape in shapes if len(shape) > 1)


def _structures_saved(counts: Sequence[int]) -> float:
    """Structures that a trial of a family saves from being compiled, on average.

    Args:
        counts: Values of each width.
    """
    n = math.prod(counts)
    distinct = n * (1 - (1 - 1 / n) ** _TRIALS)
    return max(0.0, distinct - _PADDED) / _TRIALS


def _pair(ours: Step | None, theirs: Step | None) -> tuple[Step, Step] | None:
    return None if ours is None or theirs is None else (ours, theirs)


def _smaller(names: Sequence[str], ranges: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Smaller widths, no two of them equal where the space has as many: axes are told apart."""
    found: dict[str, int] = {}
    for name in names:
        values = [value for value in ranges[name][:-1] if value > 1] or list(ranges[name][:-1])
        free = [value for value in values if value not in found.values()]
        found[name] = (free or values)[0]
    return found
