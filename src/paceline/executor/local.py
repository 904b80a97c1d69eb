"""Packs on the local device: keeps slots full, compiles in the background, reports every epoch.

A lane trains one pack at a time. An accelerator has one lane. A CPU has one per core: the many
small operations of a stacked step keep a single core busy, and packs of one program share its
executable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from paceline.data.arrays import ArrayData
from paceline.data.batched import BatchedDataset
from paceline.data.trial_inputs import TrialInputs
from paceline.errors import UsageError
from paceline.executor.base import Failed, Job, LateAnswer, PackTimeout, Parts, Report, settled
from paceline.executor.demand import Demand
from paceline.executor.device_data import DeviceData, size_text
from paceline.executor.garbage import Dropped
from paceline.executor.group import Group
from paceline.executor.grouping import TrialGrouper
from paceline.executor.lanes import LaneThreads
from paceline.executor.memory import batches_bytes, chunk_bytes_of
from paceline.executor.paused import PausedStates
from paceline.executor.plan_choice import Candidate
from paceline.executor.planner import Planner
from paceline.executor.reporting import EpochReporter, abandon
from paceline.executor.round import PAUSE, EpochRound
from paceline.executor.slots import SlotAllocator, program_of
from paceline.executor.snapshot import Arrays, Example, Facts, PackSnapshots, state_like
from paceline.executor.timings import ExecutorTimings
from paceline.pack.pack import Pack, SlotTrial
from paceline.pack.plan import CompiledPlan
from paceline.program.trace import State

#: Seconds that the end of an epoch is waited for when a search is given up.
_PATIENCE = 5.0


class LocalExecutor:
    """Trains trials in packs.

    Args:
        data: Training data.
        validation: Validation data, or None.
        validation_batch_size: None: as the trial's batch size, like Keras. Jobs' own settings, and
            their own data, come first.
        validation_freq: As ``fit`` takes it.
        shuffle: A new order of examples each epoch, from the trial's seed.
        slots: Trials that train at once, or "auto": 8 per core on a CPU, 32 on an accelerator.
        plan: "stacked", "mapped", "sequential" or "auto".
        mesh: Devices asked for, from ``check_mesh``; None: all accelerators, or one CPU.
        fold: Examples that jobs' folds train and validate on; None where jobs have no folds.
        in_order: Trials come as a grid walks: what the first have in common the next may not.
        trial_timeout: Seconds that an epoch may take, at most; None for no limit.
        suspects: Number of a job -> epochs trained when its pack did not come back: it trains that
            epoch by itself.
        note: Called with what users may want to know.

    Attributes:
        demand: What it wants of the search, which tells it there what is still to come.
        accounts: What it has spent.

    Raises:
        UsageError: There are not as many devices, or the data that must be there do not fit.
    """

    def __init__(
        self,
        data: ArrayData | BatchedDataset,
        validation: ArrayData | None,
        *,
        validation_batch_size: int | None = None,
        validation_freq: int | Collection[int] = 1,
        shuffle: bool = True,
        slots: int | str = "auto",
        plan: str = "auto",
        mesh: tuple[int, int | None] | None = None,
        fold: tuple[int, int] | None = None,
        in_order: bool = False,
        trial_timeout: float | None = None,
        suspects: Mapping[int, int] | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._planner = Planner(slots, plan, mesh)
        self._planner.note = note
        beside = validation.nbytes_beside(data) if validation else 0
        if isinstance(data, BatchedDataset):
            chunk_bytes = batches_bytes()
        else:
            chunk_bytes = chunk_bytes_of(data.nbytes, beside)
        if fold is not None and chunk_bytes is not None:
            raise UsageError(
                f"folds: their data stay on the device, and {size_text(data.nbytes)} do not fit "
                "beside the trials; give fewer examples."
            )
        if chunk_bytes is not None:
            self._planner.lanes = 1  # each lane would read the data on its own
        self._intake = TrialGrouper(data, validation, validation_batch_size, fold, chunk_bytes)
        self._placement = DeviceData(self._planner)
        self._lanes = LaneThreads(self._planner.lanes)
        self._patience = _PATIENCE
        self._parking = PausedStates()
        self._parked_in: dict[int, Group] = {}  # paused trial -> its group
        self._seats = SlotAllocator(
            self._planner,
            self._placement,
            shuffle=shuffle,
            validation_freq=validation_freq,
            folded=fold is not None,
        )
        self._teller = EpochReporter(self._planner, self._parking, self._parked_in)
        self._saver = PackSnapshots(
            self._intake, self._planner, self._parking, self._parked_in, self._seats.new_pack
        )
        self._dropped = Dropped()
        self.demand = Demand(self._planner, self._intake)
        self.accounts = ExecutorTimings()
        self._round = 0  # calls of ``advance``
        self.compiling = False  # nothing can train until a program is compiled
        # Trials that are got ready while an epoch trains are all there before it is reported.
        self.lockstep = False
        self.resuming = False  # trials are submitted to be put back to where they were
        self._trial_timeout = trial_timeout
        self._seats.suspects = {} if suspects is None else suspects
        self.demand.in_order = in_order

    @property
    def plans(self) -> set[str]:
        """Names of the plans that trained."""
        return self._planner.plans

    def check_batch(self, batch_size: int) -> None:
        """Checks that the devices can share a batch as the user asks.

        Raises:
            UsageError: They cannot.
        """
        self._planner.check_batch(batch_size)

    # -- taking trials in ------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Traces a trial's steps and queues it with the trials that share its program.

        Raises:
            Unpackable: The step cannot be traced, or not be shared, or callbacks of the trial act
                within an epoch; the message says why.
        """
        began = time.perf_counter()
        self._planner.check_batch(job.batch_size)
        self.demand.arrives(max(1, len(job.folds)))
        group = self._intake.take(job)
        job.model = None
        self._dropped.add(group.nbytes)
        self.accounts.seconds.trace += time.perf_counter() - began
        if group.program is None and not self.resuming and self.demand.is_sure(group):
            expected = self.demand.expected
            self._planner.compile(group, max(expected, len(group.queue)), expected)

    def go_on(self, number: int, epoch: int, parts: Parts) -> bool:
        """Has a trial that has just been submitted begin after an epoch that was trained before.

        Args:
            number: The trial's.
            epoch: That epoch.
            parts: Its variables then.

        Returns:
            Whether it does; not where its model has other variables.
        """
        for group in self._intake.groups:
            rider = group.waiting(number)
            if rider is not None:
                state = state_like(group.state, parts)
                if state is not None:
                    rider.state, rider.epoch = state, epoch
                return state is not None
        return False

    def study(self, model: Any, setting: TrialInputs) -> Group | None:
        """Learns from a model that is not to be trained, to trace fewer of those that are.

        Raises:
            Unpackable: It cannot be packed.
        """
        began = time.perf_counter()
        group = self._intake.study(model, setting)
        self.accounts.seconds.trace += time.perf_counter() - began
        return group

    def resume(self, number: int) -> None:
        """Queues a paused trial, before those that have not begun; it goes on where it stopped."""
        self._parked_in.pop(number).queue.appendleft(self._parking.take(number))

    def drop(self, number: int) -> None:
        """Forgets a trial that is paused or has not begun; none of that number is no error."""
        self._parked_in.pop(number, None)
        parked = self._parking.drop(number)
        dropped = [] if parked is None else [parked]
        for group in self._intake.groups:
            rider = group.waiting(number)
            if rider is not None:
                group.queue.remove(rider)
                dropped.append(rider)
        for rider in dropped:
            abandon(rider)

    def replace(self, number: int, state: State) -> None:
        """Gives a trial that waits for its next epoch other values of its variables.

        Raises:
            KeyError: It is neither in a slot nor waiting for one.
        """
        for group in self._intake.groups:
            rider, pack = group.waiting(number), group.pack_of(number)
            if rider is not None:
                rider.state = state
                return
            if pack is not None:
                pack.replace(number, state)
                return
        raise KeyError(number)

    def withdraw(self, number: int) -> None:
        """As ``drop``, of a trial that sits in a slot as well."""
        self.drop(number)
        for group in self._intake.groups:
            pack = group.pack_of(number)
            if pack is not None:
                pack.evict(number)

    @property
    def state_bytes(self) -> int:
        """Bytes of the variables of all trials that are in slots or paused."""
        groups = self._intake.groups
        parked = sum(group.nbytes for group in self._parked_in.values())
        return parked + sum(group.live * group.nbytes for group in groups)

    def snapshot(self, arrays: Arrays, lasting: dict[str, Arrays]) -> Facts:
        """All trials under way, as JSON values.

        Args:
            arrays: Their variables are added to it, by name.
            lasting: Likewise those of paused trials, by a key that is theirs while they are paused.
        """
        return {**self._saver.taken(arrays, lasting), "asking": self._asking}

    def states(self) -> dict[int, tuple[int, State]]:
        """Epoch and variables of trials that ``go_on`` could go on with elsewhere, by number."""
        return self._saver.states()

    def programs_snapshot(self) -> Facts:
        """As ``snapshot``, but for the trials, which would begin again."""
        return {**self._saver.programs_taken(), "asking": self._asking}

    @property
    def _asking(self) -> list[int]:
        rounds = self._round - self.compiling  # one that waits for a compiler comes again
        return [self.demand.family, self.demand.expected, self.demand.unasked, rounds]

    def restore(self, facts: Facts, arrays: Arrays, example: Example) -> list[int]:
        """Puts trials that have been submitted back to where they were.

        Args:
            facts: Of ``snapshot``, perhaps in another process.
            arrays: Likewise.
            example: The model of a trial, by number, and its setting; None where there is none.

        Returns:
            Numbers of trials that must begin again.
        """
        lost = self._saver.restore(facts, arrays, example)
        demand = self.demand
        demand.family, demand.expected, demand.unasked, self._round = facts["asking"]
        return lost

    @property
    def max_slots(self) -> int:
        """Trials that train at once, at most."""
        return self._planner.max_slots(self._intake.groups)

    @property
    def busy(self) -> bool:
        """Whether any trial is waiting or training."""
        return any(group.active for group in self._intake.groups)

    @property
    def waiting(self) -> int:
        """Trials traced and not yet in a slot."""
        return self._intake.waiting

    # -- training ----------------------------------------------------------------------------------

    def advance(self, report: Report, meanwhile: Callable[[], bool], failed: Failed) -> None:
        """One epoch of every pack whose program is compiled.

        Raises:
            UsageError: The user's number of slots does not fit into the device's memory.
            Hung: Packs do not come back within ``trial_timeout``. Nothing can be trained any more.
        """
        active = [group for group in self._intake.groups if group.active]
        self._round += 1
        self._compile(active)
        ready = self._seats.in_turn(active, self._round)
        for group in ready:
            self._wait_for(program_of(group), meanwhile)
        ready = [group for group in ready if self._seats.fits(group, failed)]
        all_asked = self.demand.all_asked
        filled = [(group, self._seats.filled(group, all_asked=all_asked)) for group in ready]
        packs = [(group, pack) for group, found in filled for pack in found]
        packs = [(group, pack) for group, pack in packs if self._teller.begin(pack, failed)]
        now = EpochRound(packs, self._lanes)
        try:
            now.run(meanwhile, self._trial_timeout, lockstep=self.lockstep)
        except PackTimeout:
            self._patience = 0.0
            raise
        self.accounts.enter(now.wall, now.packs, now.trained)
        n_full = now.n_full(self._planner.lanes)
        tight = self._tell(now, report, failed)
        for group in tight:
            self._seats.halve(group)
        for group in ready if not tight else ():
            self._reconsider(group, n_full if len(ready) == 1 else 0, now.wall)
        for group in ready:
            if not group.active:
                group.packs.clear()  # its arrays need not stay on the device

    def _compile(self, groups: Sequence[Group]) -> None:
        """Has those compiled that have no program, or one that lacks an input."""
        for group in groups:
            if group.program is None and group.again is not None:
                self._planner.compile_again(group)
            if group.program is None or any(role.stale for role in group.roles):
                if group.program is None:
                    group.met = self._round
                demand = self.demand
                n_trials = max(len(group.queue), min(demand.family, demand.expected))
                self._planner.compile(group, n_trials, demand.expected)

    def _tell(self, now: EpochRound, report: Report, failed: Failed) -> list[Group]:
        """Reports a round and does what is answered; returns groups that lack memory."""
        tight: dict[int, Group] = {}
        told: list[tuple[Group, Pack, SlotTrial, LateAnswer]] = []
        for group, pack, epoch in now.outcomes:
            if not isinstance(epoch, BaseException):
                told += self._teller.tell(group, pack, epoch, report, failed)
            elif self._seats.recover(group, pack, epoch, failed):
                tight[id(group)] = group
        for group, pack, rider, answer in told:
            self._teller.heed(group, pack, rider, settled(answer))
        return list(tight.values())

    def _reconsider(self, group: Group, n_trials: int, seconds: float) -> None:
        """After an epoch: perhaps a group goes on with another program.

        Args:
            group: The group.
            n_trials: Trials that trained, where it was alone and all slots were taken; else 0.
            seconds: What the epoch took.
        """
        program = program_of(group)
        if group.choice is not None and n_trials:
            group.choice.note(Candidate(program.plan, program.n_slots), n_trials, seconds)
        left, expected = self.demand.epochs_left(group), self.demand.expected
        self._planner.reconsider(group, left, expected)
        if self.demand.all_asked and not group.queue and not self._parked(group):
            self._planner.shrink(group, seconds)
        else:
            self._planner.grow(group, left, seconds, expected)
        if group.coming is not None and self._planner.arrived(group):
            self._seats.clear(group)
            group.program, group.coming = group.coming, None
            self._planner.plans.add(group.program.plan)

    def _parked(self, group: Group) -> bool:
        """Whether any of a group's trials is paused."""
        return any(each is group for each in self._parked_in.values())

    def _wait_for(self, program: CompiledPlan, meanwhile: Callable[[], bool]) -> None:
        self.compiling = True
        while not program.ready():
            if not meanwhile():
                time.sleep(PAUSE)
        self.compiling = False

    # -- accounts ----------------------------------------------------------------------------------

    def program_counts(self) -> dict[str, int]:
        """distinct: groups; compiled, from_cache: train and validate roles by their origin."""
        roles = self._planner.compiled_roles()
        cached = sum(all(e.from_cache for e in role) for role in roles)
        return {
            "distinct": len(self._intake.groups),
            "compiled": len(roles) - cached,
            "from_cache": cached,
        }

    def compile_seconds(self) -> float:
        """Time spent lowering and compiling, in whatever thread."""
        return sum(e.seconds for role in self._planner.compiled_roles() for e in role)

    def close(self) -> None:
        """Ends the lanes; packs and data are dropped."""
        self._intake.keep()
        self._lanes.close(self._patience)
        riders = [rider for group in self._intake.groups for rider in group.riders]
        for rider in [*riders, *self._parking.riders]:
            abandon(rider)
        for group in self._intake.groups:
            group.packs.clear()
            group.queue.clear()
        self._placement.clear()
        self._parking.close()
