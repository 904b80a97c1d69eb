"""A family: the steps of trials of several widths and choices, as one program has them.

Notation
    variant: the models of one combination of choices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from paceline.executor.model_builder import TracedModel
from paceline.program.padding.axes import Axis, NotPaddable
from paceline.program.padding.widths import (
    Embedding,
    PaddedRole,
    PaddedStep,
    embedding_of,
    mask_of,
)
from paceline.program.trace import State
from paceline.program.variants.layout import Layout, lay_out
from paceline.program.variants.step import Variants


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


class PaddedPair(NamedTuple):
    """A step on the full batch and on the smaller one; None where there is none."""

    full: PaddedStep
    small: PaddedStep | None


@dataclass(frozen=True)
class FamilyVariant:
    """The steps of one variant at several widths.

    Attributes:
        train, test: test is None without validation data.
        state: Shapes and dtypes of its variables at the largest widths.
    """

    train: PaddedRole
    test: PaddedRole | None
    state: State

    def admit(self, traced: TracedModel) -> tuple[list[PaddedPair], list[list[Axis]]]:
        """A trial's steps, and the axes of its variables."""
        full, small, axes = self.train.admit(traced.train)
        steps = [PaddedPair(full, small)]
        leaves = [leaf for part in traced.state.lists() for leaf in part]
        if self.test is not None and traced.test is not None:
            full, small, others = self.test.admit(traced.test)
            steps.append(PaddedPair(full, small))
            counts = [len(part) for part in traced.state.lists()]
            # A validation step has no optimizer variables.
            skipped = range(sum(counts[:2]), sum(counts[:3]))
            ours = [axes[i] for i in range(len(leaves)) if i not in skipped]
            _check_alike(ours, others[: len(ours)])
        return steps, axes[: len(leaves)]


@dataclass(frozen=True)
class Family:
    """Variants that share a program.

    Attributes:
        variants: By the digest of their operations; their order is that of the layout.
        layout: Of their variables.
        together: The training step and the validation step of all variants, each on the full and on
            the smaller batch; None: there is one variant.
    """

    variants: Mapping[str, FamilyVariant]
    layout: Layout
    together: tuple[tuple[Variants, Variants | None], ...] | None

    def admit(self, traced: TracedModel) -> Ride:
        """A trial's steps within the program.

        Raises:
            NotPaddable: It is not proved that the trial's results come out as they should.
        """
        operations = operations_of(traced)
        if operations not in self.variants:  # of width 1, for example: JAX leaves such axes out
            raise NotPaddable("its operations are not those of the largest widths")
        number = list(self.variants).index(operations)
        steps, axes = list(self.variants.values())[number].admit(traced)
        places = self.layout.places[number]
        embedding = embedding_of(traced.state, self.layout.state, axes, places)
        if self.together is not None:
            steps = [
                PaddedPair(
                    full.step(number, own.full),
                    None if small is None or own.small is None else small.step(number, own.small),
                )
                for own, (full, small) in zip(steps, self.together, strict=True)
            ]
        test = steps[1] if len(steps) > 1 else (None, None)
        return Ride(steps[0], test, embedding, self.layout.state)


class FamilyMember(NamedTuple):
    """A variant, and two of its trials: at the largest and at other widths.

    Attributes:
        operations: The digest of its operations.
        largest, other: The steps of the two, as ``FamilyVariant.admit`` returns them.
    """

    variant: FamilyVariant
    operations: str
    largest: list[PaddedPair]
    other: list[PaddedPair]


def join_variants(members: Sequence[FamilyMember]) -> tuple[Layout, tuple[Any, ...]]:
    """The layout and the common steps of variants, as ``Family`` has them.

    Args:
        members: At least two.

    Raises:
        NotMergeable: They cannot share a program.
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
    """Checks that variables lie in the training step as in the validation step."""
    for a, b in zip(ours, theirs, strict=True):
        for x, y in zip(a, b, strict=True):
            if x.padded != y.padded or not np.array_equal(mask_of(x), mask_of(y)):
                raise NotPaddable("training and validation place a variable's elements otherwise")


def operations_of(traced: TracedModel) -> str:
    """A digest of which operations the steps consist of, whatever their extents."""
    digest = hashlib.sha256()
    for step in (traced.train, traced.test):
        if step is not None:
            for eqn in step.closed.jaxpr.eqns:
                digest.update(f"{eqn.primitive.name} {len(eqn.invars)}\0".encode())
    return digest.hexdigest()
