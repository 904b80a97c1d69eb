"""How programs are compiled, decided once for all machines.

Which constants of a step are inputs decides last digits. Machines see different trials, so each
would decide otherwise. The search sees all of them, decides as one machine would, and tells.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from paceline.executor.base import PackOptions
from paceline.executor.grouping import Group
from paceline.executor.planner import effort_of
from paceline.executor.remote.machines import Machine
from paceline.executor.remote.messages import ProgramOrder
from paceline.executor.restored import Facts
from paceline.executor.slots import Demand
from paceline.executor.snapshot import role_facts
from paceline.program.compile import Effort


class ProgramOrders:
    """Decides how programs are compiled."""

    def __init__(self, options: PackOptions, demand: Demand) -> None:
        self._options, self._demand = options, demand
        self._efforts: dict[int, Effort] = {}
        # Group -> what the order was made of, and the order.
        self._orders: dict[int, tuple[Any, ProgramOrder]] = {}

    def of(self, group: Group) -> ProgramOrder:
        """How a group is compiled now; the group has a program from then on."""
        for role in group.roles:
            role.settle(group.n_seen)
        key = tuple((len(role.observed), role.lifted) for role in group.roles)
        known = self._orders.get(id(group))
        if known is not None and known[0] == key:
            return known[1]
        plan, slots = self._options.plan, self._options.slots
        n_slots = None
        if plan != "auto" and not isinstance(slots, str):
            if group.rng_differs:
                plan = "sequential"  # as the planner's rule
            n_slots = 1 if plan == "sequential" else slots
        if group.program is None:
            group.program = cast(Any, _Elsewhere())
            if n_slots is not None and id(group) not in self._efforts:
                waves = max(*self._demand.of_program(group), 1) / n_slots
                self._efforts[id(group)] = effort_of(group, n_slots, waves)
        order = ProgramOrder([role_facts(role) for role in group.roles])
        if n_slots is not None:
            order = replace(order, plan=plan, slots=n_slots, effort=self._efforts[id(group)])
        self._orders[id(group)] = key, order
        return order

    def facts(self, group: Group) -> Facts | None:
        """How a group is compiled, for a checkpoint; None where machines choose the plan."""
        _, order = self._orders.get(id(group), (None, None))
        if order is None or order.plan is None:
            return None
        return {"plan": order.plan, "slots": order.slots, "quick": order.effort, "layout": None}

    def restore(self, group: Group, program: Facts | None) -> None:
        """Has a group be compiled as a checkpoint says."""
        if program is not None:
            self._efforts[id(group)] = Effort(program["quick"])

    def news_for(self, machine: Machine, groups: list[Group]) -> dict[str, ProgramOrder]:
        """What a machine is to be told of the programs that it has; it is remembered as told."""
        found = {}
        for group in groups:
            if id(group) in machine.groups:
                order = self.of(group)
                if machine.programs.get(group.name) is not order:
                    found[group.name] = machine.programs[group.name] = order
        return found


class _Elsewhere:
    """Stands for the program of a group that other machines compile."""

    n_slots, plan = 1, "stacked"

    def ready(self) -> bool:
        """Says that nothing is compiled here."""
        return True
