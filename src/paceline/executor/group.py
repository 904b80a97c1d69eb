"""Trials of one program, and what is known of it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.executor.plan_choice import Candidate, PlanChoice
from paceline.pack.pack import Pack, SlotTrial
from paceline.pack.plan import CompiledPlan, Workload
from paceline.program.canonical import Constant
from paceline.program.step_template import StepTemplate
from paceline.program.trace import State


@dataclass(frozen=True)
class RestoredProgram:
    """How a group was trained until its search stopped.

    Attributes:
        candidate: Plan and slots.
        quick: Whether it was compiled for a short run.
        layout: Devices that slots were spread over, and that batches were split over; None: one.
    """

    candidate: Candidate
    quick: bool
    layout: tuple[int, int] | None


@dataclass
class Group:
    """Trials of one program: those waiting, and the packs that train them.

    Attributes:
        name: Short fingerprint, for people.
        work: What an epoch goes over.
        train, test: The steps; test is None without validation data.
        state: Shapes of a trial's variables.
        metrics: The metric variables at the start of an epoch.
        rng_differs: Its random numbers would be others under ``vmap``.
        convolves: Its training step holds a convolution.
        n_seen: Models whose constants are known, trials or not.
        n_trials: Trials taken in so far.
        example: Number of the first of them.
        queue: Trials without a slot.
        program: Compiled for its packs; None before the first.
        again: How it was compiled before the search stopped; None where that is not known.
        met: The round in which its program was asked for.
        packs: One per lane, while there are trials.
        most_slots: What memory allows a pack; None while that is not known.
        choice: Ways to train it that are tried out; None where there is nothing to choose.
        coming: A program that is being compiled, to go on with.
    """

    name: str
    work: Workload
    train: StepTemplate
    test: StepTemplate | None
    state: State
    metrics: list[Any]
    rng_differs: bool
    convolves: bool
    n_seen: int = 0
    n_trials: int = 0
    example: int | None = None
    queue: deque[SlotTrial] = field(default_factory=deque)
    program: CompiledPlan | None = None
    again: RestoredProgram | None = None
    met: int = 0
    packs: list[Pack] = field(default_factory=list)
    most_slots: int | None = None
    choice: PlanChoice | None = None
    coming: CompiledPlan | None = None

    @property
    def roles(self) -> list[StepTemplate]:
        """The steps there are."""
        return [role for role in (self.train, self.test) if role is not None]

    @property
    def live(self) -> int:
        """Trials in slots."""
        return sum(len(pack.live) for pack in self.packs)

    def note(
        self,
        train: Sequence[Constant],
        test: Sequence[Constant] | None = None,
        *,
        counts: bool = True,
    ) -> None:
        """Notes the constants of a model; ``counts`` where it may differ from those before.

        Raises:
            Unpackable: A number differs both between models and between batch sizes.
        """
        self.train.admit(train)
        if self.test is not None and test is not None:
            self.test.admit(test)
        self.n_seen += counts

    @property
    def riders(self) -> list[SlotTrial]:
        """Trials that wait for a slot, in order, and those in slots."""
        return [*self.queue, *(rider for pack in self.packs for rider in pack.live)]

    def waiting(self, number: int) -> SlotTrial | None:
        """The trial of that number, where it waits for a slot."""
        return next((rider for rider in self.queue if rider.number == number), None)

    def pack_of(self, number: int) -> Pack | None:
        """The pack in which a trial sits; None where it has no slot."""
        for pack in self.packs:
            if any(rider.number == number for rider in pack.live):
                return pack
        return None

    @property
    def nbytes(self) -> int:
        """Bytes of one trial's variables."""
        return sum(
            math.prod(a.shape) * a.dtype.itemsize for part in self.state.lists() for a in part
        )

    @property
    def active(self) -> bool:
        """Whether any trial waits or trains."""
        return bool(self.queue) or self.live > 0
