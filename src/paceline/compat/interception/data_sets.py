"""Data sets of intercepted fits: their examples as arrays, and the order of each epoch.

A ``tf.data.Dataset``, a ``PyDataset``, a ``DataLoader`` or a generator often yields the same
examples in each epoch, in one order or in several. Then a pack can train the fit. The arrays hold
the examples in the order of their digests, so that fits on equal examples share an executor. For
each epoch a pass is read, as ``fit`` does, and compared with the arrays: this gives its order.

If the second pass has other examples than the first, as with random augmentation, the fit trains in
Keras' own ``fit``. Validation data are read in the same way. If they always have one order, and
nothing happens between two passes, they are arrays from then on.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import keras
import numpy as np

from paceline.compat.interception.sharing.process_state import ProcessState
from paceline.data.adapters import (
    RecordingIterator,
    as_generator,
    changes,
    copied,
    epoch_calls,
    family,
    is_data_set,
    is_read_once,
    is_wrapped,
    length_of,
    passes,
)
from paceline.data.arrays import ArrayData, NotArrays
from paceline.data.batched import read_all
from paceline.errors import DataError
from paceline.program.canonical import Unpackable

#: Bytes of a data set that is read into arrays, at most.
_MOST = 1 << 30
#: The arrays of running fits, by the digest of what they hold.
_shared: weakref.WeakValueDictionary[bytes, ArrayData] = weakref.WeakValueDictionary()
#: Data sets that draw the order of each pass from a state of their own, as far as passes show it.
#: The keys are ids, because some sets have no hash, or are equal to others.
_drawing: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def draws_orders(x: Any) -> bool:
    """Whether fits that share a data set must not read it in turns, as an earlier fit has shown."""
    return is_data_set(x) and _drawing.get(id(x)) is x


class UnpackableSet(Unpackable):
    """No pack can train on a data set; ``unread``: a generator that yields again what was read."""

    unread: Any = None


class DataSetPasses:
    """The passes of one fit over its data set, x.

    ``epochs`` is the number of epochs, ``steps`` is ``steps_per_epoch``, ``shuffle`` that of
    ``fit``. ``looks``: whether ``fit`` looks at a batch first, since the model is not built.
    ``validates``: the data set is ``validation_data``, of which each pass starts over.
    """

    data: ArrayData  # the examples, in the order of their digests; from ``read`` on
    batch_size: int

    def __init__(
        self,
        x: Any,
        epochs: int,
        steps: int | None,
        *,
        shuffle: bool = False,
        looks: bool = False,
        validates: bool = False,
    ):
        self._x, self._n_steps, self._validates = x, steps, validates
        self._what = "validation_data" if validates else "x"
        self._n_read = min(epochs, 2)  # passes that show whether all have the same examples
        self._once = RecordingIterator(x) if is_read_once(x) else None
        self._ends = self._once is None and length_of(x) != math.inf
        self._endless: Iterator[Any] = iter(())  # the one pass of all epochs, if it does not end
        self._shuffles = shuffle and isinstance(x, keras.utils.PyDataset)
        self._looks = looks
        self._ahead: list[np.ndarray] = []  # orders of the next epochs
        # The order of all passes, if they are alike as far as is known, and change nothing.
        self.constant: np.ndarray | None = None
        self._begun = False

    @property
    def steps(self) -> int | None:
        """Steps of an epoch, as ``fit`` knows them at the beginning; None: only reading tells."""
        length = self._n_steps or length_of(self._x)
        return None if length is None else int(length)

    def read(self) -> None:
        """Reads the passes of the first two epochs.

        Raises NotArrays if a pack cannot train on these data, else as ``read_all``. Then ``fit``
        finds all as it was, but for what ``unread`` yields.
        """
        if (self._n_steps is None) != self._ends and not (self._validates and self._n_steps):
            name = "validation_steps" if self._validates else "steps_per_epoch"
            raise NotArrays(f"{name} is {self._n_steps}")
        # A tf.data.Dataset and a generator have no state that could be copied or put back.
        keeps = not self._ends or family(self._x) == "tf"
        x, state = self._x if keeps else copied(self._x), ProcessState.now()
        try:
            self._begin(x)
            self._take(*self._pass(x))
            self._ahead += [self._order(self._pass(x)[0]) for _ in range(1, self._n_read)]
            self._begun = keeps
            # PyTorch's loaders draw from its own generator, of which each function has a state.
            own = family(x) is not None and getattr(x, "generator", self) is not None
            alike = all((order == self._ahead[0]).all() for order in self._ahead)
            if own and not alike:
                _drawing[id(x)] = x
            if alike and self._n_read > 1 and not changes(x):
                self.constant = self._ahead[0]
        finally:
            if not keeps:  # the epochs read these passes again
                self._ahead = []
                state.restore()

    def _begin(self, x: Any) -> None:
        """Does what ``fit`` does before its first epoch."""
        if self._validates:
            return
        begin, end = epoch_calls(x)
        if self._looks and self._once is None:
            begin()
            next(self._batches(x), None)
        end()
        if not self._ends:
            self._endless = self._once or passes(x)

    def _take(self, data: ArrayData, size: int) -> None:
        """Makes the data of the first pass."""
        digests = _digests(data)
        by = np.argsort(digests, kind="stable")
        arrays = jax.tree.map(lambda array: array[by], data.inputs)
        key = hashlib.blake2b(digests[by].tobytes(), digest_size=16)
        key.update(str(jax.tree.map(lambda array: (array.shape, array.dtype), arrays)).encode())
        data = replace(data, inputs=arrays, wrapped=is_wrapped(self._x))
        self.data = _shared.setdefault(key.digest() + bytes([data.wrapped]), data)
        self.batch_size, self._ahead = size, [_inverse(by)]

    def next_order(self) -> np.ndarray:
        """The order of the examples in the next epoch, i32[N].

        Raises Unpackable, or DataError for a generator, if its examples are others.
        """
        if not self._begun:
            self._begun = True
            self._begin(self._x)
        if self._ahead:
            return self._ahead.pop(0)
        if self._once is not None:
            self._once.items = []
        try:
            return self._order(self._pass(self._x)[0])
        except NotArrays as error:
            if self._once is not None:  # what was read is lost
                raise DataError(
                    f"{self._what}: {error}, which shows after the second epoch. Pass arrays, or "
                    "pass concurrent=False"
                ) from error
            raise Unpackable(str(error)) from error

    def unread(self) -> Any:
        """A generator that yields again what was read, if x is a generator; else None."""
        if self._once is None:
            return None
        recorded, self._once.keeps = self._once, False
        return as_generator(itertools.chain(recorded.items, recorded))

    def _pass(self, x: Any) -> tuple[ArrayData, int]:
        """Reads the examples of an epoch, and the size of the batches."""
        begin, end = epoch_calls(x)
        if self._validates:  # ``evaluate`` ends an epoch before each pass, too
            end()
        begin()
        batches = self._batches(x) if self._ends or self._validates else self._endless
        batches = _limited(itertools.islice(batches, self._n_steps), self._what)
        found = read_all(batches, sys.maxsize, allow_nan=True, what=self._what)
        end()
        return found

    def _batches(self, x: Any) -> Iterator[Any]:
        if not self._shuffles:
            return passes(x)
        numbers = list(range(x.num_batches))
        random.shuffle(numbers)  # as Keras does
        return map(x.__getitem__, numbers)

    def _order(self, data: ArrayData) -> np.ndarray:
        """The order in which a pass has the examples."""
        by = np.argsort(_digests(data), kind="stable")
        if not equal(self.data.inputs, jax.tree.map(lambda array: array[by], data.inputs)):
            raise NotArrays(f"the examples of {self._what} differ from epoch to epoch")
        return _inverse(by)


def read_validation(x: Any, epochs: int, steps: int | None) -> tuple[ArrayData, DataSetPasses]:
    """Validation data that are a data set, as arrays, and the passes that were read.

    ``epochs`` is the number of passes, ``steps`` is ``validation_steps``. Raises as ``read``.
    """
    passes = DataSetPasses(x, epochs, steps, validates=True)
    passes.read()
    data, order = passes.data, passes.constant
    if order is not None:
        data = replace(data, inputs=jax.tree.map(lambda array: array[order], data.inputs))
    return data, passes


def _limited(batches: Iterator[Any], what: str) -> Iterator[Any]:
    n_bytes = 0
    for batch in batches:
        n_bytes += sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(batch))
        if n_bytes > _MOST:
            raise NotArrays(f"{what} is a data set of more than {_MOST >> 30} GiB")
        yield batch


def _digests(data: ArrayData) -> np.ndarray:
    """A number for each example, u64[N]."""
    rows = [
        np.ascontiguousarray(array).reshape(data.n, -1).view(np.uint8)
        for array in jax.tree.leaves(data.inputs)
    ]
    found = bytearray()
    for parts in zip(*rows, strict=True):
        digest = hashlib.blake2b(digest_size=8)
        for part in parts:
            digest.update(part)
        found += digest.digest()
    return np.frombuffer(bytes(found), np.uint64)


def _inverse(by: np.ndarray) -> np.ndarray:
    order = np.empty(len(by), np.int32)
    order[by] = np.arange(len(by), dtype=np.int32)
    return order


def equal(ours: Any, theirs: Any) -> bool:
    """Whether two nests of arrays hold the same, byte by byte."""
    (mine, like), (others, also) = map(jax.tree.flatten, (ours, theirs))
    kinds = [[(a.shape, a.dtype) for a in arrays] for arrays in (mine, others)]
    if like != also or kinds[0] != kinds[1]:
        return False
    return all(
        np.array_equal(a, b)
        for pair in zip(mine, others, strict=True)
        for a, b in zip(*map(_words, pair), strict=True)
    )


def _words(array: Any) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of an array, most of them as whole words, which are compared faster."""
    found = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    whole = len(found) // 8 * 8
    return found[:whole].view(np.uint64), found[whole:]
