"""A family: the steps of trials of several widths and choices, as one program has them.

Notation
    variant: the models of one combination of choices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from paceline.executor.model_builder import Tails, TracedModel
from paceline.program import jax_compat as jv
from paceline.program.canonical import Constant
from paceline.program.formulas.constant_formulas import Steps
from paceline.program.formulas.model_structure import ModelStructure
from paceline.program.padding.axes import Axis, NotPaddable
from paceline.program.padding.widths import (
    FamilyStep,
    PaddedLayout,
    PaddedStep,
    extents_like,
    mask_of,
    padded_layout_of,
)
from paceline.program.trace import State, Step
from paceline.program.variants.layout import VariantLayout, lay_out
from paceline.program.variants.step import Variants


class FullAndSmallerSteps(NamedTuple):
    """A step on the full batch and on the smaller one; None if there is none."""

    full: PaddedStep
    small: PaddedStep | None


@dataclass(frozen=True)
class TrialInFamily:
    """A trial's steps within the program of its family."""

    variant: int  # its number
    steps: Sequence[FullAndSmallerSteps]  # as ``TracedModel.steps``
    padded_layout: PaddedLayout  # where the trial's variables lie within those of the family
    family: State  # the variables of the family's largest model

    @property
    def full(self) -> list[PaddedStep]:
        """The steps on the full batch."""
        return [step.full for step in self.steps]

    @property
    def constants(self) -> Steps:
        """The constants of its steps on the full batch."""
        return [step.canonical.constants for step in self.full]

    def constants_in_family(
        self, steps: Sequence[Sequence[Constant]]
    ) -> list[tuple[Constant, ...]]:
        """The constants of another trial of this structure in the program, from its own."""
        leading = [each.full.canonical.constants[: each.full.n_leading] for each in self.steps]
        return [(*first, *own) for first, own in zip(leading, steps, strict=True)]

    @property
    def structure(self) -> bytes:
        """What trials of one structure have in common: variant, extents, numbers by width."""
        train = self.steps[0].full
        widths = train.canonical.constants[: train.n_leading]
        return b"\0".join(constant.value.tobytes() for constant in widths)


@dataclass(frozen=True)
class FamilyVariant:
    """The steps of one variant at several widths."""

    roles: Sequence[FamilyStep]  # as ``TracedModel.steps``
    state: State  # shapes and dtypes of its variables at the largest widths

    def admit(self, traced: TracedModel) -> tuple[list[FullAndSmallerSteps], list[list[Axis]]]:
        """A trial's steps, and the axes of its variables."""
        pairs = zip(self.roles, traced.steps, strict=True)
        return self._steps([role.admit(step) for role, step in pairs])

    def check_tails(self, steps: Sequence[FullAndSmallerSteps], tails: Tails) -> None:
        """Checks that a trial's steps on the smaller batches are what ``admit`` takes for them."""
        for role, step, tail in zip(self.roles, steps, tails, strict=True):
            if step.small is not None and tail is not None:
                role.check_tail(step.small, tail)

    def example(self, which: int) -> tuple[list[FullAndSmallerSteps], list[list[Axis]]]:
        """The same of the largest model, 0, or the smaller one, 1, whose walks are known."""
        return self._steps([role.example(which) for role in self.roles])

    def _steps(self, found: Sequence[Any]) -> tuple[list[FullAndSmallerSteps], list[list[Axis]]]:
        """From what ``FamilyStep.admit`` returns for each of the steps."""
        (*_, axes), *validation = found
        counts = [len(part) for part in self.state.lists()]
        for *_, others in validation:
            # A validation step has no optimizer variables.
            skipped = range(sum(counts[:2]), sum(counts[:3]))
            ours = [axes[i] for i in range(sum(counts)) if i not in skipped]
            _check_alike(ours, others[: len(ours)])
        steps = [FullAndSmallerSteps(full, small) for full, small, _ in found]
        return steps, axes[: sum(counts)]


@dataclass(frozen=True, eq=False)
class Family:
    """Variants that share a program."""

    # By the digest of their operations; their order is that of the layout.
    members: Mapping[str, VariantExamples]
    layout: VariantLayout  # of their variables
    # The training step and the validation step of all variants, each on the full and on the smaller
    # batch; None: there is one variant.
    together: tuple[tuple[Variants, Variants | None], ...] | None

    def admit(self, traced: TracedModel, tails: Tails | None = None) -> TrialInFamily:
        """A trial's steps within the program, given those on the full batches.

        ``tails`` are those on the smaller batches, to be proved as well; None: they follow. Raises
        NotPaddable if it is not proved that the trial's results are right.
        """
        operations = operations_of(traced)
        if operations not in self.members:  # of width 1, for example: JAX leaves such axes out
            raise NotPaddable("its operations are not those of the largest widths")
        number = list(self.members).index(operations)
        variant = self._member(number).variant
        steps, axes = variant.admit(traced)
        if tails is not None:
            variant.check_tails(steps, tails)
        places = self.layout.places[number]
        padded_layout = padded_layout_of(traced.state, self.layout.state, axes, places)
        return TrialInFamily(number, self._common(number, steps), padded_layout, self.layout.state)

    def foresee(
        self, variant: int, constants: Steps, own: Callable[[list[Any]], State]
    ) -> tuple[TrialInFamily, State]:
        """The same for a trial that was not traced, and its variables.

        ``constants`` are those of its steps on the full batch, as ``beside_extents`` returns them.
        ``own`` makes its variables from the metrics' variables at the start of an epoch. Raises
        NotPaddable where its variables are not in those of the family as those that were walked.
        """
        member = self._member(variant)
        state, axes = own(member.variant.state.metrics), member.axes
        *parts, metrics = [[leaf.shape for leaf in part] for part in state.lists()]
        if any(axis.padded for each in axes[sum(map(len, parts)) :] for axis in each):
            raise NotPaddable("a metric's variables have a width")
        places = self.layout.places[variant]
        extents = extents_like([shape for part in (*parts, metrics) for shape in part], axes)
        padded_layout = padded_layout_of(state, self.layout.state, axes, places, extents)
        trainable, non_trainable, optimizer = parts
        fixed = [*trainable, *non_trainable]
        shapes = [*fixed, *optimizer, *metrics], [*fixed, *metrics]  # in training and validation
        pairs = zip(member.variant.roles, shapes, strict=False)
        found = [role.extents(each) for role, each in pairs]
        steps = []
        for (full, _), widths, rest in zip(
            self._common(variant, member.other), found, constants, strict=True
        ):
            first = full.canonical.constants[: self._n_flags]
            own_widths = [Constant(value, jv.aval_of(value)) for value in widths]
            canonical = replace(full.canonical, constants=(*first, *own_widths, *rest))
            steps.append(FullAndSmallerSteps(replace(full, canonical=canonical), None))
        return TrialInFamily(variant, steps, padded_layout, self.layout.state), state

    def examples(self) -> Iterator[tuple[ModelStructure, int, Steps]]:
        """The models that show what the trials of each variant have in common.

        Yields the structure of each, the number of its variant, and its constants as
        ``beside_extents`` returns them.
        """
        for number, member in enumerate(self.members.values()):
            for structure, steps in zip(
                member.structures, (member.largest, member.other), strict=True
            ):
                if structure is not None:
                    common = self._common(number, steps)
                    yield structure, number, self.beside_extents(number, common)

    def beside_extents(self, variant: int, steps: Sequence[FullAndSmallerSteps]) -> Steps:
        """The constants of steps on the full batch but for which variant it is, and extents."""
        roles = self._member(variant).variant.roles
        return [
            step.full.canonical.constants[self._n_flags + role.n_extents :]
            for step, role in zip(steps, roles, strict=True)
        ]

    @property
    def _n_flags(self) -> int:
        """How many constants say which variant a trial has."""
        return int(self.together is not None)

    def _member(self, number: int) -> VariantExamples:
        return list(self.members.values())[number]

    def _common(
        self, number: int, steps: Sequence[FullAndSmallerSteps]
    ) -> Sequence[FullAndSmallerSteps]:
        """The steps of a trial of one variant, as steps of all variants."""
        if self.together is None:
            return steps
        return [
            FullAndSmallerSteps(
                full.step(number, own.full),
                None if small is None or own.small is None else small.step(number, own.small),
            )
            for own, (full, small) in zip(steps, self.together, strict=True)
        ]


class VariantExamples(NamedTuple):
    """A variant, and two of its trials: at the largest and at other widths."""

    variant: FamilyVariant
    operations: str  # their digest
    # The steps of the two trials, as ``FamilyVariant.admit`` returns them.
    largest: list[FullAndSmallerSteps]
    other: list[FullAndSmallerSteps]
    axes: list[list[Axis]]  # of the variables of the trial at other widths
    # Those of the two models; None if they have none.
    structures: tuple[ModelStructure | None, ModelStructure | None]


def member_of(
    full: TracedModel, tails: Tails, narrow: TracedModel, tails_n: Tails
) -> VariantExamples:
    """A variant, from its steps at the largest widths (``full``) and at smaller ones (``narrow``).

    ``tails`` and ``tails_n`` are the same steps on the smaller batches. Raises NotPaddable where it
    is not proved that trials at such widths can share the program.
    """
    each = zip(full.steps, narrow.steps, tails, tails_n, strict=True)
    roles = [FamilyStep((w, n), _pair(small_w, small_n)) for w, n, small_w, small_n in each]
    variant = FamilyVariant(roles, full.state)
    (largest, _), (other, axes) = variant.example(0), variant.example(1)
    structures = full.structure, narrow.structure
    return VariantExamples(variant, operations_of(full), largest, other, axes, structures)


def family_of(full: TracedModel, tails: Tails, narrow: TracedModel, tails_n: Tails) -> Family:
    """A family of one variant; arguments and errors as of ``member_of``."""
    member = member_of(full, tails, narrow, tails_n)
    return Family({member.operations: member}, lay_out([full.state]), None)


def _pair(ours: Step | None, theirs: Step | None) -> tuple[Step, Step] | None:
    return None if ours is None or theirs is None else (ours, theirs)


def join_variants(members: Sequence[VariantExamples]) -> tuple[VariantLayout, tuple[Any, ...]]:
    """The layout and the common steps of two or more variants, as ``Family`` has them.

    Raises NotMergeable if they cannot share a program.
    """
    layout = lay_out([member.variant.state for member in members])
    together = []
    for role, steps in enumerate(zip(*(member.largest for member in members), strict=True)):
        more = {v: member.other[role].full for v, member in enumerate(members)}
        full = Variants([s.full for s in steps], layout, optimizer=role == 0, others=more)
        small = None
        smaller = [step.small for step in steps if step.small is not None]
        if smaller:
            small = Variants(smaller, layout, optimizer=role == 0, like=full)
        together.append((full, small))
    return layout, tuple(together)


def _check_alike(ours: Sequence[Sequence[Axis]], theirs: Sequence[Sequence[Axis]]) -> None:
    """Checks that variables are in the training step as in the validation step."""
    for a, b in zip(ours, theirs, strict=True):
        for x, y in zip(a, b, strict=True):
            if x.padded != y.padded or not np.array_equal(mask_of(x), mask_of(y)):
                raise NotPaddable("training and validation place a variable's elements differently")


def operations_of(traced: TracedModel) -> str:
    """A digest of which operations the steps consist of, whatever their extents."""
    digest = hashlib.sha256()
    for step in traced.steps:
        for eqn in step.closed.jaxpr.eqns:
            digest.update(f"{eqn.primitive.name} {len(eqn.invars)}\0".encode())
    return digest.hexdigest()
