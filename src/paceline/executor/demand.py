"""How many trials an executor wants got ready, by what is known of those still to come."""

from __future__ import annotations

from paceline.executor.group import Group
from paceline.executor.grouping import TrialGrouper
from paceline.executor.planner import Planner

#: After this many trials of one program, with no other in sight, it is compiled in the background.
_SURE = 3


class Demand:
    """What packs ask of a search.

    Args:
        planner: Knows how many trials train at once.
        intake: Knows those that are there.

    Attributes:
        family: Trials that come with one structure where the sampler is adaptive.
        expected: Trials still to come, those waiting included; the search keeps it.
        unasked: Of the trials still to come, those not yet taken in.
        all_asked: No trial will be submitted any more.
        uniform: The space has no choice that could make another program.
        in_order: Trials come as a grid walks: what the first have in common the next may not.
    """

    def __init__(self, planner: Planner, intake: TrialGrouper) -> None:
        self._planner, self._intake = planner, intake
        self.family = self.expected = 1
        self.unasked = 0
        self.all_asked = self.uniform = self.in_order = False

    def arrives(self, n_members: int) -> None:
        """A trial is about to be taken in, with so many members."""
        self.unasked = max(0, self.expected - self._intake.waiting - n_members)

    def is_sure(self, group: Group) -> bool:
        """Whether all trials to come share a group's program, as far as one can tell early on."""
        alike = self.uniform or (group.n_trials >= _SURE and not self.in_order)
        return group.n_seen >= _SURE and alike and len(self._intake.groups) == 1

    @property
    def hungry(self) -> bool:
        """Whether training should wait for more trials: slots would stay empty.

        With several programs in sight, look further ahead, so that each fills a pack of its own;
        where trials come in order, look whether there are several before the first is compiled.
        """
        groups = self._intake.groups
        have = sum(len(group.queue) + group.live for group in groups)
        begins = self.in_order and any(group.program is None for group in groups)
        further = 4 if len(groups) > 1 else 2 if begins else 1
        return have < self._planner.slots_now(groups) * further

    @property
    def room(self) -> bool:
        """Whether one more trial is worth tracing now, to have it ready when a slot is free."""
        return self._intake.waiting < 4 * self._planner.slots_now(self._intake.groups)

    @property
    def one_program(self) -> bool:
        """Whether all trials share a program, as far as one can tell."""
        return self.uniform and len(self._intake.groups) <= 1

    @property
    def uncompiled(self) -> bool:
        """Whether a program is about to be compiled for the trials that wait for it."""
        return any(
            group.active and group.program is None and group.again is None
            for group in self._intake.groups
        )

    def ahead(self, steady: bool) -> int:
        """Trials to get ready while the next epoch trains, so that free slots are filled at once.

        Args:
            steady: Whether trials stay in their slots until their last epoch.
        """
        groups = self._intake.groups
        riders = [rider for group in groups for rider in group.riders]
        slots = self._planner.slots_now(groups)
        missing = slots - max(0, len(riders) - slots)
        left = min((rider.epochs - rider.epoch for rider in riders), default=1) if steady else 1
        return max(0, -(-missing // max(1, left)))

    def epochs_left(self, group: Group) -> int:
        """Epochs that a group has to train, were all trials still to come its own."""
        riders = group.riders
        left = sum(rider.epochs - rider.epoch for rider in riders)
        return left + self.unasked * max((rider.epochs for rider in riders), default=0)
