"""Packs on the local device: keeps slots full, compiles in the background, reports every epoch.

A lane trains one pack at a time. An accelerator has one lane. A CPU has one per core: the many
small operations of a stacked step keep a single core busy, and packs of one program share its
executable.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import jax

from paceline.collector import Dropped
from paceline.data import ArrayData
from paceline.errors import UsageError
from paceline.executor.base import (
    Answer,
    EpochReport,
    Failed,
    Job,
    LateAnswer,
    Report,
    settled,
)
from paceline.executor.intake import Group, Intake
from paceline.executor.memory import free_bytes, is_out_of_memory, slot_bytes
from paceline.executor.parking import Parking
from paceline.pack import EpochTimes, Pack, Rider
from paceline.plan import Program, SequentialProgram, StackedProgram
from paceline.plan.cost import gains_from_stacking
from paceline.program.compiling import Executable

#: Slots of a stacked pack when the user says "auto". On two cores throughput is flat from 8 slots
#: on, and a GRU is slower with 16 (docs/decisions/0003); accelerators take more.
AUTO_SLOTS = {"cpu": 8, "gpu": 32, "tpu": 32}
#: Lanes on a CPU, at most: beyond, packs compete for memory bandwidth.
_CPU_LANES = 8
#: After this many trials of one program, with no other in sight, it is compiled in the background.
_SURE = 3
#: Dispatched steps of a search below which it is compiled for a short run: 5 to 20 s on a CPU.
_SHORT_STEPS = 5000
#: Seconds between looks at the device when there is nothing else to do.
_PAUSE = 0.02

#: An epoch of a pack: trial number -> logs, and the time it took.
Epoch = tuple[dict[int, dict[str, float]], EpochTimes]


@dataclass
class Seconds:
    """Where the time went; tracing and compiling overlap with training."""

    trace: float = 0.0
    train: float = 0.0
    validate: float = 0.0


class LocalExecutor:
    """Trains trials in packs.

    Args:
        data: Training data.
        validation: Validation data, or None.
        validation_batch_size: None: as the trial's batch size, like Keras.
        shuffle: A new order of examples each epoch, from the trial's seed.
        slots: Trials that train at once, or "auto": 8 per core on a CPU, 32 on an accelerator.
        plan: "stacked", "sequential" or "auto".
        fold: Examples that jobs' folds train and validate on; None where jobs have no folds.
    """

    def __init__(
        self,
        data: ArrayData,
        validation: ArrayData | None,
        *,
        validation_batch_size: int | None = None,
        shuffle: bool = True,
        slots: int | str = "auto",
        plan: str = "auto",
        fold: tuple[int, int] | None = None,
    ) -> None:
        self._data, self._validation, self._fold = data, validation, fold
        self._shuffle, self._plan = shuffle, plan
        self._platform = jax.default_backend()
        self._lanes = 1
        self._chooses = isinstance(slots, str)
        if not isinstance(slots, str):
            self._pack_slots = int(slots)
        else:
            self._pack_slots = AUTO_SLOTS.get(self._platform, 32)
            if self._platform == "cpu":
                self._lanes = max(1, min(_CPU_LANES, _cores()))
        self._intake = Intake(data, validation, validation_batch_size, fold)
        self._on_device: tuple[Any, Any] | None = None
        self._pool = ThreadPoolExecutor(self._lanes, thread_name_prefix="paceline-lane")
        self._programs: list[Program] = []
        self._parking = Parking()
        self._parked_in: dict[int, Group] = {}  # paused trial -> its group
        self._dropped = Dropped()
        self._slot_epochs = self._busy_epochs = 0
        self.seconds = Seconds()
        self.expected = 1  # trials still to come, those waiting included; the tuner keeps it
        self.plans: set[str] = set()
        self.uniform = False  # the space has no choice that could make another program
        self.note: Callable[[str], None] = lambda text: None  # told what users may want to know
        self.compiling = False  # nothing can train until a program is compiled

    # -- taking trials in ------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Traces a trial's steps and queues it with the trials that share its program.

        Raises:
            Unpackable: The step cannot be traced, or not be shared; the message says why.
        """
        began = time.perf_counter()
        group = self._intake.take(job)
        job.model = None
        self._dropped.add(group.nbytes)
        self.seconds.trace += time.perf_counter() - began
        sure = group.n_seen >= _SURE and (self.uniform or group.n_trials >= _SURE)
        if group.program is None and sure and len(self._intake.groups) == 1:
            self._compile(group, max(self.expected, len(group.queue)))

    def study(self, model: Any, batch_size: int) -> None:
        """Learns from a model that is not to be trained, to trace fewer of those that are.

        Raises:
            Unpackable: It cannot be packed.
        """
        began = time.perf_counter()
        self._intake.study(model, batch_size)
        self.seconds.trace += time.perf_counter() - began

    def resume(self, number: int) -> None:
        """Queues a paused trial, before those that have not begun; it goes on where it stopped."""
        self._parked_in.pop(number).queue.appendleft(self._parking.take(number))

    def drop(self, number: int) -> None:
        """Forgets a trial that is paused or has not begun; none of that number is no error."""
        self._parked_in.pop(number, None)
        self._parking.drop(number)
        for group in self._intake.groups:
            for rider in [rider for rider in group.queue if rider.number == number]:
                group.queue.remove(rider)

    @property
    def max_slots(self) -> int:
        """Trials that train at once, at most."""
        return self._lanes * self._pack_slots

    @property
    def busy(self) -> bool:
        """Whether any trial is waiting or training."""
        return any(group.active for group in self._intake.groups)

    @property
    def waiting(self) -> int:
        """Trials traced and not yet in a slot."""
        return sum(len(group.queue) for group in self._intake.groups)

    @property
    def hungry(self) -> bool:
        """Whether training should wait for more trials: slots would stay empty.

        With several programs in sight, look further ahead, so that each fills a pack of its own.
        """
        groups = self._intake.groups
        have = sum(len(group.queue) + group.live for group in groups)
        return have < self.max_slots * (4 if len(groups) > 1 else 1)

    @property
    def room(self) -> bool:
        """Whether one more trial is worth tracing now, to have it ready when a slot is free."""
        return self.waiting < 4 * self.max_slots

    # -- training ----------------------------------------------------------------------------------

    def advance(self, report: Report, meanwhile: Callable[[], bool], failed: Failed) -> None:
        """One epoch of every pack whose program is compiled.

        Raises:
            UsageError: The user's number of slots does not fit into the device's memory.
        """
        active = [group for group in self._intake.groups if group.active]
        for group in active:
            if group.program is None or any(role.stale for role in group.roles):
                self._compile(group, len(group.queue))
        ready = [group for group in active if _program(group).ready()]
        if not ready:
            ready = active[:1]
            self._wait_for(_program(ready[0]), meanwhile)
        ready = [group for group in ready if self._fits(group, failed)]
        packs = [(group, pack) for group in ready for pack in self._filled(group)]
        began = time.perf_counter()
        epochs = [self._pool.submit(pack.run_epoch) for _, pack in packs]
        while not all(epoch.done() for epoch in epochs):
            if not meanwhile():
                wait(epochs, timeout=_PAUSE)
        self._slot_epochs += sum(len(pack.riders) for _, pack in packs)
        self._busy_epochs += sum(len(pack.live) for _, pack in packs)
        done = [epoch.result() for epoch in epochs if epoch.exception() is None]
        self._account(time.perf_counter() - began, [times for _, times in done])
        tight: list[Group] = []
        told: list[tuple[Group, Pack, Rider, LateAnswer]] = []
        for (group, pack), epoch in zip(packs, epochs, strict=True):
            error = epoch.exception()
            if error is None:
                told += self._tell(group, pack, epoch.result(), report)
            elif self._recover(group, pack, error, failed):
                tight.append(group)
        for group, pack, rider, answer in told:
            self._heed(group, pack, rider, settled(answer))
        for group in {id(group): group for group in tight}.values():
            self._halve(group)
        for group in ready:
            if not group.active:
                group.packs.clear()  # its arrays need not stay on the device

    def _fits(self, group: Group, failed: Failed) -> bool:
        """Whether a compiled group fits into the device's memory; else it gets fewer slots."""
        if group.packs:
            return True
        program, free = _program(group), free_bytes()
        executables = [executable for role in program.roles() for executable in role]
        data = self._data.nbytes
        each = slot_bytes(executables, program.n_slots, data)
        held = self._validation.nbytes_beside(self._data) if self._validation else 0
        room = (free - data - held) / (self._lanes * each) if each else float("inf")
        if room >= program.n_slots:
            return True
        fitting = 1 << int(room).bit_length() - 1 if room >= 1 else 0
        if fitting == 0 and self._lanes > 1:
            self._lanes = 1
            return self._fits(group, failed)
        if fitting and self._chooses:
            self._shrink(group, fitting)
        elif fitting:
            raise UsageError(
                f"slots: {program.n_slots} slots need {_size(each * program.n_slots)} beside the "
                f"data, and {_size(max(0.0, free - data - held))} are free; {fitting} fit."
            )
        else:
            error = MemoryError(
                f"one trial needs {_size(each)} beside the data, and "
                f"{_size(max(0.0, free - data - held))} are free on the device; make the model or "
                "the batch smaller"
            )
            while group.queue:
                failed(group.queue.popleft().number, error)
        return False

    def _shrink(self, group: Group, n_slots: int) -> None:
        """Has a group compiled again with fewer slots."""
        self.note(
            f"the device's memory holds {n_slots} slots a pack of this program, not "
            f"{_program(group).n_slots}"
        )
        group.most_slots, group.program = n_slots, None
        group.packs.clear()

    def _recover(self, group: Group, pack: Pack, error: BaseException, failed: Failed) -> bool:
        """After a pack's epoch failed: its trials wait again where memory ran out; else they fail.

        Returns:
            Whether the group must do with less memory.
        """
        if not isinstance(error, Exception):
            raise error
        saved, lost = pack.rescue()
        again = is_out_of_memory(error) and (pack.program.n_slots > 1 or self._lanes > 1)
        if again:
            group.queue.extendleft(reversed(saved))
        else:
            lost += saved
        for rider in lost:
            failed(rider.number, error)
        return again

    def _halve(self, group: Group) -> None:
        """Has a group train half as many trials at once; those in slots go on in others."""
        n_slots = _program(group).n_slots
        for pack in group.packs:
            group.queue.extendleft(pack.take_out(rider.number) for rider in pack.live)
        if n_slots == 1:
            self._lanes = 1
        self._shrink(group, max(1, n_slots // 2))

    def _wait_for(self, program: Program, meanwhile: Callable[[], bool]) -> None:
        self.compiling = True
        while not program.ready():
            if not meanwhile():
                time.sleep(_PAUSE)
        self.compiling = False

    def _filled(self, group: Group) -> list[Pack]:
        """The group's packs with something in them, waiting trials spread over the free slots."""
        while len(group.packs) < self._lanes:
            group.packs.append(self._new_pack(group))
        while group.queue:
            pack = max(group.packs, key=lambda pack: len(pack.free))
            if not pack.free:
                break
            pack.admit(group.queue.popleft())
        return [pack for pack in group.packs if pack.live]

    def _tell(
        self, group: Group, pack: Pack, epoch: Epoch, report: Report
    ) -> list[tuple[Group, Pack, Rider, LateAnswer]]:
        """Reports an epoch of a pack; returns its trials with what was answered."""
        results, times = epoch
        share = (times.train + times.validate) / max(1, len(results))
        told = []
        for rider in pack.live:
            answer = report(
                EpochReport(
                    number=rider.number,
                    epoch=rider.epoch,
                    logs=results[rider.number],
                    seconds=share,
                    program=group.name,
                    plan=pack.program.plan,
                    weights=pack.weights(rider.number),
                )
            )
            told.append((group, pack, rider, answer))
        return told

    def _heed(self, group: Group, pack: Pack, rider: Rider, answer: Answer) -> None:
        if answer == "pause":
            self._parking.put(pack.take_out(rider.number))
            self._parked_in[rider.number] = group
        elif answer == "stop" or rider.epoch >= rider.epochs:
            pack.evict(rider.number)

    def _new_pack(self, group: Group) -> Pack:
        if self._on_device is None:
            there: dict[int, Any] = {}
            validation = self._validation
            self._on_device = (
                self._data.on_device(there=there),
                None if validation is None else validation.on_device(there=there),
            )
        data, on_device = self._on_device
        return Pack(
            _program(group),
            data,
            group.work.n_train,
            on_device,
            self._shuffle,
            group.train.full.log_names,
            group.test.full.log_names if group.test else (),
            None if self._fold is None else group.work.n_validation,
        )

    # -- compiling ---------------------------------------------------------------------------------

    def _compile(self, group: Group, n_trials: int) -> None:
        """Compiles a group that has no program, or one that lacks an input.

        Args:
            group: The group.
            n_trials: How many trials are there for it, so far as is known.
        """
        before = group.program
        for role in group.roles:
            role.settle(group.n_seen)
        parts = (group.train, group.test, group.state, group.work)
        if self._choose(group) == "sequential":
            old = before if isinstance(before, SequentialProgram) else None
            quick = self._is_short(group, n_trials, self._lanes)
            group.program = SequentialProgram(*parts, quick=quick, before=old)
        else:
            old = before if isinstance(before, StackedProgram) else None
            slots = old.n_slots if old else self._slots_for(group, n_trials)
            quick = self._is_short(group, n_trials, slots * self._lanes)
            group.program = StackedProgram(*parts, slots, quick=quick, before=old)
        self._programs.append(group.program)
        self.plans.add(group.program.plan)
        for pack in group.packs:
            pack.exchange(group.program)

    def _slots_for(self, group: Group, n_trials: int) -> int:
        """Slots of a pack: a power of two, enough for the trials of one lane."""
        if self._chooses and self._platform == "cpu":
            if not gains_from_stacking(group.train.full.closed):
                return 1
        share = -(-min(n_trials, self.max_slots) // self._lanes)
        slots = 1 << max(0, share - 1).bit_length()
        return slots if group.most_slots is None else min(slots, group.most_slots)

    def _is_short(self, group: Group, n_trials: int, at_once: int) -> bool:
        """Whether the group will train so little that compile time matters more than step time."""
        epochs = max((rider.epochs for rider in group.queue), default=1)
        waves = max(self.expected, n_trials, 1) / at_once
        return waves * epochs * max(1, group.work.steps) < _SHORT_STEPS

    def _choose(self, group: Group) -> str:
        if group.rng_differs:
            return "sequential"  # under vmap its random numbers would be others than alone
        if self._plan != "auto":
            return self._plan
        # XLA's CPU convolutions are 20 times slower inside a loop, and grouped by vmap still
        # slower.
        if group.convolves and self._platform == "cpu":
            return "sequential"
        return "stacked" if self._pack_slots > 1 else "sequential"

    # -- accounts
    # ------------------------------------------------------------------------------------

    def _account(self, wall: float, times: list[EpochTimes]) -> None:
        """Splits a round's wall time into training and validation."""
        train, validate = sum(t.train for t in times), sum(t.validate for t in times)
        share = train / (train + validate) if train + validate else 1.0
        self.seconds.train += wall * share
        self.seconds.validate += wall * (1.0 - share)

    def program_counts(self) -> dict[str, int]:
        """distinct: groups; compiled, from_cache: train and validate roles by their origin."""
        roles = self._compiled_roles()
        cached = sum(all(e.from_cache for e in role) for role in roles)
        return {
            "distinct": len(self._intake.groups),
            "compiled": len(roles) - cached,
            "from_cache": cached,
        }

    @property
    def busy_share(self) -> float | None:
        """Slots with a trial in them, over all slots of the packs that trained; by epochs."""
        return self._busy_epochs / self._slot_epochs if self._slot_epochs else None

    def compile_seconds(self) -> float:
        """Time spent lowering and compiling, in whatever thread."""
        return sum(e.seconds for role in self._compiled_roles() for e in role)

    def _compiled_roles(self) -> list[list[Executable]]:
        """What was compiled, a train or validate role each; one that was taken over counts once."""
        unique = {id(role[0]): role for p in self._programs if p.ready() for role in p.roles()}
        return list(unique.values())

    def close(self) -> None:
        """Ends the lanes; packs and data are dropped."""
        self._intake.keep()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for group in self._intake.groups:
            group.packs.clear()
            group.queue.clear()
        self._on_device = None
        self._parking.close()


def _cores() -> int:
    """Cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _size(n_bytes: float) -> str:
    """Bytes for people."""
    for unit in ("bytes", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} GB"


def _program(group: Group) -> Program:
    assert group.program is not None
    return group.program
