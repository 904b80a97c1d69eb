"""An executor whose jobs train on other machines; the search cannot tell it from a local one.

The search builds and traces each trial here, as it would for packs of its own, so it knows the
trial's program. Machines make the job again from its spec and train it. The search knows a job only
from answers. If a machine is lost, its jobs continue elsewhere from the last state that was sent
here. Their epochs up to the one that is known are repeated, and their reports are dropped. A job's
numbers follow from its spec alone, so nothing shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from paceline.executor.base import (
    EpochLimit,
    EpochReport,
    Failed,
    Job,
    LateAnswer,
    PackOptions,
    Report,
    SearchData,
    UserNotifier,
    settled,
)
from paceline.executor.pack_executor import PackExecutor
from paceline.executor.process import host_bytes
from paceline.executor.remote.files import CollectedFiles
from paceline.executor.remote.jobs import JobTable, RemoteGroup, RemoteJob
from paceline.executor.remote.machines import Machine, Machines
from paceline.executor.remote.messages import (
    RoundAnswer,
    RoundOrder,
    SubmittedJob,
    WeightsToReport,
)
from paceline.executor.remote.payoff import ClusterPayoff
from paceline.executor.remote.pool import (
    Event,
    HostPool,
    MachineJoined,
    MachineLeaving,
    MachineLeft,
)
from paceline.executor.remote.programs import ProgramOrders
from paceline.executor.remote.spent import RemoteTimings
from paceline.executor.remote.suspects import CrashSuspects
from paceline.executor.sharing.grouping import TrialGrouper
from paceline.executor.state.facts import GroupFacts, PackFacts
from paceline.executor.state.snapshot import (
    Arrays,
    JobState,
    group_facts,
    job_state,
    state_like,
)
from paceline.executor.training.memory import search_chunk_bytes
from paceline.executor.training.planner import ELSEWHERE
from paceline.executor.training.slots import TrialDemand
from paceline.executor.training.stream import PAUSE

#: Seconds that a machine trains before it answers, where no answer of the search changes anything.
_ROUND = 0.1
#: Seconds after which a machine is asked for the states of its jobs again.
_STATES = 10.0
#: Share of the host's free memory that the states of running jobs may take.
_SHARE = 0.25


class RemoteExecutor(RemoteTimings, PackExecutor[RemoteGroup]):
    """Trains trials in packs on other machines.

    ``options`` are slots and plan, as the machines were told; ``in_order`` is as of
    ``LocalExecutor``. ``kept`` says which weights the search may keep; None: all. Raises
    ClusterError if no machine has come.
    """

    def __init__(
        self,
        data: SearchData,
        pool: HostPool,
        options: PackOptions | None = None,
        *,
        note: Callable[[str], None] = lambda text: None,
        in_order: bool = False,
        kept: Callable[[], WeightsToReport] | None = None,
    ) -> None:
        self._pool, notes = pool, UserNotifier(note)
        self._kept = kept or (lambda: WeightsToReport(always=True))
        grouper: TrialGrouper[RemoteGroup] = TrialGrouper(
            data, search_chunk_bytes(data), notes, kind=RemoteGroup
        )
        self._machines = Machines()
        RemoteTimings.__init__(self, self._machines)
        demand = TrialDemand(self._machines, grouper, in_order=in_order)
        PackExecutor.__init__(self, grouper, demand, notes)
        self._jobs = JobTable(self._paused)
        self._suspects = CrashSuspects(self._jobs)
        self._orders = ProgramOrders(options or PackOptions(), self.demand)
        self._files = CollectedFiles(notes)
        self._payoff = ClusterPayoff(self.demand, self.timings, self._notes.tell)
        self._trains = self._reported = False
        self._most_bytes = _SHARE * host_bytes()
        self.streaming = False  # and ``steady`` and ``hurried`` are of no account here
        self.limit = EpochLimit()  # as the machines were told
        began = time.perf_counter()
        while not len(self._machines):
            for event in pool.wait(1.0):
                self._handle(event, [], lambda report: "continue", lambda number, error: None)
        self._payoff.startup = time.perf_counter() - began

    # -- taking jobs in --------------------------------------------------------------------------

    def _take_in(self, job: Job, group: RemoteGroup) -> None:
        assert job.spec is not None, "a job for other machines has a spec"
        for trial in list(group.queue)[-max(1, len(job.folds)) :]:
            spec, member = job.spec, trial.number - job.number
            if job.folds:
                spec = replace(spec, number=trial.number, fold=member)
            trial.driver = None  # its callbacks are made where it trains
            if job.made:
                self._files.expect(trial.number, job.made[member])
            self._jobs.add(spec, group, trial)

    def check_batch(self, batch_size: int) -> None:
        """Does nothing: a machine trains on one device, which splits no batch."""

    def begin_from(self, number: int, state: JobState) -> bool:
        """See ``PackExecutor``."""
        job = self._jobs.get(number)
        if job is None or state_like(job.trial.shapes(job.group.state), state.parts) is None:
            return False
        self._jobs.set_state(job, state)
        job.trial.epoch = state.epoch
        return True

    def resume(self, number: int) -> None:
        """See ``PackExecutor``; the job may continue on another machine."""
        job = self._jobs.get(number)
        if job is None or not job.paused:
            raise KeyError(number)
        machine = self._machines.get(job.host)
        if machine is not None:
            # Told already to let the trial go, the machine returns it, and then it is queued.
            machine.take.discard(number)
            self._jobs.unpause(job)
        else:
            self._jobs.take_back(job)
            self._jobs.queue([job])

    def drop(self, number: int) -> None:
        """Forgets a trial wherever it is; nothing that a machine still says of it counts."""
        job = self._jobs.get(number)
        if job is not None:
            self._let_go(job)

    withdraw = drop

    def in_slot(self, number: int) -> bool:
        """Whether a machine has the trial."""
        job = self._jobs.get(number)
        return job is not None and job.host is not None

    def _let_go(self, job: RemoteJob) -> None:
        machine = self._machines.get(job.host)
        self._jobs.forget(job.number)
        if machine is not None:
            machine.take.discard(job.number)
            if job.trial.epoch < job.trial.epochs:  # else it has let the job go by itself
                machine.stop.add(job.number)

    # -- jobs between two epochs -----------------------------------------------------------------

    @property
    def state_bytes(self) -> int:
        """Bytes of the variables that are held here."""
        return self._jobs.nbytes + self._paused.nbytes

    @property
    def _device(self) -> list[Any]:
        return ELSEWHERE

    def _group_facts(self, group: RemoteGroup) -> GroupFacts:
        return group_facts(group, self._orders.facts(group))

    def _states(self, group: RemoteGroup) -> dict[int, JobState]:
        """The last states that were sent here, from which jobs would continue."""
        return {
            job.number: replace(
                job.state or JobState(0, []),
                known=job.trial.epoch,
                logs=self._files.kept(job.number),
                best=job.best,
            )
            for job in self._jobs.of(group)
        }

    def _add_places(self, facts: GroupFacts, group: RemoteGroup) -> None:
        jobs = self._jobs.of(group)
        facts.parked = [job.number for job in jobs if job.paused]
        # On one machine the jobs of other machines would go first.
        facts.queue = [job.number for job in jobs if job.host is not None and not job.paused]
        facts.queue += [trial.number for trial in group.queue]

    def _put_back(
        self, group: RemoteGroup, was: GroupFacts, device: list[Any], arrays: Arrays
    ) -> list[int]:
        self._orders.restore(group, was.program)
        lost = []
        for number, epoch in was.epochs.items():
            job = self._jobs.get(number)
            if job is None:
                continue
            if job.group is not group:  # the code has changed
                lost += [number] if epoch else []
                continue
            job.trial.epoch, job.best = epoch, was.best.get(number)
            state = job_state(number, job.trial.shapes(group.state), was, arrays)
            # Without one it catches up from its first epoch. Reports of epochs that are known are
            # dropped here, and not where it trains.
            self._jobs.set_state(job, None if state is None else replace(state, known=0))
            if number in was.parked:
                self._jobs.pause(job)
                self._jobs.put_away(job)
        return lost

    def _restored(self, packs: PackFacts) -> None:
        for was in packs.groups:
            for number, kept in was.logs.items():
                self._files.begun_before(number, kept)

    def _hold(self, job: RemoteJob, state: JobState | None) -> None:
        """Continues a job from a state, unless its callbacks would lose something in it."""
        if state is not None and state.callbacks is not None:
            callbacks = state.callbacks["callbacks"]
            if any(each["lost"] for each in callbacks):
                self._unsaved.say(callbacks)
                return  # it begins again, and catches up with what is known
        self._jobs.hold(job, state)

    # -- training ------------------------------------------------------------------------------

    @property
    def max_slots(self) -> int:
        """Trials of one program that train side by side on one machine, at most."""
        return self._machines.max_slots

    @property
    def busy(self) -> bool:
        """Whether any trial is waiting or training, or files of one that has ended may come."""
        return super().busy or self._files.may_come(self._machines)

    @property
    def compiling(self) -> bool:
        """Whether no machine has reported an epoch yet, since all of them compile."""
        return self._trains and not self._reported

    def advance(self, report: Report, meanwhile: Callable[[], bool], failed: Failed) -> None:
        """Gives the machines orders, and waits until one of them has answered.

        Raises ClusterError if no machine is left.
        """
        first = not self._machines.settled
        self._settle()
        if first and len(self._machines) > 1:
            return  # the first program was chosen as on one machine; now for the others' trials
        self._dispatch()
        events = self._pool.wait(0.0)
        while not events:
            if meanwhile():
                if any(not machine.busy for machine in self._machines):
                    self._dispatch()
                events = self._pool.wait(0.0)
            else:
                events = self._pool.wait(PAUSE)
        told: list[tuple[RemoteJob, LateAnswer]] = []
        for event in events:
            self._handle(event, told, report, failed)
        self._payoff.look(self._grouper.groups, len(self._machines))
        # Late answers may depend on the reports of all machines, so they are asked for now.
        for job, answer in told:
            self._apply(job, settled(answer))

    def _settle(self) -> None:
        """Decides how the programs of groups are compiled: between two rounds, as on one machine.

        The first trial of a group does not show which constants differ. So the group waits for its
        second, while there is something else to train.
        """
        groups = self._grouper.groups
        others = any(machine.busy for machine in self._machines)
        others = others or any(group.queue and group.has_program for group in groups)
        alone = self._machines.max_slots == 1 or self.demand.all_asked or not others
        for group in groups:
            if group.active and (group.has_program or group.n_seen > 1 or alone):
                self._orders.of(group)
                self._machines.settled = True

    def _dispatch(self) -> None:
        """Sends an order to each machine that waits for one and has something to do."""
        groups = self._grouper.groups
        dealt: dict[str, list[RemoteJob]] = {}
        for machine, job in self._machines.deal(groups, self._jobs, self._suspects.alone):
            dealt.setdefault(machine.host, []).append(job)
        if not self._grouper.waiting:
            self._machines.take_surplus(self._jobs)
        kept = self._kept()
        for machine in self._machines:
            if machine.busy:
                continue
            jobs = dealt.get(machine.host, [])
            trains = self._jobs.count(machine.host) > 0
            if machine.leaving:
                for job in self._jobs.on(machine.host):
                    machine.take.add(job.number)
                trains = False
            if trains or jobs or machine.stop or machine.take:
                self._send(machine, jobs, kept, trains)

    def _send(
        self, machine: Machine, jobs: list[RemoteJob], kept: WeightsToReport, trains: bool
    ) -> None:
        now = time.monotonic()
        want = now - machine.asked_states >= _STATES and trains
        if want:
            machine.asked_states = now
            want = self._jobs.nbytes < self._most_bytes
        order = RoundOrder(
            submit=[self._files.sent(self._submitted(job), machine) for job in jobs],
            stop=sorted(machine.stop),
            take=sorted(machine.take),
            programs=self._orders.news_for(machine, self._grouper.groups),
            train=trains,
            # Files are those of the last epoch that counts, whatever the search answers.
            seconds=0.0 if self.judged or self._files else _ROUND,
            kept=kept,
            want_states=want,
            expected=max(1, -(-self.demand.expected // max(1, len(self._machines)))),
            all_asked=self.demand.all_asked and not self._grouper.waiting,
            suspects=dict(self.limit.suspects),
        )
        machine.stop.clear()
        machine.take.clear()
        machine.busy = self._trains = True
        self._pool.send(machine.host, order)

    def _submitted(self, job: RemoteJob) -> SubmittedJob:
        self._jobs.take_back(job)
        return SubmittedJob(job.spec, job.group.name, job.state, job.best)

    # -- what machines say ---------------------------------------------------------------------

    def _handle(
        self,
        event: Event,
        told: list[tuple[RemoteJob, LateAnswer]],
        report: Report,
        failed: Failed,
    ) -> None:
        if isinstance(event, MachineJoined):
            self._machines.add(event.host, event.facts)
            return
        machine = self._machines.get(event.host)
        if machine is None:
            return
        if isinstance(event, MachineLeaving):
            machine.leaving = True
        elif isinstance(event, MachineLeft):
            if not machine.leaving:
                self._fail(self._suspects.died(machine.host, event.why), failed)
            self._lost(machine, event.why)
        else:
            machine.busy = False
            self._take_answer(machine, event.answer, told, report, failed)

    def _lost(self, machine: Machine, why: str) -> None:
        """A machine is gone: its jobs continue elsewhere."""
        self._machines.remove(machine.host)
        jobs = self._jobs.on(machine.host)
        if jobs and not machine.leaving:
            self._notes.tell(
                f"lost worker {machine.host} ({why}); its {len(jobs)} trials continue on other "
                "workers"
            )
        self._jobs.give_back(jobs)

    def _take_answer(
        self,
        machine: Machine,
        answer: RoundAnswer,
        told: list[tuple[RemoteJob, LateAnswer]],
        report: Report,
        failed: Failed,
    ) -> None:
        for text in answer.notes:
            self._notes.tell_once(text)
        self._files.put(machine, answer)  # first: what is reported may be saved at once
        self._spend(machine, answer)
        if answer.stuck:
            self._pool.remove(machine.host)
            self._fail(self._suspects.stuck(answer.stuck, self.limit), failed)
            self._lost(machine, "an epoch did not finish in time, so the worker was stopped")
            return
        for number, name in answer.programs.items():
            job = self._jobs.get(number)
            if job is not None and name != job.group.name:
                self._notes.tell_once(
                    f"worker {machine.host} traces a step differently from this process ({name}, "
                    f"{job.group.name}), so results may differ in the last digits"
                )
        returned, host = [], machine.host
        for number, state in answer.taken.items():
            if (job := self._jobs.at(host, number)) is not None:
                self._hold(job, state)
                returned.append(job)
        for each in answer.reports:
            job = self._jobs.at(host, each.number)
            if job is None or each.epoch <= job.trial.epoch:
                continue  # it has ended here, is elsewhere, or catches up with what is known
            told.append((job, self._report(machine, job, each, report)))
        for number, error in answer.failed.items():
            if self._jobs.at(host, number) is not None:
                self._fail({number: error.error()}, failed)
        for number, state in answer.states.items():
            if (job := self._jobs.at(host, number)) is not None:
                self._hold(job, state)
        self._jobs.give_back(returned)

    def _report(
        self, machine: Machine, job: RemoteJob, each: EpochReport, report: Report
    ) -> LateAnswer:
        if each.epoch != job.trial.epoch + 1:
            raise RuntimeError(
                f"worker {machine.host} reports epoch {each.epoch} of job {job.number} after "
                f"epoch {job.trial.epoch}. This is a bug in Paceline; please report it"
            )
        self._reported = True
        machine.trained += 1
        self._suspects.trained(job.number)
        job.trial.epoch = each.epoch
        kept = self._kept()
        job.best = kept.better(each.logs.get(kept.objective), job.best)
        if each.last:
            job.trial.epochs = each.epoch  # a callback may have stopped it
        return report(replace(each, program=job.group.name, worker=machine.host))

    def _fail(self, errors: dict[int, Exception], failed: Failed) -> None:
        for number, error in errors.items():
            self._jobs.forget(number)
            failed(number, error)

    def _apply(self, job: RemoteJob, answer: str) -> None:
        """Does what was answered about a job."""
        if self._jobs.get(job.number) is not job:
            return  # it has ended meanwhile
        if job.trial.epoch >= job.trial.epochs:
            self._jobs.forget(job.number)  # its machine has let it go
        elif answer == "stop":
            self._let_go(job)
        elif answer == "pause":
            machine = self._machines.get(job.host)
            self._jobs.pause(job)
            if machine is None:
                self._jobs.put_away(job)
            else:
                machine.take.add(job.number)

    # -- what was spent ------------------------------------------------------------------------

    def _steps_made(self) -> dict[str, int]:
        return self.compiled

    def close(self) -> None:
        """Ends the machines; all trials are dropped."""
        self._files.fetch_last(self._pool, self._machines)
        self._grouper.save_formulas()
        self._pool.close()
        self._paused.close()
