"""An executor whose jobs train on other machines; the search cannot tell it from a local one.

The search builds and traces each trial here, as it would for packs of its own, so it knows the
trial's program. Machines make the job again from its spec and train it. What the search knows of a
job is what it was told in answers: when a machine goes, its jobs go on elsewhere from the last
state that was sent here. Their epochs up to the one that is known come again, and their reports are
dropped. A job's numbers follow from its spec alone, so nothing shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from paceline.data.inputs import TrialInputs
from paceline.executor.base import (
    EpochLimit,
    EpochReport,
    Failed,
    Job,
    LateAnswer,
    Notes,
    PackOptions,
    Parts,
    Report,
    SearchData,
    settled,
)
from paceline.executor.grouping import Group, TrialGrouper
from paceline.executor.lanes import PAUSE
from paceline.executor.memory import search_chunk_bytes
from paceline.executor.process import Dropped, host_bytes
from paceline.executor.remote.checkpoint import JobSnapshots
from paceline.executor.remote.files import CollectedFiles
from paceline.executor.remote.jobs import JobTable, RemoteJob
from paceline.executor.remote.machines import Machine, Machines
from paceline.executor.remote.messages import HostReport, KeptWeights, RoundAnswer, RoundOrder
from paceline.executor.remote.payoff import PayOff
from paceline.executor.remote.pool import Event, HostPool, Joined, Leaving, Left
from paceline.executor.remote.programs import ProgramOrders
from paceline.executor.remote.spent import SpendsElsewhere
from paceline.executor.remote.suspects import Suspects
from paceline.executor.restored import Arrays, Example, Facts, found_again
from paceline.executor.slots import Demand
from paceline.executor.snapshot import PausedStates
from paceline.program.initial_weights import as_built
from paceline.program.trace import State

#: Seconds that a machine trains before it answers, where no answer of the search changes anything.
_ROUND = 0.1
#: Seconds after which a machine is asked for the states of its jobs again.
_STATES = 10.0
#: Share of the host's free memory that the states of running jobs may take.
_SHARE = 0.25


class RemoteExecutor(SpendsElsewhere):
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
        kept: Callable[[], KeptWeights] | None = None,
    ) -> None:
        self._pool, self._notes = pool, Notes(note)
        self._kept = kept or (lambda: KeptWeights(always=True))
        self._grouper = TrialGrouper(data, search_chunk_bytes(data), self._notes, away=True)
        self._machines, self._paused = Machines(), PausedStates()
        self._jobs = JobTable(self._paused)
        self._suspects = Suspects(self._jobs)
        self.demand = Demand(self._machines, self._grouper, in_order=in_order)
        self._orders = ProgramOrders(options or PackOptions(), self.demand)
        super().__init__(self._machines)
        self._dropped, self._files = Dropped(), CollectedFiles(self._notes)
        self._snapshots = JobSnapshots(
            self._jobs, self._grouper, self._orders, self._files, self._notes
        )
        self._payoff = PayOff(self.demand, self.timings, self._notes.tell)
        self._trains = self._reported = False
        self._most_bytes = _SHARE * host_bytes()
        # ``steady``, ``hurried`` and ``streaming`` are of no account here.
        self.lockstep = self.steady = self.hurried = self.streaming = False
        self.judged = True
        self.limit = EpochLimit()  # as the machines were told
        began = time.perf_counter()
        while not len(self._machines):
            for event in pool.wait(1.0):
                self._handle(event, [], lambda report: "continue", lambda number, error: None)
        self._payoff.startup = time.perf_counter() - began

    # -- taking trials in ------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Traces a trial's steps and queues it with the trials that share its program."""
        assert job.spec is not None, "a job for other machines has a spec"
        began = time.perf_counter()
        members = range(max(1, len(job.folds)))
        self.demand.expect_members(len(members))
        with as_built(job.model):
            group = self._grouper.add(job)
        job.model = None
        self._dropped.add(group.nbytes)
        for trial in list(group.queue)[-len(members) :]:
            fold = trial.number - job.number if job.folds else None
            trial.driver = None  # its callbacks are made where it trains
            if job.made:
                self._files.expect(trial.number, job.made[trial.number - job.number])
            self._jobs.add(self._snapshots.spec(job.spec, fold), group, trial)
        self.timings.seconds.trace += time.perf_counter() - began

    @contextmanager
    def resubmitting(self, facts: Facts, example: Example) -> Iterator[None]:
        """See ``PackExecutor``; nothing is compiled here before a job is sent anyway."""
        found_again(self._grouper, facts, example)
        yield

    def check_batch(self, batch_size: int) -> None:
        """Does nothing: a machine trains on one device, which splits no batch."""

    def pretrace(self, model: Any, setting: TrialInputs) -> Group | None:
        """As ``LocalExecutor.pretrace``."""
        began = time.perf_counter()
        group = self._grouper.pretrace(model, setting)
        self.timings.seconds.trace += time.perf_counter() - began
        return group

    def start_from(self, number: int, epoch: int, parts: Parts) -> bool:
        """As ``LocalExecutor.start_from``."""
        job = self._jobs.get(number)
        return job is not None and self._snapshots.begin(job, epoch, parts)

    def resume(self, number: int) -> None:
        """As ``LocalExecutor.resume``; the trial may go on on another machine."""
        job = self._jobs.get(number)
        if job is None or not job.paused:
            raise KeyError(number)
        machine = None if job.host is None else self._machines.get(job.host)
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
        host = job.host
        self._jobs.forget(job.number)
        machine = None if host is None else self._machines.get(host)
        if machine is not None:
            machine.take.discard(job.number)
            if job.trial.epoch < job.trial.epochs:  # else it has let the job go by itself
                machine.stop.add(job.number)

    # -- saving --------------------------------------------------------------------------------

    @property
    def state_bytes(self) -> int:
        """Bytes of the variables that are held here."""
        return self._jobs.nbytes + self._paused.nbytes

    def snapshot(self, arrays: Arrays, lasting: dict[str, Arrays]) -> Facts:
        """As ``LocalExecutor.snapshot``; trials go on from the last state that was sent here."""
        return {**self._snapshots.capture(arrays, lasting), "asking": self._asking}

    def programs_snapshot(self) -> Facts:
        """As ``snapshot``, without the trials; they would begin again."""
        return {**self._snapshots.capture_programs(), "asking": self._asking}

    @property
    def _asking(self) -> list[int]:
        return [self.demand.family, self.demand.expected, self.demand.unasked, 0]

    def states(self) -> dict[int, tuple[int, State]]:
        """As ``LocalExecutor.states``, of the trials whose last epoch was sent here."""
        return self._snapshots.states()

    def restore(self, facts: Facts, arrays: Arrays, example: Example) -> list[int]:
        """As ``LocalExecutor.restore``."""
        lost = self._snapshots.restore(facts, arrays, example)
        demand = self.demand
        demand.family, demand.expected, demand.unasked, *_ = facts["asking"]
        return lost

    # -- training ------------------------------------------------------------------------------

    @property
    def max_slots(self) -> int:
        """Trials of one program that train side by side on one machine, at most."""
        return self._machines.max_slots

    @property
    def busy(self) -> bool:
        """Whether any trial is waiting or training, or files of one that has ended may come."""
        active = any(group.active for group in self._grouper.groups)
        return active or self._files.may_come(self._machines)

    @property
    def waiting(self) -> int:
        """Number of trials that have been traced and that no machine has."""
        return self._grouper.waiting

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
        others = others or any(group.queue and group.program is not None for group in groups)
        alone = self._machines.max_slots == 1 or self.demand.all_asked or not others
        for group in groups:
            if group.active and (group.program is not None or group.n_seen > 1 or alone):
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
        self, machine: Machine, jobs: list[RemoteJob], kept: KeptWeights, trains: bool
    ) -> None:
        now = time.monotonic()
        want = now - machine.asked_states >= _STATES and trains
        if want:
            machine.asked_states = now
            want = self._jobs.nbytes < self._most_bytes
        order = RoundOrder(
            submit=[self._files.sent(self._snapshots.submitted(job), machine) for job in jobs],
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

    # -- what machines say ---------------------------------------------------------------------

    def _handle(
        self,
        event: Event,
        told: list[tuple[RemoteJob, LateAnswer]],
        report: Report,
        failed: Failed,
    ) -> None:
        if isinstance(event, Joined):
            self._machines.add(event.host, event.facts)
            return
        machine = self._machines.get(event.host)
        if machine is None:
            return
        if isinstance(event, Leaving):
            machine.leaving = True
        elif isinstance(event, Left):
            if not machine.leaving:
                self._fail(self._suspects.died(machine.host, event.why), failed)
            self._lost(machine, event.why)
        else:
            machine.busy = False
            self._take_answer(machine, event.answer, told, report, failed)

    def _lost(self, machine: Machine, why: str) -> None:
        """A machine is gone: its jobs go on elsewhere."""
        self._machines.remove(machine.host)
        jobs = self._jobs.on(machine.host)
        if jobs and not machine.leaving:
            self._notes.tell(
                f"worker {machine.host} is gone ({why}): its {len(jobs)} trials go on elsewhere"
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
            self._lost(machine, "an epoch did not end in time, so it was ended")
            return
        for number, name in answer.programs.items():
            job = self._jobs.get(number)
            if job is not None and name != job.group.name:
                self._notes.tell_once(
                    f"worker {machine.host} traces a step otherwise than this process does "
                    f"({name}, {job.group.name}): last digits may differ between them"
                )
        returned = []
        for number, state in answer.taken.items():
            job = self._jobs.get(number)
            if job is not None and job.host == machine.host:
                self._snapshots.hold(job, state)
                returned.append(job)
        for each in answer.reports:
            job = self._jobs.get(each.number)
            if job is None or job.host != machine.host or each.epoch <= job.trial.epoch:
                continue  # it has ended here, is elsewhere, or catches up with what is known
            told.append((job, self._report(machine, job, each, report)))
        for number, error in answer.failed.items():
            job = self._jobs.get(number)
            if job is not None and job.host == machine.host:
                self._fail({number: error.error()}, failed)
        for number, state in answer.states.items():
            job = self._jobs.get(number)
            if job is not None and job.host == machine.host:
                self._snapshots.hold(job, state)
        self._jobs.give_back(returned)

    def _report(
        self, machine: Machine, job: RemoteJob, each: HostReport, report: Report
    ) -> LateAnswer:
        if each.epoch != job.trial.epoch + 1:
            raise RuntimeError(
                f"worker {machine.host} reports epoch {each.epoch} of job {job.number} after epoch "
                f"{job.trial.epoch}; this is an error of Paceline, please report it"
            )
        self._reported = True
        machine.trained += 1
        self._suspects.trained(job.number)
        job.trial.epoch = each.epoch
        kept = self._kept()
        job.best = kept.better(each.logs.get(kept.objective), job.best)
        if each.last:
            job.trial.epochs = each.epoch  # a callback may have stopped it
        weights, state = each.weights, each.state

        def fetch() -> Any:
            if weights is None:
                raise RuntimeError(
                    f"the weights of job {each.number} after epoch {each.epoch} were not sent; "
                    "this is an error of Paceline, please report it"
                )
            return weights

        return report(
            EpochReport(
                number=each.number,
                epoch=each.epoch,
                logs=each.logs,
                seconds=each.seconds,
                program=job.group.name,
                plan=each.plan,
                weights=fetch,
                state=None if state is None else lambda: State(*map(list, state)),
                wall=each.wall,
                last=each.last,
                worker=machine.host,
            )
        )

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
            machine = None if job.host is None else self._machines.get(job.host)
            self._jobs.pause(job)
            if machine is None:
                self._jobs.put_away(job)
            else:
                machine.take.add(job.number)

    # -- what was spent ------------------------------------------------------------------------

    def program_counts(self) -> dict[str, int]:
        """As ``LocalExecutor.program_counts``; each machine compiles for itself."""
        families, groups = self._grouper.families, len(self._grouper.groups)
        return {
            "distinct": groups,
            "structures": groups + (0 if families is None else families.saved),
            **self.compiled,
        }

    def close(self) -> None:
        """Ends the machines; all trials are dropped."""
        self._files.fetch_last(self._pool, self._machines)
        self._grouper.save_laws()
        self._pool.close()
        self._paused.close()
