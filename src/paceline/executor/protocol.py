"""What a search uses of an executor of packs, on this machine or on others.

``Executor`` (base.py) is the least that trains a job. A search also asks how many trials should be
ready, pauses and forgets jobs, saves and restores them, and tells people where the time went.
``PackExecutorContract`` (testing.py) has the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from paceline.data.inputs import TrialInputs
from paceline.executor.base import Executor, Parts
from paceline.executor.reporting import ExecutorTimings
from paceline.executor.restored import Arrays, Example, Facts
from paceline.executor.slots import Demand
from paceline.program.trace import State
from paceline.records import Compiled, PackMade, SlotStay


class Timeline(Protocol):
    """Stays of jobs in slots, until they are taken out for the record."""

    def take(self, *, all_ended: bool = False) -> tuple[list[SlotStay], list[PackMade]]:
        """Takes out the stays that are over, and the packs that are new since the last time."""
        ...

    def forget(self, jobs: Any) -> None:
        """Leaves jobs that are in slots now out of the record."""
        ...


class WorkerView(Protocol):
    """A machine of a cluster, as people look at it."""

    @property
    def host(self) -> str:
        """Its name."""
        ...

    @property
    def device(self) -> str:
        """Its device in words, and where it is."""
        ...

    @property
    def jobs(self) -> int:
        """Jobs in its slots."""
        ...

    @property
    def slots(self) -> int:
        """Jobs that train there at once."""
        ...

    @property
    def rate(self) -> float | None:
        """Epochs of jobs per second since it came; None before the first."""
        ...


class PackExecutor(Executor, Protocol):
    """Trains jobs in packs."""

    demand: Demand  # how many trials the executor wants to have ready
    # Whether all trials that are prepared while an epoch trains must be there before the epoch is
    # reported. The search sets it before each round.
    lockstep: bool
    # Whether an answer may be another than "continue" before a job's last epoch. Else the executor
    # need not wait for answers. The search sets it before each round.
    judged: bool
    # Whether no job ends before its last epoch, and which jobs come depends on no result. The
    # search sets it before it asks for trials.
    steady: bool
    # Whether the search wants to be asked again after this epoch. It may set that while packs
    # train.
    hurried: bool

    @property
    def timings(self) -> ExecutorTimings:
        """What the executor has spent."""
        ...

    @property
    def compiling(self) -> bool:
        """Whether nothing can train until a program is compiled."""
        ...

    @property
    def streaming(self) -> bool:
        """Whether packs train to their end as trials come, and not in rounds."""
        ...

    @property
    def timeline(self) -> Timeline:
        """Which job was in which slot when."""
        ...

    @property
    def plans(self) -> set[str]:
        """Names of the plans that trained."""
        ...

    @property
    def max_slots(self) -> int:
        """Trials of one program that train side by side on one device, at most."""
        ...

    @property
    def waiting(self) -> int:
        """Number of trials that have been traced and have no slot."""
        ...

    def check_batch(self, batch_size: int) -> None:
        """Checks that the devices can share a batch as the user asks.

        Raises:
            UsageError: They cannot.
        """
        ...

    def pretrace(self, model: Any, setting: TrialInputs) -> Any:
        """Traces a model that is not to be trained, so that fewer trials need to be traced.

        Raises:
            Unpackable: The model cannot be packed.
        """
        ...

    def start_from(self, number: int, epoch: int, parts: Parts) -> bool:
        """Begins a job that was just submitted after ``epoch``, from 1, that was trained before.

        ``parts`` are the job's variables after that epoch. Returns False if the job's model has
        other variables; then it begins anew.
        """
        ...

    def resume(self, number: int) -> None:
        """Queues a paused job first; it trains on from the epoch where it was paused.

        Raises:
            KeyError: The job is not paused.
        """
        ...

    def drop(self, number: int) -> None:
        """Forgets a job that is paused or waits for a slot; does nothing if there is none."""
        ...

    def withdraw(self, number: int) -> None:
        """Forgets a job that is paused, waits for a slot, or is in one."""
        ...

    def in_slot(self, number: int) -> bool:
        """Whether a job trains now, or is about to where this process cannot take it back."""
        ...

    def resubmitting(self, facts: Facts, example: Example) -> AbstractContextManager[None]:
        """A block in which jobs are submitted that ``restore``, given the same, puts back later."""
        ...

    @property
    def state_bytes(self) -> int:
        """Bytes of the variables that ``snapshot`` would put into ``arrays``."""
        ...

    def snapshot(self, arrays: Arrays, lasting: dict[str, Arrays]) -> Facts:
        """All jobs under way, as JSON values.

        Args:
            arrays: Name -> array; the jobs' variables are added.
            lasting: Key -> arrays; the variables of paused jobs are added, each job's under a key
                of its own. What lies under a key never changes, so it is written only once.
        """
        ...

    def programs_snapshot(self) -> Facts:
        """As ``snapshot``, without the jobs; they would begin again."""
        ...

    def states(self) -> dict[int, tuple[int, State]]:
        """Epoch and variables of the jobs that ``start_from`` can continue in another process."""
        ...

    def restore(self, facts: Facts, arrays: Arrays, example: Example) -> list[int]:
        """Puts jobs that have been submitted back to where they were.

        Args:
            facts: What ``snapshot`` returned, perhaps in another process.
            arrays: The arrays that it added, those of paused jobs among them.
            example: Given a job's number: the job's model and inputs, or None.

        Returns:
            Numbers of the jobs that must begin again.
        """
        ...

    def program_counts(self) -> dict[str, int]:
        """Numbers of programs.

        distinct: groups; structures: models of other layers or widths that trained in them;
        compiled and from_cache: training and validation steps, by whether they were compiled or
        found on disk.
        """
        ...

    def compile_seconds(self) -> float:
        """Seconds spent lowering and compiling."""
        ...

    @property
    def compiles(self) -> tuple[int, int]:
        """Number of programs that are compiled, and of all that were asked for."""
        ...

    def slots_now(self) -> list[tuple[str, str, list[int | None]]]:
        """Each pack that trains: its program, its plan, and the job in each slot or None."""
        ...

    @property
    def workers(self) -> Sequence[WorkerView]:
        """The machines that train; empty where that is this one."""
        ...

    def compiled_steps(self) -> dict[int, Compiled]:
        """The steps that were compiled, or found in a cache, in the order they were asked for.

        Each by a number that tells it from all other steps of the executor.
        """
        ...

    def close(self) -> None:
        """Ends threads and connections; all jobs are dropped."""
        ...
