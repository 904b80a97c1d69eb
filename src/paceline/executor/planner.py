"""How a group's trials are trained: plan, slots and devices; and the compiling of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import jax

from paceline.executor.group import Group, RestoredProgram
from paceline.executor.plan_choice import Candidate, PlanChoice, key_of, remembered
from paceline.pack.mesh import MeshLayout, lay_out, local_devices
from paceline.pack.plan import CompiledPlan, MappedProgram, SequentialProgram, StackedProgram
from paceline.pack.plan.base import gains_from_stacking, is_short
from paceline.program.compile import Executable

#: Slots of a stacked pack when the user says "auto". On two cores throughput is flat from 8 slots
#: on, and a GRU is slower with 16 (docs/decisions/0003); accelerators take more.
AUTO_SLOTS = {"cpu": 8, "gpu": 32, "tpu": 32}
#: Lanes on a CPU, at most: beyond, packs compete for memory bandwidth.
_CPU_LANES = 8


class Planner:
    """Chooses the plan of each group, and compiles it.

    Args:
        slots: Trials that train at once, or "auto": 8 per core on a CPU, 32 on an accelerator.
        plan: "stacked", "mapped", "sequential" or "auto".
        mesh: Devices asked for, from ``check_mesh``; None: all accelerators, or one CPU.

    Attributes:
        lanes: Packs that train at the same time: one, but on a CPU one per core.
        programs: All that were compiled.
        plans: Their plans.

    Raises:
        UsageError: There are not as many devices.
    """

    def __init__(
        self, slots: int | str, plan: str, mesh: tuple[int, int | None] | None = None
    ) -> None:
        self._plan, self._mesh = plan, mesh
        self.devices = local_devices(mesh)
        self._platform = jax.default_backend()
        self.lanes = 1
        self.chooses_slots = isinstance(slots, str)
        if not isinstance(slots, str):
            self._pack_slots = int(slots)
        else:
            self._pack_slots = AUTO_SLOTS.get(self._platform, 32) * len(self.devices)
            if self._platform == "cpu" and len(self.devices) == 1:
                self.lanes = max(1, min(_CPU_LANES, cores()))
        self.programs: list[CompiledPlan] = []
        self.plans: set[str] = set()
        self._noted: set[str] = set()
        self.note: Callable[[str], None] = lambda text: None  # told what users may want to know

    def max_slots(self, groups: list[Group]) -> int:
        """Trials that train at once, at most."""
        now = (group.program.n_slots for group in groups if group.program is not None)
        return self.lanes * max((self._pack_slots, *now))

    @property
    def signature(self) -> list[Any]:
        """The devices and lanes that programs are made for, as JSON values."""
        kinds = [getattr(device, "device_kind", "") for device in self.devices]
        return [self._platform, kinds, self.lanes]

    def slots_now(self, groups: list[Group]) -> int:
        """Trials that can train at once as things are: no more than that need to be ready.

        A plan that trains one after another needs few, where ``max_slots`` of many accelerators
        are hundreds of models on the host.
        """
        plans = {
            group.program.plan if group.program is not None else self._rule(group)
            for group in groups
            if group.active
        }
        return self.lanes if plans == {"sequential"} else self.max_slots(groups)

    # -- compiling ---------------------------------------------------------------------------------

    def compile(self, group: Group, n_trials: int, expected: int) -> None:
        """Compiles a group that has no program, or one that lacks an input.

        Args:
            group: The group.
            n_trials: How many trials are there for it, so far as is known.
            expected: Trials still to come in the search, those waiting included.
        """
        before = group.program
        for role in group.roles:
            role.settle(group.n_seen)
        group.coming = None
        if before is None:
            candidate = self._first(group, n_trials)
        else:
            candidate = Candidate(before.plan, before.n_slots)
        self._begin(group, self._make(group, candidate, n_trials, expected, before))
        for pack in group.packs:
            pack.exchange(_compiled(group))

    def compile_again(self, group: Group) -> None:
        """Compiles a group as it was before its search stopped; ``group.again`` says how."""
        again = group.again
        assert again is not None
        first = self._first(group, again.candidate.slots)  # and what else may be tried out
        program = self._make(
            group, again.candidate, again.candidate.slots, 0, quick=again.quick, again=again
        )
        if group.choice is not None and first != again.candidate:
            group.choice = None
        group.again = None
        self._begin(group, program)

    def _begin(self, group: Group, program: CompiledPlan) -> None:
        group.program = program
        self.plans.add(program.plan)

    def _make(
        self,
        group: Group,
        candidate: Candidate,
        n_trials: int,
        expected: int,
        before: CompiledPlan | None = None,
        quick: bool | None = None,
        again: RestoredProgram | None = None,
    ) -> CompiledPlan:
        parts = (group.train, group.test, group.state, group.work)
        riders = [*group.queue, *(rider for pack in group.packs for rider in pack.live)]
        epochs = max((rider.epochs - rider.epoch for rider in riders), default=1)
        waves = max(expected, n_trials, 1) / (candidate.slots * self.lanes)
        if quick is None:
            steps = waves * epochs * max(1, group.work.steps)
            quick = is_short(group.train.full.closed, steps, candidate.slots)
        if candidate.plan == "sequential":
            old = before if isinstance(before, SequentialProgram) else None
            program: CompiledPlan = SequentialProgram(*parts, quick=quick, before=old)
        else:
            kind = MappedProgram if candidate.plan == "mapped" else StackedProgram
            program = kind(
                *parts,
                n_slots=candidate.slots,
                quick=quick,
                # Not ``isinstance``: a mapped program is a stacked one, but its steps are others.
                before=before if type(before) is kind else None,
                layout=layout_of(before) if before else self._layout(group, n_trials, again),
            )
        self.programs.append(program)
        return program

    def _layout(
        self, group: Group, n_trials: int, again: RestoredProgram | None
    ) -> MeshLayout | None:
        if again is None:
            return self._lay_out(group, n_trials)
        if again.layout is None:
            return None
        trial, data = again.layout
        return MeshLayout(tuple(self.devices[: trial * data]), trial, data)

    def _lay_out(self, group: Group, n_trials: int) -> MeshLayout | None:
        """The devices a group's slots are spread over; None for one."""
        if len(self.devices) == 1:
            return None
        most = n_trials if group.most_slots is None else min(n_trials, group.most_slots)
        layout, note = lay_out(self.devices, self._mesh, most, group.work.batch_size)
        if layout is not None and layout.data > 1 and self._rule(group) == "mapped":
            # A loop over slots on several devices: they must not share one slot's batch.
            rows = layout.trial
            layout = MeshLayout(layout.devices[:rows], rows, 1) if rows > 1 else None
            note = f"plan mapped: batches are not split, {rows} of {len(self.devices)} devices used"
        if note is not None:
            self.say(note)
        return layout

    def say(self, note: str) -> None:
        """Tells users, once."""
        if note not in self._noted:
            self._noted.add(note)
            self.note(note)

    def check_batch(self, batch_size: int) -> None:
        """Checks that the user's mesh can split a batch.

        Raises:
            UsageError: It cannot.
        """
        if self._mesh is not None:
            lay_out(self.devices, self._mesh, 1, batch_size)

    def can_halve(self, program: CompiledPlan) -> bool:
        """Whether a program of fewer slots, or fewer lanes, can be had."""
        rows = self._mesh[0] if self._mesh and self._mesh[1] is not None else 1
        return program.n_slots > rows or self.lanes > 1

    # -- choosing ----------------------------------------------------------------------------------

    def usual(self, group: Group, n_trials: int) -> Candidate:
        """How a group of so many trials begins."""
        return self._first(group, n_trials)

    def _first(self, group: Group, n_trials: int) -> Candidate:
        """How a group begins: as an earlier search found best, else as rules say."""
        plan = self._rule(group)
        layout = self._lay_out(group, n_trials)
        if plan == "sequential" and len(self.devices) > 1:
            self.say(
                f"program {group.name} trains on one device: "
                + (
                    "its random generator would draw other numbers side by side"
                    if group.rng_differs
                    else "its plan is sequential"
                )
            )
        slots = 1 if plan == "sequential" else self._slots_for(group, n_trials, layout)
        first = Candidate(plan, slots)
        free = self._plan == "auto" and self.chooses_slots and len(self.devices) == 1
        if not free or group.rng_differs or group.most_slots is not None:
            group.choice = None
            return first
        candidates = [first, *(c for c in self._others(group, n_trials) if c != first)]
        print_of = group.train.full.canonical.fingerprint
        key = key_of(print_of, group.work.batch_size, self.lanes, self.devices)
        known = remembered(key, [candidate.plan for candidate in candidates])
        group.choice = PlanChoice(candidates, key, known)
        if known is None:
            return first
        # Slots beyond the trials there are would only compute for nothing.
        return Candidate(known.plan, min(known.slots, self._enough(n_trials)))

    def _rule(self, group: Group) -> str:
        if group.rng_differs:
            return "sequential"  # under vmap its random numbers would be others than alone
        if self._plan != "auto":
            return self._plan
        # XLA's CPU convolutions are 20 times slower inside a loop, and grouped by vmap still
        # slower.
        if group.convolves and self._platform == "cpu":
            return "sequential"
        return "stacked" if self._pack_slots > 1 or len(self.devices) > 1 else "sequential"

    def _others(self, group: Group, n_trials: int) -> list[Candidate]:
        """What else may be faster."""
        most = self._enough(n_trials)
        if self._platform == "cpu":
            if group.convolves:
                return [Candidate("stacked", 1), Candidate("mapped", min(8, most))]
            return [Candidate("stacked", slots) for slots in (1, 8, 16) if slots <= most]
        others = [Candidate("stacked", 8), Candidate("sequential", 1)]
        if group.convolves:  # vmap groups them, which is slow backward on a GPU (jax #13800)
            others.insert(0, Candidate("mapped", min(32, most)))
        return [candidate for candidate in others if candidate.slots <= most]

    def _enough(self, n_trials: int) -> int:
        """Slots of a pack, a power of two, that are enough for so many trials."""
        return 1 << max(0, -(-n_trials // self.lanes) - 1).bit_length()

    def _slots_for(self, group: Group, n_trials: int, layout: MeshLayout | None) -> int:
        """Slots of a pack: as many on each device, a power of two, enough for a lane's trials."""
        rows = layout.trial if layout else 1
        if self.chooses_slots and self._platform == "cpu" and self._plan != "mapped":
            if not gains_from_stacking(group.train.full.closed):
                return rows
        share = -(-min(n_trials, self.lanes * self._pack_slots) // (self.lanes * rows))
        slots = rows << max(0, share - 1).bit_length()
        return slots if group.most_slots is None else min(slots, max(rows, group.most_slots))

    def reconsider(self, group: Group, trial_epochs: int, expected: int) -> None:
        """Has another candidate compiled, to be tried out, in a search that is long enough.

        Args:
            group: A group whose packs have just trained an epoch.
            trial_epochs: Epochs left, of all its trials together.
            expected: Trials still to come in the search.
        """
        choice, now = group.choice, group.program
        if choice is None or now is None or choice.settled or group.coming is not None:
            return
        candidate = Candidate(now.plan, now.n_slots)
        if not choice.timed(candidate):
            return
        following = choice.to_try(candidate, trial_epochs, _compile_seconds(now))
        if following is None:
            following = choice.settle(candidate)
            if following == candidate:
                return
            self.note(f"trials go on {following}: faster than {candidate}, as was measured")
        epochs = max(1, *(rider.epochs for pack in group.packs for rider in pack.live), 1)
        group.coming = self._make(group, following, -(-trial_epochs // epochs), expected)

    def arrived(self, group: Group) -> bool:
        """Whether a program to go on with has been compiled; one that failed is forgotten."""
        coming = group.coming
        if coming is None or not coming.ready():
            return False
        try:
            coming.roles()
        except Exception:  # whatever XLA may raise: the present program goes on
            self.programs.remove(coming)
            if group.choice is not None:
                group.choice.rule_out(Candidate(coming.plan, coming.n_slots))
            group.coming = None
            return False
        return True

    def grow(self, group: Group, trial_epochs: int, epoch_seconds: float, expected: int) -> None:
        """Has larger packs compiled for a group that began with few trials, where that pays.

        Args:
            group: A group whose packs have just trained an epoch.
            trial_epochs: Epochs left, of all its trials together.
            epoch_seconds: What the last epoch took.
            expected: Trials still to come in the search.
        """
        now = group.program
        settled = group.choice is not None and group.choice.settled is not None
        if now is None or now.plan == "sequential" or group.coming is not None or settled:
            return
        if not self.chooses_slots:
            return
        if len(group.queue) < now.n_slots * self.lanes:
            return
        n_trials = len(group.queue) + group.live
        slots = self._slots_for(group, n_trials, self._lay_out(group, n_trials))
        rounds = trial_epochs / (now.n_slots * self.lanes)
        if slots >= 2 * now.n_slots and rounds * epoch_seconds > 2 * _compile_seconds(now):
            group.coming = self._make(group, Candidate(now.plan, slots), n_trials, expected)

    def shrink(self, group: Group, epoch_seconds: float) -> None:
        """With no more trials to come: has a smaller pack compiled where that pays.

        Args:
            group: A group none of whose trials waits.
            epoch_seconds: What its last epoch took.
        """
        now = group.program
        if now is None or group.coming is not None or layout_of(now) is not None:
            return
        if not self.chooses_slots:
            return
        riders = [rider for pack in group.packs for rider in pack.live]
        slots = self._enough(len(riders))
        if not riders or slots >= now.n_slots:
            return
        epochs = max(rider.epochs - rider.epoch for rider in riders)
        if epochs * epoch_seconds * (1 - slots / now.n_slots) > _compile_seconds(now):
            group.choice = None  # so few trials are not timed
            group.coming = self._make(group, Candidate(now.plan, slots), len(riders), 0)

    # -- accounts ----------------------------------------------------------------------------------

    def compiled_roles(self) -> list[list[Executable]]:
        """What was compiled, a train or validate role each; one that was taken over counts once.

        A program that failed to compile is among none of them.
        """
        unique: dict[int, list[Executable]] = {}
        for program in self.programs:
            if program.ready():
                with contextlib.suppress(Exception):
                    unique.update({id(role[0]): role for role in program.roles()})
        return list(unique.values())


def _compiled(group: Group) -> CompiledPlan:
    assert group.program is not None
    return group.program


def trying(group: Group) -> bool:
    """Whether a group's program is one of several that are being tried out, and not the first."""
    choice, now = group.choice, group.program
    if choice is None or now is None or choice.settled is not None:
        return False
    return Candidate(now.plan, now.n_slots) != choice.candidates[0]


def layout_of(program: CompiledPlan) -> MeshLayout | None:
    """The devices that a program's slots are spread over; None for one."""
    return program.layout if isinstance(program, StackedProgram) else None


def _compile_seconds(program: CompiledPlan) -> float:
    return sum(executable.seconds for role in program.roles() for executable in role)


def cores() -> int:
    """Cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
