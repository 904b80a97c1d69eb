"""What all plans share.

Notation, here and in the plans
    S: slots. N: examples. V: examples to validate on. B: examples per trial and step. L: logs.
    state: four lists of arrays (trainable, non-trainable, optimizer, metrics), each with a leading
        S where the plan stacks trials.
    lifted: the constants that differ between trials, likewise.
    order: i32[S, N], each slot's order of the examples in this epoch; in validation i32[S, V] where
        slots validate on examples of their own (folds), else nothing.
    logs: float[S, L], the metrics after the epoch's last step, as Keras' ``fit`` reports them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np
from jax import lax

from paceline.data.arrays import ArrayData
from paceline.data.batched import BatchedDataset, EpochBatches
from paceline.data.chunks import ChunkedArrays, ChunkedBatches, EpochData, ResidentArrays
from paceline.program import jax_compat
from paceline.program.canonical import lift
from paceline.program.compile import Executable
from paceline.program.rewrites import rewrite
from paceline.program.step_template import StepTemplate
from paceline.program.trace import State, Step

Arrays = list[Any]

#: Floating-point operations in matrix products of one trial's step, above which it is trained on
#: its own.
_BUSY = 10e6
#: Steps of a search below which it is compiled for a short run: 5 to 20 s of small operations.
_FEW = 5000
#: The same for operations in matrix products: 5 s of a core or less. XLA's own code around large
#: products is a tenth slower where it is compiled for a short run.
_LITTLE = 5e11


@dataclass(frozen=True)
class Workload:
    """What one epoch of a pack goes over.

    Attributes:
        train: Training data; only its shapes are used here.
        validation: Validation data, or None.
        batch_size: B, at most the number of training examples.
        validation_batch_size: Examples per validation step, at most the number of validation
            examples.
        fold: Examples that a slot trains on and validates on, where these are numbers of its own
            among all; None where every slot has all of them.
        chunk_bytes: Training data beyond are sent in chunks of at most so many bytes, but of a
            batch at least; None: all of them are on the device.
        steps_per_epoch: Batches of an epoch; None: all of the data are.
    """

    train: ArrayData | BatchedDataset
    validation: ArrayData | None
    batch_size: int
    validation_batch_size: int
    fold: tuple[int, int] | None = None
    chunk_bytes: float | None = None
    steps_per_epoch: int | None = None

    @property
    def epochs(self) -> EpochBatches:
        """Which batches of which pass over the data an epoch has."""
        if isinstance(self.train, BatchedDataset):
            return self.train.epochs
        return EpochBatches(-(-self.n_train // self.batch_size), self.steps_per_epoch)

    @property
    def chunk(self) -> int | None:
        """C: examples of a chunk, a multiple of B; None where all are on the device."""
        if self.chunk_bytes is None:
            return None
        batches = int(self.chunk_bytes * self.train.n / self.train.nbytes) // self.batch_size
        size = self.batch_size * max(1, batches)
        if isinstance(self.train, BatchedDataset):  # is never there as a whole
            return min(size, self.batch_size * self.epochs.of(0)[2])
        return size if size < self.train.n else None

    @property
    def resident(self) -> int:
        """Training examples that a program is given at a time."""
        return self.chunk or self.train.n

    @property
    def resident_bytes(self) -> float:
        """Bytes of the training data on the device: of all, or of two chunks."""
        if self.chunk is None:
            return self.train.nbytes
        return 2 * self.train.nbytes * self.chunk / self.train.n

    @property
    def n_train(self) -> int:
        """N: examples that one slot trains on."""
        return self.train.n if self.fold is None else self.fold[0]

    @property
    def n_epoch(self) -> int:
        """Examples of the longest epoch."""
        return min(self.n_train, self.epochs.of(0)[2] * self.batch_size)

    @property
    def rest(self) -> int:
        """Examples of the smaller batch at the end of the training data; 0: there is none."""
        if isinstance(self.train, BatchedDataset):
            return self.train.rest
        return self.n_train % self.batch_size

    @property
    def validation_rest(self) -> int:
        """The same of the validation data."""
        return self.n_validation % self.validation_batch_size

    @property
    def ends_small(self) -> bool:
        """Whether every epoch ends with the smaller batch."""
        return (
            self.rest > 0 and not isinstance(self.train, BatchedDataset) and self.epochs.period == 1
        )

    @property
    def n_validation(self) -> int:
        """V: examples that one slot validates on; 0 without validation data."""
        if self.validation is None:
            return 0
        return self.validation.n if self.fold is None else self.fold[1]

    @property
    def steps(self) -> int:
        """Full training steps per epoch, of the longest."""
        return self.n_epoch // self.batch_size

    def epoch_data(self, arrays: Any, sharding: Any = None) -> EpochData:
        """The training data as a pack goes over them.

        Args:
            arrays: The training data on the device, a nest of arrays [examples, ...]; not used
                where the data are sent in chunks.
            sharding: Devices that chunks go to; None: the default one.
        """
        if self.chunk is None:
            return ResidentArrays(arrays, self.n_train, self.batch_size, self.epochs)
        if isinstance(self.train, BatchedDataset):
            return ChunkedBatches(self.train, self.chunk, sharding)
        return ChunkedArrays(
            self.train, self.chunk, self.batch_size, self.n_train, self.epochs, sharding
        )


class CompiledPlan(Protocol):
    """A compiled group: trains and validates ``n_slots`` trials for an epoch.

    Attributes:
        plan: Its name.
        n_slots: S.
        quick: Whether it was compiled for a short run.
        lifted: Numbers of the constants that are inputs, of the train step and of the test step.
    """

    plan: str
    n_slots: int
    quick: bool
    lifted: tuple[tuple[int, ...], tuple[int, ...]]

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

    def fetch(self, state: Sequence[Arrays]) -> list[list[np.ndarray]]:
        """Copies of all slots' arrays on the host, slots along the first axis."""
        ...

    def roles(self) -> list[list[Executable]]:
        """What was compiled for training and for validation; waits for it."""
        ...

    def ready(self) -> bool:
        """Whether everything is compiled."""
        ...

    def train(
        self,
        state: Sequence[Arrays],
        lifted: Arrays,
        data: EpochData,
        order: np.ndarray,
        *,
        steps: int | None = None,
    ) -> tuple[list[Arrays], Any]:
        """Trains one epoch.

        Args:
            state: The four lists; the memory of all but the metrics may be donated.
            lifted: The lifted constants of the train step.
            data: The training data.
            order: i32[S, examples (or batches) of the epoch], from ``data.order``.
            steps: Only so many full steps, of resident data; to time them.

        Returns:
            The new trainable, non-trainable and optimizer variables, and logs.
        """
        ...

    def validate(
        self, state: Sequence[Arrays], lifted: Arrays, data: Any, order: np.ndarray | None = None
    ) -> tuple[Arrays, Any]:
        """Goes over all validation batches.

        Args:
            state: The four lists.
            lifted: The lifted constants of the test step.
            data: The validation data on the device, a nest of arrays [examples, ...].
            order: i32[S, V], the examples of each slot's fold; None: all slots validate on all.

        Returns:
            The new non-trainable variables (recurrent layers draw seeds of dropout there), and
            logs.
        """
        ...


@dataclass(frozen=True)
class Batch:
    """A step on one batch size, its differing constants lifted.

    Attributes:
        step: ``step(*lifted, *state, *batch) -> [logs, *state]``.
        positions: Where its constants stand in the role's ``lifted``.
        size: Examples per trial.
    """

    step: Any
    positions: tuple[int, ...]
    size: int

    def run(self, lifted: Arrays, parts: Sequence[Arrays], batch: Any) -> tuple[list[Arrays], Any]:
        """One step; the new state has the old dtypes exactly, so that a loop can carry it."""
        flat = [leaf for part in parts for leaf in part]
        constants = [lifted[position] for position in self.positions]
        logs, *new = self.step(*constants, *flat, *jax.tree.leaves(batch))
        new = [lax.convert_element_type(b, a.dtype) for a, b in zip(flat, new, strict=True)]
        out, at = [], 0
        for part in parts:
            out.append(new[at : at + len(part)])
            at += len(part)
        return out, logs


def step_sizes(role: StepTemplate, size: int, rest: int) -> list[Batch]:
    """The full batch, and the smaller one where there is one."""
    found = [Batch(_lazily(role.full, role.lifted), tuple(range(len(role.lifted))), size)]
    if role.tail is not None:
        indices = role.tail_lifted
        positions = tuple(role.lifted.index(i) for i in indices)
        found.append(Batch(_lazily(role.tail, indices), positions, rest))
    return found


def _lazily(step: Step, indices: tuple[int, ...]) -> Callable[..., list[Any]]:
    """The lifted step, made when it is first traced: a program found on disk never needs it."""
    made: list[Callable[..., list[Any]]] = []

    def run(*args: Any) -> list[Any]:
        if not made:
            lifted = lift(step.closed, indices)
            made.append(jax_compat.jaxpr_as_fun(rewrite(lifted, jax.default_backend())))
        return made[0](*args)

    return run


def gather_examples(data: Any, index: Any) -> Any:
    """Examples by number.

    Args:
        data: A nest of arrays [N, ...].
        index: i32[B], each from 0 up to N: XLA does not check the bounds.

    Returns:
        A nest of arrays [B, ...].
    """
    return jax.tree.map(lambda a: a.at[index].get(mode="promise_in_bounds"), data)


def slice_examples(data: Any, start: Any, size: int) -> Any:
    """Examples that lie side by side.

    Args:
        data: A nest of arrays [N, ...].
        start: i32[], number of the first example.
        size: B.

    Returns:
        A nest of arrays [B, ...].
    """
    return jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, start, size), data)


def shapes(state: State, n_slots: int | None = None) -> list[Arrays]:
    """The state's shapes; with a leading S where trials are stacked."""
    lead = () if n_slots is None else (n_slots,)
    return [
        [jax.ShapeDtypeStruct((*lead, *a.shape), a.dtype) for a in part] for part in state.lists()
    ]


def lifted_shapes(role: StepTemplate, n_slots: int | None = None) -> Arrays:
    """Shapes of the lifted constants."""
    lead = () if n_slots is None else (n_slots,)
    constants = [role.full.canonical.constants[i].value for i in role.lifted]
    return [jax.ShapeDtypeStruct((*lead, *value.shape), value.dtype) for value in constants]


def data_shapes(data: ArrayData | BatchedDataset, n: int | None = None) -> Any:
    """Shapes of a data set on the device, or of n examples of it."""
    return data.batch_shapes(data.n if n is None else n)


def index_shape(*shape: int) -> Any:
    """Shape of example numbers."""
    return jax.ShapeDtypeStruct(shape, np.int32)


def gains_from_stacking(closed: Any) -> bool:
    """Whether many trials in one step are faster than one after another, on a CPU."""
    loops = any(eqn.primitive.name in ("scan", "while") for eqn in _equations(closed.jaxpr))
    return not loops and _flops(closed) < _BUSY


def is_short(closed: Any, steps: float, n_slots: int) -> bool:
    """Whether so many steps of a pack are a short run, on a CPU."""
    return steps < _FEW and steps * n_slots * _flops(closed) < _LITTLE


def _flops(closed: Any) -> float:
    """Floating-point operations in a step's matrix products, those in loops left out."""
    equations = _equations(closed.jaxpr)
    return sum(product_flops(eqn) for eqn in equations if eqn.primitive.name == "dot_general")


def product_flops(eqn: Any) -> float:
    """Two operations for each product summed into each result."""
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = eqn.invars[0].aval.shape
    return 2.0 * math.prod(eqn.outvars[0].aval.shape) * math.prod(left[d] for d in contracted)


def _equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        if eqn.primitive.name in jax_compat.CALLS:
            yield from _equations(jax_compat.call_body(eqn.params)[0])
        elif eqn.primitive.name in jax_compat.REMAT:
            yield from _equations(eqn.params["jaxpr"])
