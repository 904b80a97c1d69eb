"""The executor of one machine of a cluster: it lets single jobs go, and compiles as it is told."""

from __future__ import annotations

from collections.abc import Collection

from paceline.executor.base import settled
from paceline.executor.grouping import Group
from paceline.executor.local import LocalExecutor
from paceline.executor.plan_choice import Candidate, RestoredProgram
from paceline.executor.remote.messages import HostState, JobState, ProgramOrder
from paceline.executor.restored import Arrays, restore_roles, state_like
from paceline.pack.pack import SlotTrial
from paceline.program.trace import State


class HostedExecutor(LocalExecutor):
    """A ``LocalExecutor`` whose search is elsewhere."""

    def finish(self, number: int) -> None:
        """Ends a job as the answer "stop" would; does nothing if there is none."""
        for group in self._grouper.groups:
            pack = group.pack_of(number)
            if pack is not None:
                trial = next(each for each in pack.live if each.number == number)
                self._reporter.apply_answer(group, pack, trial, settled("stop"))
                return
        self.drop(number)

    def take(self, number: int) -> JobState | None:
        """Lets a job go; its state, or None where it has trained no epoch, or is not here."""
        found = self.capture([number]).get(number)
        self.withdraw(number)
        return found

    def capture(self, numbers: Collection[int] | None = None) -> dict[int, JobState]:
        """The states of jobs that have trained an epoch; None: of all of them. They stay."""
        found = {}
        for group in self._grouper.groups:
            for trial, state in _states(group, numbers):
                arrays: Arrays = {}
                callbacks = None
                if trial.driver is not None:
                    callbacks = trial.driver.saved(f"callbacks.{trial.number}", arrays)
                parts = [list(part) for part in state.lists()]
                found[trial.number] = JobState(trial.epoch, parts, callbacks, arrays)
        return found

    def begin_from(self, number: int, state: JobState) -> bool:
        """As ``start_from``, the job's callbacks included."""
        for group in self._grouper.groups:
            trial = group.waiting(number)
            if trial is None:
                continue
            own = state_like(trial.shapes(group.state), state.parts)
            if own is None:
                return False
            trial.state, trial.epoch = own, state.epoch
            if trial.driver is not None and state.callbacks is not None:
                trial.driver.restore(f"callbacks.{number}", state.callbacks, state.arrays)
            return True
        return False

    def _compile_early(self) -> None:
        """Nothing: the search says how programs are compiled."""

    def compile_as(self, name: str, order: ProgramOrder) -> bool:
        """Compiles a group's program as the search says; False where its steps are others."""
        group = next((each for each in self._grouper.groups if each.name == name), None)
        if group is None:
            return False
        before = [role.lifted for role in group.roles]
        if not restore_roles(group, order.roles):
            return False
        if group.program is None:
            if order.plan is not None and order.slots is not None and order.effort is not None:
                candidate = Candidate(order.plan, order.slots)
                group.restored_program = RestoredProgram(candidate, order.effort, None)
        elif [role.lifted for role in group.roles] != before:
            demand = self.demand
            self._planner.compile(group, len(group.queue), demand.expected)
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


def _states(group: Group, numbers: Collection[int] | None) -> list[tuple[SlotTrial, State]]:
    """The trials of a group that have trained an epoch, each with its state."""

    def wanted(trial: SlotTrial) -> bool:
        return trial.epoch > 0 and (numbers is None or trial.number in numbers)

    found = [(trial, trial.state) for trial in group.queue if wanted(trial)]
    for pack in group.packs:
        if any(map(wanted, pack.live)):
            states = pack.states()
            found += [(trial, states[trial.number]) for trial in pack.live if wanted(trial)]
    return [(trial, state) for trial, state in found if state is not None]
