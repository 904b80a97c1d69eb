"""Packs on the local device: keeps slots full, compiles in the background, reports every epoch.

A lane trains one pack at a time. An accelerator has one lane. A CPU has one per core: the many
small operations of a stacked step keep a single core busy, and packs of one program share its
executable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from paceline.data.inputs import TrialInputs
from paceline.executor.base import (
    EpochLimit,
    Failed,
    Job,
    Notes,
    PackOptions,
    PackTimeout,
    Parts,
    Report,
    SearchData,
)
from paceline.executor.grouping import Group, TrialGrouper
from paceline.executor.lanes import LaneThreads, PackStream
from paceline.executor.memory import DeviceData, search_chunk_bytes
from paceline.executor.planner import Planner
from paceline.executor.process import Dropped
from paceline.executor.reporting import (
    EpochReporter,
    ExecutorTimings,
    SlotTimeline,
    compiled_steps,
)
from paceline.executor.restored import Arrays, Example, Facts, found_again, state_like
from paceline.executor.rounds import PackRounds
from paceline.executor.slots import Demand, RoundBegin, SlotAllocator
from paceline.executor.snapshot import PackSnapshots, PausedStates
from paceline.pack.callbacks.driver import abandon
from paceline.program import keras_private
from paceline.program.compile import drop_waiting
from paceline.program.initial_weights import as_built
from paceline.program.trace import State
from paceline.records import Compiled

if TYPE_CHECKING:
    from paceline.executor.copies import TrialCopies
    from paceline.executor.protocol import WorkerView

#: Seconds that ``close`` waits for epochs to end when a search is given up.
_PATIENCE = 5.0


class LocalExecutor:
    """Trains trials in packs.

    ``in_order``: whether trials come as a grid is walked: what the first trials have in common the
    next need not have. Raises UsageError if there are not as many devices as asked for, or if the
    data that must be on the device do not fit.
    """

    def __init__(
        self,
        data: SearchData,
        options: PackOptions | None = None,
        *,
        note: Callable[[str], None] = lambda text: None,
        limit: EpochLimit | None = None,
        in_order: bool = False,
    ) -> None:
        self._limit = limit = EpochLimit() if limit is None else limit
        self._notes = notes = Notes(note)
        self._planner = Planner(options, notes)
        chunk_bytes = search_chunk_bytes(data)
        if chunk_bytes is not None:
            self._planner.lanes = 1  # each lane would read the data for itself
        self._grouper = TrialGrouper(data, chunk_bytes, notes)
        self._device_data = DeviceData(notes)
        self._lanes = LaneThreads(self._planner.lanes)
        self._patience = _PATIENCE
        self._paused = PausedStates()
        self._slots = SlotAllocator(self._planner, self._device_data, data, notes, limit)
        self._reporter = EpochReporter(notes, self._paused, self._device_data)
        self._snapshots = PackSnapshots(
            self._grouper, self._planner, self._slots, self._paused, notes
        )
        self._dropped = Dropped()
        self.demand = Demand(self._planner, self._grouper, in_order=in_order)
        self.timings, self.timeline = ExecutorTimings(), SlotTimeline()
        self.lockstep = self._resubmitting = self.steady = self.hurried = False
        self.judged = True  # of no account here, where jobs wait for the answer to each epoch
        parts = self._grouper, self._planner, self._slots, self._lanes, self._reporter
        self._parts = *parts, self.demand
        self._stream: PackStream | None = None
        self._rounds: PackRounds | None = None

    @property
    def compiling(self) -> bool:
        """Whether nothing can train until a program is compiled."""
        waits = self._stream is not None and self._stream.waits
        return waits or (self._rounds is not None and self._rounds.compiling)

    @property
    def plans(self) -> set[str]:
        """Names of the plans that trained."""
        return self._planner.plans

    def check_batch(self, batch_size: int) -> None:
        """Checks that the devices can share a batch as the user asks."""
        self._planner.check_batch(batch_size)

    # -- taking trials in ------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Traces a trial's steps and queues it with the trials that share its program."""
        began = time.perf_counter()
        if not self._resubmitting and self.streaming and self._stream is not None:
            self._stream.form()
        self._planner.check_batch(job.batch_size)
        self.demand.expect_members(max(1, len(job.folds)))
        with as_built(job.model):
            group = self._grouper.add(job)
        if not job.model.jit_compile and keras_private.supports_jit(job.model):
            self._notes.tell_once(
                "jit_compile=False: packs are compiled all the same; executor='fit' trains the "
                "steps as they are written"
            )
        job.model = None
        self._dropped.add(group.nbytes)
        self.timings.seconds.trace += time.perf_counter() - began
        if not self._resubmitting:
            self._compile_early()

    @property
    def streaming(self) -> bool:
        """Whether packs train to their end as trials come, and not in rounds."""
        if self._stream is None and self.steady and not self._limit.suspects:
            self._stream = self.demand.stream = PackStream(*self._parts)
        if self._stream is not None and self._stream.ended():
            self._stream = self.demand.stream = None
            self.steady = False
        return self._stream is not None

    def _compile_early(self) -> None:
        """Starts to compile what is known well enough, while the next trials are built."""
        demand, planner = self.demand, self._planner
        for group in self._grouper.groups:
            if group.program is not None or group.restored_program is not None or not group.queue:
                continue  # a group that is restored goes on with the program that it had
            if demand.by_time and planner.is_ahead(self._grouper.groups):
                return
            if demand.is_sure(group):
                planner.compile(group, max(demand.expected, len(group.queue)), demand.expected)
            elif demand.is_known(group, alone=planner.trains_alone(group)):
                group.asked_round = 0 if self._rounds is None else self._rounds.number
                planner.compile(group, *demand.of_known(group))

    @contextmanager
    def resubmitting(self, facts: Facts, example: Example) -> Iterator[None]:
        """Trials submitted in this context are put back by ``restore`` afterwards.

        So nothing is compiled for them yet: the snapshot says which program they had.
        """
        found_again(self._grouper, facts, example)
        self._resubmitting = True
        try:
            yield
        finally:
            self._resubmitting = False

    def start_from(self, number: int, epoch: int, parts: Parts) -> bool:
        """Begins a trial that has just been submitted after an epoch that was trained before."""
        for group in self._grouper.groups:
            trial = group.waiting(number)
            if trial is not None:
                state = state_like(trial.shapes(group.state), parts)
                if state is not None:
                    trial.state, trial.epoch = state, epoch
                return state is not None
        return False

    def pretrace(self, model: Any, setting: TrialInputs) -> Group | None:
        """Traces a model that is not to be trained; its group, or None if nothing can be learnt."""
        began = time.perf_counter()
        group = self._grouper.pretrace(model, setting)
        self.timings.seconds.trace += time.perf_counter() - began
        return group

    def resume(self, number: int) -> None:
        """Queues a paused trial first; it trains on from the epoch where it was paused."""
        trial, group = self._paused.take(number)
        group.queue.appendleft(trial)

    def drop(self, number: int) -> None:
        """Forgets a trial that is paused or waits for a slot; does nothing if there is none."""
        paused = self._paused.drop(number)
        dropped = [] if paused is None else [paused]
        for group in self._grouper.groups:
            trial = group.waiting(number)
            if trial is not None:
                group.queue.remove(trial)
                dropped.append(trial)
        for trial in dropped:
            abandon(trial.driver)

    def in_slot(self, number: int) -> bool:
        """Whether a trial is in a slot."""
        return any(group.pack_of(number) is not None for group in self._grouper.groups)

    def join_waiting(self) -> None:
        """Has trials of several widths that wait share programs where that is proved and pays.

        Which trials wait must not depend on the clock when this is called.
        """
        from paceline.executor.waiting_widths import WaitingWidths  # intercepted fits alone need it

        began = time.perf_counter()
        self._grouper.join_waiting(WaitingWidths)
        self.timings.seconds.trace += time.perf_counter() - began

    def replace(self, number: int, state: State) -> None:
        """Gives a trial that waits for its next epoch other values of its variables.

        Raises KeyError if the trial is neither in a slot nor waiting for one.
        """
        for group in self._grouper.groups:
            trial, pack = group.waiting(number), group.pack_of(number)
            if trial is not None:
                trial.state = state
                return
            if pack is not None:
                pack.replace(number, state)
                return
        raise KeyError(number)

    def withdraw(self, number: int) -> None:
        """Forgets a trial that is paused, waits for a slot, or is in one."""
        self.drop(number)
        for group in self._grouper.groups:
            pack = group.pack_of(number)
            if pack is not None:
                (trial,) = (each for each in pack.live if each.number == number)
                pack.evict(number)
                abandon(trial.driver)

    @property
    def state_bytes(self) -> int:
        """Bytes of the variables of all trials that are in slots or paused."""
        groups = self._grouper.groups
        return self._paused.nbytes + sum(group.n_live * group.nbytes for group in groups)

    def snapshot(self, arrays: Arrays, lasting: dict[str, Arrays]) -> Facts:
        """All trials under way, as JSON values."""
        return {**self._snapshots.capture(arrays, lasting), **self._asking}

    def states(self) -> dict[int, tuple[int, State]]:
        """Epoch and variables of the trials that ``start_from`` can continue in another process."""
        return self._snapshots.states()

    def programs_snapshot(self) -> Facts:
        """As ``snapshot``, without the trials; they would begin again."""
        return {**self._snapshots.capture_programs(), **self._asking}

    @property
    def _asking(self) -> Facts:
        demand, rounds = self.demand, self._rounds
        begun = rounds.begun if rounds is not None and rounds.compiling else None
        # A round that waits for a compiler comes again.
        number = 0 if rounds is None else rounds.number - (begun is not None)
        known = [] if begun is None else [sorted(begun.numbers), begun.all_asked]
        asking = [demand.family, demand.expected, demand.unasked, number, *known]
        stream = None if self._stream is None else self._stream.state
        return {"asking": asking, **({} if stream is None else {"stream": stream})}

    def restore(self, facts: Facts, arrays: Arrays, example: Example) -> list[int]:
        """Puts trials that have been submitted back to where they were."""
        lost = self._snapshots.restore_trials(facts, arrays, example)
        demand = self.demand
        demand.family, demand.expected, demand.unasked, number, *begun = facts["asking"]
        self.steady &= facts.get("stream") is not None
        if self.streaming and self._stream is not None:
            self._stream.over = facts["stream"] == "over"
        elif number:
            rounds = self._rounds_now()
            rounds.number = number
            rounds.begun = RoundBegin(frozenset(begun[0]), bool(begun[1])) if begun else None
        return lost

    @property
    def copies(self) -> TrialCopies:
        """Begins trials as copies of paused ones."""
        from paceline.executor.copies import TrialCopies  # populations alone need it

        return TrialCopies(self._grouper, self._paused)

    @property
    def max_slots(self) -> int:
        """Trials that train at once, at most."""
        return self._planner.max_slots(self._grouper.groups)

    @property
    def busy(self) -> bool:
        """Whether any trial is waiting or training."""
        return any(group.active for group in self._grouper.groups)

    @property
    def waiting(self) -> int:
        """Number of trials that have been traced and have no slot."""
        return self._grouper.waiting

    # -- training ----------------------------------------------------------------------------------

    def advance(self, report: Report, meanwhile: Callable[[], bool], failed: Failed) -> None:
        """Trains one epoch of every pack whose turn it is, or in a stream for about a second.

        Raises UsageError if the user's number of slots does not fit into the device's memory, and
        PackTimeout if packs have not ended their epoch within the limit: then the executor cannot
        train any more.
        """
        spent = self.timings, self.timeline
        try:
            if self.streaming and self._stream is not None:
                seconds = self._limit.seconds
                self._stream.train(report, meanwhile, failed, spent, seconds, lambda: self.hurried)
            else:
                lockstep = self.lockstep
                self._rounds_now().train(report, meanwhile, failed, spent, lockstep=lockstep)
        except PackTimeout:
            self._patience = 0.0  # the thread that waits for the epoch will never end
            raise

    def _rounds_now(self) -> PackRounds:
        if self._rounds is None:
            self._rounds = PackRounds(*self._parts, self._paused, self._limit)
        return self._rounds

    # -- what was spent ----------------------------------------------------------------------------

    def program_counts(self) -> dict[str, int]:
        """Numbers of programs."""
        roles = self._planner.compiled_roles()
        cached = sum(all(e.from_cache for e in role) for role in roles)
        families, groups = self._grouper.families, len(self._grouper.groups)
        return {
            "distinct": groups,
            "structures": groups + (0 if families is None else families.saved),
            "compiled": len(roles) - cached,
            "from_cache": cached,
        }

    def compile_seconds(self) -> float:
        """Seconds spent lowering and compiling, in all threads together."""
        return sum(e.seconds for role in self._planner.compiled_roles() for e in role)

    @property
    def compiles(self) -> tuple[int, int]:
        """Number of programs that are compiled, and of all that were asked for."""
        programs = self._planner.programs
        return sum(program.ready() for program in programs), len(programs)

    def slots_now(self) -> list[tuple[str, str, list[int | None]]]:
        """Each pack that trains: its program, its plan, and the job in each slot or None."""
        return [
            (group.name, pack.program.plan, [t and t.number for t in pack.slots])
            for group in self._grouper.groups
            for pack in group.packs
            if pack.live
        ]

    @property
    def workers(self) -> Sequence[WorkerView]:
        """No machine but this one."""
        return []

    def compiled_steps(self) -> dict[int, Compiled]:
        """The steps that were compiled, or found in the cache, in the order they were asked for."""
        return compiled_steps(self._planner.programs, self._grouper.groups)

    def close(self) -> None:
        """Ends the lanes' threads; all trials, packs and data are dropped."""
        self._grouper.save_laws()
        drop_waiting()
        self._lanes.close(self._patience)
        trials = [trial for group in self._grouper.groups for trial in group.trials]
        for trial in [*trials, *self._paused.trials]:
            abandon(trial.driver)
        for group in self._grouper.groups:
            group.packs.clear()
            group.queue.clear()
        self._device_data.clear()
        self._paused.close()
