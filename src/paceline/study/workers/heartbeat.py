"""Who works on a study: a sign of life for each worker, in the study's storage, for any storage.

A worker writes its own sign and nobody else's, since attributes of a study go to whoever writes
last: a number that grows with every beat. Clocks of machines differ, so nobody compares times: a
reader watches by its own clock whether the number grows. What passes while the reader itself does
not look (it sleeps, the storage is away) counts as two beats at most.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import filelock

from paceline.errors import UsageError
from paceline.study.storage.storage import StudyStorage

#: Attributes of a study: a worker's sign, and that somebody found it dead, each with its token.
SIGN, DEAD = "paceline:worker:", "paceline:dead:"
#: Beats that a worker may miss before it is thought dead.
MISSED = 6
_TOKEN = re.compile("[0-9a-f]{16}")
_VARIABLE = "PACELINE_HEARTBEAT_SECONDS"

#: A worker that is alone numbers its trials itself, ahead of the storage; those that share do not.
Mode = Literal["joining", "alone", "shared", "left"]


@dataclass
class Peer:
    """Another worker, as seen from here.

    Attributes:
        beat: The last number seen.
        mode: What it said of itself.
        silence: Seconds of watching in which the number has not grown.
        alive: Whether it has been seen to live, rather than taken to.
    """

    beat: Any
    mode: Mode
    silence: float = 0.0
    alive: bool = False


class Heartbeats:
    """The workers of one study, seen by one of them.

    Args:
        store: Where the study is kept.
        study: The storage's id of it.
        token: This worker's; nobody else has it.
        folder: Where this process holds the file ``lock_name(token)`` locked while it works; None
            where it cannot.
        every: Seconds between beats.
        clock: Seconds that only grow.

    Attributes:
        token: This worker's.
        mode: What it says of itself.
        buried: Whether others have found it dead.
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
        self.token, self.mode = token, "joining"
        self.buried = False
        self.every = every
        self._store, self._study, self._clock = store, study, clock
        self._folder = None if folder is None else folder.absolute()
        self._place = {"boot": boot(), "folder": None if folder is None else str(self._folder)}
        self._beat = 0
        self._others: dict[str, Peer] = {}
        self._gone: set[str] = set()  # dead
        self._spared: str | None = None
        self._looked: float | None = None
        self._mutex = threading.Lock()  # two threads look: the heart's, and the search's

    def beat(self) -> None:
        """Give a sign of life and look for those of others.

        Raises:
            StorageError: The storage does not answer.
        """
        with self._store.writing():
            self._write()
            self._read()

    def say(self, mode: Mode) -> None:
        """Change what this worker says of itself, at once.

        Raises:
            StorageError: The storage does not answer.
        """
        self.mode = mode
        self.beat()

    def look(self) -> None:
        """Look for the signs of others, without one of one's own.

        Raises:
            StorageError: The storage does not answer.
        """
        with self._store.writing():
            self._read()

    def rename(self, token: str) -> None:
        """Go on under another token; the trials of the old one are no longer this worker's."""
        self._gone.add(self.token)
        self._gone.discard(token)
        self._others.pop(token, None)
        self.token, self.buried = token, False

    def spare(self, token: str | None) -> None:
        """Do not bury a worker, whose work is to be taken up again should it be dead."""
        self._spared = token

    def may_be(self, token: str) -> bool:
        """Whether this worker may go on as one that is gone: nobody has found that one dead."""
        return token not in self._gone and token not in self.others

    @property
    def others(self) -> dict[str, Peer]:
        """Token -> worker, of those that are alive, or not known to be dead."""
        return {token: one for token, one in dict(self._others).items() if not self._dead(one)}

    def gone(self, token: str | None) -> bool:
        """Whether a worker has left or is dead: nobody trains its trials any more.

        Args:
            token: None for a trial of a program without signs: it may be anybody's.
        """
        return token != self.token and token not in self.others

    def bury(self, token: str) -> None:
        """Say that a worker is dead, so that it learns of it should it come back.

        Raises:
            StorageError: The storage does not answer.
        """
        with self._store.writing():
            self._bury(token)

    def close(self) -> None:
        """Hold no connection to the storage any more; safe to call again."""
        self._store.close()

    def _bury(self, token: str) -> None:
        self._store.storage.set_study_system_attr(self._study, DEAD + token, {"by": self.token})
        self._others.pop(token, None)
        self._gone.add(token)

    def _write(self) -> None:
        self._beat += 1
        sign = {"beat": self._beat, "mode": self.mode, **self._place}
        self._store.storage.set_study_system_attr(self._study, SIGN + self.token, sign)

    def _read(self) -> None:
        attrs = self._store.storage.get_study_system_attrs(self._study)
        with self._mutex:
            now = self._clock()
            passed = 0.0 if self._looked is None else min(now - self._looked, 2 * self.every)
            self._looked = now
            self.buried = DEAD + self.token in attrs
            for key, sign in attrs.items():
                token = key.removeprefix(SIGN)
                if not key.startswith(SIGN) or token == self.token or token in self._gone:
                    continue
                if DEAD + token in attrs:
                    self._gone.add(token)
                    self._others.pop(token, None)
                elif not isinstance(sign, dict) or sign.get("mode") == "left":
                    self._others.pop(token, None)  # it may come back
                else:
                    self._watch(token, sign, passed)
            dead = [t for t, one in self._others.items() if self._dead(one) and t != self._spared]
        for token in dead:
            self._bury(token)

    def _dead(self, other: Peer) -> bool:
        return other.silence > MISSED * self.every

    def _watch(self, token: str, sign: dict[str, Any], passed: float) -> None:
        beat, mode = sign.get("beat"), sign.get("mode")
        other = self._others.get(token)
        if other is None:
            other = self._others[token] = Peer(beat, "joining")
        elif other.beat != beat:
            other.beat, other.silence, other.alive = beat, 0.0, True
        else:
            other.silence += passed
        other.mode = mode if mode in ("alone", "shared") else "joining"
        held = self._holds_lock(token, sign)
        if held is False:  # it died, perhaps right after its last beat
            other.silence = math.inf
        other.alive = other.alive or held is True

    def _holds_lock(self, token: str, sign: dict[str, Any]) -> bool | None:
        """Whether a worker of this machine and folder holds its file; None for others.

        The file is named by what is known here: a storage from a stranger could name any.
        """
        place = {name: sign.get(name) for name in self._place}
        if self._folder is None or place != self._place or not _TOKEN.fullmatch(token):
            return None
        path = self._folder / lock_name(token)
        # Whoever works holds it from before its first sign to after its last.
        return is_held(path) if path.is_file() else False


def lock_name(token: str) -> str:
    """Name of the file that a worker holds locked."""
    return f"{token}.lock"


def boot() -> str:
    """What tells one running machine from another."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{platform.node()}-{uuid.getnode()}"


def is_held(path: Path) -> bool | None:
    """Whether a process holds a lock; None where that cannot be known."""
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
    with contextlib.suppress(OSError):
        path.unlink()  # its process died
    return False


def seconds_between() -> float:
    """Seconds between beats.

    Raises:
        UsageError: The environment holds no number.
    """
    text = os.environ.get(_VARIABLE)
    try:
        seconds = 5.0 if text is None else float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise UsageError(f"{_VARIABLE}: {text!r} is no number of seconds above 0.")
    return seconds
