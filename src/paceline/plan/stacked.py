"""The plan ``stacked``: ``vmap`` over slots inside a loop over steps, one dispatch for an epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from paceline.plan.base import (
    Arrays,
    Batch,
    Workload,
    batches,
    cut,
    data_shapes,
    index_shape,
    lifted_shapes,
    shapes,
    take,
)
from paceline.program.compiling import Executable, compile_in_background
from paceline.program.group import Role
from paceline.program.modules import key_of
from paceline.program.trace import State


class StackedProgram:
    """All slots in one program.

    Args:
        train, test: The group's steps; test is None without validation data.
        state: Shapes of one trial's variables.
        work: What an epoch goes over.
        n_slots: S.
        quick: Compile for a short run.
        before: An earlier compile for as many slots; what has not changed since is taken from it.
    """

    plan = "stacked"

    def __init__(
        self,
        train: Role,
        test: Role | None,
        state: State,
        work: Workload,
        n_slots: int,
        quick: bool = False,
        before: StackedProgram | None = None,
    ) -> None:
        self.n_slots = n_slots
        self.lifted = (train.lifted, test.lifted if test else ())
        self._steps = work.steps
        many = shapes(state, n_slots)
        self._train: list[Future[Executable]] = []
        self._test: list[Future[Executable]] = []
        if before is not None and before.lifted[0] == self.lifted[0]:
            self._train = before._train
        else:
            fixed = (lifted_shapes(train, n_slots), data_shapes(work.train))
            order = index_shape(n_slots, work.n_train)
            full, *tail = batches(train, work.n_train, work.batch_size)
            n_logs = len(train.full.log_names)
            # The smaller batch is a program of its own, so that both compile at the same time.
            functions = [
                _full_batches(full, 0 if tail else n_logs),
                *(_last_batch(batch) for batch in tail),
            ]
            extra = [(order, index_shape()), *((order,) for _ in tail)]
            for i, (function, others) in enumerate(zip(functions, extra, strict=True)):
                arguments = (*many, *fixed, *others)
                key = key_of(f"stacked train {i} of {len(functions)}", [train], arguments)
                self._train.append(
                    compile_in_background(
                        function, arguments, donate=(0, 1, 2), quick=quick, key=key
                    )
                )
        if test is not None and work.validation is not None:
            if before is not None and before.lifted[1] == self.lifted[1]:
                self._test = before._test
            else:
                parts = batches(test, work.n_validation, work.validation_batch_size)
                function = _validation_pass(parts, work.n_validation, len(test.full.log_names))
                arguments: tuple[Any, ...] = (
                    *(many[0], many[1], many[3]),
                    lifted_shapes(test, n_slots),
                    data_shapes(work.validation),
                )
                if work.fold is not None:
                    arguments += (index_shape(n_slots, work.n_validation),)
                key = key_of("stacked test", [test], arguments)
                self._test.append(compile_in_background(function, arguments, quick=quick, key=key))

    def roles(self) -> list[list[Executable]]:
        """What was compiled for training and for validation; waits for it."""
        return [[f.result() for f in role] for role in (self._train, self._test) if role]

    def ready(self) -> bool:
        """Whether everything is compiled."""
        return all(future.done() for future in (*self._train, *self._test))

    def place(self, states: Sequence[State]) -> list[Arrays]:
        """Stacks the variables of S trials on the device."""
        stacked = [
            [np.stack([np.asarray(a) for a in leaves]) for leaves in zip(*parts, strict=True)]
            for parts in zip(*(state.lists() for state in states), strict=True)
        ]
        # To a device by name: arrays without one would make a second program of ``_put``.
        return jax.device_put(stacked, jax.devices()[0])

    def lay(self, rows: Sequence[Sequence[np.ndarray]]) -> Arrays:
        """Stacks each constant over the slots."""
        return [np.stack(values) for values in zip(*rows, strict=True)]

    def put(self, state: Sequence[Arrays], slot: int, one: State) -> list[Arrays]:
        """Writes one trial's variables into a slot, in place."""
        return _put(list(state), list(one.lists()), np.int32(slot))

    def row(self, part: Arrays, slot: int) -> list[np.ndarray]:
        """One slot's arrays, on the host."""
        if jax.default_backend() == "cpu":  # host memory: a view and a copy, nothing to compile
            return [np.array(np.asarray(a)[slot]) for a in part]
        return [np.array(a) for a in _take_row(part, np.int32(slot))]

    def train(
        self, state: Sequence[Arrays], lifted: Arrays, data: Any, order: np.ndarray
    ) -> tuple[list[Arrays], Any]:
        """One epoch of every slot; donates all but the metrics."""
        full, *tail = (future.result().call for future in self._train)
        *new, logs = full(*state, lifted, data, order, np.int32(self._steps))
        for last in tail:
            *new, logs = last(*new, lifted, data, order)
        return new[:3], logs

    def validate(
        self, state: Sequence[Arrays], lifted: Arrays, data: Any, order: np.ndarray | None = None
    ) -> tuple[Arrays, Any]:
        """All validation batches of every slot."""
        trainable, non_trainable, _, metrics = state
        own = () if order is None else (order,)
        return self._test[0].result().call(trainable, non_trainable, metrics, lifted, data, *own)


def _full_batches(batch: Batch, n_logs: int) -> Callable[..., Any]:
    """All full batches of an epoch. Their number is an argument: the loop is not unrolled.

    Args:
        batch: The step.
        n_logs: L, or 0 where a smaller batch follows, whose logs are the epoch's: XLA then drops
            the metrics' results from the loop.
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
    ) -> Any:
        def body(i: Any, carry: Any) -> Any:
            index = lax.dynamic_slice_in_dim(order, i * batch.size, batch.size, axis=1)
            parts, logs = _step_of_all(batch, lifted, carry[0], data, index)
            return parts, logs[:, :n_logs]

        logs = jnp.zeros((order.shape[0], n_logs), jnp.result_type(float))
        parts = [trainable, non_trainable, optimizer, metrics]
        parts, logs = lax.fori_loop(0, steps, body, (parts, logs))
        return (*parts, logs)

    return epoch


def _last_batch(batch: Batch) -> Callable[..., Any]:
    """The last, smaller batch of an epoch."""

    def last(
        trainable: Arrays,
        non_trainable: Arrays,
        optimizer: Arrays,
        metrics: Arrays,
        lifted: Arrays,
        data: Any,
        order: Any,
    ) -> Any:
        parts = [trainable, non_trainable, optimizer, metrics]
        index = order[:, order.shape[1] - batch.size :]
        parts, logs = _step_of_all(batch, lifted, parts, data, index)
        return (*parts, logs)

    return last


def _step_of_all(batch: Batch, lifted: Arrays, parts: Any, data: Any, index: Any) -> Any:
    """One training step of S trials, each on its own examples: index is i32[S, B]."""

    def slot(lifted: Arrays, parts: Any, index: Any) -> Any:
        return batch.run(lifted, parts, take(data, index))

    return _over_slots(slot, index.shape[0])(lifted, parts, index)


def _over_slots(slot: Callable[..., Any], n_slots: int) -> Callable[..., Any]:
    """The function over a leading axis of slots; a single one needs no batched operations."""
    if n_slots > 1:
        return jax.vmap(slot)

    def alone(*args: Any) -> Any:
        return jax.tree.map(lambda a: a[None], slot(*jax.tree.map(lambda a: a[0], args)))

    return alone


def _validation_pass(parts: Sequence[Batch], n: int, n_logs: int) -> Callable[..., Any]:
    """All validation batches of S trials.

    They share the batch, so it has no slot axis; unless an order is given, i32[S, V]: then each
    takes its own examples.
    """
    full, *tail = parts
    n_full = n // full.size

    def validate(
        trainable: Arrays,
        non_trainable: Arrays,
        metrics: Arrays,
        lifted: Arrays,
        data: Any,
        order: Any = None,
    ) -> Any:
        def all_slots(batch: Batch, moving: Any, start: Any) -> Any:
            def run(lifted: Arrays, fixed: Arrays, moving: Any, examples: Any) -> Any:
                new, logs = batch.run(lifted, [fixed, *moving], examples)
                return new[1:], logs

            if order is None:
                shared = cut(data, start, batch.size)
                slot = partial(run, examples=shared)
                return _over_slots(slot, n_slots)(lifted, trainable, moving)

            def own(lifted: Arrays, fixed: Arrays, moving: Any, index: Any) -> Any:
                return run(lifted, fixed, moving, take(data, index))

            index = lax.dynamic_slice_in_dim(order, start, batch.size, axis=1)
            return _over_slots(own, n_slots)(lifted, trainable, moving, index)

        n_slots = jax.tree.leaves((trainable, non_trainable, metrics))[0].shape[0]
        logs = jnp.zeros((n_slots, n_logs), jnp.result_type(float))
        moving = [non_trainable, metrics]
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
        return moving[0], logs

    return validate


@jax.jit
def _take_row(part: Arrays, slot: Any) -> Arrays:
    return [a[slot] for a in part]


@partial(jax.jit, donate_argnums=0)
def _put(state: list[Arrays], one: list[Arrays], slot: Any) -> list[Arrays]:
    return jax.tree.map(lambda many, new: many.at[slot].set(new), state, one)
