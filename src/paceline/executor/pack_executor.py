"""What a search uses of an executor of packs, on this machine or on others.

``Executor`` (base.py) is the least that trains a job. A search also asks how many trials should be
ready, pauses and forgets jobs, saves and restores them, and tells people where the time went.
``PackExecutorContract`` (testing.py) has the tests.

A job waits in the queue of its group, trains in a pack (here or on another machine), or is paused.
"""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic

from paceline.data.inputs import TrialInputs
from paceline.executor.base import Failed, Job, Parts, Report, UnsavedAttributes, UserNotifier
from paceline.executor.process import DroppedModels
from paceline.executor.sharing.grouping import G, TrialGrouper
from paceline.executor.state.facts import DemandFacts, GroupFacts, PackFacts
from paceline.executor.state.paused import PausedStates
from paceline.executor.state.snapshot import (
    Arrays,
    Example,
    JobState,
    add_jobs,
    decide_again,
    group_of,
    put_state,
    restore_roles,
)
from paceline.executor.training.reporting import ExecutorTimings, SlotTimeline
from paceline.executor.training.slots import TrialDemand
from paceline.pack.slot_rows import on_host
from paceline.program.initial_weights import as_built
from paceline.program.trace import State
from paceline.records import StepCompiled

if TYPE_CHECKING:
    from paceline.executor.remote.machines import Machine
    from paceline.executor.remote.spent import ClusterTimeline


class PackExecutor(ABC, Generic[G]):
    """Trains jobs in packs: an ``Executor``."""

    timings: ExecutorTimings  # what the executor has spent
    timeline: SlotTimeline | ClusterTimeline  # which job was in which slot when
    plans: set[str]  # names of the plans that trained
    compiles: tuple[int, int]  # number of programs that are compiled, and of all asked for
    #: Whether packs train to their end as trials come, and not in rounds.
    streaming: bool
    #: The machines that train; empty where that is this one.
    workers: Sequence[Machine]

    def __init__(self, grouper: TrialGrouper[G], demand: TrialDemand, notes: UserNotifier) -> None:
        self._grouper, self._notes = grouper, notes
        self._paused, self._dropped = PausedStates(), DroppedModels()
        self._unsaved = UnsavedAttributes(notes.tell_once)
        # Whether jobs are submitted that ``restore`` will put back.
        self._resubmitting = False
        self.demand = demand  # how many trials the executor wants to have ready
        # Whether all trials that are prepared while an epoch trains must be there before the epoch
        # is reported. The search sets it before each round.
        self.lockstep = False
        # Whether an answer may be another than "continue" before a job's last epoch. Else the
        # executor need not wait for answers. The search sets it before each round.
        self.judged = True
        # Whether no job ends before its last epoch, and which jobs come depends on no result. The
        # search sets it before it asks for trials.
        self.steady = False
        # Whether the search wants to be asked again after this epoch. It may set that while packs
        # train.
        self.hurried = False

    # -- taking jobs in --------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Traces a job's steps and queues it with those that share its program.

        Raises Unpackable if the job cannot be packed; the message says why.
        """
        began = time.perf_counter()
        self.demand.expect_members(max(1, len(job.folds)))
        with as_built(job.model):
            group = self._grouper.add(job)
        self._take_in(job, group)
        job.model = None
        self._dropped.add(group.nbytes)
        self.timings.seconds.trace += time.perf_counter() - began

    def _take_in(self, job: Job, group: G) -> None:
        """Called once the members of a job are last in a group's queue, before its model goes."""

    @abstractmethod
    def check_batch(self, batch_size: int) -> None:
        """Checks that the devices can share a batch as the user asks; else raises UsageError."""

    def pretrace(self, model: Any, setting: TrialInputs) -> G | None:
        """Traces a model that is not to be trained, so that fewer need to be traced.

        Returns the model's group, or None if nothing can be learnt. Raises Unpackable if the model
        cannot be packed.
        """
        began = time.perf_counter()
        group = self._grouper.pretrace(model, setting)
        self.timings.seconds.trace += time.perf_counter() - began
        return group

    def start_from(self, number: int, epoch: int, parts: Parts) -> bool:
        """Begins a job that was just submitted after ``epoch``, from 1, that was trained before.

        ``parts`` are the job's variables after that epoch. Returns False if the job's model has
        other variables; then it starts over.
        """
        return self.begin_from(number, JobState(epoch, parts))

    @abstractmethod
    def begin_from(self, number: int, state: JobState) -> bool:
        """As ``start_from``, the job's callbacks included."""

    def work_ahead(self) -> bool:
        """Does a part of what trials to come need; returns False if there is nothing to do."""
        began = time.perf_counter()
        worked = self._grouper.work_ahead()
        self.timings.seconds.trace += time.perf_counter() - began
        return worked

    @abstractmethod
    def resume(self, number: int) -> None:
        """Queues a paused job first; it trains on from the epoch where it was paused.

        Raises KeyError if the job is not paused.
        """

    @abstractmethod
    def drop(self, number: int) -> None:
        """Forgets a job that is paused or waits for a slot; does nothing if there is none."""

    @abstractmethod
    def withdraw(self, number: int) -> None:
        """Forgets a job that is paused, waits for a slot, or is in one."""

    @abstractmethod
    def in_slot(self, number: int) -> bool:
        """Whether a job trains now, or is about to where this process cannot take it back."""

    # -- training --------------------------------------------------------------------------------

    @abstractmethod
    def advance(self, report: Report, meanwhile: Callable[[], bool], failed: Failed) -> None:
        """See ``Executor``."""

    @property
    @abstractmethod
    def max_slots(self) -> int:
        """Trials of one program that train side by side on one device, at most."""

    @property
    def busy(self) -> bool:
        """Whether any job is waiting or training."""
        return any(group.active for group in self._grouper.groups)

    @property
    def waiting(self) -> int:
        """Number of jobs that have been traced and have no slot."""
        return self._grouper.waiting

    @property
    @abstractmethod
    def compiling(self) -> bool:
        """Whether nothing can train until a program is compiled."""

    # -- jobs between two epochs -----------------------------------------------------------------

    @property
    @abstractmethod
    def state_bytes(self) -> int:
        """Bytes of the variables that ``snapshot`` would put into ``arrays``."""

    def snapshot(self, arrays: Arrays, lasting: dict[str, Arrays]) -> PackFacts:
        """All unfinished jobs.

        The jobs' variables are added to ``arrays``, by name. Those of paused jobs are added to
        ``lasting``, under one key for each job. A key's content never changes, so it is written
        only once.
        """
        groups = []
        for group in self._grouper.groups:
            facts = self._group_facts(group)
            add_jobs(facts, self._states(group), arrays)
            self._add_places(facts, group)
            groups.append(facts)
            for driver in facts.callbacks.values():
                self._unsaved.say(driver["callbacks"])
        for number in self._paused.numbers:
            state, key = on_host(self._paused.state_of(number)), self._paused.key(number)
            put_state(number, state.lists(), lasting.setdefault(key, {}))
        return self._facts(groups)

    def programs_snapshot(self) -> PackFacts:
        """As ``snapshot``, without the jobs; they would begin again."""
        return self._facts([self._group_facts(group) for group in self._grouper.groups])

    def states(self) -> dict[int, tuple[int, State]]:
        """Epoch and variables of the jobs that ``start_from`` can continue in another process.

        Jobs that have trained no epoch, are paused, or have callbacks are left out.
        """
        return {
            number: (job.epoch, State(*map(list, job.parts)))
            for group in self._grouper.groups
            for number, job in self._states(group).items()
            if job.parts and job.epoch >= job.known and job.callbacks is None
        }

    @contextmanager
    def resubmitting(self, packs: PackFacts, example: Example) -> Iterator[None]:
        """A block in which jobs are submitted that ``restore``, given the same, puts back later.

        Nothing is compiled for them yet: the snapshot says which program they had.
        """
        decide_again(self._grouper, packs.sharing, example)
        self._resubmitting = True
        try:
            yield
        finally:
            self._resubmitting = False

    def restore(self, packs: PackFacts, arrays: Arrays, example: Example) -> list[int]:
        """Puts jobs that have been submitted back to where they were.

        ``packs`` is the result of ``snapshot``, perhaps of another process or executor. ``arrays``
        are those that it added, also for paused jobs. Returns the numbers of jobs that must
        restart.
        """
        lost, order = [], []
        for was in packs.groups:
            group = group_of(self._grouper, was, example)
            if group is None or not restore_roles(group, was.roles):
                lost += [number for number, epoch in was.epochs.items() if epoch]
                continue
            order.append(group)
            group.n_seen, group.n_trials, group.example = was.seen, was.trials, was.example
            lost += self._put_back(group, was, packs.device, arrays)
        self._grouper.reorder(order)
        demand, asking = self.demand, packs.asking
        demand.alike, demand.expected = asking.alike, asking.expected
        demand.unasked = asking.unasked
        self._restored(packs)
        return lost

    def _facts(self, groups: list[GroupFacts]) -> PackFacts:
        demand = self.demand
        asking = DemandFacts(demand.alike, demand.expected, demand.unasked)
        sharing = copy.deepcopy(self._grouper.sharing)  # written while the search continues
        return PackFacts(self._device, sharing, groups, asking)

    @property
    @abstractmethod
    def _device(self) -> list[Any]:
        """What programs are made for."""

    @abstractmethod
    def _group_facts(self, group: G) -> GroupFacts:
        """A group and its program, without its jobs."""

    @abstractmethod
    def _states(self, group: G) -> dict[int, JobState]:
        """A group's jobs by number; the variables of those that are paused may be left out."""

    @abstractmethod
    def _add_places(self, facts: GroupFacts, group: G) -> None:
        """Adds where the jobs of a group are: to ``packs``, ``queue`` and ``parked``."""

    @abstractmethod
    def _put_back(self, group: G, was: GroupFacts, device: list[Any], arrays: Arrays) -> list[int]:
        """Puts the jobs of a group back; returns the numbers of those that must begin again."""

    def _restored(self, packs: PackFacts) -> None:
        """Called when the jobs of all groups have been put back."""

    # -- what was spent --------------------------------------------------------------------------

    def program_counts(self) -> dict[str, int]:
        """Numbers of programs.

        distinct: groups. structures: models with different layers or widths in them. compiled and
        from_cache: training and validation steps that were compiled, or found on disk.
        """
        families, groups = self._grouper.families, len(self._grouper.groups)
        return {
            "distinct": groups,
            "structures": groups + (0 if families is None else families.saved),
            **self._steps_made(),
        }

    @abstractmethod
    def _steps_made(self) -> dict[str, int]:
        """``compiled`` and ``from_cache`` of ``program_counts``."""

    def compile_seconds(self) -> float:
        """Seconds spent lowering and compiling, of all threads and machines together."""
        return sum(step.ended - step.began for step in self.compiled_steps().values())

    @abstractmethod
    def slots_now(self) -> list[tuple[str, str, list[int | None]]]:
        """Each pack that trains: its program, its plan, and the job in each slot or None."""

    @abstractmethod
    def compiled_steps(self) -> dict[int, StepCompiled]:
        """The steps that were compiled, or found in a cache, in the order they were asked for.

        Each by a number that tells it from all other steps of the executor.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends threads and connections; all jobs are dropped."""
