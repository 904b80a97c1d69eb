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
        rest: Examples of the smaller batch after them; 0: there is none.
    """

    data: Any
    order: np.ndarray
    steps: int
    rest: int = 0


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
