"""Rounds: one epoch of several packs side by side, after which the search judges the trials.

Rounds are for searches in which a result may end a trial, or decide which trials come. Other
searches need not wait for results; there ``PackStream`` trains (docs/decisions/0048).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from paceline.executor.base import Failed, LateAnswer, Report, settled
from paceline.executor.sharing.grouping import LocalGroup, program_of
from paceline.executor.state.facts import RoundBegin
from paceline.executor.state.paused import PausedStates
from paceline.executor.training.planner import Candidate
from paceline.executor.training.reporting import PackEpoch
from paceline.executor.training.stream import (
    PAUSE,
    PackThreads,
    PackTrainer,
    check_hung,
    lacks_input,
)
from paceline.pack.pack import Pack, SlotTrial
from paceline.pack.plan import CompiledPlan


class EpochRound:
    """One epoch of each of several packs; training begins when the round is constructed.

    Every pack has at least one trial.
    """

    def __init__(self, packs: Sequence[tuple[LocalGroup, Pack]], threads: PackThreads) -> None:
        self._pairs, self.packs = packs, [pack for _, pack in packs]
        self._disturbed = False
        # ``wall``: seconds on the clock that the round took; 0.0 until it has ended.
        self._began, self.wall = time.perf_counter(), 0.0
        # Callbacks between batches run in this thread, as all callbacks do.
        epochs = {id(p): threads.submit(p.run_epoch) for p in self.packs if not p.by_batch}
        self._epochs: list[Future[PackEpoch]] = [
            epochs.get(id(pack)) or _ended(pack.run_epoch) for pack in self.packs
        ]

    def run(self, meanwhile: Callable[[], bool], limit: float | None, *, lockstep: bool) -> None:
        """Waits until all packs have ended their epoch.

        ``meanwhile`` is as of ``Executor.advance``; with ``lockstep`` it is called until no work is
        left, even if the packs end sooner. Raises PackTimeout if packs have not ended their epoch
        within ``limit`` seconds; None: as long as it needs.
        """
        while not all(epoch.done() for epoch in self._epochs):
            if meanwhile():
                self._disturbed = True
            else:
                wait(self._epochs, timeout=PAUSE)
            if limit is not None:
                epochs = zip(self.packs, self._epochs, strict=True)
                check_hung([pack for pack, epoch in epochs if not epoch.done()], limit)
        while lockstep and meanwhile():
            self._disturbed = True
        self.wall = time.perf_counter() - self._began

    @property
    def trained(self) -> list[PackEpoch]:
        """The epochs of the packs that did not fail."""
        return [epoch.result() for epoch in self._epochs if epoch.exception() is None]

    @property
    def outcomes(self) -> list[tuple[LocalGroup, Pack, PackEpoch | BaseException]]:
        """Each pack with its group and with its epoch, or with the error that its epoch raised."""
        found = [epoch.exception() or epoch.result() for epoch in self._epochs]
        return [(*pair, epoch) for pair, epoch in zip(self._pairs, found, strict=True)]

    def n_full(self, packs_at_once: int) -> int:
        """Number of trials that trained if the round shows how fast a full device is; else 0.

        ``packs_at_once`` packs can train at once. An epoch that failed was short.
        """
        full = len(self.trained) == len(self.packs) == packs_at_once
        full = full and not any(pack.free for pack in self.packs)
        # Building and tracing models during the round took a share of the round's seconds.
        return sum(len(pack.slots) for pack in self.packs) if full and not self._disturbed else 0


def _ended(run: Callable[[], PackEpoch]) -> Future[PackEpoch]:
    """An epoch that was trained at once, or its error."""
    epoch: Future[PackEpoch] = Future()
    try:
        epoch.set_result(run())
    except Exception as error:  # Ctrl-C in this thread concerns more than one pack
        epoch.set_exception(error)
    return epoch


@dataclass(eq=False, repr=False)
class PackRounds(PackTrainer):
    """Trains all packs whose turn it is, an epoch at a time."""

    paused: PausedStates
    number: int = field(init=False, default=0)  # rounds so far
    # The beginning of the round that waits for a compiler; None: none does.
    begun: RoundBegin | None = field(init=False, default=None)
    # Whether nothing can train until a program is compiled.
    compiling: bool = field(init=False, default=False)

    def train(
        self, report: Report, meanwhile: Callable[[], bool], failed: Failed, *, lockstep: bool
    ) -> None:
        """Trains one epoch of every pack whose turn it is; see ``Executor.advance``.

        ``lockstep`` is as of ``PackExecutor``. Raises UsageError if the user's number of slots does
        not fit into the device's memory. Raises PackTimeout if packs have not ended their epoch
        within the limit, and errors of ``report``.
        """
        active = [group for group in self.grouper.groups if group.active]
        again = self.begun if lockstep else None  # it was broken off while it waited
        if again is not None:
            had = again.numbers
            active = [group for group in active if any(t.number in had for t in group.trials)]
        if self.limit.alone:
            active = ([group for group in active if group.n_live] or active)[:1]
        self.limit.under_way(self._next_jobs(active))
        there = frozenset(trial.number for group in active for trial in group.trials)
        self.begun = begun = again or RoundBegin(there, self.demand.all_asked)
        self.number += 1
        self._compile(active, widens=again is None)
        active = [group for group in active if group.program is not None]
        turn_of = self.demand.turn_of
        ready = self.slots.groups_in_turn(active, self.number, turn_of)
        for group in ready:
            self._wait_for(program_of(group), meanwhile)
        self.begun = None
        if self.paused.device_bytes and self.slots.lack_memory(ready):
            self.paused.leave_device()
        ready = self.slots.fitting(ready, failed, turn_of)
        only: Set[int] | None = begun.numbers if lockstep else None
        if turn_of is not None:
            in_turn = self.slots.in_turn(active, ready, self.number, turn_of)
            only = in_turn if only is None else only & in_turn
        all_asked = begun.all_asked if lockstep else self.demand.all_asked
        filled = [(group, self.slots.refill(group, all_asked, only)) for group in ready]
        packs = [(group, pack) for group, found in filled for pack in found]
        packs = [(group, pack) for group, pack in packs if self.reporter.begin_epoch(pack, failed)]
        self.timeline.begin_round(packs)
        self.limit.under_way([trial.number for _, pack in packs for trial in pack.live])
        now = EpochRound(packs, self.threads)
        now.run(meanwhile, self.limit.seconds, lockstep=lockstep)
        self.timings.add_round(now.wall, now.packs, now.trained)
        self.timeline.end_round(now.packs, {job for results, _ in now.trained for job in results})
        n_full = now.n_full(self.planner.packs_at_once)
        tight = self._report_round(now, report, failed)
        for group in tight:
            self.paused.leave_device()
            self.slots.halve(group)
        for group in ready if not tight else ():
            self._reconsider_plan(group, n_full if len(ready) == 1 else 0, now.wall)
        for group in ready:
            if not group.active:
                self.reporter.end_group(group)
        self.limit.under_way([])

    def _next_jobs(self, groups: Sequence[LocalGroup]) -> list[int]:
        """The jobs for which programs are compiled now, those in slots first."""
        jobs = [t.number for g in groups for pack in g.packs for t in pack.live]
        waiting = [trial.number for group in groups for trial in group.queue]
        return jobs + waiting[: max(0, 1 - len(jobs)) if self.limit.alone else None]

    def _compile(self, groups: Sequence[LocalGroup], *, widens: bool) -> None:
        """Compiles groups that have no program and, where it widens, those that lack an input."""
        for group in groups:
            if group.program is None and group.restored_program is not None:
                self.planner.compile_again(group)
            if group.program is None:
                if self.planner.is_ahead(self.grouper.groups, by_time=self.demand.by_time):
                    continue
                group.asked_round = self.number
            if group.program is None or (widens and lacks_input(group)):
                self.planner.compile(group, *self.demand.of_program(group))

    def _report_round(self, now: EpochRound, report: Report, failed: Failed) -> list[LocalGroup]:
        """Reports a round and does what is answered; returns the groups that lack memory."""
        tight: dict[int, LocalGroup] = {}
        told: list[tuple[LocalGroup, Pack, SlotTrial, LateAnswer]] = []
        for group, pack, epoch in now.outcomes:
            if not isinstance(epoch, BaseException):
                told += self.reporter.report_epoch(group, pack, epoch, report, failed)
            else:
                beside = [other for other, each, _ in now.outcomes if each is not pack]
                if self.slots.recover(group, pack, epoch, failed, beside):
                    tight[id(group)] = group
        # Late answers may depend on the reports of all packs, so they are asked for now.
        for group, pack, trial, answer in told:
            self.reporter.apply_answer(group, pack, trial, settled(answer))
        return list(tight.values())

    def _reconsider_plan(self, group: LocalGroup, n_trials: int, seconds: float) -> None:
        """After an epoch: moves a group's trials to another program if that is faster.

        ``n_trials`` trained, if the group was alone and all slots were taken; else 0. The epoch
        took ``seconds``.
        """
        program = program_of(group)
        if group.plan_choice is not None and n_trials:
            candidate = Candidate(program.plan, program.n_slots)
            group.plan_choice.note(candidate, n_trials, seconds)
        left, expected = self.demand.epochs_left(group.trials), self.demand.expected
        self.planner.reconsider(group, left, expected)
        if self.demand.all_asked and not group.queue and not self.paused.of(group):
            self.planner.shrink(group, seconds)
        else:
            self.planner.grow(group, left, seconds, expected)
        if group.next_program is not None and self.planner.arrived(group):
            self.slots.empty_packs(group)
            group.program, group.next_program = group.next_program, None
            self.planner.plans.add(group.program.plan)

    def _wait_for(self, program: CompiledPlan, meanwhile: Callable[[], bool]) -> None:
        self.compiling = True
        while not program.ready():
            if not meanwhile():
                time.sleep(PAUSE)
        self.compiling = False
