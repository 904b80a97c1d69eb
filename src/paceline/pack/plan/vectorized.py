"""The plans ``vectorized`` and ``looped``: all slots of a pack in one loop over steps.

The host starts one program for each epoch (or chunk). Notation: see ``base.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from paceline.data.chunks import Chunk, EpochData
from paceline.pack.mesh import MeshLayout
from paceline.pack.plan.base import (
    Arrays,
    CompiledPlan,
    SizedProgram,
    SizedStep,
    gather_examples,
    index_shape,
    lifted_shapes,
    shapes,
    slice_examples,
    validated,
)
from paceline.pack.slot_rows import RowWriter, is_lent, move_rows, on_host
from paceline.program.compile import CompileEffort, Executable, compile_in_background, program_key
from paceline.program.step_template import StepTemplate
from paceline.program.trace import State

#: Steps of an epoch beside which its last, smaller one does not count.
_MANY_STEPS = 16


class VectorizedProgram(CompiledPlan):
    """The plan ``vectorized``: each operation works on all slots at once, by ``vmap``."""

    plan = "vectorized"

    def _compile_training(
        self, role: StepTemplate, steps: list[SizedStep], state: State
    ) -> list[SizedProgram]:
        full, *tail = steps
        work, n_logs = self._work, len(role.full.log_names)
        order = index_shape(self.n_slots, work.chunk or work.n_epoch)
        if full.small:
            order = index_shape(self.n_slots, _whole(order.shape[1], work.batch_size))
            extra = (order, index_shape(), index_shape())
            made = [(_batches(full, n_logs, self._axis), extra)]
        else:
            # The smaller batch has a program of its own, so that both compile at one time.
            n_logs = 0 if work.ends_small and not work.by_batch else n_logs
            made = [(_batches(full, n_logs, self._axis), (order, index_shape()))]
            made += [(_last_batch(step, self._axis), (order,)) for step in tail]
        fixed = (lifted_shapes(role, self.n_slots), work.train.batch_shapes(work.resident))
        over = (True, True, True, True, True, False, True, False, False)
        found = []
        for i, (function, others) in enumerate(made):
            name = f"{self.plan} train {i} of {len(made)} {full.small} {n_logs}"
            arguments = (*shapes(state, self.n_slots), *fixed, *others)
            # The smaller batch is one step of many: fast code for it isn't worth it.
            rare = i > 0 and work.steps >= _MANY_STEPS
            effort = CompileEffort.MOST_QUICKLY if rare else self.effort
            future = self._compile(name, role, function, arguments, over, (0, 1, 2), effort)
            found.append((future, steps[i]))
        return found

    def _compile_validation(
        self, role: StepTemplate, steps: list[SizedStep], state: State
    ) -> list[SizedProgram]:
        work, many = self._work, shapes(state, self.n_slots)
        assert work.validation is not None
        function = _validation_pass(steps, work.n_validation, len(role.full.log_names), self._axis)
        data = work.validation.batch_shapes(work.validation.n)
        constants = lifted_shapes(role, self.n_slots)
        arguments: tuple[Any, ...] = (validated(many, role), many[1], many[3], constants, data)
        if work.fold is not None:
            arguments += (index_shape(self.n_slots, work.n_validation),)
        over, name = (True, True, True, True, False, True), f"{self.plan} test {steps[0].small}"
        return [(self._compile(name, role, function, arguments, over, (), self.effort), steps[0])]

    @property
    def _axis(self) -> SlotAxis:
        return SlotAxis(self.layout, looped=self.plan == "looped")

    def _compile(
        self,
        name: str,
        role: StepTemplate,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        over_slots: tuple[bool, ...],
        donate: tuple[int, ...],
        effort: CompileEffort,
    ) -> Future[Executable]:
        """Compiles a function of the pack, for one device or the mesh."""
        layout = self.layout
        if layout is None:
            key = program_key(name, [role], arguments)
            return compile_in_background(function, arguments, donate, effort=effort, key=key)
        over_slots = over_slots[: len(arguments)]
        shaped = tuple(
            layout.shapes(argument, over_slots=over)
            for argument, over in zip(arguments, over_slots, strict=True)
        )
        return compile_in_background(
            layout.spread(function, over_slots), shaped, donate, effort=effort
        )

    def place(self, states: Sequence[State]) -> list[Arrays]:
        """Stacks the variables of S trials on the device: four lists of arrays [S, ...]."""
        if any(map(is_lent, states)):
            moved = move_rows(dict(enumerate(states)), self.n_slots, self.layout, self._placement)
            if moved is not None:
                return moved
            states = [on_host(state, view=True) for state in states]
        stacked = [
            [np.stack([np.asarray(a) for a in leaves]) for leaves in zip(*parts, strict=True)]
            for parts in zip(*(state.lists() for state in states), strict=True)
        ]
        return jax.device_put(stacked, self._placement)

    @property
    def _placement(self) -> Any:
        # A named device: for arrays without one JAX would compile a program again.
        return jax.devices()[0] if self.layout is None else self.layout.over_slots

    def lay(self, rows: Sequence[Sequence[np.ndarray]]) -> Arrays:
        """Stacks each constant over the slots: a list of arrays [S, ...]."""
        return [np.stack(values) for values in zip(*rows, strict=True)]

    def put(self, state: Sequence[Arrays], new: Mapping[int, State]) -> list[Arrays]:
        """Writes variables of trials into their slots; the memory of ``state`` is donated."""
        if any(map(is_lent, new.values())):
            moved = move_rows(new, self.n_slots, self.layout, self._placement, state)
            if moved is not None:
                return moved
            new = {slot: on_host(one) for slot, one in new.items()}
        return self._writer.put(state, new, self._placement)

    @cached_property
    def _writer(self) -> RowWriter:
        return RowWriter(self.layout)

    def row(self, part: Arrays, slot: int) -> list[np.ndarray]:
        """Copies of one slot's arrays on the host, with the shapes of the variables."""
        if self.layout is not None:
            return [np.array(self.layout.slot_of(a, slot)) for a in part]
        if jax.default_backend() == "cpu":  # host memory: a view and a copy, nothing to compile
            return [np.array(np.asarray(a)[slot]) for a in part]
        return [np.array(a) for a in _take_row(part, np.int32(slot))]

    def fetch(self, state: Sequence[Arrays]) -> list[list[np.ndarray]]:
        """Copies of all slots' arrays on the host, [S, ...]; programs overwrite the originals."""
        return [[np.array(a) for a in part] for part in state]

    def train(
        self,
        state: Sequence[Arrays],
        lifted: Arrays,
        data: EpochData,
        order: np.ndarray,
        *,
        steps: int | None = None,
    ) -> tuple[list[Arrays], Any]:
        """One epoch of every slot; see ``CompiledPlan.train``."""
        full, *tail = (future.result().call for future, _ in self._programs[0])
        step, new, logs = self._programs[0][0][1], list(state), None
        order = order if steps is None else order[:, : steps * step.size]
        for chunk in data.chunks(order):
            # Wait until the chunk before has been trained on: the device has memory for two.
            jax.block_until_ready(logs)
            if step.small:
                rest = chunk.rest or step.size
                steps_now = np.int32(chunk.steps + (chunk.rest > 0))
                rows = _side_by_side(chunk, step.size)
                *new, logs = full(*new, lifted, chunk.data, rows, steps_now, np.int32(rest))
                continue
            if chunk.steps:
                *new, logs = full(*new, lifted, chunk.data, chunk.order, np.int32(chunk.steps))
            if chunk.rest:
                *new, logs = tail[0](*new, lifted, chunk.data, chunk.order)
        return new, logs

    def validate(
        self, state: Sequence[Arrays], lifted: Arrays, data: Any, order: np.ndarray | None = None
    ) -> tuple[Arrays, Any]:
        """All validation batches of every slot; see ``CompiledPlan.validate``."""
        ((program, _),), own = self._programs[1], () if order is None else (order,)
        fixed = validated(state, self._roles[1])
        return program.result().call(fixed, state[1], state[3], lifted, data, *own)


class LoopedProgram(VectorizedProgram):
    """The plan ``looped``: a loop over slots within the loop over steps, without ``vmap``.

    For short steps with operations that ``vmap`` slows down, such as convolutions: a dispatch from
    the host for each step would cost much.
    """

    plan = "looped"


@dataclass(frozen=True)
class SlotAxis:
    """How a program goes over its slots."""

    layout: MeshLayout | None  # devices that the program runs on; None: one device
    # Slots follow one after another in a loop; else each operation works on all of them.
    looped: bool

    def enter(self, tree: Any, n_slots: int) -> Any:
        """Arrays [S, ...] as a loop carries them: those of a single slot have no axis of slots.

        XLA's CPU compiler updates an array in place only where no reshape stands between its old
        and its new value. With the axis, every step copied all weights and optimizer variables
        (docs/decisions/0035).
        """
        return jax.tree.map(lambda a: a[0], tree) if n_slots == 1 else tree

    def leave(self, tree: Any, n_slots: int) -> Any:
        """The arrays [S, ...] from those that ``enter`` made."""
        return jax.tree.map(lambda a: a[None], tree) if n_slots == 1 else tree

    def over(self, slot: Callable[..., Any], n_slots: int) -> Callable[..., Any]:
        """A function of what ``enter`` made from a function of one slot's arrays.

        ``n_slots``: S; a single slot needs neither a loop nor ``vmap``.
        """
        if n_slots == 1:
            return slot
        if self.looped:
            return lambda *args: lax.map(lambda one: slot(*one), args)
        return jax.vmap(slot, spmd_axis_name=self.layout.vmap_axis if self.layout else None)

    def split(self, batch: Any, size: int) -> Any:
        """A slot's batch [size, ...], split over devices where the layout says so."""
        return batch if self.layout is None else self.layout.split(batch, size)


def _batches(step: SizedStep, n_logs: int, axis: SlotAxis) -> Callable[..., Any]:
    """A function that trains on the batches of an epoch that this step takes.

    The number of steps is an argument of the function, so that XLA does not unroll the loop. A
    function of a step that takes the smaller batch too has one argument more: how many examples of
    the last batch count. ``n_logs``: L. It is 0 if a smaller batch always follows, whose logs are
    those of the epoch. XLA then drops the results of the metrics from the loop.
    """

    def epoch(
        trainable: Arrays,
        non_trainable: Arrays,
        optimizer: Arrays,
        metrics: Arrays,
        lifted: Arrays,
        data: Any,
        order: Any,
        steps: Any,
        last: Any = None,
    ) -> Any:
        n_slots = order.shape[0]
        given, rows = axis.enter((lifted, order), n_slots)

        def body(i: Any, carry: Any) -> Any:
            index = lax.dynamic_slice_in_dim(rows, i * step.size, step.size, axis=rows.ndim - 1)
            n = None if last is None else jnp.where(i == steps - 1, last, step.size)
            parts, logs = _step_of_all(step, given, carry[0], data, index, n_slots, axis, n)
            return parts, logs[..., :n_logs]

        logs = jnp.zeros((n_slots, n_logs), jnp.result_type(float))
        parts = [trainable, non_trainable, optimizer, metrics]
        carry = lax.fori_loop(0, steps, body, axis.enter((parts, logs), n_slots))
        parts, logs = axis.leave(carry, n_slots)
        return (*parts, logs)

    return epoch


def _whole(n: int, size: int) -> int:
    """At least n examples, in full batches."""
    return -(-n // size) * size


def _side_by_side(chunk: Chunk, size: int) -> np.ndarray:
    """A chunk's order, i32[S, whole batches]: the smaller batch right after the full ones."""
    order, at = chunk.order, chunk.steps * size
    found = np.zeros((order.shape[0], _whole(order.shape[1], size)), np.int32)
    found[:, :at] = order[:, :at]
    if chunk.rest:
        found[:, at : at + chunk.rest] = order[:, order.shape[1] - chunk.rest :]
    return found


def _last_batch(step: SizedStep, axis: SlotAxis) -> Callable[..., Any]:
    """A function that trains on the smaller batch at the end of an epoch."""

    def last(
        trainable: Arrays,
        non_trainable: Arrays,
        optimizer: Arrays,
        metrics: Arrays,
        lifted: Arrays,
        data: Any,
        order: Any,
    ) -> Any:
        n_slots = order.shape[0]
        parts = [trainable, non_trainable, optimizer, metrics]
        index = order[:, order.shape[1] - step.size :]
        given = axis.enter((lifted, parts, index), n_slots)
        new = _step_of_all(step, given[0], given[1], data, given[2], n_slots, axis)
        parts, logs = axis.leave(new, n_slots)
        return (*parts, logs)

    return last


def _step_of_all(
    step: SizedStep,
    lifted: Arrays,
    parts: Any,
    data: Any,
    index: Any,
    n_slots: int,
    axis: SlotAxis,
    n: Any = None,
) -> Any:
    """One training step of S trials, each on its own examples: index is i32[S, B].

    Arguments and results are as ``SlotAxis.enter`` makes them.
    """

    def slot(lifted: Arrays, parts: Any, index: Any) -> Any:
        return step.run(lifted, parts, axis.split(gather_examples(data, index), step.size), n)

    return axis.over(slot, n_slots)(lifted, parts, index)


def _validation_pass(
    parts: Sequence[SizedStep], n: int, n_logs: int, axis: SlotAxis
) -> Callable[..., Any]:
    """A function that validates S trials on all n examples.

    The trials share each batch, which has no axis of slots. Where the function is given an order,
    i32[S, V], each trial gathers its own examples.
    """
    full, *tail = parts
    n_full = -(-n // full.size) if full.small else n // full.size

    def validate(
        trainable: Arrays,
        non_trainable: Arrays,
        metrics: Arrays,
        lifted: Arrays,
        data: Any,
        order: Any = None,
    ) -> Any:
        if full.small and order is not None:
            order = jnp.pad(order, ((0, 0), (0, n_full * full.size - n)))
        n_slots = jax.tree.leaves((trainable, non_trainable, metrics))[0].shape[0]
        given, weights, mine = axis.enter((lifted, trainable, order), n_slots)

        def all_slots(step: SizedStep, moving: Any, start: Any) -> Any:
            counted = jnp.minimum(n - start, step.size) if step.small else None

            def run(lifted: Arrays, fixed: Arrays, moving: Any, examples: Any) -> Any:
                batch = axis.split(examples, step.size)
                new, logs = step.run(lifted, [fixed, *moving], batch, counted)
                return new[1:], logs

            if order is None:
                if step.small:
                    rows = jnp.minimum(start + jnp.arange(step.size, dtype=np.int32), n - 1)
                    examples = gather_examples(data, rows)
                else:
                    examples = slice_examples(data, start, step.size)
                slot = partial(run, examples=examples)
                return axis.over(slot, n_slots)(given, weights, moving)

            def own(lifted: Arrays, fixed: Arrays, moving: Any, index: Any) -> Any:
                return run(lifted, fixed, moving, gather_examples(data, index))

            index = lax.dynamic_slice_in_dim(mine, start, step.size, axis=mine.ndim - 1)
            return axis.over(own, n_slots)(given, weights, moving, index)

        logs = jnp.zeros((n_slots, n_logs), jnp.result_type(float))
        moving, logs = axis.enter(([non_trainable, metrics], logs), n_slots)
        if n_full > 1:
            moving, logs = lax.fori_loop(
                0,
                n_full,
                lambda i, carry: all_slots(full, carry[0], i * full.size),
                (moving, logs),
            )
        else:
            moving, logs = all_slots(full, moving, 0)
        for last in tail:
            moving, logs = all_slots(last, moving, n - last.size)
        moving, logs = axis.leave((moving, logs), n_slots)
        return moving[0], logs

    return validate


@jax.jit
def _take_row(part: Arrays, slot: Any) -> Arrays:
    return [a[slot] for a in part]
