"""What snapshots hold, put back: groups, inputs of their steps, and trials with their states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from paceline.data.inputs import TrialInputs
from paceline.executor.base import OtherModels
from paceline.executor.grouping import Group, TrialGrouper
from paceline.pack.pack import SlotTrial
from paceline.program.canonical import Unpackable
from paceline.program.files import get_parts
from paceline.program.trace import State

#: JSON values.
Facts = dict[str, Any]
#: Name -> array.
Arrays = dict[str, np.ndarray]
#: Given a trial's number: its model, its inputs and what builds models like it (``Job.widths``);
#: None where there is no such trial, or it cannot be built.
Example = Callable[[int], tuple[Any, TrialInputs, OtherModels | None] | None]


def found_again(grouper: TrialGrouper, facts: Facts, example: Example) -> None:
    """Has the trials show once more who rides that showed it first; others may show otherwise.

    ``grouper`` has met no trial yet; ``facts`` are what ``snapshot`` returned.
    """
    for job in facts["founders"]:
        made = example(job)
        with suppress(Unpackable):
            if made is not None:
                grouper.pretrace(*made)


def group_of(grouper: TrialGrouper, was: Facts, example: Example) -> Group | None:
    """The group that facts are about, found by its trials, or by the model of an ended one."""
    numbers = {int(number) for number in was["epochs"]}
    for group in grouper.groups:
        if any(trial.number in numbers for trial in group.queue):
            return group if group.name == was["name"] else None
    made = None if numbers or was["example"] is None else example(was["example"])
    if made is None:
        return None
    try:
        group = grouper.pretrace(*made)
    except Unpackable:
        return None
    return group if group is not None and group.name == was["name"] else None


def state_of(name: str, like: State, arrays: Mapping[str, np.ndarray]) -> State | None:
    """The state under a name; None if arrays are missing, or have other shapes than ``like``."""
    try:
        parts = get_parts(name, [len(leaves) for leaves in like.lists()], arrays)
    except KeyError:
        return None
    return state_like(like, parts)


def state_like(like: State, parts: Sequence[Sequence[np.ndarray]]) -> State | None:
    """Arrays as a state; None if there are fewer, or one has another shape or dtype than ``like``.

    ``parts`` are trainable, non-trainable, optimizer and metric variables.
    """
    if [len(leaves) for leaves in like.lists()] != [len(found) for found in parts]:
        return None
    for leaves, found in zip(like.lists(), parts, strict=True):
        for one, leaf in zip(found, leaves, strict=True):
            if one.shape != leaf.shape or one.dtype != leaf.dtype:
                return None
    return State(*[list(found) for found in parts])


def restore_roles(group: Group, facts: Sequence[Facts]) -> bool:
    """Gives a group's steps the inputs that they had; False if they are other steps now."""
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


def restored_trials(
    group: Group, facts: Facts, arrays: Mapping[str, np.ndarray], index: int
) -> tuple[dict[int, SlotTrial], list[int]]:
    """A group's trials by number, with their states, and the numbers of those that begin again."""
    names = array_names(facts, index)
    found, lost = {}, []
    for trial in group.queue:
        epoch = facts["epochs"].get(str(trial.number), 0)
        held = facts.get("held", {}).get(str(trial.number), epoch)
        if trial.number not in names:
            pass  # the trial had another program, which has become this one: it begins again
        elif held:
            state = state_of(names[trial.number], trial.shapes(group.state), arrays)
            if state is None:
                lost.append(trial.number)
            else:
                trial.state, trial.epoch, trial.known = state, held, epoch
                kept = facts.get("callbacks", {}).get(str(trial.number))
                if trial.driver is not None and kept is not None:
                    trial.driver.restore(f"callbacks.{trial.number}", kept, arrays)
        else:
            trial.known = epoch
            if trial.driver is not None:
                trial.driver.take_back_logs(facts.get("logs", {}).get(str(trial.number), {}))
        found[trial.number] = trial
    return found, lost


def array_names(facts: Facts, index: int) -> dict[int, str]:
    """The names that the arrays of a group's trials begin with, by number."""
    names = {number: f"wait.{number}" for number in [*facts["queue"], *facts["parked"]]}
    for at, pack in enumerate(facts["packs"]):
        names |= {number: f"pack{index}.{at}.{number}" for number in pack if number is not None}
    return names
