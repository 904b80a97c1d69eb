"""A data set that comes in batches, on its way to the device: read once for all slots of a pack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from paceline.errors import DataError
from paceline.source import Source, difference, size_of
from paceline.stream import Chunk


class Reel:
    """Batches in chunks, the next one read while the device trains on the one before.

    All slots of a pack are at the same place of the data. Without shuffling they read the same
    batches in the same order; where Keras would draw the order of a PyDataset's batches, each slot
    has an order of its own within a chunk.

    Args:
        source: The data set.
        size: C, examples of a chunk.
        sharding: Devices it goes to; None: the default one.
    """

    def __init__(self, source: Source, size: int, sharding: Any = None) -> None:
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
