"""States of paused trials: on the device, on the host, or on disk beyond a limit."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.executor.sharing.grouping import TrialGroup
from paceline.pack.pack import SlotTrial
from paceline.pack.slot_rows import is_on_device, on_host
from paceline.program.trace import State

#: Bytes of paused trials that are kept in memory.
LIMIT = 2 * 2**30


@dataclass
class _PausedTrial:
    """A trial that waits, with its state, or with the path of its state and how to read it."""

    trial: SlotTrial  # without its state
    group: TrialGroup
    state: State | None  # perhaps lent by the pack; None once it is on disk
    nbytes: int  # of its variables
    serial: int  # tells this pause from all others
    path: Path | None = None  # the file of the variables, once they are on disk
    # Shape and dtype of each array in the file, part by part.
    layout: tuple[list[tuple[tuple[int, ...], np.dtype]], ...] = ()


class PausedStates:
    """Paused trials by number: their states on the device, on the host, or on disk beyond a limit.

    On the device a state is lent by a pack, which says when it needs its arrays again. Each state
    is written once. The files hold raw bytes, whose meaning is kept in memory: they are of use only
    to this process, and are removed with it. Beyond ``limit`` bytes in memory, the trials that were
    paused first go to disk first.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._paused: dict[int, _PausedTrial] = {}
        # Those whose variables lie on a device, and not in the host's memory.
        self._on_device: dict[int, _PausedTrial] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._held = 0
        self._serials = itertools.count()

    def __len__(self) -> int:
        return len(self._paused)

    def __contains__(self, number: int) -> bool:
        return number in self._paused

    @property
    def on_disk(self) -> int:
        """Number of states on disk."""
        return sum(paused.path is not None for paused in self._paused.values())

    @property
    def nbytes(self) -> int:
        """Bytes of the variables of all paused trials."""
        return sum(paused.group.nbytes for paused in self._paused.values())

    @property
    def numbers(self) -> list[int]:
        """Numbers of the paused trials, in the order in which they were paused."""
        return list(self._paused)

    def put(self, trial: SlotTrial, group: TrialGroup) -> None:
        """Takes a trial in, whose ``state`` becomes None."""
        state, trial.state = trial.state, None
        assert state is not None
        paused = _PausedTrial(trial, group, state, state.nbytes, next(self._serials))
        self._paused[trial.number] = paused
        if is_on_device(state):
            self._on_device[trial.number] = paused
        else:
            self._hold(state.nbytes)

    def _hold(self, nbytes: int) -> None:
        """Counts bytes that have come to the host, and writes states to disk beyond the limit."""
        self._held += nbytes
        for number, paused in self._paused.items():
            if self._held <= self._limit:
                break
            if paused.state is not None and number not in self._on_device:
                self._write(paused)

    @property
    def device_bytes(self) -> int:
        """Bytes of the states that lie on a device, and not in the host's memory."""
        return sum(paused.nbytes for paused in self._on_device.values())

    def leave_device(self) -> None:
        """Copies all states to the host: the device lacks memory."""
        for paused in self._on_device.values():
            assert paused.state is not None
            paused.state = on_host(paused.state)
        self.count_anew()

    def count_anew(self) -> None:
        """Finds the states that have come from a device to the host."""
        for number, paused in list(self._on_device.items()):
            assert paused.state is not None
            if not is_on_device(paused.state):
                del self._on_device[number]
                self._hold(paused.nbytes)

    def take(self, number: int) -> tuple[SlotTrial, TrialGroup]:
        """Gives a trial back, with its state, and the trial's group.

        Raises KeyError if no trial of that number is paused.
        """
        paused = self._paused[number]
        state = self.state_of(number)
        self.drop(number)
        paused.trial.state = state
        return paused.trial, paused.group

    def state_of(self, number: int) -> State:
        """A trial's state; the trial stays."""
        paused = self._paused[number]
        return paused.state if paused.state is not None else _read(paused)

    def trial(self, number: int) -> SlotTrial:
        """A trial, without its state; it stays."""
        return self._paused[number].trial

    def key(self, number: int) -> str:
        """A name for this pause of this trial; no other trial and no other pause has the same."""
        return f"{number}.{self._paused[number].serial}"

    @property
    def trials(self) -> list[SlotTrial]:
        """The trials, without their states."""
        return [paused.trial for paused in self._paused.values()]

    def of(self, group: TrialGroup) -> list[SlotTrial]:
        """A group's trials, without their states."""
        return [paused.trial for paused in self._paused.values() if paused.group is group]

    def drop(self, number: int) -> SlotTrial | None:
        """Forgets a trial and returns it without its state; None if no such trial is paused."""
        paused = self._paused.pop(number, None)
        if paused is None:
            return None
        if paused.path is not None:
            paused.path.unlink(missing_ok=True)
        elif self._on_device.pop(number, None) is None:
            self._held -= paused.nbytes
        return paused.trial

    def close(self) -> None:
        """Forgets all trials and removes their files."""
        self._paused.clear()
        self._on_device.clear()
        self._held = 0
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _write(self, paused: _PausedTrial) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="paceline-paused-")
        assert paused.state is not None
        path = Path(self._folder.name) / f"{paused.trial.number}.state"
        arrays = [[np.asarray(a) for a in part] for part in paused.state.lists()]
        try:
            with path.open("wb") as file:
                for part in arrays:
                    for array in part:
                        file.write(np.ascontiguousarray(array).tobytes())
        except OSError:  # a full disk: the state stays in memory
            path.unlink(missing_ok=True)
            return
        paused.layout = tuple([(a.shape, a.dtype) for a in part] for part in arrays)
        paused.path, paused.state = path, None
        self._held -= paused.nbytes


def _read(paused: _PausedTrial) -> State:
    assert paused.path is not None
    data, at = paused.path.read_bytes(), 0
    lists = []
    for part in paused.layout:
        arrays = []
        for shape, dtype in part:
            size = int(np.prod(shape)) * dtype.itemsize
            arrays.append(np.frombuffer(data[at : at + size], dtype).reshape(shape))
            at += size
        lists.append(arrays)
    return State(*lists)
