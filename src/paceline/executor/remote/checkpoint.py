"""Where jobs on other machines would go on: from which states, and how checkpoints hold them."""

from __future__ import annotations

import math
from dataclasses import replace

from paceline.executor.base import JobSpec, Notes, Parts, UnsavedAttributes
from paceline.executor.grouping import Group, TrialGrouper
from paceline.executor.remote.files import CollectedFiles
from paceline.executor.remote.jobs import JobTable, RemoteJob
from paceline.executor.remote.messages import JobState, Submitted
from paceline.executor.remote.programs import ProgramOrders
from paceline.executor.restored import (
    Arrays,
    Example,
    Facts,
    array_names,
    group_of,
    restore_roles,
    state_like,
    state_of,
)
from paceline.executor.snapshot import ELSEWHERE, group_facts, logs_facts
from paceline.program.files import put_parts
from paceline.program.trace import State


class JobSnapshots:
    """Holds the states of jobs, and writes them to checkpoints."""

    def __init__(
        self,
        jobs: JobTable,
        grouper: TrialGrouper,
        orders: ProgramOrders,
        files: CollectedFiles,
        notes: Notes,
    ) -> None:
        self._jobs, self._grouper, self._orders, self._files = jobs, grouper, orders, files
        self._unsaved = UnsavedAttributes(notes.tell_once)

    @staticmethod
    def spec(spec: JobSpec, fold: int | None) -> JobSpec:
        """The spec of one member of a job."""
        return spec if fold is None else replace(spec, number=spec.number + fold, fold=fold)

    def submitted(self, job: RemoteJob) -> Submitted:
        """A job as a machine is told of it."""
        self._jobs.take_back(job)
        return Submitted(job.spec, job.group.name, job.state, job.best)

    def hold(self, job: RemoteJob, state: JobState | None) -> None:
        """Has a job go on from a state, unless its callbacks would lose something in it."""
        if state is not None and state.callbacks is not None:
            callbacks = state.callbacks["callbacks"]
            if any(each["lost"] for each in callbacks):
                self._unsaved.say(callbacks)
                return  # it begins again, and catches up with what is known
        self._jobs.hold(job, state)

    def begin(self, job: RemoteJob, epoch: int, parts: Parts) -> bool:
        """Has a job that was just submitted begin after an epoch; False if it cannot."""
        state = state_like(job.trial.shapes(job.group.state), parts)
        if state is None:
            return False
        self._jobs.set_state(job, JobState(epoch, state.lists()))
        job.trial.epoch = epoch
        return True

    def states(self) -> dict[int, tuple[int, State]]:
        """Epoch and variables of the jobs that need nothing else to train on, by number."""
        return {
            job.number: (job.state.epoch, State(*map(list, job.state.parts)))
            for job in self._jobs
            if job.state is not None
            and job.state.parts
            and job.state.callbacks is None
            and job.state.epoch == job.trial.epoch
        }

    # -- checkpoints -----------------------------------------------------------------------------

    def capture(self, arrays: Arrays, lasting: dict[str, Arrays]) -> Facts:
        """All jobs under way; arguments as of ``PackExecutor.snapshot``."""
        by_group: dict[int, list[RemoteJob]] = {}
        for job in self._jobs:
            by_group.setdefault(id(job.group), []).append(job)
        groups = []
        for group in self._grouper.groups:
            jobs = by_group.get(id(group), [])
            callbacks = {}
            logs = {str(job.number): self._files.kept(job.number) for job in jobs}
            for job in jobs:
                state = job.state
                if state is None:
                    continue
                if state.callbacks is not None:
                    callbacks[str(job.number)] = state.callbacks
                    arrays.update(state.arrays)
                kept = self._jobs.key(job)
                if kept is not None:
                    put_parts(f"wait.{job.number}", kept[1], lasting.setdefault(kept[0], {}))
                elif state.parts:
                    put_parts(f"wait.{job.number}", state.parts, arrays)
            groups.append(
                {
                    **self._group_facts(group),
                    "epochs": {str(job.number): job.trial.epoch for job in jobs},
                    "held": {
                        str(job.number): 0 if job.state is None else job.state.epoch for job in jobs
                    },
                    "best": {
                        str(job.number): job.best
                        for job in jobs
                        if job.best is not None and math.isfinite(job.best)
                    },
                    "parked": [job.number for job in jobs if job.paused],
                    # On one machine the jobs of other machines would go first.
                    "queue": [
                        *(job.number for job in jobs if job.host is not None and not job.paused),
                        *(trial.number for trial in group.queue),
                    ],
                    "callbacks": callbacks,
                    **logs_facts(logs),
                }
            )
        return self._facts(groups)

    def capture_programs(self) -> Facts:
        """The programs without the jobs."""
        nobody = {"epochs": {}, "held": {}, "best": {}, "parked": [], "queue": [], "callbacks": {}}
        groups = [{**self._group_facts(group), **nobody} for group in self._grouper.groups]
        return self._facts(groups)

    def _facts(self, groups: list[Facts]) -> Facts:
        founders = list(self._grouper.founders)
        return {"device": ELSEWHERE, "founders": founders, "groups": groups}

    def _group_facts(self, group: Group) -> Facts:
        """As an executor of this machine would have them; it can go on from them."""
        return {**group_facts(group, self._orders.facts(group)), "packs": []}

    def restore(self, facts: Facts, arrays: Arrays, example: Example) -> list[int]:
        """Puts jobs that have been submitted back; see ``PackExecutor.restore``.

        The snapshot may be of an executor of this machine.
        """
        lost, order = [], []
        for at, was in enumerate(facts["groups"]):
            for text, kept in was.get("logs", {}).items():
                self._files.begun_before(int(text), kept)
            group = group_of(self._grouper, was, example)
            if group is None or not restore_roles(group, was["roles"]):
                lost += [int(number) for number, epoch in was["epochs"].items() if epoch]
                continue
            order.append(group)
            group.n_seen, group.n_trials = was["seen"], was["trials"]
            group.example = was["example"]
            self._orders.restore(group, was["program"])
            names = array_names(was, at)
            for text, epoch in was["epochs"].items():
                job = self._jobs.get(int(text))
                if job is None:
                    continue
                if job.group is not group:  # the code has changed
                    lost += [job.number] if epoch else []
                    continue
                job.trial.epoch, job.best = epoch, was.get("best", {}).get(text)
                self._jobs.set_state(job, _saved(job, was, names.get(job.number, ""), arrays))
                if job.number in was["parked"]:
                    self._jobs.pause(job)
                    self._jobs.put_away(job)
        self._grouper.reorder(order)
        return lost


def _saved(job: RemoteJob, was: Facts, name: str, arrays: Arrays) -> JobState | None:
    """The state that a checkpoint holds of a job; None: it catches up from its first epoch."""
    number = str(job.number)
    epoch = was.get("held", {}).get(number, job.trial.epoch)
    state = state_of(name, job.trial.shapes(job.group.state), arrays) if epoch else None
    if state is None:
        return None
    prefix = f"callbacks.{number}."
    own = {name: array for name, array in arrays.items() if name.startswith(prefix)}
    return JobState(epoch, state.lists(), was["callbacks"].get(number), own)
