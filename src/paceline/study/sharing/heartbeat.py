"""Heartbeats: each worker of a study writes one into the study's storage, whatever the storage.

A heartbeat is an attribute of the study with a number that grows. Of two processes that write one
attribute the later wins, so each worker writes its own only. Clocks of machines differ, so nobody
compares times: a reader watches by its own clock whether the number grows. Time in which the reader
itself does not look (it sleeps, or the storage does not answer) counts as two beats at most.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import filelock

from paceline.errors import UsageError
from paceline.study.storage.storage import StudyStorage

#: The attribute of a study by which each worker of it beats, with its token behind.
BEAT = "paceline:worker:"
#: The attribute of a study by which a worker is declared dead, with its token behind.
DEAD = "paceline:dead:"
#: Beats that a worker may miss before it is declared dead.
MISSED = 6
#: A file in the workers' folder that holds an id of this folder. Containers of one host have its
#: boot id, and the same paths, but each its own files.
PLACE = "place"
#: Seconds between beats, at most: a worker that died is known to be dead after six times as long.
LONGEST = 3600.0
_TOKEN = re.compile("[0-9a-f]{16}")
_VARIABLE = "PACELINE_HEARTBEAT_SECONDS"

#: What a worker says of itself. One that is alone numbers its trials itself; for those that share,
#: the storage does.
Mode = Literal["joining", "alone", "shared", "left"]


@dataclass
class Peer:
    """Another worker of the study, as this one sees it."""

    beat: Any  # the last number seen
    mode: Mode  # what it says of itself
    every: float = 0.0  # seconds between its beats; 0.0: its heartbeat cannot be read
    silence: float = 0.0  # seconds of watching in which the number has not grown
    alive: bool = False  # known to live: its number has grown, or it holds its lock file


class Heartbeats:
    """The workers of one study, seen by one of them.

    This process holds the file ``lock_name(token)`` in ``folder`` locked while it works; None if it
    cannot. ``every`` is seconds between beats; ``clock`` returns seconds that only grow.
    """

    def __init__(
        self,
        store: StudyStorage,
        study: int,
        token: str,
        *,
        folder: Path | None = None,
        every: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.token, self.mode = token, "joining"  # the mode is what this worker says of itself
        self.declared_dead = False  # by another worker
        self.every = every
        self._store, self._study, self._clock = store, study, clock
        self._place = _place(folder)
        self._beat = 0
        self._others: dict[str, Peer] = {}
        self._gone: set[str] = set()  # tokens of dead workers
        self._spared: str | None = None  # not to be declared dead
        self._looked: float | None = None
        self._mutex = threading.Lock()  # two threads look: the one that beats, and the search

    def beat(self) -> None:
        """Write this worker's heartbeat and read those of others."""
        with self._store.writing():
            self._write()
            self._read()

    def set_mode(self, mode: Mode) -> None:
        """Change what this worker says of itself, at once."""
        self.mode = mode
        self.beat()

    def look(self) -> None:
        """Read the heartbeats of others, without writing one."""
        with self._store.writing():
            self._read()

    def rename(self, token: str) -> None:
        """Take another token; the trials of the old one are no longer this worker's."""
        self._gone.add(self.token)
        self._gone.discard(token)
        self._others.pop(token, None)
        self.token, self.declared_dead = token, False

    def spare(self, token: str | None) -> None:
        """Never declare the worker ``token`` dead: this one is to continue its work."""
        self._spared = token

    def may_become(self, token: str) -> bool:
        """Whether this worker may continue as one that has left: nobody declared that one dead."""
        return token not in self._gone and token not in self.others

    @property
    def others(self) -> dict[str, Peer]:
        """Token -> worker, of the other workers that are not known to be dead."""
        return {token: one for token, one in dict(self._others).items() if not self._dead(one)}

    def gone(self, token: str | None) -> bool:
        """Whether a worker has left or is dead; None, of a program that names none, is gone."""
        return token != self.token and token not in self.others

    def declare_dead(self, token: str) -> None:
        """Write that a worker is dead, so that it learns of that should it come back."""
        with self._store.writing():
            self._declare_dead(token)

    def close_connections(self) -> None:
        """Close the connections to the storage; safe to call again."""
        self._store.close()

    def _declare_dead(self, token: str) -> None:
        self._store.storage.set_study_system_attr(self._study, DEAD + token, {"by": self.token})
        self._others.pop(token, None)
        self._gone.add(token)

    def _write(self) -> None:
        self._beat += 1
        record = {"beat": self._beat, "mode": self.mode, "every": self.every, **self._place}
        self._store.storage.set_study_system_attr(self._study, BEAT + self.token, record)

    def _read(self) -> None:
        """Read all heartbeats; declare those workers dead that have been silent for too long."""
        attrs = self._store.storage.get_study_system_attrs(self._study)
        with self._mutex:
            now = self._clock()
            passed = 0.0 if self._looked is None else min(now - self._looked, 2 * self.every)
            self._looked = now
            self.declared_dead = DEAD + self.token in attrs
            for key, record in attrs.items():
                token = key.removeprefix(BEAT)
                if not key.startswith(BEAT) or token == self.token or token in self._gone:
                    continue
                if DEAD + token in attrs:
                    self._gone.add(token)
                    self._others.pop(token, None)
                elif not isinstance(record, dict) or record.get("mode") == "left":
                    self._others.pop(token, None)  # it may come back
                else:
                    self._watch(token, record, passed)
            dead = [t for t, one in self._others.items() if self._dead(one) and t != self._spared]
        for token in dead:
            self._declare_dead(token)

    def _dead(self, peer: Peer) -> bool:
        return peer.silence > MISSED * max(self.every, peer.every)

    def _watch(self, token: str, record: dict[str, Any], passed: float) -> None:
        beat, mode = record.get("beat"), record.get("mode")
        peer = self._others.get(token)
        if peer is None:
            peer = self._others[token] = Peer(beat, "joining")
        elif peer.beat != beat:
            peer.beat, peer.silence, peer.alive = beat, 0.0, True
        else:
            peer.silence += passed
        peer.mode = mode if mode in ("alone", "shared") else "joining"
        peer.every = _every_of(record)
        held = _works(self._place, token, record)
        if held is False:  # it died, perhaps right after its last beat
            peer.silence = math.inf
        peer.alive = peer.alive or held is True


def _works(
    place: Mapping[str, str | None], token: str, record: Mapping[str, Any], *, remove: bool = True
) -> bool | None:
    """Whether a worker of this machine and folder (``place``) holds its file; None for others.

    The path is made of what is known here, since a storage from a stranger could name any file.
    """
    folder = place["folder"]
    if folder is None or place["place"] is None or not place.items() <= record.items():
        return None
    if not _TOKEN.fullmatch(token):
        return None
    path = Path(folder) / lock_name(token)
    # A worker holds the file from before its first heartbeat to after its last one.
    return is_held(path, remove=remove) if path.is_file() else False


def _every_of(record: Mapping[str, Any]) -> float:
    """Seconds between a worker's beats, as its heartbeat says them; 0.0 where it does not."""
    every = record.get("every")
    return float(every) if isinstance(every, (int, float)) and 0 < every <= LONGEST else 0.0


def _place(folder: Path | None) -> dict[str, str | None]:
    """Where a worker is, as its heartbeats say it: the machine, and the folder of its file."""
    if folder is None:
        return {"boot": boot(), "folder": None, "place": None}
    return {"boot": boot(), "folder": str(folder.absolute()), "place": _place_id(folder)}


def make_place(folder: Path) -> None:
    """Make the file by which the workers of one folder know one another, if there is none."""
    with contextlib.suppress(FileExistsError), (folder / PLACE).open("x") as file:
        file.write(secrets.token_hex(8))


def _place_id(folder: Path) -> str | None:
    """The id of a folder of workers; None if there is none, or another program changed it."""
    try:
        text = (folder / PLACE).read_text()
    except (OSError, ValueError):
        return None
    return text if _TOKEN.fullmatch(text) else None


def is_searched(attrs: Mapping[str, Any], folder: Path) -> bool | None:
    """Whether some worker of a study works, told without writing or waiting; None: not known.

    That is so where a worker of another machine has not left, or no program writes heartbeats.
    """
    place, found = _place(folder), set[bool | None]()
    for key, record in attrs.items():
        token = key.removeprefix(BEAT)
        if not key.startswith(BEAT) or not isinstance(record, dict):
            continue
        if record.get("mode") == "left" or DEAD + token in attrs:
            found.add(False)
        else:
            found.add(_works(place, token, record, remove=False))
    if True in found:
        return True
    return None if None in found or not found else False


def lock_name(token: str) -> str:
    """Name of the file that a worker holds locked."""
    return f"{token}.lock"


def boot() -> str:
    """Return a text that differs between machines, and between starts of one machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{platform.node()}-{uuid.getnode()}"


def is_held(path: Path, *, remove: bool = True) -> bool | None:
    """Whether a process holds a lock file; None: not known. ``remove`` that of a dead one."""
    if not path.is_file():
        return None
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return True
    except (OSError, RuntimeError):  # no locks on that file system
        return None
    lock.release()
    if remove:
        with contextlib.suppress(OSError):
            path.unlink()
    return False


def seconds_between() -> float:
    """Seconds between beats; UsageError where the environment has none in (0, ``LONGEST``]."""
    text = os.environ.get(_VARIABLE)
    try:
        seconds = 5.0 if text is None else float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST:
        raise UsageError(
            f"{_VARIABLE} must be a number of seconds above 0 and at most {LONGEST:.0f}, got "
            f"{text!r}. Unset it for 5 seconds."
        )
    return seconds
