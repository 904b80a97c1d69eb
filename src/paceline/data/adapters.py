"""Batches of every kind of data set: tf.data, PyDataset, DataLoader, Grain, generators.

Keras' ``fit`` reads these through adapters of its own; here they are read by the public ways of
each kind. Their packages are not imported for that: the module of its class tells the kind.
"""

from __future__ import annotations

import copy
import itertools
import math
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import keras
import numpy as np

from paceline.data.arrays import (
    NotArrays,
    beyond,
    class_weights,
    device_dtype,
    holds_numbers,
    native_dtype,
)
from paceline.data.refusals import (
    is_text,
    refuse_masked,
    refuse_values,
    trains_text,
)
from paceline.errors import DataError

#: Bytes from which on an array is shared by copies of the data set that holds it.
_LARGE = 2**26
#: What ``fit`` calls at the beginning and at the end of an epoch.
_EPOCH_CALLS = ("on_epoch_begin", "on_epoch_end")


@dataclass(frozen=True)
class EpochBatches:
    """Which batches of which pass an epoch has: as with ``fit``, never batches of two passes."""

    n_batches: int | None  # of a pass; None: a pass never ends
    steps: int | None = None  # ``steps_per_epoch``; None: an epoch is a pass
    once: bool = False  # whether the data can be read once only (a generator)
    changes: bool = False  # whether the data may change from epoch to epoch

    @property
    def period(self) -> int | None:
        """Epochs of a pass; None: no epoch has the batches of an earlier one."""
        if self.once or self.steps is None:
            return 1
        return None if self.n_batches is None else math.ceil(self.n_batches / self.steps)

    def of(self, epoch: int) -> tuple[int, int, int]:
        """The pass of an epoch and its first batch in that pass, and its number of batches.

        Epochs, passes and batches are counted from 0.
        """
        if self.steps is None:
            assert self.n_batches is not None
            return epoch, 0, self.n_batches
        if self.period is None or self.once:
            return 0, epoch * self.steps, self.steps
        assert self.n_batches is not None
        number, at = divmod(epoch, self.period)
        first = at * self.steps
        return number, first, min(self.steps, self.n_batches - first)

    def meet(self, epoch: int, other: int) -> bool:
        """Whether two trials that have trained this many epochs read the same batches next."""
        if self.period is None or self.changes:
            return epoch == other
        return (epoch - other) % self.period == 0


class DistantDataset(ABC):
    """A data set of ``family`` that is in another process, whose batches it hands over."""

    family: str  # as ``family`` of the data set itself, and so are the next three
    length: float | None
    of_one_size: bool
    wrapped: bool

    @abstractmethod
    def read(self) -> Iterator[Any]:
        """A new pass of batches, nests of arrays."""


def is_data_set(x: Any) -> bool:
    """Whether x is a data set of one of the kinds that this module reads."""
    return isinstance(x, (keras.utils.PyDataset, Iterator)) or family(x) is not None


def is_read_once(x: Any) -> bool:
    """Whether a data set yields each batch once, as a generator does."""
    return isinstance(x, Iterator) and not isinstance(x, keras.utils.PyDataset)


def batches_of(x: Any, kind: str, weights: Mapping[int, float] | None, what: str) -> Iterator[Any]:
    """One pass of batches, or the rest of it, as nests of NumPy arrays [examples, ...].

    They are ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``; with ``weights`` (class -> weight)
    each has sample weights, float[examples]. Arrays have the dtype that they have on the device;
    those of integers beyond 32 bits have 64. ``kind`` and ``what``, names of the data set's class
    and of the argument, are for messages.

    Raises NotArrays if a batch holds values that are not numbers. Raises DataError with the number
    of a batch that cannot be read or has no arrays of examples.
    """
    batches = passes(x)
    for number in itertools.count(1):
        try:
            batch = next(batches)
        except StopIteration:
            return
        except Exception as error:
            which = "the first batch" if number == 1 else f"batch {number}"
            raise DataError(
                f"{what}: {which} of the {kind} cannot be read: {type(error).__name__}: {error}"
            ) from error
        yield _standard(batch, kind, weights, what)


def _standard(batch: Any, kind: str, weights: Mapping[int, float] | None, what: str) -> Any:
    """A batch as ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)`` of NumPy arrays."""
    if not isinstance(batch, (tuple, list)):
        batch = (batch,)
    parts = list(batch)
    while parts and parts[-1] is None:
        parts.pop()
    if not 1 <= len(parts) <= 3 or parts[0] is None:
        raise DataError(
            f"{what}: a batch of the {kind} must be (x,), (x, y) or (x, y, sample_weight), got "
            f"{len(batch)} parts."
        )
    if any(part is None for part in parts):
        raise NotArrays(f"{what} has sample weights and no targets")
    inputs = tuple(_arrays(part, kind, what) for part in parts)
    sizes = {leaf.shape[0] for leaf in jax.tree.leaves(inputs)}
    if len(sizes) != 1:
        raise DataError(
            f"{what}: all arrays of a batch must have the same number of examples, got "
            f"{sorted(sizes)} in a batch of the {kind}."
        )
    if sizes == {0}:
        raise DataError(f"{what}: a batch of the {kind} holds no examples.")
    if weights is not None and len(inputs) == 3:
        raise DataError(
            "got both class_weight and sample weights, but Keras takes only one of them. Multiply "
            "the sample weights by the class weights."
        )
    if weights is not None:
        inputs = (*inputs, class_weights(inputs[1] if len(inputs) > 1 else None, weights))
    return inputs


def _arrays(value: Any, kind: str, what: str) -> Any:
    if isinstance(value, (list, tuple)) and any(map(_is_nest, value)):
        parts = [_arrays(part, kind, what) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, Mapping):
        return {key: _arrays(part, kind, what) for key, part in value.items()}
    for name in ("detach", "cpu"):  # a tensor of PyTorch
        value = getattr(value, name, lambda value=value: value)()
    if isinstance(value, np.ma.MaskedArray):
        refuse_masked(f"{what}: a batch of the {kind}")
    array = np.asarray(value)
    if not holds_numbers(array.dtype) and not (trains_text() and is_text(array)):
        refuse_values(array, f"a batch of the {kind}", what)
    if array.dtype.kind not in "biufV" or array.dtype.names is not None:
        raise NotArrays(f"a batch of {what} holds {array.dtype} values")
    if not array.ndim:
        raise DataError(
            f"{what}: elements of the {kind} must be batches with the examples along the first "
            "axis, got single numbers."
        )
    dtype = device_dtype(array) if beyond(array) is None else native_dtype(array)
    return np.array(array, dtype)  # a copy: the data set may fill its arrays again


def _is_nest(value: Any) -> bool:
    return isinstance(value, (list, tuple, Mapping)) or hasattr(value, "shape")


def family(x: Any) -> str | None:
    """Package of a data set, "tf", "torch" or "grain"; None: x is of none of these."""
    if isinstance(x, DistantDataset):
        return x.family
    for cls in type(x).__mro__:
        package, name = cls.__module__.partition(".")[0], cls.__name__
        if package == "tensorflow" and name == "DatasetV2":
            return "tf"
        if package == "torch" and name == "DataLoader":
            return "torch"
        if package == "grain" and name in ("MapDataset", "IterDataset", "DataLoader"):
            return "grain"
    return None


def length_of(x: Any) -> float | None:
    """Number of batches of a pass, infinity for an endless one; None: only reading tells."""
    if isinstance(x, keras.utils.PyDataset):
        length = x.num_batches
        return math.inf if length is None else length
    if isinstance(x, DistantDataset):
        return x.length
    if family(x) == "tf":
        cardinality = int(x.cardinality())
        return math.inf if cardinality == -1 else None if cardinality < 0 else cardinality
    return None


def of_one_size(x: Any) -> bool:
    """Whether all batches are known to have one size, which tf.data says in ``element_spec``."""
    if isinstance(x, DistantDataset):
        return x.of_one_size
    if family(x) != "tf":
        return False
    return all(
        spec.shape.rank and spec.shape[0] is not None for spec in jax.tree.leaves(x.element_spec)
    )


def is_wrapped(x: Any) -> bool:
    """Whether steps are given ``(x,)`` where x is all that a data set yields."""
    if isinstance(x, DistantDataset):
        return x.wrapped
    return family(x) != "tf" or isinstance(x.element_spec, (tuple, list))


def passes(x: Any) -> Iterator[Any]:
    """One pass of batches as the data set yields them; of an iterator, the rest of it."""
    if isinstance(x, DistantDataset):
        return x.read()
    if isinstance(x, keras.utils.PyDataset):
        return _py_dataset(x)
    if family(x) == "tf":
        return x.as_numpy_iterator()
    return iter(x)


def _py_dataset(x: Any) -> Iterator[Any]:
    length = x.num_batches
    numbers = itertools.count() if length is None else iter(range(length))
    if x.workers < 2 or x.use_multiprocessing:
        yield from map(x.__getitem__, numbers)
        return
    # As in ``fit``: with workers > 1 the user says that threads may read the data set.
    with ThreadPoolExecutor(x.workers) as pool:
        coming: list[Future[Any]] = []
        for number in itertools.chain(numbers, itertools.repeat(None)):
            if number is not None:
                coming.append(pool.submit(x.__getitem__, number))
            if number is None or len(coming) >= x.max_queue_size:
                if not coming:
                    return
                yield coming.pop(0).result()


def epoch_calls(x: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The functions that ``fit`` calls at the beginning and at the end of an epoch."""
    if not isinstance(x, keras.utils.PyDataset):
        return _nothing, _nothing
    begin, end = (getattr(x, name, _nothing) for name in _EPOCH_CALLS)
    return begin, end


def changes(x: Any) -> bool:
    """Whether a data set has functions of its own for the ends of epochs: it may change there."""
    usual = keras.utils.PyDataset
    return isinstance(x, usual) and any(
        name in vars(x) or getattr(type(x), name, None) is not getattr(usual, name, None)
        for name in _EPOCH_CALLS
    )


def copied(x: Any, epoch: int = 0) -> Any:
    """A copy of a PyDataset that changes at the ends of epochs; other data sets as they are.

    Large arrays are shared by all copies, and can only be read; so is what cannot be copied, such
    as an open file. ``epoch``: epochs that are over for the copy of ``x``, which is as before the
    first one.
    """
    if not changes(x):
        return x
    other = copy.copy(x)
    memo: dict[int, Any] = {id(x): other}
    for array in _large_arrays(vars(x)):
        memo[id(array)] = view = array.view()
        view.flags.writeable = False
    for name, value in vars(x).items():
        try:
            vars(other)[name] = copy.deepcopy(value, memo)
        except Exception:  # what a lock or somebody's class raises; it stays shared
            continue
    begin, end = epoch_calls(other)
    for _ in range(epoch):
        begin()
        end()
    return other


def _large_arrays(nest: Any) -> Iterator[np.ndarray]:
    if isinstance(nest, np.ndarray):
        if nest.nbytes >= _LARGE or isinstance(nest, np.memmap):
            yield nest
    elif isinstance(nest, (list, tuple, dict)):
        for part in nest.values() if isinstance(nest, dict) else nest:
            yield from _large_arrays(part)


def _nothing() -> None:
    """Stands for the calls that only a PyDataset has."""


class RecordingIterator:
    """An iterator that keeps the batches it has yielded, so that they can be read again."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self.items: list[Any] = []
        self.keeps = True  # whether it will keep batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        if self.keeps:
            self.items.append(batch)
        return batch


def as_generator(batches: Iterator[Any]) -> types.GeneratorType:
    """The batches as a generator: Keras takes generators, but no other iterators."""

    def go() -> Any:
        yield from batches

    return go()
