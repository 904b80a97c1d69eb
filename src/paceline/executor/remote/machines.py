"""What the search knows of each machine, and which machine gets which jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from paceline.executor.remote.jobs import JobTable, RemoteGroup, RemoteJob
from paceline.executor.remote.messages import HostFacts, HostState, ProgramOrder
from paceline.executor.sharing.grouping import TrialGroup


@dataclass(eq=False)
class Machine:
    """A machine that is ready, or trains."""

    host: str  # its name
    facts: HostFacts  # what it says of itself
    offset: float  # what its clock must be moved by to be that of this process, in seconds
    busy: bool = False  # whether it has an order, and has not answered
    leaving: bool = False  # whether it will go soon, and gets no more jobs
    stop: set[int] = field(default_factory=set)  # numbers of jobs that end with its next order
    take: set[int] = field(default_factory=set)  # numbers of jobs that leave it with its next order
    # Name of a program -> what it was told of it last.
    programs: dict[str, ProgramOrder] = field(default_factory=dict)
    groups: set[int] = field(default_factory=set)  # of which it has had jobs
    look: HostState | None = None  # its executor when it last answered; None before
    # When it was last asked for the states of its jobs, by the monotonic clock.
    asked_states: float = field(default_factory=time.monotonic)
    trained: int = 0  # epochs of jobs that it has reported
    # When it came, by ``time.perf_counter``.
    since: float = field(default_factory=time.perf_counter)

    @property
    def device(self) -> str:
        """Its device in words, and the machine's name."""
        return f"{self.facts.device} of {self.facts.node}"

    @property
    def jobs(self) -> int:
        """Jobs in its slots, when it last answered."""
        packs = () if self.look is None else self.look.slots_now
        return sum(number is not None for *_, numbers in packs for number in numbers)

    @property
    def rate(self) -> float | None:
        """Epochs of jobs per second since it came; None before the first."""
        return self.trained / (time.perf_counter() - self.since) if self.trained else None

    @property
    def slots(self) -> int:
        """Trials that train there at once."""
        return self.facts.max_slots if self.look is None else max(1, self.look.slots)


class Machines:
    """The machines of a search by name; it counts their slots for ``TrialDemand``."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._machines: dict[str, Machine] = {}
        self._clock = clock
        # Whether any program has been settled. Until then trials are asked for as on one machine,
        # so that the program is the same.
        self.settled = False

    def __iter__(self):
        return iter(list(self._machines.values()))

    def __len__(self) -> int:
        return len(self._machines)

    def get(self, host: str | None) -> Machine | None:
        """The machine of that name; None once it is gone, and where there is no name."""
        return self._machines.get(host or "")

    def add(self, host: str, facts: HostFacts) -> None:
        """Adds a machine that has just joined."""
        self._machines[host] = Machine(host, facts, self._clock() - facts.clock)

    def remove(self, host: str) -> None:
        """Forgets a machine."""
        del self._machines[host]

    @property
    def max_slots(self) -> int:
        """Trials of one program that train side by side on one machine, at most."""
        return max((machine.facts.max_slots for machine in self), default=1)

    @property
    def packs_at_once(self) -> int:
        """Packs that train at once: one on each machine."""
        return max(1, len(self))

    def slots_now(self, groups: Sequence[TrialGroup]) -> int:
        """Trials that can train at once on all machines, with the present programs."""
        if not self.settled:
            return self.max_slots
        return max(1, sum(machine.slots for machine in self if not machine.leaving))

    def deal(
        self, groups: Iterable[RemoteGroup], jobs: JobTable, alone: Collection[int] = ()
    ) -> list[tuple[Machine, RemoteJob]]:
        """Chooses jobs of settled programs for the machines that wait for an order.

        A machine keeps to the groups that it has the programs of, and else takes the group that the
        fewest machines have. What would leave slots of other machines empty is not handed out
        ahead. Jobs whose numbers are in ``alone`` wait for a machine without others, and stay alone
        there. The jobs that are returned are with their machines by then.
        """
        settled = [group for group in groups if group.queue and group.has_program]
        here = [machine for machine in self if not machine.leaving]
        dealt = self._deal_alone(here, settled, jobs, alone) if alone else []
        apart = {job.host for job in map(jobs.get, alone) if job is not None}
        here = [machine for machine in here if machine.host not in apart]
        idle = [machine for machine in here if not machine.busy]
        queued = [group for group in settled if _next(group, alone) is not None]
        if not queued or not idle:
            return dealt
        load = {machine.host: jobs.count(machine.host) for machine in here}
        missing = sum(max(0, machine.slots - load[machine.host]) for machine in here)
        ahead = max(0, sum(len(group.queue) for group in queued) - missing)
        most = {machine.host: machine.slots for machine in idle}
        # Jobs beyond the slots are built while others train, and fill a slot at once.
        extra = min(-(-ahead // len(here)), max(machine.slots for machine in idle))
        while queued:
            free = [machine for machine in idle if load[machine.host] < most[machine.host]]
            if not free:
                if not extra:
                    break
                most = {machine.host: machine.slots + extra for machine in idle}
                extra = 0
                continue
            machine = min(free, key=lambda each: load[each.host] / each.slots)
            group = self._group_for(machine, queued)
            number = _next(group, alone)
            assert number is not None
            dealt.append((machine, _send(number, machine, jobs)))
            load[machine.host] += 1
            queued = [each for each in queued if _next(each, alone) is not None]
        return dealt

    @staticmethod
    def _deal_alone(
        here: Iterable[Machine],
        queued: Iterable[RemoteGroup],
        jobs: JobTable,
        alone: Collection[int],
    ) -> list[tuple[Machine, RemoteJob]]:
        """Gives jobs that are to be alone the machines that have no job, one each."""
        empty = [m for m in here if not m.busy and not jobs.count(m.host)]
        waiting = [t.number for group in queued for t in group.queue if t.number in alone]
        pairs = zip(empty, waiting, strict=False)
        return [(machine, _send(number, machine, jobs)) for machine, number in pairs]

    def _group_for(self, machine: Machine, queued: list[RemoteGroup]) -> RemoteGroup:
        for group in queued:
            if id(group) in machine.groups:
                return group
        return min(queued, key=lambda group: sum(id(group) in m.groups for m in self))

    def take_surplus(self, jobs: JobTable) -> None:
        """Has machines hand back jobs that only wait there, when others have slots for them."""
        here = [machine for machine in self if not machine.leaving]
        free = sum(max(0, machine.slots - jobs.count(machine.host)) for machine in here)
        for machine in here if free else ():
            surplus = min(free, jobs.count(machine.host) - machine.slots)
            if machine.busy or machine.look is None or surplus <= 0:
                continue
            in_slots = {number for *_, found in machine.look.slots_now for number in found}
            for job in jobs.on(machine.host):
                waits = job.number not in in_slots and job.trial.epoch == 0 and not job.paused
                if waits and surplus > 0:
                    machine.take.add(job.number)
                    surplus, free = surplus - 1, free - 1


def _next(group: RemoteGroup, alone: Collection[int]) -> int | None:
    """The job of a group's queue that is next for a machine with others; None: there is none."""
    return next((trial.number for trial in group.queue if trial.number not in alone), None)


def _send(number: int, machine: Machine, jobs: JobTable) -> RemoteJob:
    """Takes a job out of its queue, because a machine gets it."""
    job = jobs.get(number)
    assert job is not None
    jobs.send(job, machine.host)
    machine.groups.add(id(job.group))
    return job
