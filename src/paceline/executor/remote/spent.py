"""What the machines of a search have spent, and which job was in which slot when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from paceline.executor.remote.machines import Machine, Machines
from paceline.executor.remote.messages import HostState, RoundAnswer
from paceline.executor.training.reporting import ExecutorTimings, SlotTimeline
from paceline.records import PackCreated, SlotStay, StepCompiled


class ClusterTimeline:
    """Stays of jobs in slots of all machines, by the clock of this process.

    Packs are numbered over all machines.
    """

    def __init__(self) -> None:
        self._packs: dict[tuple[str, int], int] = {}
        self._stays: list[SlotStay] = []
        self._made: list[PackCreated] = []

    def add(self, machine: Machine, answer: RoundAnswer) -> None:
        """Adds what a machine has handed over."""
        stays = answer.stays[: max(0, SlotTimeline.MOST - len(self._stays))]
        made = answer.packs[: max(0, SlotTimeline.MOST - len(self._made))]
        for record in (*stays, *made):
            record.pack = self._packs.setdefault((machine.host, record.pack), len(self._packs))
            record.began += machine.offset
        for stay in stays:
            stay.ended += machine.offset
            stay.worker = machine.host
        self._stays += stays
        self._made += made

    def take(self, *, all_ended: bool = False) -> tuple[list[SlotStay], list[PackCreated]]:
        """As ``SlotTimeline.take``; stays that are not over are known to their machines only."""
        stays, self._stays = self._stays, []
        made, self._made = self._made, []
        return stays, made

    def forget(self, jobs: Container[int]) -> None:
        """As ``SlotTimeline.forget``."""
        self._stays = [stay for stay in self._stays if stay.trial not in jobs]


class RemoteTimings:
    """The part of a ``PackExecutor`` that says what was spent, for one whose machines do.

    It adds up what machines say of themselves, the ones that are gone included.
    """

    def __init__(self, machines: Machines) -> None:
        self._all = machines
        self.timings = ExecutorTimings()  # of the machines, and of this process on tracing
        self.timeline = ClusterTimeline()
        self.plans: set[str] = set()  # names of the plans that trained
        self._looks: dict[str, HostState] = {}  # the last of each machine
        self._steps: dict[tuple[str, int], StepCompiled] = {}

    def _spend(self, machine: Machine, answer: RoundAnswer) -> None:
        """Adds a machine's answer."""
        host = answer.host
        self.timings.add(answer.spent)
        if host is None:
            return
        machine.look = self._looks[machine.host] = host
        self.plans |= host.plans
        for key, step in host.steps.items():
            if (machine.host, key) not in self._steps:
                step.began += machine.offset
                step.ended += machine.offset
                self._steps[machine.host, key] = step
        self.timeline.add(machine, answer)

    @property
    def workers(self) -> list[Machine]:
        """The machines that train."""
        return list(self._all)

    @property
    def compiled(self) -> dict[str, int]:
        """Numbers of steps, by whether they were compiled or found on disk."""
        total: Counter[str] = Counter({"compiled": 0, "from_cache": 0})
        for look in self._looks.values():
            total.update({name: look.counts[name] for name in ("compiled", "from_cache")})
        return dict(total)

    @property
    def compiles(self) -> tuple[int, int]:
        """Number of programs that are compiled, and of all that were asked for."""
        ready = sum(look.compiles[0] for look in self._looks.values())
        return ready, sum(look.compiles[1] for look in self._looks.values())

    def slots_now(self) -> list[tuple[str, str, list[int | None]]]:
        """Each pack that trains: its program, its plan, and the job in each slot or None."""
        looks = [machine.look for machine in self._all]
        return [pack for look in looks if look is not None for pack in look.slots_now]

    def compiled_steps(self) -> dict[int, StepCompiled]:
        """The steps that machines have compiled, or found in a cache."""
        return dict(enumerate(self._steps.values()))
