"""What an executor reports: each trial's epochs to the search, and where time and slots went.

A trial's callbacks see an epoch before the search does, since they may change its logs or stop it.
Which job was in which slot when, is seen from outside: packs know nothing of it.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from paceline.executor.base import (
    Answer,
    EpochReport,
    Failed,
    LateAnswer,
    Report,
    UserNotifier,
    Weights,
    settled,
)
from paceline.executor.sharing.grouping import LocalGroup
from paceline.executor.state.paused import PausedStates
from paceline.executor.training.memory import DeviceData
from paceline.pack.callbacks.driver import CallbackDriver, abandon
from paceline.pack.callbacks.slot_model import FROZE
from paceline.pack.pack import EpochTimes, Pack, SlotTrial
from paceline.pack.plan import CompiledPlan
from paceline.records import PackCreated, SlotStay, StepCompiled

#: One epoch of a pack: job number -> logs, and the seconds that the epoch took.
PackEpoch = tuple[dict[int, dict[str, float]], EpochTimes]
#: Number of the last rounds that show how fast the search goes now.
_LATELY = 64


@dataclass(frozen=True)
class WaitingEpoch:
    """An epoch that waits to be reported, perhaps while its pack trains on."""

    trained: PackEpoch  # what the pack returned
    epochs: dict[int, int]  # trial number -> the epoch's number, from 1
    # Trial number -> copies of its weights; None if the pack still has them.
    weights: dict[int, Weights] | None


class EpochReporter:
    """Reports the epochs of an executor's packs, and does what the search answers."""

    def __init__(self, notes: UserNotifier, paused: PausedStates, device_data: DeviceData) -> None:
        self._notes, self._paused, self._device_data = notes, paused, device_data

    def begin_epoch(self, pack: Pack, failed: Failed) -> bool:
        """Calls the callbacks that come before an epoch; returns whether any trial is left.

        ``failed`` is told of each trial one of whose callbacks raises; the trial leaves the pack.
        """
        for trial in pack.live:
            if trial.driver is not None:
                try:
                    trial.driver.begin_epoch(trial.first_epoch + trial.epoch)
                except Exception as error:  # a callback is the user's code
                    _fail(pack, trial, error, failed)
        if pack.live:
            self._release(pack)
        return bool(pack.live)

    def end_group(self, group: LocalGroup) -> None:
        """Drops the packs of a group of which no trial waits or trains now."""
        for pack in group.packs:
            self._release(pack, done=True)
        group.packs.clear()  # its arrays need not stay on the device

    def _release(self, pack: Pack, *, done: bool = False) -> None:
        pack.detach(done=done)
        self._paused.count_anew()

    def report_epoch(
        self, group: LocalGroup, pack: Pack, epoch: PackEpoch, report: Report, failed: Failed
    ) -> list[tuple[LocalGroup, Pack, SlotTrial, LateAnswer]]:
        """Reports an epoch of a pack, one trial after another in the order of their slots.

        ``failed`` is told of each trial one of whose callbacks raises; the trial leaves the pack
        and is not reported. Returns each trial that was reported, with the answer.
        """
        results, times = epoch
        share = (times.train + times.validate) / max(1, len(results))
        # The callbacks of all trials come before the first report. So what they write to variables
        # goes to the device in one piece, before the first weights are fetched.
        for trial in pack.live:
            if trial.driver is not None:
                try:
                    results[trial.number] = trial.driver.end_epoch(results[trial.number])
                    if trial.driver.stopped:
                        trial.epochs = trial.epoch
                    if trial.driver.froze:
                        self._notes.tell_once(FROZE)
                    if trial.epoch >= trial.epochs:
                        trial.driver.end()
                except Exception as error:  # a callback is the user's code
                    _fail(pack, trial, error, failed)
        told = []
        for trial in pack.live:
            if trial.epoch <= trial.known:
                continue  # it catches up with what the search was told before it stopped
            called = trial.driver.seconds() if trial.driver else 0.0
            answer = report(
                EpochReport(
                    number=trial.number,
                    epoch=trial.epoch,
                    logs=results[trial.number],
                    seconds=share + called,
                    program=group.name,
                    plan=pack.program.plan,
                    weights=pack.weights(trial.number),
                    state=pack.state(trial.number),
                    wall=times.train + times.validate + called,
                    last=trial.epoch >= trial.epochs,
                )
            )
            told.append((group, pack, trial, answer))
        return told

    def report_held(
        self, group: LocalGroup, pack: Pack, held: WaitingEpoch, report: Report, leaving: set[int]
    ) -> None:
        """Reports an epoch of a pack whose trials have no callbacks.

        Every answer of ``report`` is there at once. Trials whose training is over are added to
        ``leaving``: they leave once the pack stops.
        """
        results, times = held.trained
        wall = times.train + times.validate
        trials = {trial.number: trial for trial in pack.live}
        for number, logs in results.items():
            trial, epoch = trials[number], held.epochs[number]
            if epoch <= trial.known or number in leaving:
                continue
            copies = None if held.weights is None else held.weights[number]
            answer = report(
                EpochReport(
                    number=number,
                    epoch=epoch,
                    logs=logs,
                    seconds=wall / len(results),
                    program=group.name,
                    plan=pack.program.plan,
                    weights=pack.weights(number) if copies is None else partial(tuple, copies),
                    state=pack.state(number) if copies is None else None,
                    wall=wall,
                    last=epoch >= trial.epochs,
                )
            )
            if settled(answer) == "stop" or epoch >= trial.epochs:
                leaving.add(number)

    def apply_answer(self, group: LocalGroup, pack: Pack, trial: SlotTrial, answer: Answer) -> None:
        """Does what was answered about a trial: the trial stays, leaves its slot, or waits."""
        if answer == "pause":
            held = self._paused.device_bytes + group.nbytes
            stays = self._device_data.can_hold(group, pack.program, held)
            leave = pack.lend_out if stays else pack.take_out
            self._paused.put(leave(trial.number), group)
        elif answer == "stop" or trial.epoch >= trial.epochs:
            if trial.driver is not None:
                self._end_callbacks(trial.driver)
            pack.evict(trial.number)

    def _end_callbacks(self, driver: CallbackDriver) -> None:
        """Tells a trial's callbacks that its training is over."""
        try:
            driver.end()
        except Exception as error:  # a callback is the user's code; the trial has ended by now
            self._notes.tell(
                f"a callback of a trial that was stopped failed in on_train_end: "
                f"{type(error).__name__}: {error}"
            )
            driver.abandon()


def _fail(pack: Pack, trial: SlotTrial, error: Exception, failed: Failed) -> None:
    """Takes a trial out because one of its callbacks raised; the other trials train on."""
    abandon(trial.driver)
    pack.evict(trial.number)
    failed(trial.number, error)


@dataclass
class SecondsSpent:
    """Where the time went; tracing and compiling overlap with training."""

    trace: float = 0.0
    train: float = 0.0
    validate: float = 0.0

    def add(self, wall: float, times: Sequence[EpochTimes]) -> None:
        """Splits a round's seconds on the clock into training and validation.

        ``times`` are of the round's packs, which train side by side.
        """
        train, validate = sum(t.train for t in times), sum(t.validate for t in times)
        share = train / (train + validate) if train + validate else 1.0
        self.train += wall * share
        self.validate += wall * (1.0 - share)


@dataclass
class ExecutorTimings:
    """What an executor has spent."""

    seconds: SecondsSpent = field(default_factory=SecondsSpent)  # where the time went
    n_rounds: int = 0  # in which a pack was trained
    # The last of these rounds: seconds on the clock, and number of trials that trained. Of packs
    # that do not wait for one another, as many as a thread trains epochs.
    rounds: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_LATELY))
    # Slots over all epochs, and how many of them held a trial.
    slot_epochs: tuple[int, int] = (0, 0)

    def add_round(self, wall: float, packs: Sequence[Pack], trained: Sequence[PackEpoch]) -> None:
        """Adds a round that took ``wall`` seconds on the clock.

        ``packs`` are the round's, with the trials that began it; ``trained`` are the epochs of
        those that did not fail.
        """
        self._count(sum(len(pack.slots) for pack in packs), sum(len(pack.live) for pack in packs))
        self.seconds.add(wall, [times for _, times in trained])
        if trained:
            self.n_rounds += 1
            self.rounds.append((wall, sum(len(results) for results, _ in trained)))

    def add_epochs(
        self, wall: float, trained: Sequence[tuple[int, PackEpoch]], packs_at_once: int
    ) -> None:
        """Adds epochs of packs that did not wait for one another, in ``wall`` seconds together.

        ``trained`` has the slots of each pack, and its epoch.
        """
        if not trained:
            return
        n_jobs = sum(len(results) for _, (results, _) in trained)
        self._count(sum(n_slots for n_slots, _ in trained), n_jobs)
        self.seconds.add(wall, [times for _, (_, times) in trained])
        n_rounds = -(-len(trained) // packs_at_once)
        self.n_rounds += n_rounds
        for _ in range(min(n_rounds, _LATELY)):
            self.rounds.append((wall / n_rounds, n_jobs / n_rounds))

    def _count(self, n_slots: int, n_busy: int) -> None:
        self.slot_epochs = self.slot_epochs[0] + n_slots, self.slot_epochs[1] + n_busy

    def take(self) -> ExecutorTimings:
        """Takes out what was spent since the last time."""
        taken = replace(self)
        vars(self).update(vars(ExecutorTimings()))
        return taken

    def add(self, other: ExecutorTimings) -> None:
        """Adds what another machine has spent."""
        self.seconds.train += other.seconds.train
        self.seconds.validate += other.seconds.validate
        self.seconds.trace += other.seconds.trace
        self.n_rounds += other.n_rounds
        self.rounds.extend(other.rounds)
        self._count(*other.slot_epochs)

    @property
    def busy_share(self) -> float | None:
        """Share of the slots that held a trial, over all epochs; None before the first epoch."""
        n_slots, n_busy = self.slot_epochs
        return n_busy / n_slots if n_slots else None


def compiled_steps(
    programs: Iterable[CompiledPlan], groups: Iterable[LocalGroup]
) -> dict[int, StepCompiled]:
    """The steps of programs in order, each by a number that tells it from all other steps.

    Those that failed to compile are left out.
    """
    names = {id(p): g.name for g in groups for p in (g.program, g.next_program) if p is not None}
    found: dict[int, StepCompiled] = {}
    for program in programs:
        if not program.ready():
            continue
        with contextlib.suppress(Exception):  # XLA raises many kinds
            for executable in (each for role in program.roles() for each in role):
                found[id(executable)] = StepCompiled(
                    executable.ended - executable.seconds,
                    executable.ended,
                    names.get(id(program)),
                    program.plan,
                    program.n_slots,
                    executable.from_cache,
                )
    return found


class SlotTimeline:
    """Stays of jobs in slots, until they are taken out for the record; ``trial`` is the job."""

    #: Stays that wait to be taken out, at most: where nobody takes them, they do not pile up.
    MOST = 10_000

    def __init__(self) -> None:
        self._numbers: weakref.WeakKeyDictionary[Pack, int] = weakref.WeakKeyDictionary()
        self._n_packs = 0
        # By pack and slot; no stay where it does not belong to the record.
        self._open: dict[tuple[int, int], tuple[SlotTrial, SlotStay | None]] = {}
        self._ended: list[SlotStay] = []
        self._packs: list[PackCreated] = []

    def begin_round(self, packs: Iterable[tuple[LocalGroup, Pack]]) -> None:
        """Note the jobs in slots, before a round trains them."""
        now = time.perf_counter()
        there: set[tuple[int, int]] = set()
        for group, pack in packs:
            number, plan = self._number_of(group, pack, now), pack.program.plan
            for slot, trial in enumerate(pack.slots):
                if trial is None:
                    continue
                there.add((number, slot))
                held = self._open.get((number, slot))
                if held is not None and held[0] is trial:
                    continue
                if held is not None:
                    self._end(held[1])
                stay = SlotStay(trial.number, number, slot, now, now, 0, group.name, plan)
                self._open[number, slot] = trial, stay
        for key in [key for key in self._open if key not in there]:
            self._end(self._open.pop(key)[1])

    def end_round(self, packs: Iterable[Pack], trained: set[int]) -> None:
        """Notes that a round is over, in which the jobs ``trained`` have trained an epoch."""
        now = time.perf_counter()
        numbers = {self._numbers[pack] for pack in packs}
        for (number, _), (_, stay) in self._open.items():
            if stay is not None and number in numbers:
                stay.ended = now
                stay.epochs += stay.trial in trained

    def forget(self, jobs: Container[int]) -> None:
        """Leave jobs that are in slots now out of the record: their numbers are others' now."""
        for key, (trial, stay) in self._open.items():
            if stay is not None and stay.trial in jobs:
                self._open[key] = trial, None

    def take(self, *, all_ended: bool = False) -> tuple[list[SlotStay], list[PackCreated]]:
        """Takes out the stays that are over, and the packs that are new since the last time.

        ``all_ended``: whether the stays that are not over count as over now: the search ends.
        """
        if all_ended:
            for _, stay in self._open.values():
                self._end(stay)
            self._open.clear()
        ended, self._ended = self._ended, []
        packs, self._packs = self._packs, []
        return ended, packs

    def _end(self, stay: SlotStay | None) -> None:
        if stay is not None and stay.epochs and len(self._ended) < self.MOST:
            self._ended.append(stay)

    def _number_of(self, group: LocalGroup, pack: Pack, now: float) -> int:
        if pack not in self._numbers:
            self._numbers[pack] = self._n_packs
            self._n_packs += 1
            if len(self._packs) < self.MOST:
                made = len(pack.slots), now, group.name, pack.program.plan
                self._packs.append(PackCreated(self._numbers[pack], *made))
        return self._numbers[pack]
