"""What a checkpoint holds of the packs, and putting them back as they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from paceline.data.trial_inputs import TrialInputs
from paceline.executor.group import Group, RestoredProgram
from paceline.executor.grouping import TrialGrouper
from paceline.executor.paused import PausedStates
from paceline.executor.plan_choice import Candidate
from paceline.executor.planner import Planner, layout_of, trying
from paceline.pack.callbacks.state import UnsavedAttributes
from paceline.pack.pack import Pack, SlotTrial
from paceline.program.canonical import Unpackable
from paceline.program.state_arrays import get_parts, put_parts
from paceline.program.step_template import StepTemplate
from paceline.program.trace import State

Facts = dict[str, Any]
Arrays = dict[str, np.ndarray]
_NOBODY: Facts = {"packs": [], "queue": [], "parked": [], "epochs": {}, "callbacks": {}}
#: The model of a trial, by number, and its setting; None where there is none.
Example = Callable[[int], tuple[Any, TrialInputs] | None]


class PackSnapshots:
    """Saves the packs of an executor, and puts them back.

    Args:
        intake: Knows the groups.
        planner: Compiles them.
        parking: Holds the states of paused trials.
        parked_in: Paused trial -> its group.
        new_pack: Makes an empty pack of a group.
    """

    def __init__(
        self,
        intake: TrialGrouper,
        planner: Planner,
        parking: PausedStates,
        parked_in: dict[int, Group],
        new_pack: Callable[[Group], Pack],
    ) -> None:
        self._intake, self._planner, self._new_pack = intake, planner, new_pack
        self._parking, self._parked_in = parking, parked_in
        self._losses = UnsavedAttributes(planner.say)

    def taken(self, arrays: Arrays, lasting: dict[str, Arrays]) -> Facts:
        """All trials under way; see ``LocalExecutor.snapshot``."""
        found = self._taken(arrays)
        for number in self._parked_in:
            state = self._parking.peek(number)
            lasts = lasting.setdefault(self._parking.key(number), {})
            put_parts(f"wait.{number}", state.lists(), lasts)
        for group in found["groups"]:
            for driver in group["callbacks"].values():
                self._losses.say(driver["callbacks"])
        return found

    def states(self) -> dict[int, tuple[int, State]]:
        """Epoch and variables of trials that can go on with them alone, by number.

        Not of those that have trained nothing, are paused, or have callbacks.
        """
        found: dict[int, tuple[int, State]] = {}
        for group in self._intake.groups:
            states = [(r, r.state) for r in group.queue]
            for pack in group.packs:
                there = pack.states()
                states += [(rider, there[rider.number]) for rider in pack.live]
            for rider, state in states:
                if state is not None and rider.epoch and rider.driver is None:
                    found[rider.number] = rider.epoch, state
        return found

    def _taken(self, arrays: Arrays) -> Facts:
        riders = {rider.number: rider for rider in self._parking.riders}
        paused: dict[int, list[int]] = {}
        for number, group in self._parked_in.items():
            paused.setdefault(id(group), []).append(number)
        return {
            "device": self._planner.signature,
            "groups": [
                _taken(group, [riders[n] for n in paused.get(id(group), ())], arrays, at)
                for at, group in enumerate(self._intake.groups)
            ],
        }

    def programs_taken(self) -> Facts:
        """The programs alone."""
        groups = [{**_program_of(group), **_NOBODY} for group in self._intake.groups]
        return {"device": self._planner.signature, "groups": groups}

    def restore(self, facts: Facts, arrays: Arrays, example: Example) -> list[int]:
        """Puts trials that have been submitted back; see ``LocalExecutor.restore``."""
        order, lost = [], []
        for at, was in enumerate(facts["groups"]):
            group = self._group_of(was, example)
            if group is None or not _restore_roles(group, was["roles"]):
                lost += [int(number) for number, epoch in was["epochs"].items() if epoch]
                continue
            order.append(group)
            group.n_seen, group.n_trials = was["seen"], was["trials"]
            group.example, group.most_slots = was["example"], was["most_slots"]
            riders, again = _riders_of(group, was, arrays, at)
            lost += again
            group.queue.clear()
            for number in was["parked"]:
                if number in riders and number not in again:
                    self._parking.put(riders.pop(number))
                    self._parked_in[number] = group
            program = was["program"]
            if program is not None and facts["device"] == self._planner.signature:
                candidate = Candidate(program["plan"], program["slots"])
                group.again = RestoredProgram(candidate, program["quick"], program["layout"])
                if riders:
                    self._planner.compile_again(group)
                    self._seat(group, was["packs"], riders)
            group.met = was["met"]
            waiting = [number for number in was["queue"] if number in riders]
            group.queue.extend(riders[n] for n in riders if n not in waiting)
            group.queue.extend(riders[n] for n in waiting)
        self._intake.reorder(order)
        return lost

    def _seat(
        self, group: Group, packs: list[list[int | None]], riders: dict[int, SlotTrial]
    ) -> None:
        """Puts trials into the slots that they had."""
        for numbers in packs[: self._planner.lanes]:
            pack = self._new_pack(group)
            group.packs.append(pack)
            for slot, number in enumerate(numbers):
                if number in riders:
                    pack.admit(riders.pop(number), slot)

    def _group_of(self, was: Facts, example: Example) -> Group | None:
        """The group that facts are about: of its trials, or of the model of an ended one."""
        numbers = {int(number) for number in was["epochs"]}
        for group in self._intake.groups:
            if any(rider.number in numbers for rider in group.queue):
                return group if group.name == was["name"] else None
        made = None if numbers else example(was["example"])
        if made is None:
            return None
        try:
            group = self._intake.study(*made)
        except Unpackable:
            return None
        return group if group is not None and group.name == was["name"] else None


def _taken(group: Group, paused: Sequence[SlotTrial], arrays: Arrays, index: int) -> Facts:
    """What a group is, as JSON values; variables of its trials are put into ``arrays``.

    Args:
        group: Between two epochs.
        paused: Its paused trials, whose variables are put elsewhere.
        arrays: Name -> array, added to.
        index: Of the group, for names.
    """
    packs = []
    for at, pack in enumerate(group.packs):
        riders = pack.live
        packs.append([None if rider is None else rider.number for rider in pack.riders])
        states = pack.states()
        for rider in riders:
            put_parts(f"pack{index}.{at}.{rider.number}", states[rider.number].lists(), arrays)
    waiting = [(rider, rider.state) for rider in group.queue if rider.epoch]
    for rider, state in waiting:
        assert state is not None
        put_parts(f"wait.{rider.number}", state.lists(), arrays)
    riders = [*group.riders, *paused]
    return {
        **_program_of(group),
        "packs": packs,
        "queue": [rider.number for rider in group.queue],
        "parked": [rider.number for rider in paused],
        "epochs": {str(rider.number): rider.epoch for rider in riders},
        "callbacks": {
            str(rider.number): rider.driver.saved(f"callbacks.{rider.number}", arrays)
            for rider in riders
            if rider.driver is not None and rider.epoch
        },
    }


def _program_of(group: Group) -> Facts:
    """What a group is, its trials left out."""
    # One that is being tried out is not gone on with: the rules choose again.
    program = None if trying(group) else group.program
    layout = None if program is None else layout_of(program)
    return {
        "name": group.name,
        "example": group.example,
        "seen": group.n_seen,
        "trials": group.n_trials,
        "most_slots": group.most_slots,
        "program": None
        if program is None
        else {
            "plan": program.plan,
            "slots": program.n_slots,
            "quick": program.quick,
            "layout": None if layout is None else [layout.trial, layout.data],
        },
        "met": group.met,
        "roles": [_role(role) for role in group.roles],
    }


def _state_of(name: str, like: State, arrays: Mapping[str, np.ndarray]) -> State | None:
    """A trial's state; None where it is not there, or of another shape than the group's."""
    try:
        parts = get_parts(name, [len(leaves) for leaves in like.lists()], arrays)
    except KeyError:
        return None
    return state_like(like, parts)


def state_like(like: State, parts: Sequence[Sequence[np.ndarray]]) -> State | None:
    """Arrays as a state; None where some are missing, or have another shape than in ``like``."""
    if [len(leaves) for leaves in like.lists()] != [len(found) for found in parts]:
        return None
    for leaves, found in zip(like.lists(), parts, strict=True):
        for one, leaf in zip(found, leaves, strict=True):
            if one.shape != leaf.shape or one.dtype != leaf.dtype:
                return None
    return State(*[list(found) for found in parts])


def _restore_roles(group: Group, facts: Sequence[Facts]) -> bool:
    """Gives a group's steps the inputs that they had; False where they are other steps now."""
    if len(facts) != len(group.roles):
        return False
    for role, was in zip(group.roles, facts, strict=True):
        if was["constants"] != len(role.full.canonical.constants):
            return False
    for role, was in zip(group.roles, facts, strict=True):
        role.observed = set(was["observed"])
        role.lifted = tuple(was["lifted"])
        role.settled, role.widened = was["settled"], was["widened"]
    return True


def _riders_of(
    group: Group, facts: Facts, arrays: Mapping[str, np.ndarray], index: int
) -> tuple[dict[int, SlotTrial], list[int]]:
    """A group's trials, each with the state that it had.

    Returns:
        Number -> trial, and the numbers of those that must begin again.
    """
    names = {number: f"wait.{number}" for number in [*facts["queue"], *facts["parked"]]}
    for at, pack in enumerate(facts["packs"]):
        names |= {number: f"pack{index}.{at}.{number}" for number in pack if number is not None}
    found, lost = {}, []
    for rider in group.queue:
        epoch = facts["epochs"].get(str(rider.number), 0)
        if rider.number not in names:
            pass  # it had another program, which has become this one: it begins again
        elif epoch:
            state = _state_of(names[rider.number], group.state, arrays)
            if state is None:
                lost.append(rider.number)
            else:
                rider.state, rider.epoch = state, epoch
                kept = facts.get("callbacks", {}).get(str(rider.number))
                if rider.driver is not None and kept is not None:
                    rider.driver.restore(f"callbacks.{rider.number}", kept, arrays)
        found[rider.number] = rider
    return found, lost


def _role(role: StepTemplate) -> Facts:
    return {
        "constants": len(role.full.canonical.constants),
        "observed": sorted(role.observed),
        "lifted": list(role.lifted),
        "settled": role.settled,
        "widened": role.widened,
    }
