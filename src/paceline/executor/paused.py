"""Where paused trials wait: their state on the host, and on disk beyond a limit.

Each state is written once. The files hold raw bytes; what they mean is kept in memory, so they are
of use to this process alone and go with it.
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.pack.pack import SlotTrial
from paceline.program.trace import State

#: Bytes of paused trials kept in memory.
LIMIT = 2 * 2**30


@dataclass
class _Parked:
    """A trial that waits: its state, or where it is and how to read it."""

    rider: SlotTrial
    state: State | None
    nbytes: int
    serial: int
    path: Path | None = None
    layout: tuple[list[tuple[tuple[int, ...], np.dtype]], ...] = ()


class PausedStates:
    """Paused trials by number.

    Args:
        limit: Bytes kept in memory; what was parked first goes to disk first.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._parked: dict[int, _Parked] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._held = 0
        self._serials = itertools.count()

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def on_disk(self) -> int:
        """How many states are on disk."""
        return sum(parked.path is not None for parked in self._parked.values())

    def put(self, rider: SlotTrial) -> None:
        """Takes a trial in; its state is on the host."""
        state, rider.state = rider.state, None
        assert state is not None
        self._parked[rider.number] = _Parked(rider, state, state.nbytes, next(self._serials))
        self._held += state.nbytes
        for parked in self._parked.values():
            if self._held <= self._limit:
                break
            if parked.state is not None:
                self._write(parked)

    def take(self, number: int) -> SlotTrial:
        """Gives a trial back, with its state."""
        parked = self._parked[number]
        state = parked.state if parked.state is not None else _read(parked)
        self.drop(number)
        parked.rider.state = state
        return parked.rider

    def peek(self, number: int) -> State:
        """A trial's state, which stays."""
        parked = self._parked[number]
        return parked.state if parked.state is not None else _read(parked)

    def key(self, number: int) -> str:
        """What this trial has while it is parked, and no other has, nor itself at another time."""
        return f"{number}.{self._parked[number].serial}"

    @property
    def riders(self) -> list[SlotTrial]:
        """The trials, without their states."""
        return [parked.rider for parked in self._parked.values()]

    def drop(self, number: int) -> SlotTrial | None:
        """Forgets a trial, and returns it without its state; none of that number is no error."""
        parked = self._parked.pop(number, None)
        if parked is None:
            return None
        if parked.path is not None:
            parked.path.unlink(missing_ok=True)
        else:
            self._held -= parked.nbytes
        return parked.rider

    def close(self) -> None:
        """Forgets all, files included."""
        self._parked.clear()
        self._held = 0
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _write(self, parked: _Parked) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="paceline-paused-")
        assert parked.state is not None
        path = Path(self._folder.name) / f"{parked.rider.number}.state"
        arrays = [[np.asarray(a) for a in part] for part in parked.state.lists()]
        try:
            with path.open("wb") as file:
                for part in arrays:
                    for array in part:
                        file.write(np.ascontiguousarray(array).tobytes())
        except OSError:  # a full disk: memory has to do
            path.unlink(missing_ok=True)
            return
        parked.layout = tuple([(a.shape, a.dtype) for a in part] for part in arrays)
        parked.path, parked.state = path, None
        self._held -= parked.nbytes


def _read(parked: _Parked) -> State:
    assert parked.path is not None
    data, at = parked.path.read_bytes(), 0
    lists = []
    for part in parked.layout:
        arrays = []
        for shape, dtype in part:
            size = int(np.prod(shape)) * dtype.itemsize
            arrays.append(np.frombuffer(data[at : at + size], dtype).reshape(shape))
            at += size
        lists.append(arrays)
    return State(*lists)
