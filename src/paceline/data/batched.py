"""A data set that comes in batches: the sizes of its batches, its length, its epochs.

A pack is compiled for fixed shapes, and hands each batch to all of its slots. So the data set is
read once before training, to learn what batches it has (``adapters.py`` knows the kinds).

Notation
    B: examples of a full batch. R: examples of the smaller batch that ends a pass; 0: all batches
    are full. Pass: one reading of the whole data set. Epoch: a pass, or ``steps_per_epoch``
    batches.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import keras
import numpy as np

from paceline.data.adapters import (
    EpochBatches,
    RecordingIterator,
    as_generator,
    batches_of,
    changes,
    copied,
    epoch_calls,
    family,
    is_read_once,
    is_wrapped,
    length_of,
    of_one_size,
)
from paceline.data.arrays import (
    ArrayData,
    NotArrays,
    Wide,
    device_dtype,
    ends_of,
    find_wide,
    step_form,
)
from paceline.data.wide_integers import as_floats, widest
from paceline.errors import DataError, UsageError

#: Bytes of a generator's batches that are held while its first epoch is inspected.
_PEEKED = 2**26
#: Sizes of batches that a pack can serve: the full one and a smaller one.
_SIZES = 2


@dataclass(eq=False)
class BatchedDataset:
    """A data set that comes in batches, after ``inspect_dataset`` has read it once."""

    kind: str  # name of its class, for messages
    batch_size: int  # B
    rest: int  # R
    shapes: Any  # and dtypes of a full batch, a nest of [B, ...], as a step sees it
    epochs: EpochBatches  # batches of a pass and of an epoch
    shuffles: bool  # whether ``fit`` draws the order of the batches (a PyDataset that ends)
    sample: ArrayData  # the first batch
    # Two examples with the smallest and the largest targets met, for checks; None if batches are
    # not ``(x, y)``.
    labels: ArrayData | None
    _open: Callable[[Any], Iterator[Any]]
    _x: Any  # the data set that is read
    _given: Any  # the same as before the first epoch
    _own: Iterator[Any] | None = field(default=None)  # the one pass of data that are read once
    wrapped: bool = True  # as ``ArrayData.wrapped``
    _ends: list[np.ndarray] = field(default_factory=list)  # of each array of x
    counted: bool = False  # whether only the first reading told how many batches a pass has

    @property
    def wide(self) -> Mapping[int, Wide]:
        """As ``ArrayData.wide``."""
        return self.sample.wide

    def as_sent(self, batch: Any, number: int) -> Any:
        """A batch that was read as the device is given it."""
        return as_floats(batch, self.wide, f"x: batch {number} of the {self.kind}")

    @property
    def n(self) -> int:
        """Examples of the longest epoch."""
        n_batches = self.epochs.of(0)[2]
        small = self.rest > 0 and n_batches == self.epochs.n_batches
        return n_batches * self.batch_size - small * (self.batch_size - self.rest)

    @property
    def nbytes(self) -> int:
        """Bytes of the longest epoch on the device."""
        each = sum(
            math.prod(leaf.shape[1:]) * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.shapes)
        )
        return self.n * each

    def ends(self, leaf: int) -> np.ndarray:
        """As ``ArrayData.ends``, of the arrays of x in the batches that were read."""
        return self._ends[leaf]

    def batch_shapes(self, size: int) -> Any:
        """Shapes and dtypes of a batch, as ``ArrayData.batch_shapes``."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), self.shapes
        )

    def step_shapes(self, size: int) -> Any:
        """As ``batch_shapes``, in the form in which ``fit`` hands the batch to a step."""
        return step_form(self.batch_shapes(size), wrapped=self.wrapped)

    def digest(self) -> str:
        """16 hexadecimal digits that tell these data from others by shapes and sizes.

        The values take no part: a data set may draw them at random.
        """
        # The digest is kept in studies: this text must not change with the names in the code.
        epochs, once = self.epochs, self.epochs.once
        cut = f"Cut(n_batches={epochs.n_batches!r}, steps={epochs.steps!r}, once={once!r})"
        text = f"{self.shapes}{self.batch_size} {self.rest} {cut}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def read(self) -> Iterator[Any]:
        """A new pass of batches, nests of NumPy arrays [B or R, ...]; of a generator, the rest."""
        if not self.epochs.once:
            return self._open(self._x)
        if self._own is None:
            self._own = self._open(self._x)
        return self._own

    def anew(self) -> BatchedDataset:
        """The data as before the first epoch, whatever has changed them since."""
        own = copied(self._given)
        _, end = epoch_calls(own)
        end()  # as ``fit`` does before it begins
        return replace(self, _x=own)

    def begin_epoch(self) -> None:
        """Calls a PyDataset's ``on_epoch_begin``, as ``fit`` does."""
        begin, _ = epoch_calls(self._x)
        begin()

    def end_epoch(self) -> None:
        """Calls a PyDataset's ``on_epoch_end``, as ``fit`` does."""
        _, end = epoch_calls(self._x)
        end()


def inspect_dataset(
    x: Any,
    steps: int | None,
    class_weight: Mapping[int, float] | None = None,
    *,
    allow_nan: bool = False,
) -> BatchedDataset:
    """Reads a data set for the first time, and learns what batches it has.

    A data set that ends is read to its end, an endless one for two epochs. A generator is read for
    one epoch, whose batches are held, since they cannot be read again. ``steps`` is
    ``steps_per_epoch``, ``class_weight`` class -> weight.

    Raises NotArrays where packs cannot read the data set, with the reason; else UsageError and
    DataError.
    """
    kind, once, length = type(x).__name__, is_read_once(x), length_of(x)
    endless = once or length == math.inf
    if endless and steps is None:
        more = ", because Keras keeps reading a generator from epoch to epoch" if once else ""
        raise UsageError(
            f"steps_per_epoch is missing: x is a {kind} without a known end{more}. Pass the "
            "number of batches of an epoch."
        )
    weights = None if class_weight is None else dict(class_weight)
    if weights is not None and (once or family(x) in ("torch", "grain")):
        raise UsageError(
            f"class_weight: Keras takes none for a {kind}. Make x yield (x, y, sample_weight)."
        )

    def opened(x: Any) -> Iterator[Any]:
        return batches_of(x, kind, weights, "x")

    stats = _BatchStats(kind, "x", allow_nan)
    given = x
    x = RecordingIterator(x) if once else copied(x)
    held: list[Any] = []
    begin, end = epoch_calls(x)
    batches = opened(x)
    limit = None if not endless else (steps + 1 if once else 2 * steps + 1) if steps else None
    if endless and not once and of_one_size(x):
        limit = 1
    try:
        begin()
        for batch in itertools.islice(batches, limit):
            stats.add(batch)
            if once:
                held.append(batch)
                if len(held) * stats.bytes > _PEEKED:
                    break
        full, rest = stats.sizes() if stats.n_batches else (0, 0)
        end()
    except NotArrays as reason:
        if isinstance(x, RecordingIterator):
            reason.unread = as_generator(itertools.chain(x.items, given))
        raise
    except (DataError, ValueError) as error:
        if "read-only" not in str(error):
            raise
        raise DataError(
            f"x: the {kind} changes a large array in place, which packs of trials share: {error}. "
            "Let it create a new array, or change an order of the examples."
        ) from error
    if isinstance(x, RecordingIterator):
        x.items, x.keeps = [], False
    if not stats.n_batches:
        raise DataError(f"x: the {kind} contains no batches.")
    if once and stats.n_batches < (steps or 0) and len(held) * stats.bytes <= _PEEKED:
        raise DataError(
            f"x: the {kind} ended after {stats.n_batches} batches, but steps_per_epoch is "
            f"{steps}. Make it yield more batches, or pass fewer steps."
        )
    return BatchedDataset(
        kind=kind,
        batch_size=full,
        rest=rest,
        shapes=stats.sample().batch_shapes(full),
        epochs=EpochBatches(None if endless else stats.n_batches, steps, once, changes(x)),
        shuffles=isinstance(x, keras.utils.PyDataset) and not endless and stats.regular,
        sample=stats.sample(),
        wrapped=is_wrapped(x),
        counted=length is None,
        labels=stats.labels(),
        _ends=stats.ends,
        _open=(lambda _: itertools.chain(held, batches)) if once else opened,
        _x=x,
        _given=given,
    )


def read_all(x: Any, steps: int | None, *, allow_nan: bool, what: str) -> tuple[ArrayData, int]:
    """Reads validation data once: all of them as arrays, and B.

    ``steps`` is ``validation_steps``; None: to the end. ``what`` is the argument's name in
    messages. Raises NotArrays where a batch is unlike the others, or a smaller one is not the last;
    else UsageError and DataError.
    """
    kind = type(x).__name__
    if (is_read_once(x) or length_of(x) == math.inf) and steps is None:
        raise UsageError(
            f"validation_steps is missing: {what} is a {kind} without a known end. Pass the "
            "number of batches to validate on."
        )
    stats = _BatchStats(kind, what, allow_nan)
    begin, end = epoch_calls(x)
    begin()
    found = []
    for batch in itertools.islice(batches_of(x, kind, None, what), steps):
        stats.add(batch)
        found.append(batch)
    end()
    if not found:
        raise DataError(f"{what}: the {kind} contains no batches.")
    full, _ = stats.sizes()
    if not stats.regular:
        raise NotArrays(f"{what} has a smaller batch among others")
    inputs = jax.tree.map(lambda *parts: np.concatenate(parts), *found)
    return ArrayData(inputs, size_of(inputs), is_wrapped(x), stats.wide), full


class _BatchStats:
    """What the batches that were read have in common."""

    def __init__(self, kind: str, what: str, allow_nan: bool) -> None:
        self._kind, self._what, self._allow_nan = kind, what, allow_nan
        self._first: Any = None
        self._counts: dict[int, int] = {}
        self._last = 0
        self._labels: tuple[Any, Any] | None = None
        self.wide: dict[int, Wide] = {}
        self.ends: list[np.ndarray] = []  # of each array of x
        self.n_batches = self.bytes = 0

    def add(self, batch: Any) -> None:
        self.n_batches += 1
        if self._first is None:
            self._first = batch
            self.bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(batch))
        else:
            why = difference(self._first, batch)
            if why is not None:
                raise NotArrays(f"batch {self.n_batches} of {self._what} {why}")
        self.wide = widest(self.wide, find_wide(batch))
        # No Embedding looks up images and videos: of these one example will do.
        both = [ends_of(a if a.ndim < 4 else a[:1]) for a in jax.tree.leaves(batch[0])]
        pairs = zip(self.ends, both, strict=False)
        self.ends = [ends_of(np.concatenate(pair)) for pair in pairs] or both
        self._last = size_of(batch)
        self._counts[self._last] = self._counts.get(self._last, 0) + 1
        if not self._allow_nan:
            for leaf in jax.tree.leaves(batch):
                if jax.numpy.issubdtype(leaf.dtype, np.floating) and not np.isfinite(leaf).all():
                    raise DataError(
                        f"{self._what}: batch {self.n_batches} of the {self._kind} holds NaN or "
                        "infinity. Clean the data, or pass allow_nan=True if the model masks them."
                    )
        if len(batch) > 1:
            counted = _weighed(batch)
            if counted is None:
                return
            low = jax.tree.map(lambda a: a.min(axis=0), counted)
            high = jax.tree.map(lambda a: a.max(axis=0), counted)
            if self._labels is not None:
                low = jax.tree.map(np.minimum, low, self._labels[0])
                high = jax.tree.map(np.maximum, high, self._labels[1])
            self._labels = low, high

    def sizes(self) -> tuple[int, int]:
        """B and R."""
        if len(self._counts) > _SIZES:
            raise NotArrays(f"{self._what} has batches of {len(self._counts)} sizes")
        full = max(self._counts)
        return full, min(self._counts) if len(self._counts) > 1 else 0

    @property
    def regular(self) -> bool:
        """Whether no batch but the last is smaller."""
        _, rest = self.sizes()
        return not rest or (self._counts[rest] == 1 and self._last == rest)

    def sample(self) -> ArrayData:
        return ArrayData(self._first, size_of(self._first), wide=self.wide)

    def labels(self) -> ArrayData | None:
        if self._labels is None:
            return None
        both = jax.tree.map(lambda *ends: np.stack(ends), *self._labels)
        return ArrayData((jax.tree.map(lambda a: a[:1], self._first[0]), both), 2)


def _weighed(batch: Any) -> Any | None:
    """The labels of a batch that a weight counts; None: there are none, or it cannot be told."""
    y = batch[1]
    if len(batch) > 2:
        weights = batch[2]
        if not isinstance(y, np.ndarray) or not isinstance(weights, np.ndarray):
            return None
        if weights.shape == y.shape[: weights.ndim]:
            y = y[weights != 0]
    return y if size_of(y) else None


def size_of(batch: Any) -> int:
    """Number of examples of a batch, a nest of arrays [examples, ...]."""
    return jax.tree.leaves(batch)[0].shape[0]


def difference(first: Any, batch: Any) -> str | None:
    """Text that says how a batch differs from the first one, its size apart; None: it does not."""
    if jax.tree.structure(first) != jax.tree.structure(batch):
        return "has another structure than the first"
    ours, theirs = jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(batch)
    for (path, a), b in zip(ours, theirs, strict=True):
        if a.shape[1:] != b.shape[1:] or device_dtype(a) != device_dtype(b):
            where = ("x", "y", "sample_weight")[path[0].idx] + jax.tree_util.keystr(path[1:])
            return (
                f"has {where} of shape {b.shape} and type {b.dtype}, but the first batch has "
                f"{a.shape} and {a.dtype}"
            )
    return None


def as_fit_reads(x: Any, dataset: BatchedDataset) -> Any:
    """The data for ``fit``: of a generator, one that yields the batches again that were read."""
    return as_generator(dataset.read()) if is_read_once(x) else x
