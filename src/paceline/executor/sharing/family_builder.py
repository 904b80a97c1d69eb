"""Makes a family: builds and traces the models that show what trials of a kind have in common.

The first trial of its kind shows which of its hyperparameters are widths, and which choices (an
activation, dropout or none) change its operations. Its model is built, and its steps are traced, at
the largest widths of the space and at smaller ones, for each of these choices. That takes seconds,
so the search does other things in between: the methods that build or trace are generators, which
yield before each model.

Notation
    variant: the models of one combination of choices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax

from paceline.executor.base import LEAST_TRIALS, SiblingModelBuilder
from paceline.executor.model_builder import Tails, TracedModel
from paceline.executor.sharing.costs import (
    MARGIN,
    PADDED,
    Bands,
    ToExpect,
    WorkByWidths,
    choose_bands,
    sharing_pays,
    spread,
    structures_met,
    within,
)
from paceline.executor.sharing.family import (
    Family,
    VariantExamples,
    join_variants,
    member_of,
    operations_of,
)
from paceline.pack.plan.base import count_flops, has_loops, step_flops
from paceline.program.formulas.model_structure import ModelStructure, structure_of
from paceline.program.padding.axes import NotPaddable
from paceline.program.trace import Step
from paceline.program.variants.layout import VariantLayout, lay_out
from paceline.program.variants.step import Variants, elementwise_work

#: Floating-point operations in matrix products that take as long as tracing and compiling one more
#: structure. On a CPU: 2.3 s of a core, 60 GFLOP/s (docs/decisions/0035); elsewhere an estimate.
_STRUCTURE = {"cpu": 1.4e11}
_STRUCTURE_ELSEWHERE = 1e13
#: Seconds of a core for the same on a CPU.
_STRUCTURE_SECONDS = 2.3
#: Combinations of choices in one program.
_MOST_VARIANTS = 8
#: Operations in products that take as long as an operation on one element: 4e9 of these a second.
_ELEMENT = 15
#: Operations of a trial, in structures, if each width multiplied them.
_HUGE = 1000
#: Numbers in the variables of a trial on an accelerator, if the two widths that grow most
#: multiplied them: a matrix has two axes.
_HUGE_STATE = 1e9


T = TypeVar("T")
#: Yields before each model that is built; returns what it has found.
InSteps = Generator[None, None, T]


def unknown_cost(step: Step) -> bool:
    """Whether the cost of a training step is unknown: that of loops and convolutions."""
    return step.canonical.convolves or has_loops(step.closed)


def in_structures(operations: float) -> float:
    """Operations in products, in structures that could be compiled in that time."""
    return operations / _STRUCTURE.get(jax.default_backend(), _STRUCTURE_ELSEWHERE)


@dataclass(eq=False, repr=False)
class FamilyBuilder:
    """Makes the family of a trial."""

    traced: TracedModel
    widths: SiblingModelBuilder
    steps: int  # training steps per epoch
    # Traces a model on the full and on the smaller batches.
    trace_sizes: Callable[[Any], tuple[TracedModel, Tails]]
    # Those of trials of its kind; None until ``family`` or a trial before has chosen.
    bands: Bands | None = None
    # Width -> shapes at another value.
    _others: dict[str, list[tuple[int, ...]]] = field(init=False, default_factory=dict)
    # Why combinations of choices are not in the family.
    refused: list[str] = field(init=False, default_factory=list)
    # Widths that cannot be padded, such as the size of a kernel: the trials of a family have
    # one value of these.
    dividing: list[str] = field(init=False, default_factory=list)

    def family(
        self, ranges: Mapping[str, Sequence[int]], choices: Mapping[str, Sequence[Any]]
    ) -> InSteps[Family | None]:
        """The family; None if its trials are few, or training them together takes longer.

        ``ranges`` holds the values of integers that may be widths, ``choices`` those of what may
        change operations.
        """
        always, by_filling = self.widths.always, self._fills_accelerator
        if not always:
            if unknown_cost(self.traced.train) and not by_filling:
                return None
            if self._may_be_huge(ranges):
                return None  # not even built: it may not fit in memory
        if self.bands is not None:
            names = list(self.bands)
        else:
            names = yield from self._names(ranges)
            if names and not always and not by_filling:
                if not _structures_saved([len(ranges[n]) for n in names]):
                    return None  # whatever padding costs: so few don't pay for the largest model
                self.bands = self._choose_bands(names, ranges, choices)
                if self.bands is None:
                    return None
        if self.bands is not None:
            ranges = within(ranges, self.bands, self.widths.hparams)
            names = [name for name in names if len(ranges[name]) > 1]
        combinations, own = yield from self._combinations(choices)
        try:
            found = yield from self._largest(names, ranges, combinations[own])
        except NotPaddable:
            names = yield from self._paddable(names, ranges, combinations[own])
            found = yield from self._largest(names, ranges, combinations[own])
        largest, smaller, member = found
        members = {own: member}
        if names and not always and by_filling and not self._filling_pays(member, names, ranges):
            return None
        known = {members[own].operations}
        for at, combination in enumerate(combinations):
            if at == own:
                continue
            with self._collecting_refusals():  # a user's build may refuse it
                yield
                other, tails = self.trace_sizes(self.widths.build(largest | combination))
                if operations_of(other) not in known:
                    members[at] = yield from self._member(other, tails, smaller | combination)
                    known.add(members[at].operations)
        yield
        chosen, (layout, together) = self._together(members, own)
        if not names and together is None:
            return None
        return Family({each.operations: each for each in chosen}, layout, together)

    def _may_be_huge(self, ranges: Mapping[str, Sequence[int]]) -> bool:
        own = self.widths.hparams
        growth = sorted(values[-1] / own[name] for name, values in ranges.items())
        if not self._fills_accelerator:
            return self._cost(self.traced) * math.prod(growth) > _HUGE
        parts = self.traced.state.lists()[:3]
        numbers = sum(math.prod(leaf.shape) for part in parts for leaf in part)
        return numbers * math.prod(growth[-2:]) > _HUGE_STATE

    def _largest(
        self,
        names: Sequence[str],
        ranges: Mapping[str, Sequence[int]],
        combination: dict[str, Any],
    ) -> InSteps[tuple[dict[str, int], dict[str, int], VariantExamples]]:
        """The largest and smaller values of these widths, and the variant that the trial has.

        Raises NotPaddable if not all of these widths can be padded.
        """
        largest = {name: ranges[name][-1] for name in names}
        smaller = _smaller(names, ranges)
        yield
        full, tails = self.trace_sizes(self.widths.build(largest | combination))
        member = yield from self._member(full, tails, smaller | combination)
        return largest, smaller, member

    def _choose_bands(
        self,
        names: Sequence[str],
        ranges: Mapping[str, Sequence[int]],
        choices: Mapping[str, Sequence[Any]],
    ) -> Bands | None:
        """The bands of these widths; None if trials take less time in programs of their own."""
        widths, rest = self.widths, [len(v) for n, v in ranges.items() if n not in names]
        # Integers that are not widths, such as the number of layers, divide trials into kinds.
        kinds, outlook = math.prod(rest), widths.outlook
        ours = [leaf.shape for leaf in self.traced.state.trainable]
        work = WorkByWidths({name: widths.hparams[name] for name in names}, ours, self._others)
        expected = ToExpect(
            cost=self._cost(self.traced),
            trials=max(LEAST_TRIALS, outlook.trials // kinds),
            choices=math.prod(len(values) for values in choices.values()),
            time=outlook.core_seconds / _STRUCTURE_SECONDS / kinds,
            alike=outlook.alike,
        )
        return choose_bands(spread(widths, names), work, expected)

    def _paddable(
        self,
        names: Sequence[str],
        ranges: Mapping[str, Sequence[int]],
        combination: dict[str, Any],
    ) -> InSteps[list[str]]:
        """Those widths that can be padded, each by itself; the others divide the kind."""
        found = []
        for name in names if len(names) > 1 else ():
            with suppress(NotPaddable):
                yield from self._largest([name], ranges, combination)
                found.append(name)
        self.dividing = [name for name in names if name not in found] if found else []
        return found or list(names)

    @contextmanager
    def _collecting_refusals(self) -> Iterator[None]:
        """A block whose failure keeps a combination out of the family."""
        try:
            yield
        except Exception as error:
            self.refused.append(str(error))

    def _together(
        self, members: Mapping[int, VariantExamples], own: int
    ) -> tuple[list[VariantExamples], tuple[VariantLayout, tuple[Any, ...] | None]]:
        """The variants that train together, with their layout and common steps; None: only one.

        All of them if they can, else those that can be added one after another. Their order is
        that of the space, whichever trial came first.
        """
        chosen = [members[own]]
        joint: tuple[VariantLayout, tuple[Any, ...] | None] = (
            lay_out([chosen[0].variant.state]),
            None,
        )
        others = [at for at in members if at != own]
        tries = [others, *([at] for at in others if len(others) > 1)]
        taken = {own}
        for added in tries:
            numbers = sorted(taken.union(added))
            if len(numbers) == len(taken):
                continue
            more = [members[at] for at in numbers]
            with self._collecting_refusals():  # they may not go together
                found = join_variants(more)
                if self.widths.always or self._choosing_pays(found[1][0][0], more):
                    chosen, joint, taken = more, found, set(numbers)
        return chosen, joint

    def _names(self, ranges: Mapping[str, Sequence[int]]) -> InSteps[list[str]]:
        """The integers that are widths: another value changes a variable's shape."""
        widths = self.widths
        ours = [leaf.shape for part in self.traced.state.lists()[:2] for leaf in part]
        names = []
        for name, values in ranges.items():
            others = [value for value in values if value != widths.hparams[name]]
            yield
            try:
                model = widths.build({name: others[-1]})
            except Exception:  # it may be refused, or not fit, while narrower bands do
                model = widths.build({name: others[0]})
            variables = (*model.trainable_variables, *model.non_trainable_variables)
            theirs = [tuple(variable.shape) for variable in variables]
            if [len(s) for s in ours] == [len(s) for s in theirs] and ours != theirs:
                names.append(name)
                self._others[name] = theirs
        return names

    def _combinations(
        self, choices: Mapping[str, Sequence[Any]]
    ) -> InSteps[tuple[list[dict[str, Any]], int]]:
        """The models to choose from, in the order of the space, and which is the trial's.

        A choice counts that changes a model by more than numbers.
        """
        widths = self.widths
        found: list[dict[str, Any]] = [{}]
        own = 0
        yield
        ours = structure_of(widths.build({})) if choices else None
        for name, values in choices.items():
            if len(found) * len(values) > _MOST_VARIANTS:
                continue
            mine = next(
                i for i, value in enumerate(values) if _is_kind(widths.hparams[name], value)
            )
            kept = []
            for at, value in enumerate(values):
                yield
                with suppress(Exception):  # a user's build may refuse it
                    if at == mine or self._is_another(widths.build({name: value}), ours):
                        kept.append((at, {name: value}))
            if len(kept) > 1:
                at = [i for i, _ in kept].index(mine)
                found = [old | new for old in found for _, new in kept]
                own = own * len(kept) + at
        return found, own

    def _is_another(self, model: Any, ours: ModelStructure | None) -> bool:
        """Whether a model is the trial's but for more than numbers.

        ``ours`` is the structure of the trial's; None if classes of the user's show nothing without
        a trace.
        """
        if ours is not None:
            theirs = structure_of(model)
            return theirs is not None and theirs.structure != ours.structure
        traced, _ = self.trace_sizes(model)
        return operations_of(traced) != operations_of(self.traced)

    def _member(
        self, full: TracedModel, tails: Tails, smaller: Mapping[str, Any]
    ) -> InSteps[VariantExamples]:
        """A variant, from its steps at the largest widths, on full and smaller batches.

        ``smaller`` holds the widths and choices of its smaller model, whose numbers differ too, to
        show which constants depend on them.
        """
        numbers = self.widths.other_numbers({**self.widths.hparams, **smaller})
        try:
            return (yield from self._member_of(full, tails, {**smaller, **numbers}))
        except NotPaddable:
            return (yield from self._member_of(full, tails, smaller))

    def _member_of(
        self, full: TracedModel, tails: Tails, smaller: Mapping[str, Any]
    ) -> InSteps[VariantExamples]:
        narrow, tails_n = full, tails
        if smaller:
            yield
            narrow, tails_n = self.trace_sizes(self.widths.build(smaller))
        return member_of(full, tails, narrow, tails_n)

    def _filling_pays(
        self, member: VariantExamples, names: Sequence[str], ranges: Mapping[str, Sequence[int]]
    ) -> bool:
        """Whether padding costs an accelerator less than the structures that it saves.

        That follows from the steps at the largest and at smaller widths.
        """
        most, least = (count_flops(step.closed.jaxpr)[0] for step in member.variant.roles[0].traces)
        counts = [len(ranges[name]) for name in names]
        return self._sharing_pays((most - least) / 2, 0, _structures_saved(counts))

    def _choosing_pays(self, together: Variants, members: Sequence[VariantExamples]) -> bool:
        """Whether the work of other variants costs less than programs of their own."""
        alone = max(elementwise_work(member.largest[0].full.closed) for member in members)
        extra = max(0, elementwise_work(together.closed) - alone)
        saved = (len(members) - 1) / LEAST_TRIALS
        if self._fills_accelerator:
            return self._sharing_pays(0, extra, saved)
        return self._structures(extra * _ELEMENT) < saved / MARGIN

    @property
    def _fills_accelerator(self) -> bool:
        """Whether what an accelerator gains from more slots counts."""
        return jax.default_backend() != "cpu"

    def _sharing_pays(self, flops: float, elements: float, saved: float) -> bool:
        steps = round(self.steps * self.widths.epochs)
        return sharing_pays(
            flops=flops, elements=elements, steps=steps, structures=saved, trials=LEAST_TRIALS
        )

    def _cost(self, traced: TracedModel) -> float:
        """What training takes, in structures that could be compiled in that time."""
        return self._structures(step_flops(traced.train.closed))

    def _structures(self, operations: float) -> float:
        """Operations in each step of a trial, in structures that could be compiled in that time."""
        return in_structures(operations * self.steps * self.widths.epochs)


def _is_kind(value: Any, representative: Any) -> bool:
    """Whether a value is one of those that a value of ``choices`` stands for."""
    if type(representative) is float:
        return bool(value) == bool(representative)
    return bool(type(value) is type(representative) and value == representative)


def _structures_saved(counts: Sequence[int]) -> float:
    """Structures that a trial of a family saves from being compiled, on average.

    ``counts`` holds the number of values of each width.
    """
    n = math.prod(counts)
    distinct = structures_met(n, LEAST_TRIALS)
    return max(0.0, distinct - PADDED) / LEAST_TRIALS


def _smaller(names: Sequence[str], ranges: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Smaller widths, no two of them equal where the space has as many: axes are told apart."""
    found: dict[str, int] = {}
    for name in names:
        values = [value for value in ranges[name][:-1] if value > 1] or list(ranges[name][:-1])
        free = [value for value in values if value not in found.values()]
        found[name] = (free or values)[0]
    return found
