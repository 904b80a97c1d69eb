"""What the machines of a search have spent, and which job was in which slot when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from paceline.executor.remote.machines import Machine, Machines
from paceline.executor.remote.messages import HostState, RoundAnswer
from paceline.executor.reporting import ExecutorTimings, SlotTimeline
from paceline.records import Compiled, PackMade, SlotStay


class ClusterSpending:
    """Adds up what machines say of themselves, the ones that are gone included."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self.timings = ExecutorTimings()
        self.plans: set[str] = set()  # names of the plans that trained
        self._looks: dict[str, HostState] = {}  # the last of each machine
        self._steps: dict[tuple[str, int], Compiled] = {}
        self._packs: dict[tuple[str, int], int] = {}
        self._stays: list[SlotStay] = []
        self._seen: list[PackMade] = []

    def add(self, machine: Machine, answer: RoundAnswer) -> None:
        """Adds a machine's answer."""
        spent, host = answer.spent, answer.host
        self.timings.add_elsewhere(spent.seconds, spent.rounds, spent.slot_epochs)
        if host is None:
            return
        machine.look = self._looks[machine.host] = host
        self.plans |= host.plans
        steps = {(machine.host, key): step for key, step in host.steps.items()}
        steps = {key: step for key, step in steps.items() if key not in self._steps}
        stays = answer.stays[: max(0, SlotTimeline.MOST - len(self._stays))]
        packs = answer.packs[: max(0, SlotTimeline.MOST - len(self._seen))]
        # The machine has handed the records over. From now on they speak of this process' clock,
        # and of packs that are numbered over all machines.
        for record in (*steps.values(), *stays, *packs):
            record.began += machine.offset
            if not isinstance(record, PackMade):
                record.ended += machine.offset
            if not isinstance(record, Compiled):
                key = machine.host, record.pack
                record.pack = self._packs.setdefault(key, len(self._packs))
        for stay in stays:
            stay.worker = machine.host
        self._steps |= steps
        self._stays += stays
        self._seen += packs

    # -- the timeline ------------------------------------------------------------------------------

    def take(self, *, all_ended: bool = False) -> tuple[list[SlotStay], list[PackMade]]:
        """As ``SlotTimeline.take``; stays that are not over are known to their machines only."""
        stays, self._stays = self._stays, []
        seen, self._seen = self._seen, []
        return stays, seen

    def forget(self, jobs: Container[int]) -> None:
        """As ``SlotTimeline.forget``."""
        self._stays = [stay for stay in self._stays if stay.trial not in jobs]

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

    def steps(self) -> dict[int, Compiled]:
        """The steps that were compiled."""
        return dict(enumerate(self._steps.values()))

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

    def compiled_steps(self) -> dict[int, Compiled]:
        """The steps that machines have compiled, or found in a cache."""
        return self._spending.steps()
