"""Who sits where: the trials of a group in the slots of its packs, as far as memory goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from paceline.errors import DataError, UsageError
from paceline.executor.base import Failed
from paceline.executor.device_data import DeviceData, size_text
from paceline.executor.group import Group
from paceline.executor.memory import is_out_of_memory
from paceline.executor.planner import Planner, layout_of
from paceline.executor.reporting import abandon
from paceline.pack.pack import Pack, SlotTrial
from paceline.pack.plan import CompiledPlan

#: Rounds that a new program is compiled beside those that train, before it is waited for.
_ROUNDS = 10
#: Share of the slots that programs must fill before another waits for its turn.
_FILLED = 0.5


class SlotAllocator:
    """The slots of an executor.

    Args:
        planner: Chooses how many there are.
        placement: Puts data on the device.
        shuffle: A new order of examples each epoch, from the trial's seed.
        validation_freq: As ``fit`` takes it.
        folded: Whether trials train on folds of the data.

    Attributes:
        suspects: Number -> epochs trained when its pack did not come back: it trains on by itself.
    """

    def __init__(
        self,
        planner: Planner,
        placement: DeviceData,
        *,
        shuffle: bool,
        validation_freq: int | Collection[int],
        folded: bool,
    ) -> None:
        self._planner, self._placement = planner, placement
        self._shuffle, self._freq, self._folded = shuffle, validation_freq, folded
        self.suspects: Mapping[int, int] = {}

    def in_turn(self, active: list[Group], now: int) -> list[Group]:
        """The groups that train now: those in slots, and in their order as many as fill the device.

        It is the same whichever of them happen to be compiled: with what trains when goes what
        samplers and pruners see, and a search that is resumed must decide as it did.

        Args:
            active: Groups with trials that wait or train.
            now: Number of the round.
        """
        lanes, found = self._planner.lanes, [group for group in active if group.live]
        for group in active:
            if group.live:
                continue
            if any(one.live for one in found) and now - group.met < _ROUNDS:
                continue  # it is being compiled: those in slots go on meanwhile
            riders = [one.live + len(one.queue) for one in found]
            n_packs = sum(min(lanes, n) for n in riders)
            filled = sum(
                n / (lanes * program_of(one).n_slots) for n, one in zip(riders, found, strict=True)
            )
            if n_packs >= lanes and filled >= _FILLED:
                break
            found.append(group)
        return [group for group in active if group in found]

    def clear(self, group: Group) -> None:
        """Takes a group's trials out of its packs, to go on in others."""
        for pack in group.packs:
            group.queue.extendleft(pack.take_out(rider.number) for rider in pack.live)
        group.packs.clear()

    def fits(self, group: Group, failed: Failed) -> bool:
        """Whether a compiled group fits into the device's memory; else it gets fewer slots."""
        if group.packs:
            return True
        program, planner = program_of(group), self._planner
        room = self._placement.room(group, program, planner.lanes)
        if room.fitting == 0 and planner.lanes > 1:
            planner.lanes = 1
            room = self._placement.room(group, program, 1)
        if room.fitting >= program.n_slots:
            return True
        free = size_text(room.free)
        if room.fitting and planner.chooses_slots:
            self._shrink(group, room.fitting)
        elif room.fitting:
            needed = size_text(room.each * program.n_slots / room.rows)
            raise UsageError(
                f"slots: {program.n_slots} slots need {needed} beside the data, and {free} are "
                f"free; {room.fitting} fit."
            )
        else:
            error = MemoryError(
                f"one trial needs {size_text(room.each)} beside the data, and {free} are free on "
                "the device; make the model or the batch smaller"
            )
            while group.queue:
                failed(group.queue.popleft().number, error)
        return False

    def _shrink(self, group: Group, n_slots: int) -> None:
        """Has a group compiled again with fewer slots."""
        self._planner.note(
            f"the device's memory holds {n_slots} slots a pack of this program, not "
            f"{program_of(group).n_slots}"
        )
        group.most_slots, group.program = n_slots, None
        group.choice = group.coming = None
        group.packs.clear()

    def recover(self, group: Group, pack: Pack, error: BaseException, failed: Failed) -> bool:
        """After a pack's epoch failed: its trials wait again where memory ran out; else they fail.

        Returns:
            Whether the group must do with less memory.
        """
        if not isinstance(error, Exception) or isinstance(error, DataError):
            raise error  # the data are those of all trials
        saved, lost = pack.rescue()
        group.packs.remove(pack)  # its arrays may be gone
        again = is_out_of_memory(error) and self._planner.can_halve(pack.program)
        if again:
            group.queue.extendleft(reversed(saved))
        else:
            lost += saved
        for rider in lost:
            abandon(rider)
            failed(rider.number, error)
        return again

    def halve(self, group: Group) -> None:
        """Has a group train half as many trials at once; those in slots go on in others."""
        n_slots = program_of(group).n_slots
        self.clear(group)
        if n_slots == 1:
            self._planner.lanes = 1
        self._shrink(group, max(1, n_slots // 2))

    def filled(self, group: Group, *, all_asked: bool) -> list[Pack]:
        """The group's packs with something in them, waiting trials spread over the free slots."""
        if self._suspected(group):
            return self._one_by_one(group)
        n_packs = self._planner.lanes
        if all_asked and group.live:
            # Nobody new will come: those that are left share as few packs as hold them.
            riders = group.live + len(group.queue)
            n_packs = min(n_packs, -(-riders // program_of(group).n_slots))
            if n_packs < sum(bool(pack.live) for pack in group.packs):
                self.clear(group)
        while len(group.packs) < n_packs:
            group.packs.append(self.new_pack(group))
        packs = sorted(group.packs, key=lambda pack: not pack.live)[:n_packs]
        for rider in list(group.queue):
            pack = max(packs, key=lambda pack: len(pack.free) * pack.takes(rider))
            if pack.free and pack.takes(rider):
                group.queue.remove(rider)
                pack.admit(rider)
            elif not any(pack.free for pack in packs):
                break
        return [pack for pack in group.packs if pack.live]

    def _suspected(self, group: Group) -> list[SlotTrial]:
        """A group's trials that are about to train the epoch from which they did not come back."""
        return [rider for rider in group.riders if self.suspects.get(rider.number) == rider.epoch]

    def _one_by_one(self, group: Group) -> list[Pack]:
        """Packs with one suspect each; all others of the group wait."""
        self.clear(group)
        for rider in self._suspected(group)[: self._planner.lanes]:
            group.queue = deque(each for each in group.queue if each is not rider)
            group.packs.append(self.new_pack(group))
            group.packs[-1].admit(rider)
        return list(group.packs)

    def new_pack(self, group: Group) -> Pack:
        """An empty pack of a group's program."""
        program = program_of(group)
        data, on_device = self._placement.of(group, layout_of(program))
        return Pack(
            program,
            data,
            on_device,
            self._shuffle,
            group.train.full.log_names,
            group.test.full.log_names if group.test else (),
            group.work.n_validation if self._folded else None,
            self._freq,
        )


def program_of(group: Group) -> CompiledPlan:
    """A group's program, which it has."""
    assert group.program is not None
    return group.program
