"""Jobs between two epochs: how snapshots for checkpoints hold them and their groups.

A snapshot is ``PackFacts`` (facts.py) and a dictionary of arrays. The variables of a job are named
``job.{number}.{part}.{leaf}``; parts 0 to 3 are its trainable, non-trainable, optimizer and metric
variables. Arrays of its callbacks are named ``callbacks.{number}...``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.data.inputs import TrialInputs
from paceline.executor.base import Parts, SiblingModelBuilder
from paceline.executor.sharing.grouping import G, TrialGroup, TrialGrouper
from paceline.executor.state.facts import GroupFacts, ProgramFacts, SharingFacts, TemplateFacts
from paceline.program.canonical import Unpackable
from paceline.program.files import get_parts, put_parts
from paceline.program.step_template import StepTemplate
from paceline.program.trace import State

#: Name -> array.
Arrays = dict[str, np.ndarray]
#: Given a job's number: its model, its inputs and its builder (``Job.widths``). None if there is no
#: such job, or it cannot be built.
Example = Callable[[int], tuple[Any, TrialInputs, SiblingModelBuilder | None] | None]


@dataclass(frozen=True)
class JobState:
    """A job between two epochs, to continue from anywhere."""

    epoch: int  # epochs that it has trained
    parts: Parts  # its variables; empty where they are held elsewhere, or it begins
    callbacks: Any = None  # what ``CallbackDriver.saved`` has returned; None without callbacks
    arrays: Arrays = field(default_factory=dict)  # of its callbacks, by name
    known: int = 0  # epochs that the search knows of: those after ``epoch`` are repeated
    logs: Mapping[str, int] = field(default_factory=dict)  # as of ``UserFolders.kept``
    best: float | None = None  # value of the epochs that the search knows of; None: there is none


def group_facts(
    group: TrialGroup,
    program: ProgramFacts | None,
    *,
    met: int = 0,
    most_slots: int | None = None,
    alone: bool = False,
) -> GroupFacts:
    """A group without its jobs.

    ``program`` says how its program is compiled; None if that is to be chosen again.
    """
    return GroupFacts(
        name=group.name,
        example=group.example,
        seen=group.n_seen,
        trials=group.n_trials,
        most_slots=most_slots,
        program=program,
        met=met,
        alone=alone,
        roles=list(map(role_facts, group.roles)),
        packs=[],
        queue=[],
        parked=[],
        epochs={},
        callbacks={},
    )


def add_jobs(facts: GroupFacts, jobs: Mapping[int, JobState], arrays: Arrays) -> None:
    """Adds jobs to a group, and their variables and those of their callbacks to ``arrays``."""
    for number, job in jobs.items():
        put_state(number, job.parts, arrays)
        arrays.update(job.arrays)
    facts.epochs = {number: max(job.epoch, job.known) for number, job in jobs.items()}
    facts.held = {number: job.epoch for number, job in jobs.items() if job.epoch < job.known}
    facts.callbacks = {n: job.callbacks for n, job in jobs.items() if job.callbacks is not None}
    facts.logs = {number: dict(job.logs) for number, job in jobs.items() if job.logs}
    best = {number: job.best for number, job in jobs.items() if job.best is not None}
    facts.best = {number: value for number, value in best.items() if math.isfinite(value)}


def put_state(number: int, parts: Parts, arrays: Arrays) -> None:
    """Adds the variables of a job to ``arrays``."""
    put_parts(f"job.{number}", parts, arrays)


def job_state(
    number: int, like: State, was: GroupFacts, arrays: Mapping[str, np.ndarray]
) -> JobState | None:
    """The state that a snapshot holds of a job, whose variables are ``like`` these; None: none."""
    known = was.epochs[number]
    epoch = was.held.get(number, known)
    try:
        parts = get_parts(f"job.{number}", [len(leaves) for leaves in like.lists()], arrays)
    except KeyError:
        return None
    if not epoch or state_like(like, parts) is None:
        return None
    prefix = f"callbacks.{number}."
    own = {name: array for name, array in arrays.items() if name.startswith(prefix)}
    return JobState(epoch, parts, was.callbacks.get(number), own, known)


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


def decide_again(grouper: TrialGrouper[Any], sharing: SharingFacts, example: Example) -> None:
    """Decides again which trials share programs, by the jobs that decided it before.

    ``grouper`` has met no trial yet; ``sharing`` is as a snapshot has it.
    """

    def work_until(steps: int) -> None:
        while grouper.sharing.steps < steps and grouper.work_ahead():
            pass

    for job, steps in sharing.deciding:
        work_until(steps)
        made = example(job)
        with suppress(Unpackable):
            if made is not None:
                grouper.pretrace(*made)
    work_until(sharing.steps)
    grouper.sharing.alone[:] = sharing.alone


def group_of(grouper: TrialGrouper[G], was: GroupFacts, example: Example) -> G | None:
    """The group that facts are about, found by its jobs, or by the model of an ended one."""
    for group in grouper.groups:
        if any(trial.number in was.epochs for trial in group.queue):
            return group if group.name == was.name else None
    made = None if was.epochs or was.example is None else example(was.example)
    if made is None:
        return None
    try:
        group = grouper.pretrace(*made)
    except Unpackable:
        return None
    return group if group is not None and group.name == was.name else None


def role_facts(role: StepTemplate) -> TemplateFacts:
    """Which constants of a step are inputs; ``restore_roles`` takes them."""
    return TemplateFacts(
        constants=len(role.full.canonical.constants),
        observed=sorted(role.observed),
        lifted=list(role.lifted),
        settled=role.settled,
        widened=role.widened,
    )


def restore_roles(group: TrialGroup, facts: Sequence[TemplateFacts]) -> bool:
    """Gives a group's steps the inputs that they had; False if they are other steps now."""
    if [was.constants for was in facts] != [len(r.full.canonical.constants) for r in group.roles]:
        return False
    for role, was in zip(group.roles, facts, strict=True):
        role.observed = set(was.observed)
        role.lifted = tuple(was.lifted)
        role.settled, role.widened = was.settled, was.widened
    return True
