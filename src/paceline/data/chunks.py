"""Training data larger than the device's memory: in host memory, sent in chunks.

A chunk is read once for all slots of a pack, and the next one is sent while the device trains on
this one. So a slot's examples are in random order within a chunk only; chunks come in the order of
the data.

Notation
    N: examples. C: examples of a chunk, a multiple of B, so that no full batch has parts in two;
    the last chunk is filled up with zeros that no batch holds.

A data set that comes in batches, on its way to the device: read once for all slots of a pack.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from paceline.data.arrays import ArrayData, epoch_order
from paceline.data.batched import BatchedDataset, difference, size_of
from paceline.errors import DataError


@dataclass(frozen=True)
class Chunk:
    """What a program trains on at a time.

    Attributes:
        data: C examples on the device.
        order: i32[S, C], each slot's order within the chunk. The examples of the last, smaller
            batch stand at its end.
        steps: Full batches.
        rest: Examples of the smaller batch after them; 0: there is none.
    """

    data: Any
    order: np.ndarray
    steps: int
    rest: int = 0


@dataclass(frozen=True)
class ChunkedArrays:
    """A data set that goes to the device in chunks.

    Attributes:
        source: The data.
        size: C.
        batch_size: B.
        sharding: Devices it goes to; None: the default one.
    """

    source: ArrayData
    size: int
    batch_size: int
    sharding: Any = None

    def chunks(self, order: np.ndarray) -> Iterator[Chunk]:
        """One epoch; a chunk is sent when asked for, while the device trains on the one before.

        Args:
            order: i32[S, N] from ``chunked_order``, or a part of it that examples in a row make up.
        """
        first, n = int(order[0].min()), order.shape[1]
        data = self._send(first)
        for start in range(0, n, self.size):
            own = order[:, start : start + self.size] - np.int32(first + start)
            steps, rest = divmod(own.shape[1], self.batch_size)  # a rest in the last chunk only
            yield Chunk(data, _laid(own, rest, self.size), steps, rest)
            if start + self.size < n:
                data = self._send(first + start + self.size)

    def _send(self, start: int) -> Any:
        part = self.source.slice(start, min(start + self.size, self.source.n))
        missing = self.size - part.n

        def full(array: np.ndarray) -> np.ndarray:
            if not missing:
                return array
            return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])

        return ArrayData(jax.tree.map(full, part.inputs), self.size).on_device(
            sharding=self.sharding
        )


def chunks_of(data: Any, order: np.ndarray, batch_size: int, width: int) -> Iterator[Chunk]:
    """One epoch of data on the device, in one chunk, or of data that come in several.

    Args:
        data: N examples on the device, or what has ``chunks``.
        order: i32[S, at most ``width``].
        batch_size: B.
        width: Examples of the longest epoch.
    """
    if hasattr(data, "chunks"):
        yield from data.chunks(order)
    else:
        steps, rest = divmod(order.shape[1], batch_size)
        yield Chunk(data, _laid(order, rest, width), steps, rest)


def _laid(order: np.ndarray, rest: int, width: int) -> np.ndarray:
    """An order filled up to a width that programs know, its smaller batch at the end."""
    missing = width - order.shape[1]
    if not missing:
        return order
    at = order.shape[1] - rest
    empty = np.zeros((order.shape[0], missing), np.int32)
    return np.concatenate([order[:, :at], empty, order[:, at:]], axis=1)


def chunked_order(seed: int, epoch: int, n: int, shuffle: bool, size: int | None) -> np.ndarray:
    """The order of one trial's examples in one epoch: i32[N], random within chunks.

    Args:
        seed: The trial's.
        epoch: From 0.
        n: N.
        shuffle: False: as the data are.
        size: C; None: one chunk holds all.
    """
    if size is None or not shuffle:
        return epoch_order(seed, epoch, n, shuffle)
    rng = np.random.default_rng([seed, epoch])
    starts = range(0, n, size)
    parts = [start + rng.permutation(min(size, n - start)) for start in starts]
    return np.concatenate(parts).astype(np.int32)


class ChunkedBatches:
    """Batches in chunks, the next one read while the device trains on the one before.

    All slots of a pack are at the same place of the data. Without shuffling they read the same
    batches in the same order; where Keras would draw the order of a PyDataset's batches, each slot
    has an order of its own within a chunk.

    Args:
        source: The data set.
        size: C, examples of a chunk.
        sharding: Devices it goes to; None: the default one.
    """

    def __init__(self, source: BatchedDataset, size: int, sharding: Any = None) -> None:
        self.source, self.size, self._sharding = source, size, sharding
        self._per_chunk = size // source.batch_size
        self._at = 0  # batches read of the pass, or of all where they are read once
        self._batches: Iterator[Any] = iter(())

    def order(self, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
        """The order of an epoch's batches for one trial, i32: random within chunks.

        The smaller batch stays the last.
        """
        _, _, count = self.source.cut.of(epoch)
        numbers = np.arange(count, dtype=np.int32)
        if shuffle and self.source.shuffles:
            rng = np.random.default_rng([seed, epoch])
            last = count - (1 if self.source.rest and self._whole(epoch) else 0)
            for start in range(0, last, self._per_chunk):
                rng.shuffle(numbers[start : min(start + self._per_chunk, last)])
        return numbers

    def seek(self, epoch: int) -> None:
        """Goes to where an epoch begins, reading on or from the beginning."""
        _, first, _ = self.source.cut.of(epoch)
        if self.source.cut.once:
            self._batches = self.source.read()
        elif first != self._at or first == 0:
            self._at, self._batches = 0, self.source.read()
            while self._at < first:
                self._next()

    def chunks(self, order: np.ndarray) -> Iterator[Chunk]:
        """The epoch that was sought.

        Args:
            order: i32[S, batches of the epoch], from ``order``.

        Raises:
            DataError: The data set ended early, or has a batch of another shape.
        """
        self.source.begin_epoch()
        count, done = order.shape[1], 0
        while done < count:
            batches: list[Any] = []
            while done + len(batches) < count and len(batches) < self._per_chunk:
                batches.append(self._next())
                if size_of(batches[-1]) != self.source.batch_size:
                    break
            yield self._chunk(batches, order[:, done : done + len(batches)] - np.int32(done))
            done += len(batches)
        self.source.end_epoch()

    def _whole(self, epoch: int) -> bool:
        """Whether an epoch ends with the last batch of a pass."""
        _, first, count = self.source.cut.of(epoch)
        return first + count == self.source.cut.n_batches

    def _next(self) -> Any:
        source = self.source
        try:
            batch = next(self._batches)
        except StopIteration:
            again = (
                "; let it go on for as long as trials train, or pass a keras.utils.PyDataset"
                if source.cut.once
                else f" of {source.cut.n_batches or 'endless'}: it is not what it was when it was "
                "first read"
            )
            raise DataError(
                f"x: the {source.kind} ended after {self._at} batches{again}."
            ) from None
        self._at += 1
        why = difference(source.sample.inputs, batch)
        size = size_of(batch)
        if why is None and size not in (source.batch_size, source.rest):
            sizes = f"{source.batch_size} or {source.rest}" if source.rest else source.batch_size
            why = f"has {size} examples, where those before had {sizes}"
        if why is not None:
            raise DataError(
                f"x: batch {self._at} of the {source.kind} {why}; make all batches alike, or pass "
                'executor="fit".'
            )
        return batch

    def _chunk(self, batches: list[Any], order: np.ndarray) -> Chunk:
        """One to a chunk's number of batches, the last perhaps the smaller one, as a chunk."""
        size, rest = self.source.batch_size, size_of(batches[-1]) % self.source.batch_size
        steps = len(batches) - (rest > 0)
        missing = self.size - steps * size - rest

        def joined(*parts: np.ndarray) -> np.ndarray:
            some = [np.zeros((missing, *parts[0].shape[1:]), parts[0].dtype)] if missing else []
            return np.concatenate([*parts[:steps], *some, *parts[steps:]])

        data = jax.device_put(jax.tree.map(joined, *batches), self._sharding)
        within = np.arange(size, dtype=np.int32)
        examples = np.broadcast_to(
            np.arange(self.size, dtype=np.int32), (order.shape[0], self.size)
        ).copy()
        full = order[:, :steps, None] * np.int32(size) + within
        examples[:, : steps * size] = full.reshape(order.shape[0], steps * size)
        return Chunk(data, examples, steps, rest)
