"""What a checkpoint holds of the packs, and putting them back as they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from paceline.executor.intake import Group
from paceline.pack import Rider
from paceline.program.group import Role
from paceline.program.trace import State

Facts = dict[str, Any]
Arrays = dict[str, np.ndarray]


def taken(group: Group, parked: Iterable[tuple[Rider, State]], arrays: Arrays, index: int) -> Facts:
    """What a group is, as JSON values; its trials' variables are put into ``arrays``.

    Args:
        group: Between two epochs.
        parked: Its paused trials, and their states.
        arrays: Name -> array, added to.
        index: Of the group, for names.
    """
    paused = list(parked)
    packs = []
    for at, pack in enumerate(group.packs):
        riders = pack.live
        packs.append([None if rider is None else rider.number for rider in pack.riders])
        states = pack.states()
        for rider in riders:
            put(f"pack{index}.{at}.{rider.number}", states[rider.number], arrays)
    waiting = [(rider, rider.state) for rider in group.queue if rider.epoch]
    for rider, state in [*waiting, *paused]:
        assert state is not None
        put(f"wait.{rider.number}", state, arrays)
    program = group.program
    riders = [*group.queue, *(rider for pack in group.packs for rider in pack.live)]
    riders += [rider for rider, _ in paused]
    return {
        "name": group.name,
        "example": group.example,
        "seen": group.n_seen,
        "trials": group.n_trials,
        "most_slots": group.most_slots,
        "settled": group.choice is None or group.choice.settled is not None,
        "program": None
        if program is None
        else {"plan": program.plan, "slots": program.n_slots, "quick": program.quick},
        "roles": [_role(role) for role in group.roles],
        "packs": packs,
        "queue": [rider.number for rider in group.queue],
        "parked": [rider.number for rider, _ in paused],
        "epochs": {str(rider.number): rider.epoch for rider in riders},
    }


def emptied(facts: Facts) -> Facts:
    """What a checkpoint holds of the programs alone: all trials under way begin again."""
    nobody: Facts = {"packs": [], "queue": [], "parked": [], "epochs": {}}
    return {**facts, "groups": [{**group, **nobody} for group in facts["groups"]]}


def put(name: str, state: State, arrays: Arrays) -> None:
    """Names the arrays of a trial's state."""
    for part, leaves in enumerate(state.lists()):
        for at, leaf in enumerate(leaves):
            arrays[f"{name}.{part}.{at}"] = np.asarray(leaf)


def state_of(name: str, like: State, arrays: Mapping[str, np.ndarray]) -> State | None:
    """A trial's state; None where it is not there, or of another shape than the group's."""
    lists: list[list[np.ndarray]] = []
    for part, leaves in enumerate(like.lists()):
        found = [arrays.get(f"{name}.{part}.{at}") for at in range(len(leaves))]
        for one, leaf in zip(found, leaves, strict=True):
            if one is None or one.shape != leaf.shape or one.dtype != leaf.dtype:
                return None
        lists.append([one for one in found if one is not None])
    return State(*lists)


def restore_roles(group: Group, facts: Sequence[Facts]) -> bool:
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


def riders_of(
    group: Group, facts: Facts, arrays: Mapping[str, np.ndarray], index: int
) -> tuple[dict[int, Rider], list[int]]:
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
            continue  # a member that has been trained to its end
        if epoch:
            state = state_of(names[rider.number], group.state, arrays)
            if state is None:
                lost.append(rider.number)
            else:
                rider.state, rider.epoch = state, epoch
        found[rider.number] = rider
    return found, lost


def _role(role: Role) -> Facts:
    return {
        "constants": len(role.full.canonical.constants),
        "observed": sorted(role.observed),
        "lifted": list(role.lifted),
        "settled": role.settled,
        "widened": role.widened,
    }
