"""The data of an epoch on their way to the device: in one chunk, or in several.

``EpochData`` is what a pack trains on. It has three kinds. ``ResidentArrays`` are on the device as
a whole. ``ChunkedArrays`` are in host memory, because the device cannot hold them. A
``ChunkedBatches`` reads a data set that comes in batches. The last two send one chunk after the
other. All slots of a pack read the same chunk, and the host sends the next chunk meanwhile. So
these slots shuffle examples within a chunk only, and chunks come in the order of the data.

Notation
    S: slots. N: examples that one slot trains on. B: examples per trial and step. C: examples of a
    chunk, a multiple of B, so that no full batch is in two chunks. The last
        chunk is filled up with zeros, which belong to no batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import numpy as np

from paceline.data.adapters import EpochBatches
from paceline.data.arrays import ArrayData, epoch_order
from paceline.data.batched import BatchedDataset, difference, size_of
from paceline.errors import DataError

#: The order of one slot's examples, given from outside: pass over the data (from 0) -> i32[N].
GivenOrder = Callable[[int], np.ndarray]


@dataclass(frozen=True)
class Chunk:
    """Examples on the device, and the order in which a program trains on them."""

    data: Any  # a nest of arrays [C, ...] on the device; all N examples of resident data
    # i32[S, C], each slot's order of the examples of this chunk. The examples of the smaller batch
    # stand at the end of each row.
    order: np.ndarray
    steps: int  # full batches
    rest: int = 0  # examples of the smaller batch that follows them; 0: none follows


class EpochData(Protocol):
    """What a pack trains on, epoch by epoch.

    A pack calls ``seek`` once at the beginning of an epoch, then ``order`` for each slot, and its
    program iterates over ``chunks``.
    """

    @property
    def epochs(self) -> EpochBatches:
        """Which batches of which pass over the data an epoch has."""
        ...

    def seek(self, epoch: int) -> None:
        """Goes to the place in the data where an epoch (from 0) begins.

        As ``chunks``, it raises DataError where a data set ended early, or has a batch of another
        shape.
        """
        ...

    def order(
        self, seed: int, epoch: int, shuffle: bool | str, given: GivenOrder | None = None
    ) -> np.ndarray:
        """The order of one slot's examples in an epoch: i32[examples of the epoch].

        Where the data come in batches, the numbers are those of batches: i32[batches of the epoch].
        ``seed`` is the trial's. ``shuffle``: False: the order of the data; "batch": random within
        each batch. ``given`` decides the order of resident data in place of the seed; data that
        are sent in chunks cannot follow it, and ignore it.
        """
        ...

    def chunks(self, order: np.ndarray) -> Iterator[Chunk]:
        """The epoch that ``seek`` went to, chunk by chunk.

        ``order``: i32[S, examples (or batches) of the epoch]: the slots' orders, from ``order``.
        """
        ...


@dataclass(frozen=True)
class ResidentArrays:
    """Training data that lie on the device as a whole: an epoch is one chunk."""

    arrays: Any  # a nest of arrays [examples, ...] on the device
    n: int  # N; fewer than the examples of ``arrays`` where slots train on folds
    batch_size: int  # B
    epochs: EpochBatches

    def seek(self, epoch: int) -> None:
        """Does nothing: the device holds the examples of every epoch."""

    def order(
        self, seed: int, epoch: int, shuffle: bool | str, given: GivenOrder | None = None
    ) -> np.ndarray:
        """An epoch that is a part of a pass has its part of the order that the pass draws."""
        number, start, stop = _examples_of(self.epochs, epoch, self.batch_size, self.n)
        if given is not None:
            return given(number)[start:stop]
        if shuffle == "batch":
            return chunked_order(seed, number, self.n, True, self.batch_size)[start:stop]
        return epoch_order(seed, number, self.n, bool(shuffle))[start:stop]

    def chunks(self, order: np.ndarray) -> Iterator[Chunk]:
        """One chunk."""
        # Programs are compiled for the longest epoch, the first one; a shorter order is filled up.
        width = min(self.n, self.epochs.of(0)[2] * self.batch_size)
        steps, rest = divmod(order.shape[1], self.batch_size)
        yield Chunk(self.arrays, _fill_up(order, rest, width), steps, rest)


@dataclass(frozen=True)
class ChunkedArrays:
    """Arrays in host memory that go to the device in chunks."""

    source: ArrayData
    size: int  # C
    batch_size: int  # B
    n: int  # N
    epochs: EpochBatches
    sharding: Any = None  # the devices that a chunk goes to; None: the default one

    def seek(self, epoch: int) -> None:
        """Does nothing: the numbers of an epoch's examples say where it begins."""

    def order(
        self, seed: int, epoch: int, shuffle: bool | str, given: GivenOrder | None = None
    ) -> np.ndarray:
        """Examples are shuffled within a chunk only; ``given`` is ignored."""
        _, start, stop = _examples_of(self.epochs, epoch, self.batch_size, self.n)
        size = self.batch_size if shuffle == "batch" else self.size
        return chunked_order(seed, epoch, stop - start, bool(shuffle), size) + np.int32(start)

    def chunks(self, order: np.ndarray) -> Iterator[Chunk]:
        """One epoch; a chunk is sent when asked for, while the device trains on the one before.

        The examples of an epoch lie side by side in the data.
        """
        first, n = int(order[0].min()), order.shape[1]
        data = self._send(first)
        for start in range(0, n, self.size):
            own = order[:, start : start + self.size] - np.int32(first + start)
            steps, rest = divmod(own.shape[1], self.batch_size)  # a rest in the last chunk only
            yield Chunk(data, _fill_up(own, rest, self.size), steps, rest)
            if start + self.size < n:
                data = self._send(first + start + self.size)

    def _send(self, start: int) -> Any:
        part = self.source.slice(start, min(start + self.size, self.source.n))
        missing = self.size - part.n

        def full(array: np.ndarray) -> np.ndarray:
            if not missing:
                return array
            return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])

        whole = replace(part, inputs=jax.tree.map(full, part.inputs), n=self.size)
        return whole.on_device(sharding=self.sharding)


def _examples_of(epochs: EpochBatches, epoch: int, batch_size: int, n: int) -> tuple[int, int, int]:
    """The pass that an epoch belongs to, and the examples of it: from start up to stop, of n."""
    number, first, count = epochs.of(epoch)
    return number, first * batch_size, min(n, (first + count) * batch_size)


def _fill_up(order: np.ndarray, rest: int, width: int) -> np.ndarray:
    """An order i32[S, ...] filled up to i32[S, width], its smaller batch still at the end.

    A program is compiled for one width, and takes the smaller batch from the end.
    """
    missing = width - order.shape[1]
    if not missing:
        return order
    at = order.shape[1] - rest
    empty = np.zeros((order.shape[0], missing), np.int32)
    return np.concatenate([order[:, :at], empty, order[:, at:]], axis=1)


def chunked_order(seed: int, epoch: int, n: int, shuffle: bool, size: int) -> np.ndarray:
    """The order of one trial's examples in one epoch: i32[N], random within chunks of ``size``."""
    if not shuffle:
        return epoch_order(seed, epoch, n, shuffle)
    rng = np.random.default_rng([seed, epoch])
    starts = range(0, n, size)
    parts = [start + rng.permutation(min(size, n - start)) for start in starts]
    return np.concatenate(parts).astype(np.int32)


class ChunkedBatches:
    """A data set in batches, joined to chunks; the host reads one while the device trains.

    All slots of a pack are at the same place of the data. Without shuffling they read the same
    batches in the same order. If Keras would shuffle a PyDataset's batches, each slot has its own
    order within a chunk. A data set that changes from epoch to epoch starts over in each pack, as a
    copy. ``size`` is C; ``sharding`` as of ``ChunkedArrays``.
    """

    def __init__(self, source: BatchedDataset, size: int, sharding: Any = None) -> None:
        self.source, self.size, self._sharding = source, size, sharding
        self._given = source
        self._per_chunk = size // source.batch_size
        self._at = 0  # batches read of the pass, or of all where they are read once
        self._ended: int | None = None  # epochs that have changed the copy; None: there is none yet
        self._batches: Iterator[Any] = iter(())

    @property
    def epochs(self) -> EpochBatches:
        """Which batches of which pass over the data an epoch has."""
        return self.source.epochs

    def order(
        self, seed: int, epoch: int, shuffle: bool | str, given: GivenOrder | None = None
    ) -> np.ndarray:
        """Batches are shuffled within a chunk only, and the smaller one stays the last."""
        _, _, count = self.epochs.of(epoch)
        numbers = np.arange(count, dtype=np.int32)
        if shuffle and self.source.shuffles:
            rng = np.random.default_rng([seed, epoch])
            last = count - (1 if self.source.rest and self._whole(epoch) else 0)
            for start in range(0, last, self._per_chunk):
                rng.shuffle(numbers[start : min(start + self._per_chunk, last)])
        return numbers

    def seek(self, epoch: int) -> None:
        """Goes to where an epoch begins: reads on from here, or again from the first batch."""
        _, first, _ = self.epochs.of(epoch)
        if self.epochs.changes:
            self._turn_to(epoch)
        if self.epochs.once:
            self._batches = self.source.read()
        elif first != self._at or first == 0:
            self._at, self._batches = 0, self.source.read()
            while self._at < first:
                self._next()

    def _turn_to(self, epoch: int) -> None:
        """Has a data set that changes as it is when an epoch begins."""
        if self._ended is None or epoch < self._ended:
            self.source, self._ended = self._given.anew(), 0
            self._batches, self._at = iter(()), -1
        for _ in range(self._ended, epoch):
            self.source.begin_epoch()
            self.source.end_epoch()
        self._ended = epoch

    def chunks(self, order: np.ndarray) -> Iterator[Chunk]:
        """The epoch that ``seek`` went to, chunk by chunk."""
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
        if self.source.counted and self._at == self.epochs.n_batches:
            self._check_end()
        self.source.end_epoch()
        if self._ended is not None:
            self._ended += 1

    def _check_end(self) -> None:
        if next(self._batches, None) is not None:
            raise DataError(
                f"x: the {self.source.kind} yields more than {self._at} batches, its length when "
                'it was first read. Pass steps_per_epoch, or executor="fit".'
            )

    def _whole(self, epoch: int) -> bool:
        """Whether an epoch ends with the last batch of a pass."""
        _, first, count = self.epochs.of(epoch)
        return first + count == self.epochs.n_batches

    def _next(self) -> Any:
        source = self.source
        try:
            batch = next(self._batches)
        except StopIteration:
            again = (
                ". Make it yield batches for as long as trials train, or pass a "
                "keras.utils.PyDataset"
                if source.epochs.once
                else f" of {source.epochs.n_batches or 'endless'}: it has changed since it was "
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
            why = f"has {size} examples, but the batches before had {sizes}"
        if why is not None:
            raise DataError(
                f"x: batch {self._at} of the {source.kind} {why}. Make all batches alike, or pass "
                'executor="fit".'
            )
        return source.as_sent(batch, self._at)

    def _chunk(self, batches: list[Any], order: np.ndarray) -> Chunk:
        """Joins batches, the last perhaps the smaller one; order is i32[S, len(batches)]."""
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
