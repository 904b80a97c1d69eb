"""What all plans share: the work of an epoch, what a compiled plan can do, the cost of a step.

Notation, here and in the plans
    S: slots. N: examples that one slot trains on. V: examples that one slot validates on.
    B: examples per trial and step. L: number of logs.
    state: four lists of arrays (trainable, non-trainable, optimizer, metrics). Where a plan stacks
        trials, each array is [S, ...]; else it has the shape of the variable.
    lifted: the constants that differ between trials, a list of arrays; [S, ...] where a plan stacks
        trials.
    order: i32[S, N], each slot's order of the examples in this epoch; for validation i32[S, V]
        where slots validate on folds, else None.
    logs: float[S, L], the metrics after the epoch's last step, as Keras' ``fit`` reports them.
        The loss is the mean over the examples of the epoch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from paceline.data.adapters import EpochBatches
from paceline.data.arrays import ArrayData
from paceline.data.batched import BatchedDataset
from paceline.data.chunks import ChunkedArrays, ChunkedBatches, EpochData, ResidentArrays
from paceline.pack.mesh import MeshLayout
from paceline.program import jax_compat
from paceline.program.compile import CompileEffort, Executable
from paceline.program.padding.batches import MaskedStep, merger
from paceline.program.rewrites import rewrite
from paceline.program.step_template import StepTemplate
from paceline.program.trace import State, Step, weighed_shapes

Arrays = list[Any]

#: Names of JAX's operations that run a function several times.
_LOOPS = ("scan", "while")
# Stacking hides the cost of starting many tiny operations. A step that spends its time in matrix
# products has nothing to hide. The loop of a recurrent layer runs best on the small matrices of one
# trial (docs/decisions/0003). The limits below are rules of thumb, measured on CPUs. Above this
# number of floating-point operations in matrix products, a trial's step trains alone.
_BUSY = 10e6
#: Steps of a search below which programs are compiled for a short run: 5 to 20 s of small
#: operations.
_FEW = 5000
#: The same where one trial's large matrix products take most of a step (docs/decisions/0003).
_FEW_OF_PRODUCTS = 20_000
#: Floating-point operations in matrix products of a search below which programs are compiled for a
#: short run: 40 s of a core or less. XLA's code around large products is a twentieth slower then,
#: and its compiling takes 2 to 3 s of a core less (docs/decisions/0032).
_LITTLE = 4e12
#: Below this count of numbers updated in place, over all steps of a short run, XLA's older loops
#: are worth it. Compiling saves half a second of a core. An update costs 1 ns more, also in later
#: searches with filled caches (docs/decisions/0050).
_FEW_UPDATES = 1.5e8


@dataclass(frozen=True)
class Workload:
    """The data, batch sizes and lengths of one epoch of a pack."""

    train: ArrayData | BatchedDataset
    validation: ArrayData | None
    batch_size: int  # B, at most N
    validation_batch_size: int  # examples per validation step, at most V
    # (N, V) if each slot trains and validates on a fold of ``train``. None: every slot has all
    # examples.
    fold: tuple[int, int] | None = None
    # Larger training data are sent in chunks of at most this many bytes, but at least one batch.
    # None: all training data are on the device.
    chunk_bytes: float | None = None
    steps_per_epoch: int | None = None  # batches of an epoch; None: all batches of the data
    by_batch: bool = False  # whether the logs of each batch are asked for
    # float[classes]; None: all classes weigh the same. Arrays have no truth value when compared.
    class_weight: np.ndarray | None = field(default=None, compare=False)

    @property
    def batch(self) -> Any:
        """Shapes and dtypes of a training batch as a step sees it, weights of classes included."""
        return weighed_shapes(self.train.batch_shapes(self.batch_size), self.class_weight)

    @property
    def epochs(self) -> EpochBatches:
        """Which batches of which pass over the data an epoch has."""
        if isinstance(self.train, BatchedDataset):
            return self.train.epochs
        return EpochBatches(-(-self.n_train // self.batch_size), self.steps_per_epoch)

    @property
    def chunk(self) -> int | None:
        """C: examples of a chunk, a multiple of B; None: all data lie on the device."""
        if self.chunk_bytes is None:
            return None
        batches = int(self.chunk_bytes * self.train.n / self.train.nbytes) // self.batch_size
        size = self.batch_size * max(1, batches)
        if isinstance(self.train, BatchedDataset):  # never on the device as a whole
            return min(size, self.batch_size * self.epochs.of(0)[2])
        return size if size < self.train.n else None

    @property
    def resident(self) -> int:
        """Training examples that a program is given at a time."""
        return self.chunk or self.train.n

    @property
    def resident_bytes(self) -> float:
        """Bytes of the training data on the device: of all of them, or of two chunks."""
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
        """Examples of the smaller batch at the end of the validation data; 0: there is none."""
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

        ``arrays``: the training data on the device, a nest of arrays [examples, ...]; not used
        where the data are sent in chunks. ``sharding``: devices that chunks go to; None: the
        default one.
        """
        if self.chunk is None:
            return ResidentArrays(arrays, self.n_train, self.batch_size, self.epochs)
        if isinstance(self.train, BatchedDataset):
            return ChunkedBatches(self.train, self.chunk, sharding)
        return ChunkedArrays(
            self.train, self.chunk, self.batch_size, self.n_train, self.epochs, sharding
        )


@dataclass(frozen=True)
class SizedStep:
    """A step on one batch size, with the constants that differ as inputs."""

    # ``function(*lifted, *state, *batch) -> [logs, *state]``; where ``small`` is not 0,
    # ``function(n, lifted, *state, *batch)``, n being how many examples of the batch count.
    function: Any
    positions: tuple[int, ...]  # where its constants stand in the ``lifted`` of the full batch
    size: int  # B, or the examples of the smaller batch
    # The examples of the smaller batch, where the step on B examples takes it too. Which examples
    # stand in the rows beyond the smaller batch does not matter.
    small: int = 0

    def run(
        self, lifted: Arrays, parts: Sequence[Arrays], batch: Any, n: Any = None
    ) -> tuple[list[Arrays], Any]:
        """One step of one trial: the new lists, and logs, float[L].

        The lists have exactly the dtypes of the old ones, so that a loop can carry them.

        Args:
            lifted: The trial's constants.
            parts: Lists of the state that the step takes.
            batch: A nest of arrays [size, ...].
            n: i32[], how many of the examples count: ``size`` or ``small``; None: all.
        """
        flat = [leaf for part in parts for leaf in part]
        constants = [lifted[position] for position in self.positions]
        rest = [*flat, *jax.tree.leaves(batch)]
        if self.small:
            logs, *new = self.function(np.int32(self.size) if n is None else n, constants, *rest)
        else:
            logs, *new = self.function(*constants, *rest)
        new = [lax.convert_element_type(b, a.dtype) for a, b in zip(flat, new, strict=True)]
        out, at = [], 0
        for part in parts:
            out.append(new[at : at + len(part)])
            at += len(part)
        return out, logs


#: A program, and the step on the batch size that it takes.
SizedProgram = tuple[Future[Executable], SizedStep]


class CompiledPlan(ABC):
    """The compiled programs of a group: train and validate S trials for an epoch.

    Args:
        roles: The group's steps: for training and, with validation data, for validation.
        state: Shapes of one trial's variables.
        work: What an epoch goes over.
        n_slots: S.
        effort: How well to compile.
        before: An earlier compile for as many slots; programs whose constants are the same are
            taken from it.
        layout: Devices that the slots are spread over; None: the default device.
    """

    plan: ClassVar[str]  # "vectorized", "looped" or "sequential"

    def __init__(
        self,
        roles: Sequence[StepTemplate],
        state: State,
        work: Workload,
        n_slots: int = 1,
        effort: CompileEffort = CompileEffort.WELL,
        before: CompiledPlan | None = None,
        layout: MeshLayout | None = None,
    ) -> None:
        self.n_slots, self.effort, self.layout = n_slots, effort, layout
        # Numbers of the constants that are inputs, of each step.
        self.lifted = [role.lifted for role in roles]
        self._roles, self._work = roles, work
        self._programs: list[list[SizedProgram]] = []  # of each step
        for i, role in enumerate(roles):
            if before is not None and before.lifted[i] == self.lifted[i]:
                self._programs.append(before._programs[i])
                continue
            size, rest = work.batch_size, work.rest
            if i:
                size, rest = work.validation_batch_size, work.validation_rest
            # One device only: a batch that is split over devices has a size of its own on each.
            merge = effort > CompileEffort.WELL and layout is None
            steps = step_sizes(role, size, rest, merge=merge)
            compile_role = self._compile_validation if i else self._compile_training
            self._programs.append(compile_role(role, steps, state))

    @abstractmethod
    def _compile_training(
        self, role: StepTemplate, steps: list[SizedStep], state: State
    ) -> list[SizedProgram]:
        """Starts to compile the training step on batches of these sizes."""

    @abstractmethod
    def _compile_validation(
        self, role: StepTemplate, steps: list[SizedStep], state: State
    ) -> list[SizedProgram]:
        """The same for the validation step."""

    def roles(self) -> list[list[Executable]]:
        """The programs for training and those for validation; waits until they are compiled."""
        return [[future.result() for future, _ in role] for role in self._programs]

    def ready(self) -> bool:
        """Whether everything is compiled."""
        return all(future.done() for role in self._programs for future, _ in role)

    @abstractmethod
    def place(self, states: Sequence[State]) -> list[Arrays]:
        """The four lists of device arrays for the variables of S trials, one state per slot."""

    @abstractmethod
    def lay(self, rows: Sequence[Sequence[np.ndarray]]) -> Arrays:
        """Arrays of the lifted constants, as the programs take them.

        ``rows``: for each slot, the values of its constants in the order of ``lifted``.
        """

    @abstractmethod
    def put(self, state: Sequence[Arrays], new: Mapping[int, State]) -> list[Arrays]:
        """The state with other variables (``new``) in some slots; its memory may be donated."""

    @abstractmethod
    def row(self, part: Arrays, slot: int) -> list[np.ndarray]:
        """Copies of one slot's arrays on the host, with the shapes of the variables."""

    @abstractmethod
    def fetch(self, state: Sequence[Arrays]) -> list[list[np.ndarray]]:
        """Copies of all slots' arrays on the host: lists of arrays [S, ...], under every plan."""

    @abstractmethod
    def train(
        self,
        state: Sequence[Arrays],
        lifted: Arrays,
        data: EpochData,
        order: np.ndarray,
        *,
        steps: int | None = None,
    ) -> tuple[list[Arrays], Any]:
        """Trains one epoch, or a part of one: the four lists after it, and logs.

        Args:
            state: The four lists; the memory of all but the metrics may be donated.
            lifted: The lifted constants of the train step.
            data: The training data.
            order: i32[S, examples (or batches) of the epoch], from ``data.order``.
            steps: Only this many full steps, of resident data; to time them.
        """

    @abstractmethod
    def validate(
        self, state: Sequence[Arrays], lifted: Arrays, data: Any, order: np.ndarray | None = None
    ) -> tuple[Arrays, Any]:
        """Goes over all validation batches: the new non-trainable variables, and logs.

        Recurrent layers draw seeds of dropout in their non-trainable variables.

        Args:
            state: The four lists.
            lifted: The lifted constants of the test step.
            data: The validation data on the device, a nest of arrays [examples, ...].
            order: i32[S, V], the examples of each slot's fold; None: all slots validate on all.
        """


def step_sizes(role: StepTemplate, size: int, rest: int, *, merge: bool = False) -> list[SizedStep]:
    """The step on the full batch and, if there is a smaller batch, the step on that.

    ``size``: B. ``rest``: examples of the smaller batch. ``merge``: return one step that takes
    both, where it is proved that one step can.
    """
    every = tuple(range(len(role.lifted)))
    if role.tail is None:
        return [SizedStep(_lazily(role.full, role.lifted), every, size)]
    make = merger(role.full, role.tail, role.lifted) if merge else None
    if make is not None:
        return [SizedStep(_merged(role, size, make), every, size, rest)]
    indices = role.tail_lifted
    positions = tuple(role.lifted.index(i) for i in indices)
    return [
        SizedStep(_lazily(role.full, role.lifted), every, size),
        SizedStep(_lazily(role.tail, indices), positions, rest),
    ]


def _lazily(step: Step, indices: tuple[int, ...]) -> Callable[..., list[Any]]:
    """The lifted step, made when it is first traced: a program found on disk never needs it."""
    made: list[Callable[..., list[Any]]] = []

    def run(*args: Any) -> list[Any]:
        if not made:
            lifted = step.lift(indices)
            made.append(jax_compat.jaxpr_as_fun(rewrite(lifted, jax.default_backend())))
        return made[0](*args)

    return run


def _merged(
    role: StepTemplate, size: int, make: Callable[[], MaskedStep]
) -> Callable[..., list[Any]]:
    """The step on batches of both sizes, made when it is first traced."""
    made: list[tuple[MaskedStep, Callable[..., list[Any]]]] = []
    assert role.tail is not None
    small = role.tail.canonical.constants
    shared = set(role.tail_lifted)

    def run(n: Any, lifted: Arrays, *rest: Any) -> list[Any]:
        if not made:
            step = make()
            whole = jax_compat.jaxpr_as_fun(rewrite(step.closed, jax.default_backend()))
            made.append((step, whole))
        step, function = made[0]
        n = lax.convert_element_type(n, np.int32)  # under x64, a loop counts in 64 bits
        full = n == size
        # An input that the smaller batch does not share has a value of its own there.
        constants = [
            value if i in shared else jnp.where(full, value, small[i].value)
            for i, value in zip(role.lifted, lifted, strict=True)
        ]
        choices = [jnp.where(full, *pair) for pair in zip(step.full, step.small, strict=True)]
        return function(n, *choices, *constants, *rest)

    return run


def gather_examples(data: Any, index: Any) -> Any:
    """Examples by number: a nest of arrays [B, ...] from one of [N, ...].

    ``index``: i32[B], each from 0 up to N: XLA does not check the bounds.
    """
    return jax.tree.map(lambda a: a.at[index].get(mode="promise_in_bounds"), data)


def slice_examples(data: Any, start: Any, size: int) -> Any:
    """Examples that lie side by side: a nest of arrays [B, ...] from one of [N, ...].

    ``start``: i32[], number of the first example. ``size``: B.
    """
    return jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, start, size), data)


def shapes(state: State, n_slots: int | None = None) -> list[Arrays]:
    """Shapes and dtypes of a state, from one trial's; ``n_slots``, S, becomes the first axis."""
    lead = () if n_slots is None else (n_slots,)
    return [
        [jax.ShapeDtypeStruct((*lead, *a.shape), a.dtype) for a in part] for part in state.lists()
    ]


def validated(state: Sequence[Any], test: StepTemplate) -> list[Any]:
    """The variables that a validation step takes and does not change, of the four lists."""
    return [*state[0], *state[2]] if test.full.reads_optimizer else list(state[0])


def lifted_shapes(role: StepTemplate, n_slots: int | None = None) -> Arrays:
    """Shapes and dtypes of the lifted constants of a step; [n_slots, ...] unless it is None."""
    lead = () if n_slots is None else (n_slots,)
    constants = [role.full.canonical.constants[i].value for i in role.lifted]
    return [jax.ShapeDtypeStruct((*lead, *value.shape), value.dtype) for value in constants]


def index_shape(*shape: int) -> Any:
    """Shape and dtype of an array of example numbers, i32."""
    return jax.ShapeDtypeStruct(shape, np.int32)


def gains_from_stacking(closed: Any) -> bool:
    """Whether many trials in one step are faster than one after another, on a CPU.

    ``closed``: the closed jaxpr of one trial's step.
    """
    return not has_loops(closed) and step_flops(closed) < _BUSY


def effort_for(closed: Any, steps: float, n_slots: int, n_numbers: int) -> CompileEffort:
    """How well to compile the step of a pack, on a CPU.

    Args:
        closed: The closed jaxpr of one trial's step.
        steps: Steps that the pack is to train.
        n_slots: S.
        n_numbers: Numbers in one trial's variables, those of the optimizer too.
    """
    flops = step_flops(closed)
    in_products = (
        n_slots == 1 and flops >= _BUSY and not _has(closed, "conv_general_dilated", *_LOOPS)
    )
    few = _FEW_OF_PRODUCTS if in_products else _FEW
    if steps >= few or steps * n_slots * flops >= _LITTLE:
        return CompileEffort.WELL
    updates = steps * n_slots * n_numbers
    return CompileEffort.MOST_QUICKLY if updates < _FEW_UPDATES else CompileEffort.QUICKLY


def has_loops(closed: Any) -> bool:
    """Whether a step has loops, such as those of recurrent layers."""
    return _has(closed, *_LOOPS)


def _has(closed: Any, *names: str) -> bool:
    """Whether a step has an operation of one of these names, those in loops left out."""
    return any(eqn.primitive.name in names for eqn in _equations(closed.jaxpr))


def step_flops(closed: Any) -> float:
    """Floating-point operations in a step's matrix products, those in loops left out."""
    equations = _equations(closed.jaxpr)
    return sum(product_flops(eqn) for eqn in equations if eqn.primitive.name == "dot_general")


def product_flops(eqn: Any) -> float:
    """Floating-point operations of a ``dot_general``: a product and a sum for each term."""
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = eqn.invars[0].aval.shape
    return 2.0 * math.prod(eqn.outvars[0].aval.shape) * math.prod(left[d] for d in contracted)


def _equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr and of the functions that it calls, without those in loops."""
    for eqn in jaxpr.eqns:
        yield eqn
        if eqn.primitive.name in jax_compat.CALLS:
            yield from _equations(jax_compat.call_body(eqn.params)[0])
        elif eqn.primitive.name in jax_compat.REMAT:
            yield from _equations(eqn.params["jaxpr"])


def count_flops(jaxpr: Any) -> tuple[float, bool]:
    """Floating-point operations of a jaxpr's matrix products and convolutions; whether it loops.

    A ``scan`` counts as often as it runs. A ``while`` loop, whose number of passes is unknown,
    counts once. Of the branches of a ``cond`` the longest counts.
    """
    flops, loops = 0.0, False
    for eqn in _equations(jaxpr):
        name = eqn.primitive.name
        if name == "dot_general":
            flops += product_flops(eqn)
        elif name == "conv_general_dilated":
            flops += _convolution_flops(eqn)
        elif name == "scan":
            inner, _ = count_flops(eqn.params["jaxpr"].jaxpr)
            flops, loops = flops + inner * eqn.params["length"], True
        elif name == "while":
            # A while loop does not say how often it runs: its body is counted once.
            inner, _ = count_flops(eqn.params["body_jaxpr"].jaxpr)
            flops, loops = flops + inner, True
        elif name == "cond":
            branches = [count_flops(branch.jaxpr) for branch in eqn.params["branches"]]
            flops += max(inner for inner, _ in branches)
            loops = loops or any(has for _, has in branches)
    return flops, loops


def _convolution_flops(eqn: Any) -> float:
    """Two operations, a product and a sum, for each weight and result; padding counts as data."""
    kernel = eqn.invars[1].aval.shape
    numbers = eqn.params["dimension_numbers"]
    inputs = kernel[numbers.rhs_spec[1]]  # of a group
    window = math.prod(kernel[axis] for axis in numbers.rhs_spec[2:])
    spread = math.prod(
        eqn.params["lhs_dilation"]
    )  # zeros in the input, which XLA does not multiply
    return 2.0 * math.prod(eqn.outvars[0].aval.shape) * inputs * window / spread
