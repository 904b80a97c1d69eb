"""Chooses plan, slots and devices of each group, and compiles the group's programs.

What is fastest depends on the model, the device and the versions. Rules choose at first. If a
search is long enough, other candidates are compiled in the background. Each trains the search's own
trials for a few epochs. The fastest candidate trains the rest. The answer is kept on disk beside
the compiled programs, so that the next search of this model begins with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jaxlib.version

from paceline.executor.base import LEAST_TRIALS, PackOptions, UserNotifier
from paceline.executor.sharing.grouping import LocalGroup, TrialGroup, program_of
from paceline.executor.state.facts import ProgramFacts
from paceline.pack.mesh import MeshLayout, lay_out, local_devices
from paceline.pack.plan import CompiledPlan, LoopedProgram, SequentialProgram, VectorizedProgram
from paceline.pack.plan.base import effort_for, gains_from_stacking
from paceline.program.compilation_cache import DiskCache, source_digest
from paceline.program.compile import CompileEffort, Executable

#: Slots of a vectorized pack when the user says "auto". On two cores throughput is flat from 8
#: slots on, and a GRU is slower with 16 (docs/decisions/0003); accelerators take more.
AUTO_SLOTS = {"cpu": 8, "gpu": 32, "tpu": 32}
#: Programs that are compiled at once: threads of ``program/compile.py``.
_COMPILERS = 2
#: Most packs that train at once on a CPU: more than these compete for memory bandwidth.
_MOST_PACKS = 8
#: In place of the devices, in snapshots of an executor whose programs other machines compile.
ELSEWHERE = ["elsewhere"]

_PLANS: dict[str, type[CompiledPlan]] = {
    kind.plan: kind for kind in (VectorizedProgram, LoopedProgram, SequentialProgram)
}
_DISK = DiskCache("plans", kept=500)
#: Epochs of full packs that a candidate is timed for; the fastest counts. The first epoch after a
#: change does not count.
_EPOCHS = 2
#: A candidate must be faster by this factor to replace the first one, since timings scatter.
_GAIN = 1.1
#: Trying out all candidates may cost one second per this many seconds of training left.
_REPAYS = 20.0


@dataclass(frozen=True)
class Candidate:
    """A way to train a program's trials."""

    plan: str  # "vectorized", "looped" or "sequential"
    slots: int  # of a pack

    def __str__(self) -> str:
        return f"{self.plan} with {self.slots} slots" if self.slots > 1 else self.plan


@dataclass
class PlanChoice:
    """The candidates of one group, and the seconds that their epochs take."""

    candidates: Sequence[Candidate]  # what may be tried; the first is what the rules choose
    key: str  # name of the answer on disk
    settled: Candidate | None = None  # the answer; None while candidates are tried
    _seconds: dict[Candidate, list[float]] = field(default_factory=dict)  # of a trial's epoch

    def note(self, candidate: Candidate, n_trials: int, seconds: float) -> None:
        """Adds the seconds that an epoch of ``n_trials`` trials took, all slots taken."""
        self._seconds.setdefault(candidate, []).append(seconds / n_trials)

    def timed(self, candidate: Candidate) -> bool:
        """Whether enough epochs of a candidate were timed; two are enough if it is hopeless."""
        n = len(self._seconds.get(candidate, ()))
        others = [self.cost(other) for other in self._seconds if other != candidate]
        hopeless = n > 1 and self.cost(candidate) > 2 * min(others, default=float("inf"))
        return n > _EPOCHS or hopeless

    def rule_out(self, candidate: Candidate) -> None:
        """Counts a candidate that cannot be compiled as infinitely slow."""
        self._seconds[candidate] = [float("inf")] * (_EPOCHS + 1)

    def cost(self, candidate: Candidate) -> float:
        """Seconds of one trial's epoch with a candidate; infinity if it was not timed."""
        return min(self._seconds.get(candidate, ())[1:], default=float("inf"))

    def to_try(self, now: Candidate, trial_epochs: int, compile_seconds: float) -> Candidate | None:
        """The next candidate to try, or None.

        None while the present candidate, ``now``, is not timed yet, when all have been tried, or
        when too little training is left. All trials together have ``trial_epochs``. Compiling a
        program of the group took ``compile_seconds``.
        """
        left = [c for c in self.candidates if c not in self._seconds]
        if self.settled or not left or not self.timed(now):
            return None
        best = min(self.cost(c) for c in self._seconds)
        # Each try costs a compile, and some epochs that are assumed to be three times slower.
        price = len(left) * compile_seconds + 3 * (_EPOCHS + 1) * best * sum(c.slots for c in left)
        return left[0] if trial_epochs * best > _REPAYS * price else None

    def may_pay(self, seconds: float, compile_seconds: float) -> bool:
        """Whether a candidate may be worth a try with ``seconds`` of training left."""
        n_others = 0 if self.settled else len(self.candidates) - 1
        return n_others > 0 and seconds > _REPAYS * n_others * compile_seconds

    def settle(self, now: Candidate) -> Candidate:
        """Settles for the fastest candidate, or for ``now`` if none was timed.

        The answer is kept for later searches if several candidates were timed.
        """
        first = self.candidates[0]
        best = min(self._seconds, key=self.cost, default=now)
        if first in self._seconds and self.cost(best) * _GAIN > self.cost(first):
            best = first
        self.settled = best
        if len(self._seconds) > 1 and self.cost(best) < float("inf"):
            _DISK.write(f"{self.key}.json", json.dumps([best.plan, best.slots]).encode())
        return best


def remembered(key: str, plans: Sequence[str]) -> Candidate | None:
    """The answer of an earlier search; None if there is none, or its plan is not in ``plans``."""
    body = _DISK.read(f"{key}.json")
    try:
        plan, slots = json.loads(body or b"null")
        candidate = Candidate(str(plan), int(slots))
    except (TypeError, ValueError):
        return None
    return candidate if candidate.plan in plans and 1 <= candidate.slots <= 4096 else None


def key_of(fingerprint: str, batch_size: int, packs_at_once: int, devices: Sequence[object]) -> str:
    """A digest of everything that decides which plan is fastest.

    ``fingerprint`` is of the group's training step. Of the devices, the kinds count.
    """
    kinds = [getattr(device, "device_kind", "") for device in devices]
    parts = (source_digest(), jax.__version__, jaxlib.version.__version__, fingerprint)
    text = "\0".join((*parts, f"{batch_size} {packs_at_once} {kinds}"))
    return hashlib.sha256(text.encode()).hexdigest()


class Planner:
    """Chooses the plan of each group, and compiles it.

    Raises UsageError if there are not as many devices as asked for.
    """

    def __init__(
        self, options: PackOptions | None = None, notes: UserNotifier | None = None
    ) -> None:
        options = PackOptions() if options is None else options
        self._plan, self._mesh = options.plan, options.mesh
        self._notes = UserNotifier() if notes is None else notes
        self.devices = local_devices(options.mesh)
        self._platform = jax.default_backend()
        self.on_cpu = self._platform == "cpu"  # whether packs train on a CPU, in the host's memory
        # Packs that train at the same time: one on an accelerator, one per core on a CPU.
        # ``SlotAllocator`` makes it one where memory does not suffice.
        self.packs_at_once = 1
        # Whether the user leaves the number of slots to the planner.
        self.chooses_slots = isinstance(options.slots, str)
        self._most = options.most
        auto = AUTO_SLOTS.get(self._platform, 32)
        self._pack_slots = auto if isinstance(options.slots, str) else int(options.slots)
        if self._most is not None:
            self._pack_slots = min(self._pack_slots, self._most)
        elif self.chooses_slots:
            self._pack_slots *= len(self.devices)
            if self._platform == "cpu" and len(self.devices) == 1:
                self.packs_at_once = max(1, min(_MOST_PACKS, options.cores or cores()))
        self.programs: list[CompiledPlan] = []  # all that were asked for
        self.plans: set[str] = set()  # names of the plans that trained
        self._gains: dict[int, bool] = {}  # by id of a group: whether stacking is faster

    def max_slots(self, groups: list[LocalGroup]) -> int:
        """Trials that train at once, at most."""
        now = (group.program.n_slots for group in groups if group.program is not None)
        return self.packs_at_once * max((self._pack_slots, *now))

    @property
    def signature(self) -> list[Any]:
        """How many packs train at once, and on which devices, as JSON values."""
        kinds = [getattr(device, "device_kind", "") for device in self.devices]
        return [self._platform, kinds, self.packs_at_once]

    def slots_now(self, groups: list[LocalGroup]) -> int:
        """Trials that can train at once with the present plans; no more need to be ready.

        With the sequential plan these are few, while ``max_slots`` of many accelerators would be
        hundreds of models on the host.
        """
        active = [group for group in groups if group.active]
        return self.slots_of(active) if active else self.max_slots(groups)

    def slots_of(self, groups: list[LocalGroup]) -> int:
        """Trials that can train at once with the present plans of these groups, one at least."""
        return self.packs_at_once * max(map(self._usual_slots, groups))

    def _usual_slots(self, group: LocalGroup) -> int:
        """Slots of a group's packs, those to come if it has no program yet."""
        if group.program is not None:
            return group.program.n_slots
        if self._rule(group) == "sequential" or self.trains_alone(group):
            return 1
        return self._pack_slots

    def is_ahead(self, groups: list[LocalGroup], *, by_time: bool) -> bool:
        """Whether no other program is to be compiled now.

        Where time may end the search (``by_time``), what is compiled and never trained is lost. So
        there as many programs wait for their turn as can train, or be compiled at once.
        """
        waiting = sum(g.is_settled and g.active and not g.n_live for g in groups)
        return by_time and waiting >= max(_COMPILERS, self.packs_at_once)

    # -- compiling ---------------------------------------------------------------------------------

    def compile(self, group: LocalGroup, n_trials: int, expected: int) -> None:
        """Compiles a group that has no program, or one that lacks an input.

        The latter is compiled as well as before: a cluster's workers each see some of the trials.
        ``n_trials`` are those of the group, as far as is known; ``expected`` are still to come in
        the search, including those that wait.
        """
        before = group.program
        for role in group.roles:
            role.settle(group.n_seen)
        group.next_program = None
        if before is None:
            candidate = self.usual(group, n_trials)
        else:
            candidate = Candidate(before.plan, before.n_slots)
        effort = None if before is None else before.effort
        program = self._make(group, candidate, n_trials, expected, before, effort)
        self._set_program(group, program)
        for pack in group.packs:
            pack.exchange(program_of(group))

    def compile_again(self, group: LocalGroup) -> None:
        """Compiles a group's program as ``group.restored_program`` says it was before."""
        restored = group.restored_program
        assert restored is not None
        candidate = Candidate(restored.plan, restored.slots)
        first = self.usual(group, candidate.slots)  # this also sets ``group.plan_choice``
        effort = CompileEffort(restored.quick)
        program = self._make(group, candidate, candidate.slots, 0, effort=effort, restored=restored)
        if group.plan_choice is not None and first != candidate:
            group.plan_choice = None
        group.restored_program = None
        self._set_program(group, program)

    def facts(self, group: LocalGroup) -> ProgramFacts | None:
        """How a group's program is compiled, for a snapshot; None: it is to be chosen again."""
        program = group.program
        if program is None:  # perhaps no trial has needed it since it was restored
            return group.restored_program
        if trying(group):
            return None
        layout = program.layout
        shape = None if layout is None else (layout.trial, layout.data)
        return ProgramFacts(program.plan, program.n_slots, int(program.effort), shape)

    def compiles_alike(self, device: list[Any]) -> bool:
        """Whether a program is compiled here as in a snapshot with such devices."""
        one = len(self.devices) == 1
        return device == self.signature or (device == ELSEWHERE and one)

    def _set_program(self, group: LocalGroup, program: CompiledPlan) -> None:
        group.program = program
        self.plans.add(program.plan)

    def _make(
        self,
        group: LocalGroup,
        candidate: Candidate,
        n_trials: int,
        expected: int,
        before: CompiledPlan | None = None,
        effort: CompileEffort | None = None,
        restored: ProgramFacts | None = None,
    ) -> CompiledPlan:
        """Starts to compile a program; ``before`` is one whose executables may be taken over."""
        if effort is None:
            least = LEAST_TRIALS if group.train.full.always_lifted else 1
            waves = max(expected, n_trials, least) / (candidate.slots * self.packs_at_once)
            effort = effort_of(group, candidate.slots, waves)
        kind = _PLANS[candidate.plan]
        layout = None
        if kind is not SequentialProgram:
            layout = before.layout if before else self._layout(group, n_trials, restored)
        # Not ``isinstance``: a looped program is a vectorized one, but its steps are others.
        old = before if type(before) is kind else None
        parts = (group.roles, group.state, group.work, candidate.slots, effort, old, layout)
        program = kind(*parts)
        self.programs.append(program)
        return program

    def _layout(
        self, group: LocalGroup, n_trials: int, restored: ProgramFacts | None
    ) -> MeshLayout | None:
        if restored is None:
            return self._lay_out(group, n_trials)
        if restored.layout is None:
            return None
        trial, data = restored.layout
        return MeshLayout(tuple(self.devices[: trial * data]), trial, data)

    def _lay_out(self, group: LocalGroup, n_trials: int) -> MeshLayout | None:
        """The devices that a group's slots are to be spread over; None for one device."""
        if len(self.devices) == 1:
            return None
        most = n_trials if group.most_slots is None else min(n_trials, group.most_slots)
        layout, note = lay_out(self.devices, self._mesh, most, group.work.batch_size)
        if layout is not None and layout.data > 1 and self._rule(group) == "looped":
            # A loop over slots on several devices: they must not share one slot's batch.
            rows = layout.trial
            layout = MeshLayout(layout.devices[:rows], rows, 1) if rows > 1 else None
            note = f"plan looped: batches are not split, {rows} of {len(self.devices)} devices used"
        if note is not None:
            self._notes.tell_once(note)
        return layout

    def check_batch(self, batch_size: int) -> None:
        """Checks that the user's mesh can split a batch."""
        if self._mesh is not None:
            lay_out(self.devices, self._mesh, 1, batch_size)

    def can_halve(self, program: CompiledPlan) -> bool:
        """Whether fewer slots than this program has, or fewer packs at once, are possible."""
        rows = self._mesh[0] if self._mesh and self._mesh[1] is not None else 1
        return program.n_slots > rows or self.packs_at_once > 1

    # -- choosing ----------------------------------------------------------------------------------

    def usual(self, group: LocalGroup, n_trials: int) -> Candidate:
        """How a group of this many trials begins: as an earlier search found best, else by rules.

        Also sets ``group.plan_choice`` to what may be tried out.
        """
        plan = self._rule(group)
        layout = self._lay_out(group, n_trials)
        if plan == "sequential" and len(self.devices) > 1:
            self._notes.tell_once(
                f"program {group.name} trains on one device: "
                + (
                    "its random generator would draw other numbers with several trials"
                    if group.rng_differs
                    else "its plan is sequential"
                )
            )
        slots = 1 if plan == "sequential" else self._slots_for(group, n_trials, layout)
        first = Candidate(plan, slots)
        free = self._plan == "auto" and self.chooses_slots and len(self.devices) == 1
        free = free and self._most is None
        if not free or group.rng_differs or group.most_slots is not None:
            group.plan_choice = None
            return first
        candidates = [first, *(c for c in self._others(group, n_trials) if c != first)]
        print_of = group.train.full.canonical.fingerprint
        key = key_of(print_of, group.work.batch_size, self.packs_at_once, self.devices)
        known = remembered(key, [candidate.plan for candidate in candidates])
        group.plan_choice = PlanChoice(candidates, key, known)
        if known is None:
            return first
        # Slots beyond the number of trials would stay empty but still compute.
        return Candidate(known.plan, min(known.slots, self._enough(n_trials)))

    def _rule(self, group: LocalGroup) -> str:
        """The plan that the rules choose, if the user has not chosen one."""
        if group.rng_differs:
            return "sequential"  # under vmap a trial would draw other random numbers than alone
        if self._plan != "auto":
            return self._plan
        # XLA's CPU convolutions are 20 times slower inside a loop, and grouped by vmap still
        # slower.
        if group.convolves and self._platform == "cpu":
            return "sequential"
        return "vectorized" if self._pack_slots > 1 or len(self.devices) > 1 else "sequential"

    def _others(self, group: LocalGroup, n_trials: int) -> list[Candidate]:
        """Candidates that may be faster than what the rules choose."""
        most = self._enough(n_trials)
        if self._platform == "cpu":
            if group.convolves:
                return [Candidate("vectorized", 1), Candidate("looped", min(8, most))]
            return [Candidate("vectorized", slots) for slots in (1, 8, 16) if slots <= most]
        others = [Candidate("vectorized", 8), Candidate("sequential", 1)]
        if (
            group.convolves
        ):  # vmap makes grouped convolutions, whose gradients are slow (jax #13800)
            others.insert(0, Candidate("looped", min(32, most)))
        return [candidate for candidate in others if candidate.slots <= most]

    def _enough(self, n_trials: int) -> int:
        """Slots of a pack, a power of two, that are enough for this many trials."""
        return 1 << max(0, -(-n_trials // self.packs_at_once) - 1).bit_length()

    def trains_alone(self, group: LocalGroup) -> bool:
        """Whether a group's packs have one slot, because stacking isn't faster."""
        if not self.chooses_slots or self._platform != "cpu" or self._plan == "looped":
            return False
        if id(group) not in self._gains:  # asked for every trial, and a walk over the whole step
            self._gains[id(group)] = gains_from_stacking(group.train.full.closed)
        return not self._gains[id(group)]

    def _slots_for(self, group: LocalGroup, n_trials: int, layout: MeshLayout | None) -> int:
        """Slots of a pack: a power of two on each device, enough for its share of the trials."""
        rows = layout.trial if layout else 1
        if self.trains_alone(group):
            return rows
        share = -(
            -min(n_trials, self.packs_at_once * self._pack_slots) // (self.packs_at_once * rows)
        )
        slots = rows << max(0, share - 1).bit_length()
        return slots if group.most_slots is None else min(slots, max(rows, group.most_slots))

    def gains_from_rounds(
        self, group: LocalGroup, trial_epochs: int, epoch_seconds: float, *, all_asked: bool
    ) -> bool:
        """Whether ``reconsider`` or ``shrink`` may find a faster program for what is left.

        All trials of ``group``, the only one, together have ``trial_epochs`` left. An epoch of a
        pack takes ``epoch_seconds``. ``all_asked``: whether no more trials are to come.
        """
        choice: PlanChoice | None = group.plan_choice
        now = group.program
        if now is None or not now.ready() or not self.chooses_slots:
            return False
        left = trial_epochs / (now.n_slots * self.packs_at_once) * epoch_seconds
        if choice is not None and choice.may_pay(left, _compile_seconds(now)):
            return True
        return all_asked and not group.queue and self._smaller(group, epoch_seconds) is not None

    def _smaller(self, group: LocalGroup, epoch_seconds: float) -> int | None:
        """Slots of smaller packs for a group's last trials; None if they do not pay."""
        now = program_of(group)
        trials = [trial for pack in group.packs for trial in pack.live]
        slots = self._enough(len(trials))
        if not trials or slots >= now.n_slots:
            return None
        epochs = max(trial.epochs - trial.epoch for trial in trials)
        saved = epochs * epoch_seconds * (1 - slots / now.n_slots)
        return slots if saved > _compile_seconds(now) else None

    def reconsider(self, group: LocalGroup, trial_epochs: int, expected: int) -> None:
        """Starts to compile another candidate, to be tried out, if the search is long enough.

        The group's packs have just trained an epoch, and all its trials together have
        ``trial_epochs`` left. The search has about ``expected`` trials.
        """
        choice: PlanChoice | None = group.plan_choice
        now = group.program
        if choice is None or now is None or choice.settled or group.next_program is not None:
            return
        candidate = Candidate(now.plan, now.n_slots)
        if not choice.timed(candidate):
            return
        following = choice.to_try(candidate, trial_epochs, _compile_seconds(now))
        if following is None:
            following = choice.settle(candidate)
            if following == candidate:
                return
            self._notes.tell(f"trials continue {following}, measured as faster than {candidate}")
        epochs = max(1, *(trial.epochs for pack in group.packs for trial in pack.live), 1)
        group.next_program = self._make(group, following, -(-trial_epochs // epochs), expected)

    def arrived(self, group: LocalGroup) -> bool:
        """Whether ``group.next_program`` has been compiled; one that failed is forgotten."""
        program = group.next_program
        if program is None or not program.ready():
            return False
        try:
            program.roles()
        except Exception:  # XLA raises many kinds; the present program stays
            self.programs.remove(program)
            if group.plan_choice is not None:
                group.plan_choice.rule_out(Candidate(program.plan, program.n_slots))
            group.next_program = None
            return False
        return True

    def grow(
        self, group: LocalGroup, trial_epochs: int, epoch_seconds: float, expected: int
    ) -> None:
        """Starts to compile larger packs for a group that began with few trials, if worth it.

        Arguments are as of ``reconsider``; the group's last epoch took ``epoch_seconds``.
        """
        now = group.program
        settled = group.plan_choice is not None and group.plan_choice.settled is not None
        if now is None or now.plan == "sequential" or group.next_program is not None or settled:
            return
        if not self.chooses_slots:
            return
        if len(group.queue) < now.n_slots * self.packs_at_once:
            return
        n_trials = len(group.queue) + group.n_live
        slots = self._slots_for(group, n_trials, self._lay_out(group, n_trials))
        rounds = trial_epochs / (now.n_slots * self.packs_at_once)
        if slots >= 2 * now.n_slots and rounds * epoch_seconds > 2 * _compile_seconds(now):
            group.next_program = self._make(group, Candidate(now.plan, slots), n_trials, expected)

    def shrink(self, group: LocalGroup, epoch_seconds: float) -> None:
        """Starts to compile a smaller pack if that is worth it; no trial may wait or be expected.

        The group's last epoch took ``epoch_seconds``.
        """
        now = group.program
        if now is None or group.next_program is not None or now.layout is not None:
            return
        if not self.chooses_slots:
            return
        slots = self._smaller(group, epoch_seconds)
        if slots is not None:
            group.plan_choice = None  # packs of so few trials show nothing about larger ones
            group.next_program = self._make(group, Candidate(now.plan, slots), group.n_live, 0)

    # -- what was compiled ---------------------------------------------------------------------

    def compiled_roles(self) -> list[list[Executable]]:
        """The executables of each training and validation step that was compiled.

        Executables that a program took over from another count once. Programs that failed to
        compile are left out.
        """
        unique: dict[int, list[Executable]] = {}
        for program in self.programs:
            if program.ready():
                with contextlib.suppress(Exception):
                    unique.update({id(role[0]): role for role in program.roles()})
        return list(unique.values())


def effort_of(group: TrialGroup, n_slots: int, waves: float) -> CompileEffort:
    """How well a group's program is compiled, whose ``n_slots`` will be filled ``waves`` times."""
    epochs = max((trial.epochs - trial.epoch for trial in group.trials), default=1)
    steps = waves * epochs * max(1, group.work.steps)
    n_numbers = sum(math.prod(a.shape) for part in group.state.lists() for a in part)
    return effort_for(group.train.full.closed, steps, n_slots, n_numbers)


def trying(group: LocalGroup) -> bool:
    """Whether a group's program is being tried out, and is not what the rules chose."""
    choice: PlanChoice | None = group.plan_choice
    now = group.program
    if choice is None or now is None or choice.settled is not None:
        return False
    return Candidate(now.plan, now.n_slots) != choice.candidates[0]


def _compile_seconds(program: CompiledPlan) -> float:
    """What another program like this one takes to compile: the cache may not have it."""
    executables = [each for role in program.roles() for each in role]
    return sum(each.seconds + each.saved for each in executables)


def cores() -> int:
    """Cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
