"""How a pack is executed: ``stacked`` or ``sequential``.

Notation
    S: slots. N: training examples. B: examples per trial and step. L: logs.
    state: four lists of arrays (trainable, non-trainable, optimizer, metrics), each with a leading S.
    lifted: the constants that differ between trials, each with a leading S.
    order: i32[S, N], each slot's order of the examples in this epoch.
    logs: float[S, L], the metrics after the epoch's last step, as Keras' ``fit`` reports them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from paceline.data import ArrayData
from paceline.program.canonical import lift
from paceline.program.compiling import Executable, compile_in_background
from paceline.program.group import Role
from paceline.program.trace import State

Arrays = list[Any]


@dataclass(frozen=True)
class Workload:
    """What one epoch of a pack goes over.

    Attributes:
        train: Training data; only its shapes are used here.
        validation: Validation data, or None.
        batch_size: B, at most the number of training examples.
        validation_batch_size: Examples per validation step, at most the number of validation examples.
    """

    train: ArrayData
    validation: ArrayData | None
    batch_size: int
    validation_batch_size: int

    @property
    def steps(self) -> int:
        """Full training steps per epoch."""
        return self.train.n // self.batch_size


class Program(Protocol):
    """A compiled group: trains and validates ``n_slots`` trials for an epoch."""

    plan: str
    n_slots: int
    lifted: tuple[
        tuple[int, ...], tuple[int, ...]
    ]  # constants that are inputs: train step, test step

    def place(self, states: Sequence[State]) -> list[Arrays]:
        """Device arrays for the variables of ``n_slots`` trials."""
        ...

    def lay(self, rows: Sequence[Sequence[np.ndarray]]) -> Arrays:
        """Device arrays for one list of constants per slot."""
        ...

    def put(self, state: Sequence[Arrays], slot: int, one: State) -> list[Arrays]:
        """The state with one slot replaced; the old one may be donated."""
        ...

    def row(self, part: Arrays, slot: int) -> list[np.ndarray]:
        """One slot's arrays, on the host."""
        ...

    def executables(self) -> list[Executable]:
        """What was compiled; waits for it."""
        ...

    def ready(self) -> bool:
        """Whether everything is compiled."""
        ...

    def train(
        self, state: Sequence[Arrays], lifted: Arrays, data: Any, order: np.ndarray
    ) -> tuple[list[Arrays], Any]:
        """One epoch; returns the new trainable, non-trainable and optimizer variables, and logs."""
        ...

    def validate(self, state: Sequence[Arrays], lifted: Arrays, data: Any) -> tuple[Arrays, Any]:
        """All validation batches; returns the new non-trainable variables, and logs."""
        ...


class StackedProgram:
    """``vmap`` over slots inside a loop over steps: one dispatch for an epoch."""

    plan = "stacked"

    def __init__(
        self, train: Role, test: Role | None, state: State, work: Workload, n_slots: int
    ) -> None:
        self.n_slots = n_slots
        self.lifted = (train.lifted, test.lifted if test else ())
        self._steps = work.steps
        many = _stacked_shapes(state, n_slots)
        self._train = compile_in_background(
            _train_epoch(train, state, work),
            (
                *many,
                _lifted_shapes(train, n_slots),
                _data_shapes(work.train),
                jax.ShapeDtypeStruct((n_slots, work.train.n), np.int32),
                jax.ShapeDtypeStruct((), np.int32),
            ),
            donate=(0, 1, 2),
        )
        self._test: Future[Executable] | None = None
        if test is not None and work.validation is not None:
            self._test = compile_in_background(
                _validation_pass(test, state, work.validation, work.validation_batch_size),
                (
                    many[0],
                    many[1],
                    many[3],
                    _lifted_shapes(test, n_slots),
                    _data_shapes(work.validation),
                ),
            )

    def place(self, states: Sequence[State]) -> list[Arrays]:
        """Stacks the variables of S trials on the device."""
        return [
            [
                jnp.asarray(np.stack([np.asarray(a) for a in leaves]))
                for leaves in zip(*parts, strict=True)
            ]
            for parts in zip(*(state.lists() for state in states), strict=True)
        ]

    def lay(self, rows: Sequence[Sequence[np.ndarray]]) -> Arrays:
        """Stacks each constant over the slots."""
        return [np.stack(values) for values in zip(*rows, strict=True)]

    def put(self, state: Sequence[Arrays], slot: int, one: State) -> list[Arrays]:
        """Writes one trial's variables into a slot, in place."""
        return _put(list(state), list(one.lists()), np.int32(slot))

    def row(self, part: Arrays, slot: int) -> list[np.ndarray]:
        """One slot's arrays, on the host."""
        return [np.array(a) for a in _take(part, np.int32(slot))]

    def executables(self) -> list[Executable]:
        """What was compiled; waits for it."""
        return [f.result() for f in (self._train, self._test) if f is not None]

    def ready(self) -> bool:
        """Whether everything is compiled."""
        return self._train.done() and (self._test is None or self._test.done())

    def train(
        self, state: Sequence[Arrays], lifted: Arrays, data: Any, order: np.ndarray
    ) -> tuple[list[Arrays], Any]:
        """One epoch of every slot; donates all but the metrics."""
        *new, logs = self._train.result().call(*state, lifted, data, order, np.int32(self._steps))
        return new, logs

    def validate(self, state: Sequence[Arrays], lifted: Arrays, data: Any) -> tuple[Arrays, Any]:
        """All validation batches of every slot."""
        assert self._test is not None
        trainable, non_trainable, _, metrics = state
        return self._test.result().call(trainable, non_trainable, metrics, lifted, data)


class SequentialProgram:
    """One trial at a time, steps dispatched from the host.

    For steps that already fill the device, and for convolutions on CPU, which XLA runs 20 times slower
    inside a loop body (jax #12868).
    """

    plan = "sequential"
    n_slots = 1

    def __init__(self, train: Role, test: Role | None, state: State, work: Workload) -> None:
        self.lifted = (train.lifted, test.lifted if test else ())
        self._work = work
        one = _shapes(state)
        self._train: list[tuple[Future[Executable], int]] = []
        for step, lifted, size in _batches(train, work.train, work.batch_size):
            self._train.append(
                (
                    compile_in_background(
                        _train_step(step, lifted, train, state),
                        (
                            *one,
                            _lifted_shapes(train, None),
                            _data_shapes(work.train),
                            jax.ShapeDtypeStruct((size,), np.int32),
                        ),
                        donate=(0, 1, 2),
                    ),
                    size,
                )
            )
        self._test: list[tuple[Future[Executable], int]] = []
        if test is not None and work.validation is not None:
            for step, lifted, size in _batches(test, work.validation, work.validation_batch_size):
                self._test.append(
                    (
                        compile_in_background(
                            _test_step(step, lifted, test, state, size),
                            (
                                one[0],
                                one[1],
                                one[3],
                                _lifted_shapes(test, None),
                                _data_shapes(work.validation),
                                jax.ShapeDtypeStruct((), np.int32),
                            ),
                        ),
                        size,
                    )
                )

    def place(self, states: Sequence[State]) -> list[Arrays]:
        """Copies one trial's variables: the step will reuse their memory."""
        return [[jnp.array(a) for a in part] for part in states[0].lists()]

    def lay(self, rows: Sequence[Sequence[np.ndarray]]) -> Arrays:
        """One trial's constants, as they are."""
        return list(rows[0])

    def put(self, state: Sequence[Arrays], slot: int, one: State) -> list[Arrays]:
        """The next trial takes the only slot."""
        return self.place([one])

    def row(self, part: Arrays, slot: int) -> list[np.ndarray]:
        """The only slot's arrays, on the host."""
        return [np.array(a) for a in part]

    def executables(self) -> list[Executable]:
        """What was compiled; waits for it."""
        return [future.result() for future, _ in self._train + self._test]

    def ready(self) -> bool:
        """Whether everything is compiled."""
        return all(future.done() for future, _ in self._train + self._test)

    def train(
        self, state: Sequence[Arrays], lifted: Arrays, data: Any, order: np.ndarray
    ) -> tuple[list[Arrays], Any]:
        """One epoch; state, lifted and order carry a leading axis of one slot."""
        new: list[Arrays] = list(state)
        logs = None
        for call, start, size in _walk(self._train, self._work.train.n):
            *new, logs = call(*new, lifted, data, order[0, start : start + size])
        return new[:3], logs

    def validate(self, state: Sequence[Arrays], lifted: Arrays, data: Any) -> tuple[Arrays, Any]:
        """All validation batches."""
        assert self._work.validation is not None
        trainable, non_trainable, _, metrics = state
        logs = None
        for call, start, _ in _walk(self._test, self._work.validation.n):
            non_trainable, metrics, logs = call(
                trainable, non_trainable, metrics, lifted, data, np.int32(start)
            )
        return non_trainable, logs


@jax.jit
def _take(part: Arrays, slot: Any) -> Arrays:
    return [a[slot] for a in part]


@partial(jax.jit, donate_argnums=0)
def _put(state: list[Arrays], one: list[Arrays], slot: Any) -> list[Arrays]:
    return jax.tree.map(lambda many, new: many.at[slot].set(new), state, one)


def _walk(
    calls: Sequence[tuple[Future[Executable], int]], n: int
) -> list[tuple[Callable[..., Any], int, int]]:
    """The calls of one pass over n examples: full batches, then the smaller one."""
    (first, size), *rest = calls
    run = first.result().call
    walk = [(run, start, size) for start in range(0, n - size + 1, size)]
    if rest:
        tail, tail_size = rest[0]
        walk.append((tail.result().call, n - tail_size, tail_size))
    return walk


# -- the functions that are compiled ---------------------------------------------------------------------------


def _train_epoch(role: Role, state: State, work: Workload) -> Callable[..., Any]:
    """All steps of an epoch for S slots. The number of steps is an argument: the loop is not unrolled."""
    (full, *tail) = _batches(role, work.train, work.batch_size)
    size = work.batch_size
    counts = [len(part) for part in state.lists()]

    def slot(
        step: Any, positions: Sequence[int], lifted: Arrays, parts: Any, data: Any, index: Any
    ) -> Any:
        batch = jax.tree.map(lambda a: a.at[index].get(mode="promise_in_bounds"), data)
        return _run(step, [lifted[p] for p in positions], parts, batch, counts)

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
        n_slots = order.shape[0]

        def many(which: Any, parts: Any, index: Any) -> Any:
            step, positions, _ = which
            run = jax.vmap(
                lambda lifted, parts, index: slot(step, positions, lifted, parts, data, index)
            )
            return run(lifted, parts, index)

        def body(i: Any, carry: Any) -> Any:
            parts, _ = carry
            index = lax.dynamic_slice_in_dim(order, i * size, size, axis=1)
            return many(full, parts, index)

        logs = jnp.zeros((n_slots, len(role.full.log_names)), jnp.result_type(float))
        parts = [trainable, non_trainable, optimizer, metrics]
        parts, logs = lax.fori_loop(0, steps, body, (parts, logs))
        if tail:
            index = order[:, order.shape[1] - tail[0][2] :]
            parts, logs = many(tail[0], parts, index)
        return (*parts[:3], logs)

    return epoch


def _validation_pass(role: Role, state: State, data: ArrayData, size: int) -> Callable[..., Any]:
    """All validation batches for S slots; the batch is shared, so it carries no slot axis."""
    (full, *tail) = _batches(role, data, size)
    lists = state.lists()
    counts = [len(lists[0]), len(lists[1]), len(lists[3])]
    n, n_full = data.n, data.n // size

    def validate(
        trainable: Arrays, non_trainable: Arrays, metrics: Arrays, lifted: Arrays, data: Any
    ) -> Any:
        def many(which: Any, moving: Any, start: Any) -> Any:
            step, positions, length = which
            batch = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, start, length), data)

            def slot(lifted: Arrays, fixed: Arrays, moving: Any) -> Any:
                parts, logs = _run(
                    step, [lifted[p] for p in positions], [fixed, *moving], batch, counts
                )
                return parts[1:], logs

            return jax.vmap(slot)(lifted, trainable, moving)

        n_slots = jax.tree.leaves((trainable, non_trainable, metrics))[0].shape[0]
        logs = jnp.zeros((n_slots, len(role.full.log_names)), jnp.result_type(float))
        moving = [non_trainable, metrics]
        if n_full > 1:
            moving, logs = lax.fori_loop(
                0, n_full, lambda i, carry: many(full, carry[0], i * size), (moving, logs)
            )
        elif n_full == 1:
            moving, logs = many(full, moving, 0)
        if tail:
            moving, logs = many(tail[0], moving, n - tail[0][2])
        return moving[0], logs

    return validate


def _train_step(
    step: Any, positions: Sequence[int], role: Role, state: State
) -> Callable[..., Any]:
    counts = [len(part) for part in state.lists()]

    def run(
        trainable: Arrays,
        non_trainable: Arrays,
        optimizer: Arrays,
        metrics: Arrays,
        lifted: Arrays,
        data: Any,
        index: Any,
    ) -> Any:
        batch = jax.tree.map(lambda a: a.at[index].get(mode="promise_in_bounds"), data)
        parts, logs = _run(
            step,
            [lifted[p] for p in positions],
            [trainable, non_trainable, optimizer, metrics],
            batch,
            counts,
        )
        return (*parts, logs[None])

    return run


def _test_step(
    step: Any, positions: Sequence[int], role: Role, state: State, size: int
) -> Callable[..., Any]:
    lists = state.lists()
    counts = [len(lists[0]), len(lists[1]), len(lists[3])]

    def run(
        trainable: Arrays,
        non_trainable: Arrays,
        metrics: Arrays,
        lifted: Arrays,
        data: Any,
        start: Any,
    ) -> Any:
        batch = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, start, size), data)
        parts, logs = _run(
            step,
            [lifted[p] for p in positions],
            [trainable, non_trainable, metrics],
            batch,
            counts,
        )
        return parts[1], parts[2], logs[None]

    return run


def _run(
    step: Any, lifted: Arrays, parts: Sequence[Arrays], batch: Any, counts: Sequence[int]
) -> Any:
    """One step; the new state has the old dtypes exactly, so that it can be carried by a loop."""
    flat = [leaf for part in parts for leaf in part]
    logs, *new = step(lifted, *flat, *jax.tree.leaves(batch))
    new = [lax.convert_element_type(b, a.dtype) for a, b in zip(flat, new, strict=True)]
    out, at = [], 0
    for count in counts:
        out.append(new[at : at + count])
        at += count
    return out, logs


# -- shapes ------------------------------------------------------------------------------------------------------


def _batches(role: Role, data: ArrayData, size: int) -> list[tuple[Any, tuple[int, ...], int]]:
    """(step, positions of its constants in ``lifted``, batch size) for the full and the smaller batch."""
    steps = [(lift(role.full.closed, role.lifted), tuple(range(len(role.lifted))), size)]
    if role.tail is not None:
        indices = role.tail_lifted
        positions = tuple(role.lifted.index(i) for i in indices)
        steps.append((lift(role.tail.closed, indices), positions, data.n % size))
    return steps


def _shapes(state: State) -> list[Arrays]:
    return [[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in part] for part in state.lists()]


def _stacked_shapes(state: State, n_slots: int) -> list[Arrays]:
    return [
        [jax.ShapeDtypeStruct((n_slots, *a.shape), a.dtype) for a in part]
        for part in _shapes(state)
    ]


def _lifted_shapes(role: Role, n_slots: int | None) -> Arrays:
    lead = () if n_slots is None else (n_slots,)
    constants = role.full.canonical.constants
    return [
        jax.ShapeDtypeStruct((*lead, *constants[i].value.shape), constants[i].value.dtype)
        for i in role.lifted
    ]


def _data_shapes(data: ArrayData) -> Any:
    return data.batch_shapes(data.n)
