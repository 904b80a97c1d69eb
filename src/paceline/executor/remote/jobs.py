"""The jobs of a search on other machines: where each is, and from where it would continue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from paceline.executor.base import JobSpec
from paceline.executor.sharing.grouping import TrialGroup
from paceline.executor.state.paused import PausedStates
from paceline.executor.state.snapshot import JobState
from paceline.pack.pack import SlotTrial
from paceline.program.trace import State


@dataclass(eq=False)
class RemoteGroup(TrialGroup):
    """A group whose trials train on other machines."""

    away: ClassVar[bool] = True
    training: dict[int, SlotTrial] = field(default_factory=dict)  # by number: machines have them
    has_program: bool = False  # whether it is decided how machines compile its program

    @property
    def live(self) -> list[SlotTrial]:
        """The trials that machines have."""
        return list(self.training.values())


@dataclass(eq=False)
class RemoteJob:
    """A job that has not ended."""

    spec: JobSpec  # what a machine makes the job of
    group: RemoteGroup
    # The job as the group has it, without a state; its ``epoch`` is the last epoch that the search
    # knows of.
    trial: SlotTrial
    host: str | None = None  # the machine that has it; None: it waits here
    paused: bool = False  # whether it waits to be resumed, rather than for a machine
    # Where it would continue; None: it would begin. It may be some epochs behind: these are
    # repeated, and their reports are dropped.
    state: JobState | None = None
    best: float | None = None  # value of the epochs that the search knows of; None: there is none

    @property
    def number(self) -> int:
        """The job's number."""
        return self.trial.number

    @property
    def nbytes(self) -> int:
        """Bytes of the variables that are held of it."""
        return self.group.nbytes if self.state is not None and self.state.parts else 0


class JobTable:
    """All jobs that have not ended, by number.

    Each is in one of three places: in its group's queue, with a machine, or among the paused.
    """

    def __init__(self, paused: PausedStates) -> None:
        self._jobs: dict[int, RemoteJob] = {}
        self._by_host: dict[str, dict[int, RemoteJob]] = {}
        self._held = 0
        self._paused = paused

    def of(self, group: RemoteGroup) -> list[RemoteJob]:
        """The jobs of a group, in the order in which they were submitted."""
        return [job for job in self._jobs.values() if job.group is group]

    def get(self, number: int) -> RemoteJob | None:
        """The job of that number, if it has not ended."""
        return self._jobs.get(number)

    def at(self, host: str, number: int) -> RemoteJob | None:
        """The job of that number, if this machine has it."""
        return self._by_host.get(host, {}).get(number)

    def add(self, spec: JobSpec, group: RemoteGroup, trial: SlotTrial) -> None:
        """Adds a job that is in its group's queue."""
        trial.state = None  # the machine that trains it makes the same
        self._jobs[trial.number] = RemoteJob(spec, group, trial)

    def send(self, job: RemoteJob, host: str) -> None:
        """Takes a job out of the queue, because a machine has it now."""
        job.group.queue.remove(job.trial)
        job.host, job.group.training[job.number] = host, job.trial
        self._by_host.setdefault(host, {})[job.number] = job

    def hold(self, job: RemoteJob, state: JobState | None) -> None:
        """Continues a job from a state, unless a later one is held."""
        if state is None or (job.state is not None and job.state.epoch > state.epoch):
            return
        self.set_state(job, state)

    def set_state(self, job: RemoteJob, state: JobState | None) -> None:
        """Replaces what is held of a job."""
        self._held -= job.nbytes
        job.state = state
        self._held += job.nbytes

    def queue(self, jobs: Iterable[RemoteJob]) -> None:
        """Puts jobs that no machine has any more first in their queues, in their order."""
        for job in reversed(list(jobs)):
            self._leave(job)
            job.paused = False
            job.group.queue.appendleft(job.trial)

    def give_back(self, jobs: Iterable[RemoteJob]) -> None:
        """Puts jobs that no machine has any more where they wait."""
        jobs = list(jobs)
        self.queue(job for job in jobs if not job.paused)
        for job in jobs:
            if job.paused:
                self.put_away(job)

    def pause(self, job: RemoteJob) -> None:
        """Keeps a job waiting to be resumed; its machine may still have it."""
        job.paused = True
        if job.group.training.pop(job.number, None) is None and job.trial in job.group.queue:
            job.group.queue.remove(job.trial)

    def unpause(self, job: RemoteJob) -> None:
        """Has a paused job train on with the machine that still has it."""
        job.paused = False
        job.group.training[job.number] = job.trial

    def put_away(self, job: RemoteJob) -> None:
        """Holds a paused job that no machine has any more."""
        self._leave(job)
        if job.state is not None and job.state.parts:
            job.trial.state = State(*map(list, job.state.parts))
            self._paused.put(job.trial, job.group)
            self.set_state(job, replace(job.state, parts=[]))

    def take_back(self, job: RemoteJob) -> None:
        """The inverse of ``put_away``: the variables are in the job's state again."""
        if job.number in self._paused:
            assert job.state is not None
            trial, _ = self._paused.take(job.number)
            assert trial.state is not None
            self.set_state(job, replace(job.state, parts=trial.state.lists()))
            trial.state = None

    def forget(self, number: int) -> None:
        """Removes a job that has ended; does nothing if there is none."""
        job = self._jobs.pop(number, None)
        if job is None:
            return
        self._paused.drop(number)
        self.set_state(job, None)
        self._leave(job)
        if job.trial in job.group.queue:
            job.group.queue.remove(job.trial)

    def on(self, host: str) -> list[RemoteJob]:
        """The jobs that a machine has, in the order of their numbers."""
        found = self._by_host.get(host, {})
        return [found[number] for number in sorted(found)]

    def count(self, host: str) -> int:
        """The number of jobs that a machine has, without those that are to leave it."""
        return sum(not job.paused for job in self._by_host.get(host, {}).values())

    @property
    def nbytes(self) -> int:
        """Bytes of all variables that are held here."""
        return self._held

    def _leave(self, job: RemoteJob) -> None:
        job.group.training.pop(job.number, None)
        if job.host is not None:
            self._by_host[job.host].pop(job.number, None)
        job.host = None
