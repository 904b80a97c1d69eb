"""The slots of packs: which trial gets a free slot, and how many trials should be ready for one.

A group's packs have a fixed number of slots. Between two epochs free slots are filled from the
group's queue. When the device's memory does not suffice, the group waits until no other group holds
memory. If it does not fit alone either, it continues with half as many slots.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.errors import DataError, UsageError
from paceline.executor.base import EpochLimit, Failed, SearchData, UserNotifier
from paceline.executor.sharing.family_builder import in_structures, unknown_cost
from paceline.executor.sharing.grouping import LocalGroup, TrialGroup, TrialGrouper, program_of
from paceline.executor.training.memory import (
    DeviceData,
    MemorySharers,
    is_out_of_memory,
    size_text,
)
from paceline.executor.training.planner import Planner
from paceline.pack.callbacks.driver import abandon
from paceline.pack.pack import Pack, SlotTrial
from paceline.pack.plan.base import step_flops
from paceline.program.canonical import Unpackable

if TYPE_CHECKING:
    from paceline.executor.remote.machines import Machines

#: Rounds for which the groups in slots train on while another group's program is compiled. After
#: them the program is waited for.
_ROUNDS = 10
#: Share of the slots that programs must fill before another waits for its turn.
_FILLED = 0.5
#: As many times the trials that train at once are to be ready where several programs are in sight,
#: and may wait.
FURTHER = 4
#: Once this many trials of one program have come, and none of another, the program is compiled in
#: the background.
_SURE = 3
#: The same where numbers are chosen from a few: the first three may have one in common.
_SURE_OF_CHOICES = 6

#: Which of two trials comes first: the one with the smaller result.
TurnOf = Callable[[SlotTrial], tuple[bool, int]]


@dataclass(eq=False, repr=False)
class SlotAllocator:
    """Gives the slots of an executor to its trials."""

    planner: Planner
    device_data: DeviceData
    data: SearchData
    notes: UserNotifier
    limit: EpochLimit
    sharers: MemorySharers

    def groups_in_turn(
        self, active: list[LocalGroup], now: int, turn_of: TurnOf | None = None
    ) -> list[LocalGroup]:
        """The groups that train now: those in slots, then as many as fill the device, in order.

        The answer does not depend on which programs happen to be compiled. Samplers and pruners see
        results in the order of training, and a resumed search must decide as the first one did.
        ``active`` groups have trials that wait or train; ``now`` is the number of the round. Where
        time may end the search, trials take their turn by ``turn_of``, and those in slots that
        began later keep no group out. Others of a group that trains may come for ever, and time is
        over before those that wait have had an epoch.
        """
        at_once, found = self.planner.packs_at_once, [group for group in active if group.n_live]
        waiting = [group for group in active if not group.n_live]
        if turn_of is not None:
            waiting.sort(key=lambda group: _first_turn(group, turn_of))
        for group in waiting:
            if any(one.n_live for one in found) and now - group.asked_round < _ROUNDS:
                continue  # its program is being compiled; the groups in slots train on meanwhile
            if turn_of is None:
                n_trials = [len(one.trials) for one in found]
            else:
                first = _first_turn(group, turn_of)
                n_trials = [sum(turn_of(trial) < first for trial in one.trials) for one in found]
            n_packs = sum(min(at_once, n) for n in n_trials)
            filled = sum(
                n / (at_once * program_of(one).n_slots)
                for n, one in zip(n_trials, found, strict=True)
            )
            if n_packs >= at_once and filled >= _FILLED:
                break
            found.append(group)
        return [group for group in active if group in found]

    def in_turn(
        self, active: list[LocalGroup], ready: list[LocalGroup], now: int, turn_of: TurnOf
    ) -> set[int]:
        """Numbers of the trials that may have a slot, where time may end the search.

        While a group waits for its turn or for memory, slots of trials that end stay free for it.
        ``ready`` are those of the ``active`` groups that train now.
        """
        waiting = [
            _first_turn(group, turn_of)
            for group in active
            if group not in ready
            and group.queue
            and group.program is not None
            and now - group.asked_round >= _ROUNDS  # else it may wait for its program alone
        ]
        first = min(waiting, default=(True, math.inf))
        earlier = {t.number for one in ready for t in one.queue if turn_of(t) < first}
        return earlier.union(trial.number for one in ready for trial in one.live)

    def empty_packs(self, group: LocalGroup, *, begun: bool = True) -> None:
        """Takes a group's trials out of its packs and puts them first in the queue.

        ``begun``: whether packs that have begun to train are emptied, too.
        """
        packs = [pack for pack in group.packs if begun or pack.began is None]
        for pack in packs:
            group.queue.extendleft(pack.take_out(trial.number) for trial in pack.live)
            group.packs.remove(pack)

    def fitting(
        self, groups: Sequence[LocalGroup], failed: Failed, turn_of: TurnOf | None = None
    ) -> list[LocalGroup]:
        """Those of compiled groups whose packs the device's memory holds now, as of ``fits``.

        Groups with trials in slots continue together. In a resumed search these are not yet on the
        device. Where time may end the search (``turn_of``), no group begins after one that waits
        for memory, which could otherwise wait until the end.
        """
        live = [group for group in groups if group.n_live]
        begin = [group for group in groups if not group.n_live]
        if turn_of is not None:
            begin.sort(key=lambda group: _first_turn(group, turn_of))
        found = [group for group in live if group.on_device or self.fits(group, failed)]
        for group in begin:
            if self.waits(group, found):
                if turn_of is not None:
                    break
            elif self.fits(group, failed):
                found.append(group)
        return [group for group in groups if group in found]

    def waits(self, group: LocalGroup, beside: Sequence[LocalGroup] = ()) -> bool:
        """Whether a group's next pack must not begin while other trials hold memory.

        How many slots a group has is decided when no other group holds any, so it depends on none.
        ``beside`` are groups of which packs are about to begin.
        """
        others = self.sharers.beside(group, beside)
        if group.alone and (group.on_device or group in beside):
            return True
        alone = group.alone or any(other.alone for other in others)
        if not others or not (alone or self._lacks_memory(group, others)):
            return False
        self.notes.tell_once(
            f"the device's memory does not hold all programs at once, so trials of {group.name} "
            "wait for others"
        )
        return True

    def lack_memory(self, groups: Sequence[LocalGroup]) -> bool:
        """Whether the memory lacks room for a group that has no trial there."""
        return any(
            self._lacks_memory(group, self.sharers.beside(group))
            for group in groups
            if not group.on_device
        )

    def _lacks_memory(self, group: LocalGroup, others: Sequence[LocalGroup] = ()) -> bool:
        """Whether the memory does not hold all slots of a group; drops what nobody uses first."""
        n_packs = self.planner.packs_at_once
        if self._holds(group, n_packs, others):
            return False
        self.sharers.drop_unused(self.device_data)
        return not self._holds(group, n_packs, others)

    def _holds(self, group: LocalGroup, n_packs: int, others: Sequence[LocalGroup] = ()) -> bool:
        """Whether the memory holds all slots of this many packs of a group at once."""
        program = program_of(group)
        return self.device_data.room(group, program, n_packs, others).fitting >= program.n_slots

    def fits(self, group: LocalGroup, failed: Failed) -> bool:
        """Whether a compiled group fits into the device's memory.

        If the group does not fit, it gets fewer slots and must be compiled again. If not even one
        trial fits, its waiting trials fail. Raises UsageError if the user asked for a number of
        slots that does not fit.
        """
        if any(pack.began is not None for pack in group.packs) or not self._lacks_memory(group):
            return True
        program, planner = program_of(group), self.planner
        room = self.device_data.room(group, program, planner.packs_at_once)
        if room.fitting == 0 and planner.packs_at_once > 1:
            planner.packs_at_once = 1
            room = self.device_data.room(group, program, 1)
        if room.fitting >= program.n_slots:
            return True
        free = size_text(room.free)
        if room.fitting and planner.chooses_slots:
            self._limit_slots(group, room.fitting)
        elif room.fitting:
            needed = size_text(room.each * program.n_slots / room.rows)
            raise UsageError(
                f"parallel_trials: {program.n_slots} slots need {needed} next to the data, but "
                f"only {free} are free. Use at most {room.fitting}."
            )
        else:
            error = MemoryError(
                f"one trial needs {size_text(room.each)} next to the data, but only {free} are "
                "free on the device. Make the model or the batch smaller"
            )
            self.empty_packs(group)
            while group.queue:
                failed(group.queue.popleft().number, error)
        return False

    def fits_twice(self, group: LocalGroup) -> bool:
        """Whether memory holds two packs of a group for each thread; one of each fits."""
        return self._holds(group, 2 * self.planner.packs_at_once)

    def _limit_slots(self, group: LocalGroup, n_slots: int) -> None:
        """Drops a group's program, to be compiled again with at most ``n_slots`` slots."""
        self.notes.tell(
            f"the device's memory holds {n_slots} slots per pack of this program, not "
            f"{program_of(group).n_slots}"
        )
        group.most_slots, group.program = n_slots, None
        group.plan_choice = group.next_program = None
        self.empty_packs(group)

    def recover(
        self,
        group: LocalGroup,
        pack: Pack,
        error: BaseException,
        failed: Failed,
        beside: Sequence[LocalGroup] = (),
    ) -> bool:
        """Handles the error of a pack's epoch; returns whether the group must do with less memory.

        Where memory ran out, the pack's trials wait for a slot again: until they are alone, if
        other trials hold memory. Those whose callbacks have seen batches of that epoch fail with
        Unpackable. Other errors fail all trials. Raises the error itself where it concerns all
        trials: an error of the data, or an interruption. ``beside`` are the groups of other packs
        that trained meanwhile.
        """
        if not isinstance(error, Exception) or isinstance(error, DataError):
            raise error
        saved, lost = pack.rescue()
        group.drop_pack(pack)  # its arrays may be gone
        out = is_out_of_memory(error)
        # Packs of a group that was alone leave it no way out but fewer of them.
        others = [*self.sharers.beside(group), *beside]
        waits = out and any(other is not group or not group.alone for other in others)
        group.alone |= waits
        again = waits or (out and self.planner.can_halve(pack.program))
        if again:
            group.queue.extendleft(reversed(saved))
        else:
            lost += saved
        if again and pack.is_within_epoch:
            error = Unpackable(
                "memory ran out within an epoch whose callbacks act between batches, so it cannot "
                f"be trained again: {error}"
            )
        for trial in lost:
            abandon(trial.driver)
            failed(trial.number, error)
        return again and not waits

    def halve(self, group: LocalGroup) -> None:
        """Halves a group's slots; with a single slot, the executor has one thread.

        The trials in slots wait first in the queue, with the state that they have.
        """
        n_slots = program_of(group).n_slots
        self.empty_packs(group)
        if n_slots == 1:
            self.planner.packs_at_once = 1
        self._limit_slots(group, max(1, n_slots // 2))

    def refill(
        self, group: LocalGroup, all_asked: bool, only: Container[int] | None = None
    ) -> list[Pack]:
        """Fills the free slots of a group's packs from its queue; returns those that hold a trial.

        The group's program is compiled. ``all_asked``: whether no trial will be submitted any more.
        ``only`` has the numbers of the trials that may get a slot; None: all.
        """
        if self._suspects_of(group):
            return self._one_suspect_per_pack(group)
        n_packs = self.planner.packs_at_once
        if all_asked and group.n_live:
            # No new trial will take a slot, so the remaining trials share as few packs as possible,
            # since empty slots compute as well.
            n_trials = group.n_live + len(group.queue)
            n_packs = min(n_packs, -(-n_trials // program_of(group).n_slots))
            if n_packs < sum(bool(pack.live) for pack in group.packs):
                self.empty_packs(group)
        while len(group.packs) < n_packs:
            group.packs.append(self.new_pack(group))
        packs = sorted(group.packs, key=lambda pack: not pack.live)[:n_packs]
        for trial in [t for t in group.queue if only is None or t.number in only]:
            pack = max(packs, key=lambda pack: len(pack.free) * pack.takes(trial))
            if pack.free and pack.takes(trial):
                group.queue.remove(trial)
                pack.admit(trial)
            elif not any(pack.free for pack in packs):
                break
        return [pack for pack in group.packs if pack.live]

    def _suspects_of(self, group: LocalGroup) -> list[SlotTrial]:
        """A group's trials that are about to train the epoch that did not end before."""
        suspects = self.limit.suspects
        return [trial for trial in group.trials if suspects.get(trial.number) == trial.epoch]

    def _one_suspect_per_pack(self, group: LocalGroup) -> list[Pack]:
        """Packs with one suspect each; all other trials of the group wait."""
        self.empty_packs(group)
        for trial in self._suspects_of(group)[: self.planner.packs_at_once]:
            group.queue = deque(each for each in group.queue if each is not trial)
            group.packs.append(self.new_pack(group))
            group.packs[-1].admit(trial)
        return list(group.packs)

    def new_pack(self, group: LocalGroup) -> Pack:
        """An empty pack of a group's program."""
        program = program_of(group)
        data, on_device = self.device_data.of(group, program.layout)
        return Pack(
            program,
            data,
            on_device,
            self.data.shuffle,
            [role.full.log_names for role in group.roles],
            group.work.n_validation if self.data.fold is not None else None,
            self.data.validation_freq,
        )


def _first_turn(group: LocalGroup, turn_of: TurnOf) -> tuple[bool, int]:
    """The turn of the trial of a group that comes first of those that wait."""
    return min(map(turn_of, group.queue))


@dataclass(eq=False, repr=False)
class TrialDemand:
    """How many trials an executor wants to have ready; the search says what is still to come."""

    planner: Planner | Machines  # counts slots
    grouper: TrialGrouper[Any]
    # Whether trials come as a grid is walked: what the first trials have in common the next need
    # not have.
    in_order: bool = field(default=False, kw_only=True)
    # Whether, in order, half of what ``further`` waits for is enough to compile while the rest is
    # built. A grid knows no more of its constants by then, so it would compile twice.
    early: bool = field(init=False, default=False)
    # Trials that come with one structure where the sampler is adaptive. The search sets this and
    # the following fields.
    alike: int = field(init=False, default=1)
    # Trials still to come, including those that wait.
    expected: int = field(init=False, default=1)
    # Whether no trial will be submitted any more.
    all_asked: bool = field(init=False, default=False)
    # Whether the space has no choice that could make another program.
    uniform: bool = field(init=False, default=False)
    # Whether each floating-point number is of a range, so that no two trials have the same.
    continuous: bool = field(init=False, default=False)
    # Whether time may end the search, so that what is compiled may never be trained.
    by_time: bool = field(init=False, default=False)
    # Whether the last part of that time has begun, in which the best paused trials continue.
    closing: bool = field(init=False, default=False)
    # Of the trials still to come, the number of those that have not been taken in.
    unasked: int = field(init=False, default=0)
    # The ``PackStream`` that trains trials as they come, and knows how many it wants; None: rounds
    # train.
    stream: Any = field(init=False, default=None)

    @property
    def turn_of(self) -> TurnOf | None:
        """By what trials take their turn where time may end the search; None: it may not.

        The trial comes first that began first; in the last part of the time those that continue
        come before those without an epoch.
        """
        closing = self.closing
        return (lambda trial: (closing and not trial.epoch, trial.number)) if self.by_time else None

    def expect_members(self, n_members: int) -> None:
        """Counts a trial with this many members that is about to be taken in."""
        self.unasked = max(0, self.expected - self.grouper.waiting - n_members)

    def is_sure(self, group: TrialGroup) -> bool:
        """Whether all trials to come share a group's program, as far as one can tell early on."""
        if group.n_seen < _SURE or len(self.grouper.groups) > 1:
            return False
        enough = not self.in_order or (self.early and group.n_trials >= self.at_once)
        return self.uniform or (enough and group.n_trials >= _SURE)

    def is_known(self, group: TrialGroup, *, alone: bool) -> bool:
        """Whether a group among several is compiled while further trials are still being built.

        Its trials have shown which constants differ. Where trials train one by one (``alone``: its
        packs have one slot), the group's next one may be far away.
        """
        several = len(self.grouper.groups) > 1 and not self.in_order
        enough = _SURE if self.continuous else _SURE_OF_CHOICES
        # Not the models seen, which include formulas of an earlier search: a repeated search must
        # make the same programs to find them in the cache.
        return several and (alone or group.n_trials >= enough)

    def of_known(self, group: TrialGroup) -> tuple[int, int]:
        """As ``of_program``, while most trials are still to be built.

        The share of future trials with new programs is that of trials so far that are alone in
        their program (Good and Turing's estimate). The number of slots is rounded down to a power
        of two: empty slots still compute, while packs can grow.
        """
        counts = [each.n_trials for each in self.grouper.groups]
        met = 1 - counts.count(1) / sum(counts)
        to_come = max(0, self.expected - self.grouper.waiting)
        share = len(group.queue) + int(to_come * met * group.n_trials / sum(counts))
        return max(len(group.queue), 1 << (share.bit_length() - 1)), share

    def of_program(self, group: TrialGroup) -> tuple[int, int]:
        """Trials that a group's program will train, and its share of all that are to come."""
        n_trials = max(len(group.queue), min(self.alike, self.expected))
        # Trials to come are as likely to be of any program that was met: a search over structures
        # has few of each.
        return n_trials, -(-self.expected // max(1, len(self.grouper.groups)))

    def trains_long(self, program: str, epochs: float) -> bool:
        """Whether a trial may train longer than its program, of this name, compiles.

        ``epochs`` are those that a trial trains on average.
        """
        group = next(group for group in self.grouper.groups if group.name == program)
        step = group.train.full
        if unknown_cost(step):
            return True
        return in_structures(step_flops(step.closed) * group.work.steps * epochs) > 1

    @property
    def begins(self) -> bool:
        """Whether nothing is compiled yet, and a first model should be there soon.

        Then one trial is compiled as soon as it is built, and others are built meanwhile.
        """
        return self.by_time and not any(group.is_settled for group in self.grouper.groups)

    @property
    def packs_at_once(self) -> int:
        """Packs that train at the same time."""
        return self.planner.packs_at_once

    @property
    def hungry(self) -> bool:
        """Whether training should wait for more trials, because slots would stay empty."""
        if self.stream is not None:
            hungry = self.stream.hungry
            if not self.stream.ended():
                return hungry
        groups = self.grouper.groups
        have = sum(len(group.queue) + group.n_live for group in groups)
        if self.begins:
            return not have
        return have < self.at_once * self.further

    @property
    def at_once(self) -> int:
        """Trials that can train at once with the present programs."""
        return self.planner.slots_now(self.grouper.groups)

    @property
    def further(self) -> int:
        """How many times the trials that train at once are to be ready."""
        groups = self.grouper.groups
        # With several programs in sight, look further ahead, so that each fills a pack of its own.
        if len(groups) > 1:
            return FURTHER
        # Where trials come in order, look for a second program before the first is compiled.
        begins = self.in_order and any(not group.has_program for group in groups)
        return 2 if begins else 1

    @property
    def room(self) -> bool:
        """Whether one more trial is worth tracing now, to be ready when a slot becomes free."""
        if self.stream is not None and not self.stream.ended():
            return self.stream.room
        return self.grouper.waiting < FURTHER * self.at_once

    @property
    def one_program(self) -> bool:
        """Whether all trials share a program, as far as trials and the space's ends tell."""
        return self.uniform and self.grouper.n_programs <= 1

    @property
    def uncompiled(self) -> bool:
        """Whether a program is about to be compiled for the trials that wait for it."""
        return any(group.active and not group.is_settled for group in self.grouper.groups)

    def ahead(self, steady: bool) -> int:
        """Number of trials to prepare while the next epoch trains, to fill free slots at once.

        ``steady``: whether trials stay in their slots until their last epoch.
        """
        groups = self.grouper.groups
        trials = [trial for group in groups for trial in group.trials]
        slots = self.planner.slots_now(groups)
        # Those in slots will have left, and as many are to wait then as before the packs trained.
        missing = slots * self.further - max(0, len(trials) - slots)
        left = min((trial.epochs - trial.epoch for trial in trials), default=1) if steady else 1
        return max(0, -(-missing // max(1, left)))

    def epochs_left(self, trials: Sequence[SlotTrial]) -> int:
        """Epochs that are left of these trials, and of all still to come if they are alike."""
        left = sum(trial.epochs - trial.epoch for trial in trials)
        return left + self.unasked * max((trial.epochs for trial in trials), default=0)
