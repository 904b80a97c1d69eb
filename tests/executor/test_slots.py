"""How a slot is refilled, given up where memory runs out, and how many trials wait for one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import paceline
from executor.fakes import FakeDriver, FakePlanner, group, numbers, slots_of, state, trial
from paceline.data.chunks import ResidentArrays
from paceline.executor.base import EpochLimit, SearchData, UserNotifier
from paceline.executor.training.memory import MemorySharers, SlotCapacity
from paceline.executor.training.slots import SlotAllocator, TrialDemand

OUT_OF_MEMORY = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 byte")


class Slots:
    """A ``SlotAllocator`` among stand-ins, and what it tells.

    Args:
        packs_at_once: Packs that train at once.
        room: What the memory holds, by number of packs at once.
        suspects: Number of a trial -> epoch that did not end.
        planner: Attributes of the planner.
    """

    def __init__(
        self,
        packs_at_once: int = 1,
        room: dict[int, SlotCapacity] | None = None,
        suspects: dict[int, int] | None = None,
        **planner: Any,
    ) -> None:
        self.planner = FakePlanner(packs_at_once, **planner)
        self.notes: list[str] = []
        self.failed: dict[int, BaseException] = {}
        # Names of the groups beside, each time memory is looked at.
        self.beside: list[list[str]] = []
        device_data: Any = SimpleNamespace(
            of=lambda group, layout: (
                ResidentArrays(None, 8, 2, group.work.epochs),
                None,
            ),
            clear=lambda: None,
            room=lambda group, program, n, beside=(): self._room(n, beside, room or {}),
        )
        data: Any = SearchData(None)  # type: ignore[arg-type]
        made: Any = self.planner
        limit = EpochLimit(suspects={} if suspects is None else suspects)
        self.sharers = MemorySharers()
        notes = UserNotifier(self.notes.append)
        self.allocator = SlotAllocator(made, device_data, data, notes, limit, self.sharers)

    def _room(self, n: int, beside: Any, room: dict[int, SlotCapacity]) -> SlotCapacity:
        self.beside.append([each.name for each in beside])
        return SlotCapacity(0, 1.0, 1, 0.0) if beside else room[n]

    def share(self, *groups: Any) -> None:
        """The groups of the executors on this device."""
        self.sharers.add(SimpleNamespace(groups=list(groups)), SimpleNamespace(clear=list))  # type: ignore[arg-type]

    def refill(self, made: Any, *, all_asked: bool = False) -> list[Any]:
        return self.allocator.refill(made, all_asked=all_asked)

    def fail(self, number: int, error: BaseException) -> None:
        self.failed[number] = error


# -- refilling -------------------------------------------------------------------------------------


def test_a_free_slot_gets_the_trial_that_has_waited_longest() -> None:
    slots, made = Slots(), group(0, 1, 2, 3)
    slots.refill(made)
    assert slots_of(made) == [[0, 1]]
    made.packs[0].evict(1)
    slots.refill(made)
    assert slots_of(made) == [[0, 2]], "the slot that was free, and the others stay"
    assert numbers(made.queue) == [3]


def test_a_full_pack_leaves_the_others_waiting_in_their_order() -> None:
    slots, made = Slots(), group(0, 1, 2, 3, 4)
    assert slots.refill(made) == made.packs
    slots.refill(made)
    assert numbers(made.queue) == [2, 3, 4]


def test_trials_are_spread_over_the_packs_at_once() -> None:
    """Packs train side by side: two half-filled packs end sooner than a full one alone."""
    slots, made = Slots(packs_at_once=2), group(0, 1, n_slots=4)
    assert len(slots.refill(made)) == 2
    assert [len(pack.live) for pack in made.packs] == [1, 1]


def test_packs_without_a_trial_do_not_train() -> None:
    slots, made = Slots(packs_at_once=3), group(0)
    (pack,) = slots.refill(made)
    assert numbers(pack.live) == [0]
    assert len(made.packs) == 3


def test_who_would_read_other_batches_next_waits_and_is_passed_by() -> None:
    """A pass of 4 batches makes two epochs of 2: all slots are in the same half."""
    slots, made = Slots(), group(n_slots=3, steps_per_epoch=2)
    made.queue.extend([trial(0), trial(1, epoch=1), trial(2, epoch=2)])
    slots.refill(made)
    assert slots_of(made) == [[0, 2, None]]
    assert numbers(made.queue) == [1]


def test_the_last_trials_share_a_pack_and_lose_nothing() -> None:
    """Once no trial is to come: an empty slot computes as long as a full one."""
    slots, made = Slots(packs_at_once=2), group(0, 1, 2, n_slots=2)
    slots.refill(made)
    assert slots_of(made) == [[0, 2], [1, None]]
    made.packs[0].evict(2)
    slots.refill(made, all_asked=False)
    assert len(made.packs) == 2
    slots.refill(made, all_asked=True)
    (held,) = [row for row in slots_of(made) if row != [None, None]]
    assert sorted(n for n in held if n is not None) == [0, 1]
    for number in (0, 1):
        (pack,) = made.packs
        found = pack.states()[number].trainable[0]
        np.testing.assert_array_equal(found, state(number).trainable[0])


def test_a_suspect_trains_alone_at_the_epoch_that_did_not_end() -> None:
    slots, made = Slots(packs_at_once=1, suspects={1: 0, 2: 3}), group(0, 1, 2)
    (pack,) = slots.refill(made)
    assert numbers(pack.live) == [1], "2 is suspected of its fourth epoch only"
    assert sorted(numbers(made.queue)) == [0, 2]
    pack.evict(1)
    slots.refill(made)
    assert sorted(n for row in slots_of(made) for n in row if n is not None) == [0, 2]


def test_suspects_are_those_of_the_moment() -> None:
    """The search adds to them while packs train."""
    suspects: dict[int, int] = {}
    slots, made = Slots(suspects=suspects), group(0, 1)
    slots.refill(made)
    suspects[1] = 0
    (pack,) = slots.refill(made)
    assert numbers(pack.live) == [1]


# -- whose turn it is ------------------------------------------------------------------------------


def test_groups_in_slots_train_on_while_another_is_compiled() -> None:
    slots, one, two = Slots(), group(0, n_slots=8, name="one"), group(1, name="two")
    slots.refill(one)
    two.asked_round = 5
    turn = slots.allocator.groups_in_turn
    assert turn([one, two], 6) == [one]
    assert turn([one, two], 14) == [one]
    assert turn([one, two], 15) == [one, two], "after ten rounds its program is waited for"


def test_no_further_group_begins_where_half_of_the_slots_are_filled() -> None:
    slots, two = Slots(), group(9, name="two")
    for n, expected in ((3, 2), (4, 1)):
        one = group(*range(n), n_slots=8, name="one")
        assert len(slots.allocator.groups_in_turn([one, two], 99)) == expected


def turns(*, by_time: bool = True, closing: bool = False) -> Any:
    """By what trials take their turn."""
    found = demand()
    found.by_time, found.closing = by_time, closing
    return found.turn_of


@pytest.mark.parametrize("by_time", [False, True])
def test_where_time_may_end_a_search_the_group_comes_next_whose_trial_began_first(
    by_time: bool,
) -> None:
    def turn(*groups: Any) -> list[str]:
        found = slots.allocator.groups_in_turn(list(groups), 99, turns(by_time=by_time))
        return [group.name for group in found]

    slots = Slots(packs_at_once=2)
    one, two, three = (
        group(*of, n_slots=1, name=name)
        for name, of in (("one", (0, 7, 8, 9)), ("two", (5,)), ("three", (3,)))
    )
    slots.refill(one)
    assert slots_of(one) == [[0], [7]]
    one.packs[1].evict(7)
    # Trials 8 and 9 could take the free slot again and again, while 3 and 5 wait.
    assert turn(one, two, three) == (["one", "three"] if by_time else ["one"])
    one.packs[0].evict(0)
    one.queue.appendleft(trial(0, epoch=1))  # one that continues began before all others
    assert turn(one, two, three) == (["one", "three"] if by_time else ["one"])
    one.queue.popleft()
    assert turn(one, two, three) == (["two", "three"] if by_time else ["one"])


def trained(slots: Slots, groups: list[Any], number: int) -> list[Any]:
    """The groups that get slots in a round where time may end the search, and that train."""
    turn_of = turns()
    turn = slots.allocator.groups_in_turn(groups, number, turn_of)
    ready = slots.allocator.fitting(turn, slots.fail, turn_of)
    only = slots.allocator.in_turn(groups, ready, number, turn_of)
    for each in ready:
        slots.allocator.refill(each, False, only)
    return ready


def test_later_trials_in_slots_keep_no_group_out() -> None:
    """Trials of four epochs that begin one after another: three slots of four are always taken."""
    room = {n: SlotCapacity(2, 1.0, 1, 9.0) for n in (1, 2)}
    slots = Slots(packs_at_once=2, room=room)
    common, rare = group(0, 1, 2, 4, n_slots=2, name="common"), group(3, n_slots=2, name="rare")
    slots.refill(common)
    for number in range(5, 20):
        common.queue.append(trial(number))
        if rare in trained(slots, [common, rare], 99 + number):
            break
        assert all(t.number < 5 for t in common.live), "slots stay free for trial 3"
        oldest = min((each.number, pack) for pack in common.packs for each in pack.live)
        oldest[1].evict(oldest[0])
    assert numbers(rare.live) == [3]


def test_in_the_last_part_of_the_time_leaders_come_before_trials_without_an_epoch() -> None:
    slots = Slots(packs_at_once=2)
    waiting, leaders = group(3, 4, 5, 6, name="waiting"), group(name="leaders")
    leaders.queue.extend([trial(40, epoch=6), trial(41, epoch=6)])  # they were paused
    turn = slots.allocator.groups_in_turn
    assert turn([leaders, waiting], 99, turns()) == [waiting]
    assert turn([leaders, waiting], 99, turns(closing=True)) == [leaders]
    slots.refill(waiting)  # they have begun, and are about to train their first epoch
    assert turn([leaders, waiting], 99, turns(closing=True)) == [leaders, waiting]


def test_slots_stay_free_for_a_group_that_waits_unless_its_program_is_being_compiled() -> None:
    slots = Slots(packs_at_once=2, room={2: SlotCapacity(1, 1.0, 1, 9.0)})
    common, rare = group(0, 1, 7, n_slots=1, name="common"), group(5, n_slots=1, name="rare")
    slots.refill(common)
    common.packs[0].began = common.packs[1].began = 0.0
    in_turn = slots.allocator.in_turn
    assert in_turn([common, rare], [common], 99, turns()) == {0, 1}
    assert in_turn([common, rare], [common, rare], 99, turns()) == {0, 1, 5, 7}
    rare.asked_round = 95
    assert in_turn([common, rare], [common], 99, turns()) == {0, 1, 7}


# -- too little memory -----------------------------------------------------------------------------


def test_a_program_that_does_not_fit_gets_as_many_slots_as_do() -> None:
    slots, made = Slots(room={1: SlotCapacity(2, 100.0, 1, 250.0)}), group(0, n_slots=8)
    assert not slots.allocator.fits(made, slots.fail)
    assert (made.most_slots, made.program) == (2, None)
    assert slots.notes == ["the device's memory holds 2 slots per pack of this program, not 8"]
    assert numbers(made.queue) == [0]


def test_a_program_that_fits_is_left_as_it_is() -> None:
    slots, made = Slots(room={1: SlotCapacity(8, 100.0, 1, 9e9)}), group(0, n_slots=8)
    assert slots.allocator.fits(made, slots.fail)
    assert made.most_slots is None and made.program is not None


def test_one_lane_is_tried_before_slots_are_given_up() -> None:
    room = {2: SlotCapacity(0, 1.0, 1, 1.0), 1: SlotCapacity(8, 1.0, 1, 1.0)}
    slots, made = Slots(packs_at_once=2, room=room), group(0, n_slots=8)
    assert slots.allocator.fits(made, slots.fail)
    assert slots.planner.packs_at_once == 1


def test_slots_that_the_user_gave_are_refused_with_the_sizes() -> None:
    room = {1: SlotCapacity(2, 1000.0, 1, 2500.0)}
    slots, made = Slots(room=room, chooses_slots=False), group(0, n_slots=8)
    found = r"8 slots need 8 kB next to the data, but only 2.5 kB are free. Use at most 2\."
    with pytest.raises(paceline.UsageError, match=found):
        slots.allocator.fits(made, slots.fail)


def test_where_not_even_one_trial_fits_all_that_wait_fail() -> None:
    slots, made = Slots(room={1: SlotCapacity(0, 3e9, 1, 2e9)}), group(0, 1)
    assert not slots.allocator.fits(made, slots.fail)
    assert list(slots.failed) == [0, 1] and not made.queue
    assert "one trial needs 3 GB next to the data, but only 2 GB are free" in str(slots.failed[1])


def on_device(slots: Slots, made: Any) -> Any:
    """A group of which a pack has begun."""
    slots.refill(made)
    made.packs[0]._state = []
    return made


def test_a_group_waits_while_others_hold_the_memory_and_only_then_is_judged() -> None:
    slots = Slots(room={1: SlotCapacity(0, 3e9, 1, 2e9)})
    held, large, third = (group(n, name=name) for n, name in enumerate("abc"))
    slots.share(held, large, third)
    on_device(slots, held)
    assert slots.allocator.fitting([large, held], slots.fail) == [held]
    assert slots.beside == [["a"], ["a"]] and slots.failed == {} and large.program is not None
    assert numbers(large.queue) == [1] and large.most_slots is None
    assert "so trials of b wait for others" in slots.notes[0]
    held.packs[0].evict(0)
    assert slots.allocator.fitting([large], slots.fail) == []
    assert list(slots.failed) == [1], "alone it does not fit either"
    assert not held.packs, "nobody uses its arrays"


def test_groups_that_begin_in_one_round_count_for_each_other() -> None:
    slots = Slots(room={1: SlotCapacity(2, 1.0, 1, 9.0)})
    one, two = group(0, name="a"), group(1, name="b")
    slots.share(one, two)
    assert slots.allocator.fitting([one, two], slots.fail) == [one]
    assert slots.failed == {} and numbers(two.queue) == [1]


def test_in_a_resumed_search_groups_in_slots_go_on_before_one_that_waited() -> None:
    """A checkpoint puts trials into their slots, and nothing is on the device yet."""
    slots = Slots(room={1: SlotCapacity(2, 1.0, 1, 9.0)})
    waited, one, two = group(7, name="waited"), group(0, name="one"), group(1, name="two")
    slots.share(waited, one, two)
    for each in (one, two):
        slots.refill(each)
    assert slots.allocator.fitting([waited, one, two], slots.fail) == [one, two]
    assert slots.failed == {} and numbers(waited.queue) == [7]


def test_where_memory_ran_out_beside_others_trials_train_again_alone() -> None:
    """With as many slots: that the others were there may be the reason."""
    slots = Slots(halves=False, room={1: SlotCapacity(2, 1.0, 1, 9.0)})
    one, two = group(0, name="a"), group(1, name="b")
    slots.share(one, two)
    on_device(slots, one)
    (pack,) = slots.refill(two)
    assert not slots.allocator.recover(two, pack, OUT_OF_MEMORY, slots.fail)
    assert slots.failed == {} and numbers(two.queue) == [1] and two.most_slots is None
    assert slots.allocator.waits(two) and slots.allocator.fitting([one, two], slots.fail) == [one]
    one.packs.clear()
    (pack,) = slots.refill(two)
    assert not slots.allocator.waits(two)
    assert slots.allocator.waits(one, [two]), "it begins beside no group that must be alone"
    assert not slots.allocator.recover(two, pack, OUT_OF_MEMORY, slots.fail)
    assert slots.failed == {1: OUT_OF_MEMORY}


@pytest.mark.parametrize("alone", [False, True])
def test_where_time_may_end_a_search_no_trial_begins_before_one_that_waits_for_memory(
    alone: bool,
) -> None:
    slots = Slots(room={1: SlotCapacity(4, 1.0, 1, 9.0)})
    common, rare, late = (
        group(*of, n_slots=4, name=name)
        for name, of in (("common", (0, 1)), ("rare", (2,)), ("late", (3,)))
    )
    slots.share(common, rare, late)
    on_device(slots, common)
    common.alone = alone  # memory ran out beside others
    groups = [late, common, rare]
    for number in range(4, 7):
        common.queue.append(trial(number))
        assert trained(slots, groups, 99) == [common]
        assert all(t.number < 2 for t in common.live)
        common.packs[0].evict(min(each.number for each in common.live))
        if not common.live:
            break
    # Trials of the other two began later, and wait.
    assert trained(slots, groups, 99) == [rare]
    assert [numbers(each.live) for each in groups] == [[], [], [2]]


def test_packs_of_one_group_that_ran_out_train_one_after_another() -> None:
    slots = Slots(packs_at_once=2, halves=False)
    made = group(0, 1, n_slots=1)
    slots.share(made)
    _, second = on_device(slots, made).packs
    assert not slots.allocator.recover(made, second, OUT_OF_MEMORY, slots.fail, [made])
    assert slots.failed == {} and slots.allocator.waits(made, [made])


def test_trials_of_a_pack_that_ran_out_of_memory_wait_first_with_their_state() -> None:
    slots, made = Slots(), group(0, 1, 2)
    slots.refill(made)
    assert slots.allocator.recover(made, made.packs[0], OUT_OF_MEMORY, slots.fail)
    assert numbers(made.queue) == [0, 1, 2]
    assert not slots.failed and not made.packs
    np.testing.assert_array_equal(made.queue[1].state.trainable[0], state(1).trainable[0])


@pytest.mark.parametrize(
    ("error", "halves"), [(RuntimeError("INTERNAL: broken"), True), (OUT_OF_MEMORY, False)]
)
def test_any_other_error_and_one_without_a_way_out_fails_the_packs_trials(
    error: Exception, halves: bool
) -> None:
    slots, made = Slots(halves=halves), group(0, 1, 2)
    slots.refill(made)
    drivers = [FakeDriver(), FakeDriver()]
    for each, driver in zip(made.packs[0].live, drivers, strict=True):
        each.driver = driver  # type: ignore[assignment]
    assert not slots.allocator.recover(made, made.packs[0], error, slots.fail)
    assert slots.failed == {0: error, 1: error}
    assert [driver.calls for driver in drivers] == [["abandon"]] * 2
    assert numbers(made.queue) == [2]


def test_a_pack_that_was_dropped_while_it_trained_fails_without_harm() -> None:
    """Its trials have been withdrawn, and another group needed the memory of packs without any."""
    slots, made = Slots(), group(0)
    slots.share(made)
    (pack,) = slots.refill(made)
    pack.evict(0)
    slots.sharers.drop_unused(SimpleNamespace())  # type: ignore[arg-type]
    assert not made.packs
    slots.allocator.recover(made, pack, OUT_OF_MEMORY, slots.fail)
    assert slots.failed == {}


@pytest.mark.parametrize("error", [paceline.DataError("batch 3 is empty"), KeyboardInterrupt("^C")])
def test_an_error_that_concerns_all_trials_fails_none(error: BaseException) -> None:
    slots, made = Slots(), group(0)
    slots.refill(made)
    with pytest.raises(type(error), match=r"batch 3 is empty|\^C"):
        slots.allocator.recover(made, made.packs[0], error, slots.fail)
    assert not slots.failed


def test_slots_are_halved_and_those_in_them_wait_first() -> None:
    slots, made = Slots(packs_at_once=2), group(*range(5), n_slots=2)
    slots.refill(made)
    made.next_program = made.program
    slots.allocator.halve(made)
    assert made.most_slots == 1
    assert (made.program, made.next_program, made.packs) == (None, None, [])
    assert sorted(numbers(made.queue)[:4]) == [0, 1, 2, 3] and numbers(made.queue)[4] == 4
    assert slots.planner.packs_at_once == 2
    assert "memory holds 1 slots per pack" in slots.notes[0]


def test_a_single_slot_is_halved_by_training_one_pack_at_a_time() -> None:
    slots, made = Slots(packs_at_once=2), group(0, 1, n_slots=1)
    slots.refill(made)
    slots.allocator.halve(made)
    assert (made.most_slots, slots.planner.packs_at_once) == (1, 1)


# -- how many trials should be ready ---------------------------------------------------------------


def demand(*groups: Any, in_order: bool = False, slots: int = 4) -> TrialDemand:
    waiting = sum(len(each.queue) for each in groups)
    grouper: Any = SimpleNamespace(groups=list(groups), waiting=waiting)
    planner: Any = FakePlanner(slots=slots)
    return TrialDemand(planner, grouper, in_order=in_order)


def test_training_waits_until_the_slots_can_be_filled() -> None:
    assert demand(group(0, 1, 2)).hungry
    assert not demand(group(0, 1, 2, 3)).hungry


def test_with_two_programs_more_trials_are_waited_for() -> None:
    several = [group(*range(8), name="one"), group(8, name="two")]
    assert demand(*several).hungry
    assert not demand(group(*range(8)), group(*range(8, 16))).hungry


def test_in_order_twice_as_many_are_looked_at_before_the_first_compile() -> None:
    assert demand(group(*range(7), n_slots=None), in_order=True).hungry
    assert not demand(group(*range(7), n_slots=2), in_order=True).hungry


def test_trials_are_prepared_for_four_fillings_of_the_slots() -> None:
    assert demand(group(*range(15))).room
    assert not demand(group(*range(16))).room


def test_three_trials_of_one_program_are_enough_to_compile_it_and_full_slots_in_order() -> None:
    made = group(0, 1, 2)
    assert demand(made).is_sure(made)
    assert not demand(made, group(3)).is_sure(made)
    assert not demand(made, in_order=True).is_sure(made)
    full = group(*range(4))  # half of what training waits for: the rest is built meanwhile
    assert not demand(full, in_order=True).is_sure(full)  # a grid
    for others in ((), (group(4),)):
        fits = demand(full, *others, in_order=True)
        fits.early = True
        assert fits.is_sure(full) == (not others)
    few = group(0, 1)
    assert not demand(few).is_sure(few)
    few.n_seen = 3  # models at the ends of the space were traced
    found = demand(few)
    found.uniform = True
    assert found.is_sure(few)


def test_among_several_a_program_is_known_by_three_trials_or_by_one_that_trains_alone() -> None:
    three, one = group(0, 1, 2), group(3)
    found = demand(three, one)
    found.continuous = True
    assert found.is_known(three, alone=False)
    assert not found.is_known(one, alone=False)
    assert found.is_known(one, alone=True)
    assert not demand(three, one, in_order=True).is_known(three, alone=True)
    assert not demand(three).is_known(three, alone=True), "others may differ in other constants"


def test_numbers_of_few_values_take_six_trials_to_differ() -> None:
    made, five = group(*range(6)), group(*range(6, 11))
    assert demand(made, five).is_known(made, alone=False)
    assert not demand(made, five).is_known(five, alone=False)


def test_a_program_is_compiled_for_its_share_of_the_trials_that_are_to_come() -> None:
    three, two, one = group(0, 1, 2), group(3, 4), group(5)
    found = demand(three, two, one)
    found.expected = 6 + 60
    # A sixth of those to come is new, and half of the others is like the first three.
    assert found.of_known(three) == (16, 3 + 25)
    found.expected = 6
    assert found.of_known(three) == (3, 3), "no fewer than wait"


def test_where_no_two_trials_are_alike_none_to_come_is_expected_to_be() -> None:
    one, other = group(0), group(1)
    found = demand(one, other)
    found.expected = 24
    assert found.of_known(one) == (1, 1)


def test_epochs_left_count_the_trials_to_come() -> None:
    made = group()
    made.queue.extend([trial(0, epochs=9, epoch=4), trial(1, epochs=7)])
    found = demand(made)
    found.expected = 5
    found.expect_members(1)
    assert found.unasked == 2, "five to come, of which two wait and one is being taken in"
    assert found.epochs_left(made.trials) == 5 + 7 + 2 * 9


def test_as_many_are_got_ready_as_slots_become_free_in_an_epoch() -> None:
    made = group()
    made.queue.extend(trial(number, epochs=9, epoch=5) for number in range(4))
    assert demand(made).ahead(steady=True) == 1, "in four epochs, four slots"
    assert demand(made).ahead(steady=False) == 4


@pytest.mark.parametrize(
    ("epochs", "convolves", "loops", "long"),
    [
        (0.1, False, False, False),
        (1.0, False, False, True),
        (0.1, True, False, True),  # nobody knows what these cost
        (0.1, False, True, True),
    ],
)
def test_trials_train_long_if_a_program_compiles_meanwhile(
    epochs: float, convolves: bool, loops: bool, long: bool
) -> None:
    def step(a: Any, b: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda i, c: c @ b, a) if loops else a @ b

    square = jax.ShapeDtypeStruct((1000, 1000), np.float32)
    full = SimpleNamespace(
        closed=jax.make_jaxpr(step)(square, square),
        canonical=SimpleNamespace(convolves=convolves),
    )
    met = SimpleNamespace(
        name="p",
        queue=[],
        train=SimpleNamespace(full=full),
        work=SimpleNamespace(steps=94),  # of 2 GFLOP
    )
    assert demand(group(0), met).trains_long("p", epochs) is long
