"""How programs are compiled, decided once for all machines.

Which constants of a step are inputs decides last digits. Machines see different trials, so each
would decide otherwise. The search sees all of them, decides as one machine would, and tells.
"""

from __future__ import annotations

from typing import Any

from paceline.executor.base import PackOptions
from paceline.executor.remote.jobs import RemoteGroup
from paceline.executor.remote.machines import Machine
from paceline.executor.remote.messages import ProgramOrder
from paceline.executor.state.facts import ProgramFacts
from paceline.executor.state.snapshot import role_facts
from paceline.executor.training.planner import effort_of
from paceline.executor.training.slots import TrialDemand
from paceline.program.compile import CompileEffort


class ProgramOrders:
    """Decides how programs are compiled."""

    def __init__(self, options: PackOptions, demand: TrialDemand) -> None:
        self._options, self._demand = options, demand
        self._efforts: dict[int, CompileEffort] = {}
        # Group -> what the order was made of, and the order.
        self._orders: dict[int, tuple[Any, ProgramOrder]] = {}

    def of(self, group: RemoteGroup) -> ProgramOrder:
        """How a group is compiled now; that is settled from then on."""
        for role in group.roles:
            role.settle(group.n_seen)
        key = tuple((len(role.observed), role.lifted) for role in group.roles)
        known = self._orders.get(id(group))
        if known is not None and known[0] == key:
            return known[1]
        group.has_program = True
        order = ProgramOrder([role_facts(role) for role in group.roles], self._asked(group))
        self._orders[id(group)] = key, order
        return order

    def _asked(self, group: RemoteGroup) -> ProgramFacts | None:
        """The program as the user asks for it; None if machines choose plan or slots."""
        plan, slots = self._options.plan, self._options.slots
        if plan == "auto" or isinstance(slots, str):
            return None
        if group.rng_differs:
            plan = "sequential"  # as the planner's rule
        n_slots = 1 if plan == "sequential" else slots
        if id(group) not in self._efforts:
            waves = max(*self._demand.of_program(group), 1) / n_slots
            self._efforts[id(group)] = effort_of(group, n_slots, waves)
        return ProgramFacts(plan, n_slots, int(self._efforts[id(group)]), None)

    def facts(self, group: RemoteGroup) -> ProgramFacts | None:
        """How a group is compiled, for a snapshot; None if machines choose."""
        _, order = self._orders.get(id(group), (None, None))
        return None if order is None else order.program

    def restore(self, group: RemoteGroup, program: ProgramFacts | None) -> None:
        """Has a group be compiled as a snapshot says."""
        if program is not None:
            self._efforts[id(group)] = CompileEffort(program.quick)

    def news_for(self, machine: Machine, groups: list[RemoteGroup]) -> dict[str, ProgramOrder]:
        """What a machine is to be told of the programs that it has; it is remembered as told."""
        found = {}
        for group in groups:
            if id(group) in machine.groups:
                order = self.of(group)
                if machine.programs.get(group.name) is not order:
                    found[group.name] = machine.programs[group.name] = order
        return found
