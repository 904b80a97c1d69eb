"""The plan ``sequential``: one trial at a time, one compiled step, steps dispatched from the host.

For steps that already fill the device, and for convolutions on a CPU, which XLA runs 20 times
slower inside a loop (jax #12868). Notation: see ``base.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.data.chunks import EpochData
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
from paceline.pack.slot_rows import is_lent, on_device
from paceline.program.compile import compile_in_background, program_key
from paceline.program.step_template import StepTemplate
from paceline.program.trace import State


class SequentialProgram(CompiledPlan):
    """The plan ``sequential``: one slot. ``order`` and logs have an axis of slots, arrays none."""

    plan = "sequential"

    def _compile_training(
        self, role: StepTemplate, steps: list[SizedStep], state: State
    ) -> list[SizedProgram]:
        work = self._work
        given = (*shapes(state), lifted_shapes(role), work.train.batch_shapes(work.resident))
        return [
            self._compile(role, step, _train_step(step), (*given, index_shape(step.size)))
            for step in steps
        ]

    def _compile_validation(
        self, role: StepTemplate, steps: list[SizedStep], state: State
    ) -> list[SizedProgram]:
        one, work = shapes(state), self._work
        assert work.validation is not None
        data = work.validation.batch_shapes(work.validation.n)
        given = (validated(one, role), one[1], one[3], lifted_shapes(role), data)
        found = []
        for step in steps:
            which = index_shape() if work.fold is None else index_shape(step.size)
            found.append(self._compile(role, step, _test_step(step), (*given, which)))
        return found

    def _compile(
        self, role: StepTemplate, step: SizedStep, function: Callable[..., Any], given: Any
    ) -> SizedProgram:
        trains = role is self._roles[0]
        if step.small:
            given = (*given, index_shape())  # how many examples count
        name = f"sequential {'train' if trains else 'test'}"
        key = program_key(name, [role], step.size, step.small, given)
        donate = (0, 1, 2) if trains else ()
        return compile_in_background(function, given, donate, effort=self.effort, key=key), step

    def place(self, states: Sequence[State]) -> list[Arrays]:
        """Copies one trial's variables to the device: the step will overwrite their memory."""
        state = on_device(states[0]) if is_lent(states[0]) else states[0]
        # Not by ``jnp.array``, which compiles a program for each shape.
        return jax.device_put([list(part) for part in state.lists()], may_alias=False)

    def lay(self, rows: Sequence[Sequence[np.ndarray]]) -> Arrays:
        """The constants of the one trial, unchanged."""
        return list(rows[0])

    def put(self, state: Sequence[Arrays], new: Mapping[int, State]) -> list[Arrays]:
        """The four lists of the trial that takes the only slot."""
        return self.place([new[0]])

    def row(self, part: Arrays, slot: int) -> list[np.ndarray]:
        """Copies of the only slot's arrays on the host."""
        return [np.array(a) for a in part]

    def fetch(self, state: Sequence[Arrays]) -> list[list[np.ndarray]]:
        """Copies of the only slot's arrays on the host, [1, ...]."""
        return [[np.array(a)[None] for a in part] for part in state]

    def train(
        self,
        state: Sequence[Arrays],
        lifted: Arrays,
        data: EpochData,
        order: np.ndarray,
        *,
        steps: int | None = None,
    ) -> tuple[list[Arrays], Any]:
        """One epoch; ``order`` is i32[1, N]. See ``CompiledPlan.train``."""
        new, logs = list(state), None
        (full, step), *tail = self._programs[0]
        size = step.size
        order = order if steps is None else order[:, : steps * size]
        whole = (np.int32(size),) if step.small else ()
        for chunk in data.chunks(order):
            # Wait until the chunk before has been trained on: the device has memory for two.
            jax.block_until_ready(logs)
            for start in range(0, chunk.steps * size, size):
                index = chunk.order[0, start : start + size]
                *new, logs = full.result().call(*new, lifted, chunk.data, index, *whole)
            if not chunk.rest:
                continue
            index = chunk.order[0, chunk.order.shape[1] - chunk.rest :]
            if step.small:
                index, n = np.resize(index, size), np.int32(chunk.rest)
                *new, logs = full.result().call(*new, lifted, chunk.data, index, n)
            else:
                *new, logs = tail[0][0].result().call(*new, lifted, chunk.data, index)
        return new, logs

    def validate(
        self, state: Sequence[Arrays], lifted: Arrays, data: Any, order: np.ndarray | None = None
    ) -> tuple[Arrays, Any]:
        """All validation batches; ``order`` is i32[1, V] or None. See ``CompiledPlan.validate``."""
        fixed, non_trainable, metrics = validated(state, self._roles[1]), state[1], state[3]
        logs = None
        for call, start, size, counted in _pass(self._programs[1], self._work.n_validation):
            where: Any = np.int32(start)
            if order is not None:
                where = np.resize(order[0, start : start + size], size)
            non_trainable, metrics, logs = call(
                fixed, non_trainable, metrics, lifted, data, where, *counted
            )
        return non_trainable, logs


def _pass(
    calls: Sequence[SizedProgram], n: int
) -> Iterator[tuple[Callable[..., Any], int, int, tuple[Any, ...]]]:
    """The calls of one pass over n examples, the smaller batch last.

    Each is the program, the number of its first example, its size, and how many examples count, for
    a program that takes this number.
    """
    (first, step), *rest = calls
    size = step.size
    for start in range(0, n if step.small else n - size + 1, size):
        counted = (np.int32(min(size, n - start)),) if step.small else ()
        yield first.result().call, start, size, counted
    for last, small in rest:
        yield last.result().call, n - small.size, small.size, ()


def _train_step(step: SizedStep) -> Callable[..., Any]:
    def run(
        trainable: Arrays,
        non_trainable: Arrays,
        optimizer: Arrays,
        metrics: Arrays,
        lifted: Arrays,
        data: Any,
        index: Any,
        n: Any = None,
    ) -> Any:
        parts = [trainable, non_trainable, optimizer, metrics]
        parts, logs = step.run(lifted, parts, gather_examples(data, index), n)
        return (*parts, logs[None])

    return run


def _test_step(step: SizedStep) -> Callable[..., Any]:
    def run(
        trainable: Arrays,
        non_trainable: Arrays,
        metrics: Arrays,
        lifted: Arrays,
        data: Any,
        where: Any,
        n: Any = None,
    ) -> Any:
        # Folds give the numbers of all examples of the batch, else the number of the first one.
        if where.ndim:
            examples = gather_examples(data, where)
        elif step.small:
            rows = where + jnp.arange(step.size, dtype=np.int32)
            last = jax.tree.leaves(data)[0].shape[0] - 1
            examples = gather_examples(data, jnp.minimum(rows, last))
        else:
            examples = slice_examples(data, where, step.size)
        parts, logs = step.run(lifted, [trainable, non_trainable, metrics], examples, n)
        return parts[1], parts[2], logs[None]

    return run
