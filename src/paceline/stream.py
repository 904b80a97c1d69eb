"""Training data larger than the device's memory: in host memory, sent in chunks.

A chunk is read once for all slots of a pack, and the next one is sent while the device trains on
this one. So a slot's examples are in random order within a chunk only; chunks come in the order of
the data.

Notation
    N: examples. C: examples of a chunk, a multiple of B, so that no full batch has parts in two;
    the last chunk is filled up with zeros that no batch holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from paceline.data import ArrayData, epoch_order


@dataclass(frozen=True)
class Chunk:
    """What a program trains on at a time.

    Attributes:
        data: C examples on the device.
        order: i32[S, C], each slot's order within the chunk. The examples of the last, smaller
            batch stand at its end.
        steps: Full batches.
    """

    data: Any
    order: np.ndarray
    steps: int


@dataclass(frozen=True)
class Stream:
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
            order: i32[S, N] from ``chunked_order``.
        """
        data = self._send(0)
        for start in range(0, self.source.n, self.size):
            own = order[:, start : start + self.size] - np.int32(start)
            count = own.shape[1]
            rest = count % self.batch_size  # in the last chunk only
            whole = np.zeros((order.shape[0], self.size), np.int32)
            whole[:, : count - rest] = own[:, : count - rest]
            if rest:
                whole[:, self.size - rest :] = own[:, count - rest :]
            yield Chunk(data, whole, count // self.batch_size)
            if start + self.size < self.source.n:
                data = self._send(start + self.size)

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


def chunks_of(data: Any, order: np.ndarray, steps: int) -> Iterator[Chunk]:
    """One epoch of data on the device, in one chunk, or of a stream.

    Args:
        data: N examples on the device, or a ``Stream``.
        order: i32[S, N].
        steps: Full batches in N.
    """
    if isinstance(data, Stream):
        yield from data.chunks(order)
    else:
        yield Chunk(data, order, steps)


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
