"""Packs on the local device: groups trials by program, keeps slots full, compiles in the background."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import jax

from paceline.data import ArrayData
from paceline.executor.base import EpochReport, Job, Report
from paceline.pack import EpochTimes, Pack, Rider
from paceline.plan import Program, SequentialProgram, StackedProgram, Workload
from paceline.program import trace
from paceline.program.canonical import Canonical, Constant
from paceline.program.compiling import Executable
from paceline.program.group import Role
from paceline.program.recipe import Learned, Recipe, recipe_of
from paceline.program.trace import State, Step

#: Slots of a stacked pack when the user says "auto". Throughput flattens between 6 and 25 trials.
AUTO_SLOTS = {"cpu": 16, "gpu": 32, "tpu": 32}
#: After this many trials of one program, with no other in sight, it is compiled in the background.
_SURE = 3
#: Seconds between looks at the device when there is nothing else to do.
_PAUSE = 0.02


@dataclass
class Seconds:
    """Where the time went; ``trace`` and ``compile`` overlap with ``train``."""

    trace: float = 0.0
    compile: float = 0.0
    train: float = 0.0
    validate: float = 0.0


@dataclass
class _Group:
    """Trials of one program: those waiting, and the pack that trains them."""

    name: str
    work: Workload
    train: Role
    test: Role | None
    state: State  # shapes of the variables
    metrics: list[Any]  # the metric variables at the start of an epoch
    rng_differs: bool
    convolves: bool
    n_seen: int = 0
    queue: deque[Rider] = field(default_factory=deque)
    program: Program | None = None
    pack: Pack | None = None

    @property
    def live(self) -> int:
        return len(self.pack.live) if self.pack else 0


class LocalExecutor:
    """Trains trials in packs.

    Args:
        data: Training data.
        validation: Validation data, or None.
        validation_batch_size: None: as the trial's batch size, like Keras.
        shuffle: A new order of examples each epoch, from the trial's seed.
        slots: Slots per pack, or "auto".
        plan: "stacked", "sequential" or "auto".
    """

    def __init__(
        self,
        data: ArrayData,
        validation: ArrayData | None,
        *,
        validation_batch_size: int | None = None,
        shuffle: bool = True,
        slots: int | str = "auto",
        plan: str = "auto",
    ) -> None:
        self._data, self._validation = data, validation
        self._validation_batch_size = validation_batch_size
        self._shuffle, self._plan = shuffle, plan
        self._platform = jax.default_backend()
        self.max_slots = (
            AUTO_SLOTS.get(self._platform, 16) if isinstance(slots, str) else int(slots)
        )
        self._on_device: tuple[Any, Any] | None = None
        self._groups: dict[tuple[Any, ...], _Group] = {}
        self._device = ThreadPoolExecutor(1, thread_name_prefix="paceline-device")
        self._learned: dict[tuple[str, int], Learned] = {}
        self._all_programs: list[Program] = []
        self.seconds = Seconds()
        self.expected = 1  # trials still to come, those waiting included; the tuner keeps it
        self.plans: set[str] = set()
        self.compiling = False  # nothing can train until a program is compiled

    # -- taking trials in ------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Traces a trial's steps and queues it with the trials that share its program.

        Raises:
            Unpackable: The step cannot be traced, or not be shared; the message says why.
        """
        began = time.perf_counter()
        trace.check_packable(job.model)
        recipe = recipe_of(job.model)
        taken = recipe is not None and self._take_known(job, recipe)
        if not taken:
            self._take_traced(job, recipe)
        self.seconds.trace += time.perf_counter() - began
        (group, *others) = self._groups.values()
        if group.program is None and group.n_seen == _SURE and not others:
            self._compile(group, min(self.max_slots, max(self.expected, len(group.queue))))

    def _take_known(self, job: Job, recipe: Recipe) -> bool:
        """Queues a trial whose constants follow from its configuration; False when it must be traced."""
        learned = self._learned.get((recipe.structure, job.batch_size))
        steps = learned.predict(recipe.numbers) if learned else None
        if learned is None or steps is None:
            return False
        group = self._groups[learned.group]
        state = None
        if job.model.built:
            state = trace.quick_state(job.model, group.state, group.metrics)
        if state is None:
            work = group.work
            state = trace.build_state(job.model, work.train.batch_shapes(work.batch_size))
        self._queue(group, job, state, *steps)
        return True

    def _take_traced(self, job: Job, recipe: Recipe | None) -> None:
        model, work = job.model, self._workload(job.batch_size)
        batch = work.train.batch_shapes(work.batch_size)
        state = trace.build_state(model, batch)
        train, test = trace.trace_train(model, state, batch), None
        if work.validation is not None:
            test = trace.trace_test(
                model, state, work.validation.batch_shapes(work.validation_batch_size)
            )
        key = (
            train.canonical.fingerprint,
            test.canonical.fingerprint if test else None,
            work.batch_size,
            work.validation_batch_size,
        )
        group = self._groups.get(key)
        if group is None:
            group = self._new_group(key, model, state, work, train, test)
            self._groups[key] = group
        elif group.n_seen == 1:
            self._check_tails(group, model, state, train, test)
        steps = [step.canonical.constants for step in (train, test) if step is not None]
        self._queue(group, job, state, *steps)
        if recipe is not None:
            learned = self._learned.setdefault(
                (recipe.structure, job.batch_size), Learned(group=key)
            )
            if learned.group == key:
                learned.add(recipe.numbers, steps)

    def _queue(
        self,
        group: _Group,
        job: Job,
        state: State,
        train: Sequence[Constant],
        test: Sequence[Constant] | None = None,
    ) -> None:
        group.train.admit(train)
        if group.test is not None and test is not None:
            group.test.admit(test)
        group.n_seen += 1
        group.queue.append(Rider(job.number, job.seed, job.epochs, state, train, test))

    def _new_group(
        self,
        key: tuple[Any, ...],
        model: Any,
        state: State,
        work: Workload,
        train: Step,
        test: Step | None,
    ) -> _Group:
        train_tail, test_tail = self._tails(model, state, work, test is not None)
        flags: list[Canonical] = [s.canonical for s in (train, test) if s is not None]
        return _Group(
            name=f"{key[0][:6]}{(key[1] or '')[:4]}",
            work=work,
            train=Role(train, train_tail),
            test=None if test is None else Role(test, test_tail),
            state=trace.shapes_only(state),
            metrics=state.metrics,
            rng_differs=any(c.batched_rng_differs for c in flags),
            convolves=train.canonical.convolves,
        )

    def _tails(
        self, model: Any, state: State, work: Workload, validate: bool
    ) -> tuple[Step | None, Step | None]:
        """The steps on the last, smaller batches, where there are any."""
        train = test = None
        rest = work.train.n % work.batch_size
        if rest:
            train = trace.trace_train(model, state, work.train.batch_shapes(rest))
        if validate and work.validation is not None:
            rest = work.validation.n % work.validation_batch_size
            if rest:
                test = trace.trace_test(model, state, work.validation.batch_shapes(rest))
        return train, test

    def _check_tails(
        self, group: _Group, model: Any, state: State, train: Step, test: Step | None
    ) -> None:
        """The second trial's smaller batch is traced too, to see that its constants follow the full one's."""
        tails = self._tails(model, state, group.work, test is not None)
        for role, step, tail in zip((group.train, group.test), (train, test), tails, strict=True):
            if role is not None and step is not None and tail is not None:
                role.verify_tail(step.canonical.constants, tail)

    def _workload(self, batch_size: int) -> Workload:
        validation = self._validation
        size = self._validation_batch_size or batch_size
        return Workload(
            self._data, validation, batch_size, min(size, validation.n) if validation else size
        )

    # -- what the tuner may still send ---------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether any trial is waiting or training."""
        return any(group.queue or group.live for group in self._groups.values())

    @property
    def waiting(self) -> int:
        """Trials traced and not yet in a slot."""
        return sum(len(group.queue) for group in self._groups.values())

    @property
    def hungry(self) -> bool:
        """Whether training should wait for more trials: slots would stay empty.

        With several programs in sight, look further ahead, so that each fills a pack of its own.
        """
        have = sum(len(group.queue) + group.live for group in self._groups.values())
        return have < self.max_slots * (4 if len(self._groups) > 1 else 1)

    @property
    def room(self) -> bool:
        """Whether one more trial is worth tracing now, to have it ready when a slot is free."""
        return self.waiting < 4 * self.max_slots

    # -- training ----------------------------------------------------------------------------------------------

    def advance(self, report: Report, meanwhile: Callable[[], bool]) -> None:
        """One epoch of every pack that is compiled, in turn."""
        active = [g for g in self._groups.values() if g.queue or g.live]
        for group in active:
            self._refresh(group)
        ready = [g for g in active if g.program is not None and g.program.ready()]
        if not ready:
            ready = active[:1]
            self.compiling = True
            while not _program(ready[0]).ready():
                if not meanwhile():
                    time.sleep(_PAUSE)
            self.compiling = False
        for group in ready:
            self._run(group, report, meanwhile)

    def _refresh(self, group: _Group) -> None:
        """Compiles a group that has no program, or one that lacks an input."""
        roles = [role for role in (group.train, group.test) if role is not None]
        if group.program is None or any(role.stale for role in roles):
            slots = (
                group.program.n_slots if group.program else min(self.max_slots, len(group.queue))
            )
            self._compile(group, slots)

    def _compile(self, group: _Group, n_slots: int) -> None:
        for role in (group.train, group.test):
            if role is not None and (group.program is None or role.stale):
                role.settle(group.n_seen)
        before = group.program
        if self._choose(group) == "sequential":
            group.program = SequentialProgram(
                group.train,
                group.test,
                group.state,
                group.work,
                before if isinstance(before, SequentialProgram) else None,
            )
        else:
            group.program = StackedProgram(
                group.train,
                group.test,
                group.state,
                group.work,
                _power_of_two(n_slots),
                before if isinstance(before, StackedProgram) else None,
            )
        self._all_programs.append(group.program)
        self.plans.add(group.program.plan)
        if group.pack is not None:
            group.pack.exchange(group.program)

    def _choose(self, group: _Group) -> str:
        if group.rng_differs:
            return "sequential"  # under vmap its random numbers would be others than alone
        if self._plan != "auto":
            return self._plan
        # XLA's CPU convolutions are 20 times slower inside a loop, and grouped by vmap still slower.
        if group.convolves and self._platform == "cpu":
            return "sequential"
        return "stacked" if self.max_slots > 1 else "sequential"

    def _run(self, group: _Group, report: Report, meanwhile: Callable[[], bool]) -> None:
        pack = group.pack
        if pack is None:
            pack = group.pack = self._new_pack(group)
        while group.queue and pack.free:
            pack.admit(group.queue.popleft())
        future: Future[tuple[dict[int, dict[str, float]], EpochTimes]] = self._device.submit(
            pack.run_epoch
        )
        while not future.done():
            if not meanwhile():
                wait([future], timeout=_PAUSE)
        results, times = future.result()
        self.seconds.train += times.train
        self.seconds.validate += times.validate
        share = (times.train + times.validate) / max(1, len(results))
        for rider in pack.live:
            go_on = report(
                EpochReport(
                    number=rider.number,
                    epoch=rider.epoch,
                    logs=results[rider.number],
                    seconds=share,
                    program=group.name,
                    plan=pack.program.plan,
                    weights=pack.weights(rider.number),
                )
            )
            if not go_on or rider.epoch >= rider.epochs:
                pack.evict(rider.number)

    def _new_pack(self, group: _Group) -> Pack:
        if self._on_device is None:
            self._on_device = (
                self._data.on_device(),
                None if self._validation is None else self._validation.on_device(),
            )
        data, validation = self._on_device
        return Pack(
            _program(group),
            data,
            self._data.n,
            validation,
            self._shuffle,
            group.train.full.log_names,
            group.test.full.log_names if group.test else (),
        )

    # -- accounts -----------------------------------------------------------------------------------------------

    def program_counts(self) -> dict[str, int]:
        """distinct: groups; compiled, from_cache: train and validate roles, by where they came from."""
        roles = self._compiled_roles()
        cached = sum(all(e.from_cache for e in role) for role in roles)
        return {
            "distinct": len(self._groups),
            "compiled": len(roles) - cached,
            "from_cache": cached,
        }

    def compile_seconds(self) -> float:
        """Time spent lowering and compiling, in whatever thread."""
        return sum(e.seconds for role in self._compiled_roles() for e in role)

    def _compiled_roles(self) -> list[list[Executable]]:
        """What was compiled, a train or validate role each; one that was taken over counts once."""
        unique = {
            id(role[0]): role for p in self._all_programs if p.ready() for role in p.roles()
        }
        return list(unique.values())

    def close(self) -> None:
        """Stops the device thread; packs and data are dropped."""
        self._device.shutdown(wait=True, cancel_futures=True)
        for group in self._groups.values():
            group.pack = None
            group.queue.clear()
        self._on_device = None


def _program(group: _Group) -> Program:
    assert group.program is not None
    return group.program


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()
