"""What the machines of a search have spent, and which job was in which slot when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import replace

from paceline.executor.remote.machines import Machine, Machines
from paceline.executor.remote.messages import HostState, RoundAnswer
from paceline.executor.reporting import (
    CompiledStep,
    ExecutorTimings,
    JobStay,
    SeenPack,
    SlotTimeline,
)


class ClusterSpending:
    """Adds up what machines say of themselves, the ones that are gone included."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self.timings = ExecutorTimings()
        self.plans: set[str] = set()  # names of the plans that trained
        self._looks: dict[str, HostState] = {}  # the last of each machine
        self._steps: dict[tuple[str, int], CompiledStep] = {}
        self._packs: dict[tuple[str, int], int] = {}
        self._stays: list[JobStay] = []
        self._seen: list[SeenPack] = []

    def add(self, machine: Machine, answer: RoundAnswer) -> None:
        """Adds a machine's answer."""
        spent, host = answer.spent, answer.host
        self.timings.add_elsewhere(spent.seconds, spent.rounds, spent.slot_epochs)
        if host is None:
            return
        machine.look = self._looks[machine.host] = host
        self.plans |= host.plans
        offset = machine.offset
        for step in host.steps:
            key = machine.host, step.key
            if key not in self._steps:
                self._steps[key] = replace(
                    step,
                    key=len(self._steps),
                    began=step.began + offset,
                    ended=step.ended + offset,
                )
        room = SlotTimeline.MOST - len(self._stays)
        self._stays += [
            replace(
                stay,
                pack=self._number(machine.host, stay.pack),
                began=stay.began + offset,
                ended=stay.ended + offset,
                worker=machine.host,
            )
            for stay in answer.stays[: max(0, room)]
        ]
        self._seen += [
            replace(pack, pack=self._number(machine.host, pack.pack), began=pack.began + offset)
            for pack in answer.packs[: SlotTimeline.MOST - len(self._seen)]
        ]

    def _number(self, host: str, pack: int) -> int:
        return self._packs.setdefault((host, pack), len(self._packs))

    # -- the timeline ------------------------------------------------------------------------------

    def take(self, *, all_ended: bool = False) -> tuple[list[JobStay], list[SeenPack]]:
        """As ``SlotTimeline.take``; stays that are not over are known to their machines only."""
        stays, self._stays = self._stays, []
        seen, self._seen = self._seen, []
        return stays, seen

    def forget(self, jobs: Container[int]) -> None:
        """As ``SlotTimeline.forget``."""
        self._stays = [stay for stay in self._stays if stay.job not in jobs]

    # -- what people see ---------------------------------------------------------------------------

    @property
    def compiled(self) -> dict[str, int]:
        """Numbers of steps, by whether they were compiled or found on disk."""
        total: Counter[str] = Counter({"compiled": 0, "from_cache": 0})
        for look in self._looks.values():
            total.update({name: look.counts[name] for name in ("compiled", "from_cache")})
        return dict(total)

    @property
    def compile_seconds(self) -> float:
        """Seconds spent lowering and compiling."""
        return sum(look.compile_seconds for look in self._looks.values())

    @property
    def compiles(self) -> tuple[int, int]:
        """Number of programs that are compiled, and of all that were asked for."""
        ready = sum(look.compiles[0] for look in self._looks.values())
        return ready, sum(look.compiles[1] for look in self._looks.values())

    def steps(self) -> list[CompiledStep]:
        """The steps that were compiled."""
        return list(self._steps.values())

    def slots_now(self) -> list[tuple[str, str, list[int | None]]]:
        """Each pack that trains on a machine that is there."""
        looks = [machine.look for machine in self._machines]
        return [pack for look in looks if look is not None for pack in look.slots_now]


class SpendsElsewhere:
    """The part of a ``PackExecutor`` that says what was spent, for one whose machines do."""

    def __init__(self, machines: Machines) -> None:
        self._spending = ClusterSpending(machines)
        self._all = machines

    @property
    def workers(self) -> list[Machine]:
        """The machines that train."""
        return list(self._all)

    @property
    def timings(self) -> ExecutorTimings:
        """What the machines have spent, and this process on tracing."""
        return self._spending.timings

    @property
    def timeline(self) -> ClusterSpending:
        """Which job was in which slot when."""
        return self._spending

    @property
    def plans(self) -> set[str]:
        """Names of the plans that trained."""
        return self._spending.plans

    def compile_seconds(self) -> float:
        """Seconds spent lowering and compiling, on all machines together."""
        return self._spending.compile_seconds

    @property
    def compiles(self) -> tuple[int, int]:
        """Number of programs that are compiled, and of all that were asked for."""
        return self._spending.compiles

    def slots_now(self) -> list[tuple[str, str, list[int | None]]]:
        """Each pack that trains: its program, its plan, and the job in each slot or None."""
        return self._spending.slots_now()

    def compiled_steps(self) -> list[CompiledStep]:
        """The steps that machines have compiled, or found in a cache."""
        return self._spending.steps()
