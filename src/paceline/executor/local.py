"""Packs on the local device: keeps slots full, compiles in the background, reports every epoch.

A thread trains one pack at a time. An accelerator has one thread. A CPU has one per core. The small
operations of a vectorized step keep a single core busy, and packs of one program share its
executable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from paceline.executor.base import (
    EpochLimit,
    Failed,
    Job,
    PackOptions,
    PackTimeout,
    Report,
    SearchData,
    UserNotifier,
)
from paceline.executor.pack_executor import PackExecutor
from paceline.executor.sharing.grouping import LocalGroup, TrialGrouper
from paceline.executor.state.facts import GroupFacts, PackFacts, RoundFacts
from paceline.executor.state.snapshot import Arrays, JobState, group_facts, job_state, state_like
from paceline.executor.training.memory import DeviceData, MemorySharers
from paceline.executor.training.planner import Planner
from paceline.executor.training.reporting import (
    EpochReporter,
    ExecutorTimings,
    SlotTimeline,
    compiled_steps,
)
from paceline.executor.training.rounds import PackRounds
from paceline.executor.training.slots import SlotAllocator, TrialDemand
from paceline.executor.training.stream import PackStream, PackThreads
from paceline.pack.callbacks.driver import abandon
from paceline.pack.pack import Pack, SlotTrial
from paceline.pack.slot_rows import on_host
from paceline.program import keras_private
from paceline.program.compile import drop_waiting
from paceline.program.trace import State
from paceline.records import StepCompiled

if TYPE_CHECKING:
    from paceline.executor.training.copies import TrialCopies

#: Seconds that ``close`` waits for epochs to end when a search is given up.
_PATIENCE = 5.0


class LocalExecutor(PackExecutor[LocalGroup]):
    """Trains trials in packs.

    ``in_order``: whether trials come as a grid is walked: what the first trials have in common the
    next need not have. ``sharers``: the executors that use the same device; None: no other. Raises
    UsageError if there are not as many devices as asked for, or if the data that must be on the
    device do not fit.
    """

    timeline: SlotTimeline

    def __init__(
        self,
        data: SearchData,
        options: PackOptions | None = None,
        *,
        note: Callable[[str], None] = lambda text: None,
        limit: EpochLimit | None = None,
        in_order: bool = False,
        sharers: MemorySharers | None = None,
    ) -> None:
        self._limit = limit = EpochLimit() if limit is None else limit
        notes = UserNotifier(note)
        self._planner = Planner(options, notes)
        self._sharers = MemorySharers() if sharers is None else sharers
        chunk_bytes = self._sharers.chunk_bytes(data)
        if chunk_bytes is not None:
            self._planner.packs_at_once = 1  # each thread would read the data for itself
        grouper: TrialGrouper[LocalGroup] = TrialGrouper(data, chunk_bytes, notes)
        super().__init__(grouper, TrialDemand(self._planner, grouper, in_order=in_order), notes)
        self._device_data = DeviceData(notes)
        self._sharers.add(grouper, self._device_data)
        self._threads = PackThreads(self._planner.packs_at_once)
        self._patience = _PATIENCE
        self._slots = SlotAllocator(
            self._planner, self._device_data, data, notes, limit, self._sharers
        )
        self._reporter = EpochReporter(notes, self._paused, self._device_data)
        self.timings, self.timeline, self.workers = ExecutorTimings(), SlotTimeline(), ()
        trained = self._planner, self._slots, self._threads, self._reporter, self.demand
        self._parts = self._grouper, *trained, self.timings, self.timeline, limit
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
        """See ``PackExecutor``; what is known well enough by now begins to compile."""
        if not self._resubmitting and self.streaming and self._stream is not None:
            self._stream.form()
        self._planner.check_batch(job.batch_size)
        super().submit(job)
        if not self._resubmitting:
            self._compile_early()

    def _take_in(self, job: Job, group: LocalGroup) -> None:
        if not job.model.jit_compile and keras_private.supports_jit(job.model):
            self._notes.tell_once(
                "jit_compile=False has no effect on packed trials. Use executor='fit' to train "
                "exactly as Keras would"
            )

    @property
    def streaming(self) -> bool:
        """Whether packs train to their end as trials come, and not in rounds."""
        one_by_one = self._limit.suspects or self._limit.alone
        if self._stream is None and self.steady and not one_by_one:
            self._stream = self.demand.stream = PackStream(*self._parts)
        if self._stream is not None and self._stream.ended():
            self._stream = self.demand.stream = None
            self.steady = False
        return self._stream is not None

    def _compile_early(self) -> None:
        """Starts to compile what is known well enough, while the next trials are built."""
        demand, planner = self.demand, self._planner
        if self._limit.alone:
            return
        for group in self._grouper.groups:
            if group.is_settled or not group.queue:
                continue  # a group that is restored continues with the program that it had
            if planner.is_ahead(self._grouper.groups, by_time=demand.by_time):
                return
            if demand.is_sure(group):
                planner.compile(group, max(demand.expected, len(group.queue)), demand.expected)
            elif demand.is_known(group, alone=planner.trains_alone(group)):
                group.asked_round = 0 if self._rounds is None else self._rounds.number
                planner.compile(group, *demand.of_known(group))

    def begin_from(self, number: int, state: JobState) -> bool:
        """See ``PackExecutor``."""
        found = self._grouper.find_waiting(number)
        return found is not None and _begin(*found, state)

    def resume(self, number: int) -> None:
        """See ``PackExecutor``."""
        trial, group = self._paused.take(number)
        group.queue.appendleft(trial)

    def drop(self, number: int) -> None:
        """See ``PackExecutor``."""
        paused = self._paused.drop(number)
        if paused is not None:
            abandon(paused.driver)
        found = self._grouper.find_waiting(number)
        if found is not None:
            group, trial = found
            group.queue.remove(trial)
            abandon(trial.driver)

    def _in_slot(self, number: int) -> tuple[LocalGroup, Pack, SlotTrial] | None:
        """The trial of that number, with its group and pack; None if it is in no slot."""
        for group in self._grouper.groups:
            for pack in group.packs:
                for trial in pack.live:
                    if trial.number == number:
                        return group, pack, trial
        return None

    def in_slot(self, number: int) -> bool:
        """Whether a trial is in a slot."""
        return self._in_slot(number) is not None

    def withdraw(self, number: int) -> None:
        """See ``PackExecutor``."""
        self.drop(number)
        found = self._in_slot(number)
        if found is not None:
            _, pack, trial = found
            pack.evict(number)
            abandon(trial.driver)

    def join_waiting(self) -> None:
        """Lets waiting trials of several widths share programs, if that is proved and faster.

        Which trials wait must not depend on the clock when this is called.
        """
        from paceline.executor.sharing.waiting_widths import (
            WaitingTrialMerger,  # intercepted fits alone need it
        )

        began = time.perf_counter()
        self._grouper.join_waiting(WaitingTrialMerger)
        self.timings.seconds.trace += time.perf_counter() - began

    def replace(self, number: int, state: State) -> None:
        """Gives a trial that waits for its next epoch other values of its variables.

        Raises KeyError if the trial is neither in a slot nor waiting for one.
        """
        waiting, there = self._grouper.find_waiting(number), self._in_slot(number)
        if waiting is not None:
            waiting[1].state = state
        elif there is not None:
            there[1].replace(number, state)
        else:
            raise KeyError(number)

    @property
    def copies(self) -> TrialCopies:
        """Begins trials as copies of paused ones."""
        from paceline.executor.training.copies import TrialCopies  # populations alone need it

        return TrialCopies(self._grouper, self._paused)

    @property
    def max_slots(self) -> int:
        """Trials that train at once, at most."""
        return self._planner.max_slots(self._grouper.groups)

    # -- trials between two epochs -----------------------------------------------------------------

    @property
    def state_bytes(self) -> int:
        """Bytes of the variables of all trials that are in slots or paused."""
        groups = self._grouper.groups
        return self._paused.nbytes + sum(group.n_live * group.nbytes for group in groups)

    @property
    def _device(self) -> list[Any]:
        return self._planner.signature

    def _facts(self, groups: list[GroupFacts]) -> PackFacts:
        facts, rounds = super()._facts(groups), self._rounds
        # Before its first trial a search has a stream only if it is asked for one.
        facts.stream = self._stream.state if self.streaming and self._stream is not None else None
        if rounds is not None:
            begun = rounds.begun if rounds.compiling else None
            # A round that waits for a compiler is repeated.
            facts.rounds = RoundFacts(rounds.number - (begun is not None), begun)
        return facts

    def _group_facts(self, group: LocalGroup) -> GroupFacts:
        return group_facts(
            group,
            self._planner.facts(group),
            met=group.asked_round,
            most_slots=group.most_slots,
            alone=group.alone,
        )

    def _states(self, group: LocalGroup) -> dict[int, JobState]:
        paused = {trial.number: _state(trial, None) for trial in self._paused.of(group)}
        return {**self._states_of(group), **paused}

    def _states_of(
        self, group: LocalGroup, only: Container[int] | None = None
    ) -> dict[int, JobState]:
        """The trials that wait or are in slots; ``only`` has the numbers that count; None: all."""

        def counts(trial: SlotTrial) -> bool:
            return only is None or trial.number in only

        found = [(trial, trial.state) for trial in group.queue if counts(trial)]
        for pack in group.packs:
            if any(map(counts, pack.live)):
                states = pack.states()
                found += [(t, states[t.number]) for t in pack.live if counts(t)]
        return {trial.number: _state(trial, state) for trial, state in found}

    def _add_places(self, facts: GroupFacts, group: LocalGroup) -> None:
        facts.packs = [[trial and trial.number for trial in pack.slots] for pack in group.packs]
        facts.queue = [trial.number for trial in group.queue]
        facts.parked = [trial.number for trial in self._paused.of(group)]

    def _put_back(
        self, group: LocalGroup, was: GroupFacts, device: list[Any], arrays: Arrays
    ) -> list[int]:
        group.most_slots, group.asked_round, group.alone = was.most_slots, was.met, was.alone
        lost = [trial.number for trial in group.queue if not _go_on(group, trial, was, arrays)]
        trials = {trial.number: trial for trial in group.queue}
        group.queue.clear()
        for number in was.parked:
            if number in trials and number not in lost:
                self._paused.put(trials.pop(number), group)
        if was.program is not None and self._planner.compiles_alike(device):
            group.restored_program = was.program
            if trials:
                self._planner.compile_again(group)
                self._fill_slots(group, was.packs, trials)
        # A file from elsewhere may name a trial twice.
        waiting = list(dict.fromkeys(n for n in was.queue if n in trials))
        group.queue.extend(trials[n] for n in trials if n not in waiting)
        group.queue.extend(trials[n] for n in waiting)
        return lost

    def _fill_slots(
        self, group: LocalGroup, packs: list[list[int | None]], trials: dict[int, SlotTrial]
    ) -> None:
        """Puts trials into the slots that they had, and removes them from ``trials``."""
        for numbers in packs:
            pack = self._slots.new_pack(group)
            group.packs.append(pack)
            for slot, number in enumerate(numbers):
                if number in trials:
                    pack.admit(trials.pop(number), slot)

    def _restored(self, packs: PackFacts) -> None:
        self.steady &= packs.stream is not None
        if self.streaming and self._stream is not None:
            self._stream.over = packs.stream == "over"
        elif packs.rounds is not None and packs.rounds.number:
            rounds = self._rounds_now()
            rounds.number, rounds.begun = packs.rounds.number, packs.rounds.begun

    # -- training ----------------------------------------------------------------------------------

    def advance(self, report: Report, meanwhile: Callable[[], bool], failed: Failed) -> None:
        """Trains one epoch of every pack whose turn it is, or in a stream for about a second.

        Raises UsageError if the user's number of slots does not fit into the device's memory.
        Raises PackTimeout if packs have not ended their epoch within the limit; the executor can
        then no longer train.
        """
        try:
            if self.streaming and self._stream is not None:
                self._stream.train(report, meanwhile, failed, lambda: self.hurried)
            else:
                self._rounds_now().train(report, meanwhile, failed, lockstep=self.lockstep)
        except PackTimeout:
            self._patience = 0.0  # the thread that waits for the epoch will never end
            raise

    def _rounds_now(self) -> PackRounds:
        if self._rounds is None:
            self._rounds = PackRounds(*self._parts, self._paused)
        return self._rounds

    # -- what was spent ----------------------------------------------------------------------------

    def _steps_made(self) -> dict[str, int]:
        roles = self._planner.compiled_roles()
        cached = sum(all(e.from_cache for e in role) for role in roles)
        return {"compiled": len(roles) - cached, "from_cache": cached}

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

    def compiled_steps(self) -> dict[int, StepCompiled]:
        """The steps that were compiled, or found in the cache, in the order they were asked for."""
        return compiled_steps(self._planner.programs, self._grouper.groups)

    def close(self) -> None:
        """Ends the threads; all trials, packs and data are dropped."""
        self._grouper.save_formulas()
        drop_waiting()
        self._threads.close(self._patience)
        trials = [trial for group in self._grouper.groups for trial in group.trials]
        for trial in [*trials, *self._paused.trials]:
            abandon(trial.driver)
        for group in self._grouper.groups:
            group.packs.clear()
            group.queue.clear()
        self._device_data.clear()
        self._sharers.remove(self._device_data)
        self._paused.close()


def _state(trial: SlotTrial, state: State | None) -> JobState:
    """A trial between two epochs, with its variables; None: they are held elsewhere."""
    # A trial that has trained no epoch begins again from its seed, so its state is not needed.
    parts = [] if state is None or not trial.epoch else on_host(state).lists()
    if trial.driver is None:
        return JobState(trial.epoch, parts, known=trial.known)
    if not trial.epoch:
        return JobState(0, parts, known=trial.known, logs=trial.driver.logs)
    arrays: Arrays = {}
    callbacks = trial.driver.saved(f"callbacks.{trial.number}", arrays)
    return JobState(trial.epoch, parts, callbacks, arrays, trial.known)


def _begin(group: LocalGroup, trial: SlotTrial, job: JobState) -> bool:
    """Has a waiting trial continue from a state; False if its variables are others."""
    state = state_like(trial.shapes(group.state), job.parts)
    if state is None:
        return False
    trial.state, trial.epoch, trial.known = state, job.epoch, job.known
    if trial.driver is not None and job.callbacks is not None:
        trial.driver.restore(f"callbacks.{trial.number}", job.callbacks, job.arrays)
    return True


def _go_on(group: LocalGroup, trial: SlotTrial, was: GroupFacts, arrays: Arrays) -> bool:
    """Continues a trial as a snapshot has it; False if its state is lost."""
    number = trial.number
    if number not in was.epochs:
        return True  # it had another program, which has become this one: it begins again
    job = job_state(number, trial.shapes(group.state), was, arrays)
    if job is not None:
        return _begin(group, trial, job)
    known = was.epochs[number]
    if was.held.get(number, known):
        return False
    trial.known = known
    if trial.driver is not None:
        trial.driver.take_back_logs(was.logs.get(number, {}))
    return True
