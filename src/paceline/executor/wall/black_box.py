"""What a search does at this moment, where it is still found when its process has died.

The process that trains writes, the process that started it reads. Both hold memory without a name,
so no file is read, and nothing is left when both have ended. Neither JAX nor Keras is loaded.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

#: Bytes that are read of the running trials, and where the list of deaths begins.
_MOST, _DEATHS = 1 << 20, 1 << 20


def nameless_file(name: str = "paceline") -> int:
    """The descriptor of memory that has no name in any folder."""
    if hasattr(os, "memfd_create"):  # in containers, the space of /dev/shm is often 64 MB
        with suppress(OSError):  # some sandboxes refuse it
            return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class BlackBox:
    """Notes what a search does, for whoever looks after its process has died.

    A note is one write of some hundred bytes to memory. Without a watcher, none is written.
    """

    #: That of this process; None: nobody watches it.
    current: ClassVar[BlackBox | None] = None

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = nameless_file() if descriptor is None else descriptor
        before = self.state()
        #: What ``begin`` noted, here or in a process before; None: the search has not begun.
        self.begun: dict[str, Any] | None = before.get("begun")
        self._fields = {
            name: json.dumps(before[name]) for name in ("begun", "ends_at") if name in before
        }
        self._hparams: dict[int, str] = {}  # number of a trial -> its hparams, as JSON

    # -- the process that trains -------------------------------------------------------------------

    def begin(self, n_trials: int | None) -> None:
        """The search has begun to write; ``n_trials`` is the number of trials it goes to."""
        if self.begun is None:  # else it continues, or it is a search within the search
            self.begun = {"n_trials": n_trials}
            self._write(begun=json.dumps(self.begun))

    def ends_at(self, moment: float | None) -> None:
        """The search ends at a moment, in seconds since 1970; None: it has no limit."""
        self._write(ends_at=json.dumps(moment))

    def again(self) -> None:
        """This process is stuck, and ends so that another one continues the search."""
        self._write(again="true")

    def count(self, n_well: int) -> None:
        """This number of the study's trials are complete or were pruned."""
        self._write(well=str(n_well))

    def alone(self, *, alone: bool) -> None:
        """Whether one trial is built, compiled or trained at a time, and nothing else."""
        self._write(alone=json.dumps(alone))

    def builds(self, number: int | None, hparams: Mapping[str, Any], beside: int = 0) -> None:
        """A trial is built or traced, as far as hparams are known; None: that is over.

        ``beside`` others are in memory, and wait.
        """
        if number is None:
            self._write(building="null")
            return
        self._hparams[number] = text = json.dumps(dict(hparams), default=str)
        self._write(building=f"[{number}, {text}]", beside=str(beside))

    def trains(self, numbers: Iterable[int], beside: int = 0) -> None:
        """These trials are compiled and trained from now on; none: nothing is."""
        parts = [f"[{n}, {self._hparams.get(n, '{}')}]" for n in numbers]
        self._write(training=f"[{', '.join(parts)}]", beside=str(beside))

    def forget(self, number: int) -> None:
        """A trial has ended."""
        self._hparams.pop(number, None)

    def _write(self, **fields: str) -> None:
        self._fields |= fields
        text = ", ".join(f'"{name}": {value}' for name, value in self._fields.items())
        os.pwrite(self.descriptor, f"{{{text}}}\n".encode(), 0)

    # -- the process that watches ------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What ran at the last note; empty if there is none."""
        return _read(self.descriptor, 0, {})

    def close(self) -> None:
        """Gives the memory up; nothing is found in it any more."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def clear(self) -> None:
        """Forgets what ran, and keeps what is true of the whole search."""
        kept = {name: of for name, of in self.state().items() if name in ("begun", "ends_at")}
        os.pwrite(self.descriptor, json.dumps(kept).encode() + b"\n", 0)

    def reset(self, deaths: list[dict[str, Any]]) -> None:
        """Forgets everything, and knows of these ``deaths``."""
        os.pwrite(self.descriptor, b"{}\n", 0)
        self.deaths = deaths

    @property
    def deaths(self) -> list[dict[str, Any]]:
        """The deaths of the processes before this one, as ``DeathRecord.to_json`` writes them."""
        return _read(self.descriptor, _DEATHS, [])

    @deaths.setter
    def deaths(self, deaths: list[dict[str, Any]]) -> None:
        os.pwrite(self.descriptor, json.dumps(deaths).encode() + b"\n", _DEATHS)


def _read(descriptor: int, offset: int, empty: Any) -> Any:
    try:
        line = os.pread(descriptor, _MOST, offset).partition(b"\n")[0]
        found = json.loads(line.strip(b"\0"))
    except (OSError, ValueError, RecursionError):  # nothing was written, or not all of it
        return empty
    return found if isinstance(found, type(empty)) else empty
