"""What a machine of a cluster runs: an executor, told in rounds what to train."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from paceline.executor.base import (
    Answer,
    EpochLimit,
    EpochReport,
    Job,
    JobSpec,
    PackOptions,
    PackTimeout,
    SearchData,
    Weights,
    settled,
)
from paceline.executor.local import LocalExecutor
from paceline.executor.process import search_process
from paceline.executor.remote.messages import (
    ErrorText,
    HostFacts,
    HostState,
    ProgramOrder,
    RoundAnswer,
    RoundOrder,
    SentState,
    SentWeights,
    SubmittedJob,
    WeightsToReport,
)
from paceline.executor.state.snapshot import JobState, restore_roles
from paceline.pack.callbacks.remote_files import MachineFolder
from paceline.program.numbers import set_numbers


class JobFactory(Protocol):
    """Makes jobs of specs; sent to each machine once."""

    @property
    def data(self) -> SearchData:
        """What the jobs train and validate on."""
        ...

    @property
    def code_digest(self) -> str | None:
        """Digest of the code of ``build``; None without code."""
        ...

    @property
    def precision(self) -> str | None:
        """As the argument of ``Tuner``."""
        ...

    @property
    def numbers(self) -> Mapping[str, Any] | None:
        """Of ``number_settings``, in the process of the search; None: as they are here."""
        ...

    def job(self, spec: JobSpec) -> Job:
        """The job of a spec, its model just built; raises whatever ``build`` raises."""
        ...

    def writing_below(self, here: Callable[[int, Path, str, bool], Path]) -> JobFactory:
        """The same for a machine without the search's disk; ``here`` as ``MachineFolder.here``."""
        ...

    def apart(self) -> tuple[dict[str, Any], Any]:
        """The user's functions by argument, and all else, to be sent one by one.

        The latter has a method ``together``, which makes the job factory again of the functions.
        """
        ...


@dataclass(frozen=True)
class HostOptions:
    """How a machine trains."""

    pack: PackOptions
    in_order: bool = False  # as of ``LocalExecutor``
    limit: EpochLimit = field(default_factory=EpochLimit)
    # Whether its disk may be another one than the search's, so that what callbacks write is sent to
    # the search.
    elsewhere: bool = False

    def on(self, cores: int) -> HostOptions:
        """The options of a machine whose process has this many cores."""
        return replace(self, pack=replace(self.pack, cores=cores))


class HostedExecutor(LocalExecutor):
    """A ``LocalExecutor`` whose search is elsewhere."""

    def finish(self, number: int) -> None:
        """Ends a job as the answer "stop" would; does nothing if there is none."""
        found = self._in_slot(number)
        if found is None:
            self.drop(number)
        else:
            self._reporter.apply_answer(*found, settled("stop"))

    def take(self, number: int) -> JobState | None:
        """Lets a job go; its state, or None if it has trained no epoch, or is not here."""
        found = self.capture([number]).get(number)
        self.withdraw(number)
        return found

    def capture(self, numbers: Collection[int] | None = None) -> dict[int, JobState]:
        """The states of jobs that have trained an epoch; None: of all of them. They stay."""
        found = (self._states_of(group, numbers) for group in self._grouper.groups)
        return {number: job for jobs in found for number, job in jobs.items() if job.epoch}

    def _compile_early(self) -> None:
        """Nothing: the search says how programs are compiled."""

    def compile_as(self, name: str, order: ProgramOrder) -> bool:
        """Compiles a group's program as the search says; False if its steps are others."""
        group = next((each for each in self._grouper.groups if each.name == name), None)
        if group is None:
            return False
        before = [role.lifted for role in group.roles]
        if not restore_roles(group, order.roles):
            return False
        if group.program is None:
            if order.program is not None:
                group.restored_program = order.program
        elif [role.lifted for role in group.roles] != before:
            self._planner.compile(group, len(group.queue), self.demand.expected)
        return True

    def look(self) -> HostState:
        """The executor as people see it."""
        return HostState(
            self.program_counts(),
            self.compiles,
            self.slots_now(),
            self.compiled_steps(),
            set(self.plans),
            self._planner.slots_now(self._grouper.groups),
        )


class Host:
    """One machine's executor.

    ``own_process``: whether the process is the machine's alone, and is set up as a search wants it;
    False: it is set up already, and other threads use it too.
    """

    def __init__(
        self, job_factory: JobFactory, options: HostOptions, *, own_process: bool = True
    ) -> None:
        self._stack = ExitStack()
        self._files: MachineFolder | None = None
        if options.elsewhere:
            self._files = MachineFolder()
            self._stack.callback(self._files.close)
            job_factory = job_factory.writing_below(self._files.here)
        self._job_factory = job_factory
        if own_process:
            if job_factory.numbers is not None:
                set_numbers(job_factory.numbers)
            self._stack.enter_context(search_process(job_factory.precision))
        self._notes: list[str] = []
        self._suspects: dict[int, int] = {}
        limit = EpochLimit(options.limit.seconds, self._suspects)
        self._executor = HostedExecutor(
            job_factory.data,
            options.pack,
            note=self._notes.append,
            limit=limit,
            in_order=options.in_order,
        )
        self._waiting: deque[SubmittedJob] = deque()  # jobs that are not built yet
        self._best: dict[int, float | None] = {}  # of the jobs that are here
        self._programs: dict[str, ProgramOrder] = {}
        self._kept = WeightsToReport()  # of the order that is carried out
        self._answer = RoundAnswer()  # while it comes about
        self._ended: set[int] = set()  # jobs that have left in this round

    def hello(self) -> HostFacts:
        """What this machine is."""
        device = jax.local_devices()[0]
        return HostFacts(
            versions={"python": platform.python_version(), **library_versions()},
            digest=self._job_factory.code_digest,
            device=device.device_kind,
            max_slots=self._executor.max_slots,
            clock=time.perf_counter(),
            node=socket.gethostname(),
            pid=os.getpid(),
        )

    def round(self, order: RoundOrder) -> RoundAnswer:
        """Does what an order says, and trains for an epoch or for as long as it says."""
        began, executor = time.perf_counter(), self._executor
        self._kept, self._answer = order.kept, RoundAnswer()
        answer = self._answer
        self._let_go(order)
        self._suspects.update(order.suspects)
        self._programs |= order.programs
        for name, program in order.programs.items():
            executor.compile_as(name, program)
        executor.demand.expected, executor.demand.all_asked = order.expected, order.all_asked
        self._waiting.extend(order.submit)
        if order.train:
            try:
                self._train(order, began)
            except PackTimeout as stuck:
                answer.stuck.extend(stuck.packs)
                return answer
        if order.want_states:
            answer.states.update(executor.capture())
        self._collect(answer)
        stays, packs = executor.timeline.take()
        notes, self._notes[:] = list(self._notes), []
        return replace(
            answer,
            notes=notes,
            spent=executor.timings.take(),
            host=executor.look(),
            stays=stays,
            packs=packs,
        )

    def close(self) -> None:
        """Ends the executor's threads; the process is as it was."""
        self._executor.close()
        self._stack.close()

    def _let_go(self, order: RoundOrder) -> None:
        answer, gone = self._answer, {*order.stop, *order.take}
        for number in order.stop:
            self._executor.finish(number)
        for number in order.take:
            waiting = next((s for s in self._waiting if s.spec.number == number), None)
            state = None if waiting is None else waiting.state
            answer.taken[number] = self._executor.take(number) or state
        self._waiting = deque(s for s in self._waiting if s.spec.number not in gone)
        for number in gone:
            self._best.pop(number, None)
        self._ended |= gone

    def _collect(self, answer: RoundAnswer) -> None:
        """Adds what callbacks have written to an answer."""
        if self._files is not None:
            for number in [*self._best, *self._ended]:
                files = self._files.news(number)
                if files:
                    answer.files[number] = files
            for number in self._ended:
                self._files.remove(number)
        self._ended.clear()

    def _train(self, order: RoundOrder, began: float) -> None:
        executor = self._executor
        while True:
            while self._waiting and (executor.demand.hungry or not executor.busy):
                self._submit_next()
            if not executor.busy:
                return
            n_reports, n_failed = len(self._answer.reports), len(self._answer.failed)
            executor.advance(self._receive, self._submit_next, self._failed)
            reports = self._answer.reports[n_reports:]
            ended = any(report.last for report in reports) and not executor.waiting
            if ended or len(self._answer.failed) > n_failed:
                return  # a slot is free, and the search has a job for it
            if reports and time.perf_counter() - began >= order.seconds:
                return

    def _submit_next(self) -> bool:
        """Builds a job that waits; False when there is none."""
        if not self._waiting:
            return False
        submitted = self._waiting.popleft()
        number = submitted.spec.number
        try:
            job = self._job_factory.job(submitted.spec)
            self._executor.submit(job)
            if self._files is not None:
                self._files.add(number, chain(*job.made), submitted.files)
        except Exception as error:  # the user's code may raise anything
            self._executor.withdraw(number)
            self._failed(number, error)
            return True
        name = job.program or ""
        self._answer.programs[number] = name
        self._best[number] = submitted.best
        if name in self._programs:
            self._executor.compile_as(name, self._programs[name])
        if submitted.state is not None:
            self._executor.begin_from(number, submitted.state)
        return True

    def _failed(self, number: int, error: BaseException) -> None:
        self._best.pop(number, None)
        self._ended.add(number)
        self._answer.failed[number] = ErrorText.of(error)

    def _receive(self, report: EpochReport) -> Answer:
        """Takes a report down; jobs train on until the next round says something else."""
        number, kept = report.number, self._kept
        value, best = report.logs.get(kept.objective), self._best.get(number)
        now = kept.better(value, best)
        weights, state = None, None
        if kept.wants(number, value, best):
            weights = _copied(report.weights())
        if report.last and report.state is not None and kept.members == 1 and kept.reaches(now):
            state = SentState([[np.array(leaf) for leaf in p] for p in report.state().lists()])
        self._best[number] = now
        sent = SentWeights(number, report.epoch, weights)
        self._answer.reports.append(
            replace(report, logs=dict(report.logs), weights=sent, state=state)
        )
        if report.last:
            self._best.pop(number, None)
            self._ended.add(number)
        return "continue"


def _copied(weights: Weights) -> Weights:
    """Weights that stay as they are when the pack trains on."""
    trainable, fixed = ([np.array(leaf) for leaf in part] for part in weights)
    return trainable, fixed


def library_versions() -> dict[str, str]:
    """The versions that histories depend on, of libraries in this process."""
    return {name: metadata.version(name) for name in ("paceline", "keras", "jax", "jaxlib")}
