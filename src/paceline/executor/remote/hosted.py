"""The executor of one machine of a cluster: it lets single jobs go, and compiles as it is told."""

from __future__ import annotations

from collections.abc import Collection

from paceline.executor.base import settled
from paceline.executor.local import LocalExecutor
from paceline.executor.remote.messages import HostState, ProgramOrder
from paceline.executor.state.snapshot import JobState, restore_roles


class HostedExecutor(LocalExecutor):
    """A ``LocalExecutor`` whose search is elsewhere."""

    def finish(self, number: int) -> None:
        """Ends a job as the answer "stop" would; does nothing if there is none."""
        found = self._in_slot(number)
        if found is None:
            self.drop(number)
        else:
            self._reporter.apply_answer(*found, settled("stop"))

    def take(self, number: int) -> JobState | None:
        """Lets a job go; its state, or None if it has trained no epoch, or is not here."""
        found = self.capture([number]).get(number)
        self.withdraw(number)
        return found

    def capture(self, numbers: Collection[int] | None = None) -> dict[int, JobState]:
        """The states of jobs that have trained an epoch; None: of all of them. They stay."""
        found = (self._states_of(group, numbers) for group in self._grouper.groups)
        return {number: job for jobs in found for number, job in jobs.items() if job.epoch}

    def _compile_early(self) -> None:
        """Nothing: the search says how programs are compiled."""

    def compile_as(self, name: str, order: ProgramOrder) -> bool:
        """Compiles a group's program as the search says; False if its steps are others."""
        group = next((each for each in self._grouper.groups if each.name == name), None)
        if group is None:
            return False
        before = [role.lifted for role in group.roles]
        if not restore_roles(group, order.roles):
            return False
        if group.program is None:
            if order.program is not None:
                group.restored_program = order.program
        elif [role.lifted for role in group.roles] != before:
            self._planner.compile(group, len(group.queue), self.demand.expected)
        return True

    def look(self) -> HostState:
        """The executor as people see it."""
        return HostState(
            self.program_counts(),
            self.compile_seconds(),
            self.compiles,
            self.slots_now(),
            self.compiled_steps(),
            set(self.plans),
            self._planner.slots_now(self._grouper.groups),
        )
