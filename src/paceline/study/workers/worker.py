"""One process that works on a study: it joins the others, beats while it works, and leaves."""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock

from paceline.errors import PacelineError
from paceline.study.storage.storage import StudyStorage
from paceline.study.workers.heartbeat import Heartbeats, lock_name, seconds_between

#: The folder, in a study's, where workers hold their files, and keep their models.
WORKERS = "workers"


class Worker:
    """A worker of one study, before, while and after it works.

    Args:
        folder: Where it may hold a file locked, so that others on this machine know at once that it
            died; made if need be.
        note: Told what users may want to know.
        every: Seconds between beats; None takes PACELINE_HEARTBEAT_SECONDS, or 5.
        clock: Seconds that only grow.
        pause: Waits so many seconds.
        beats: Whether a thread beats from ``join`` to ``leave``; else whoever calls ``beat`` does.

    Attributes:
        token: Tells it from all others.
        shared: Whether others work, or have worked, on the study meanwhile: then trials are
            numbered by the storage.
        door: Held while a trial gets its number, and while ``shared`` changes.
        on_company: Called in the heart's thread when somebody joins a worker that was alone; after
            it the worker says that it shares.
        on_buried: Called there when the others had thought this worker dead.

    Raises:
        UsageError: PACELINE_HEARTBEAT_SECONDS is no number.
    """

    def __init__(
        self,
        folder: Path | None,
        note: Callable[[str], None],
        *,
        every: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        beats: bool = True,
    ) -> None:
        self.token = secrets.token_hex(8)
        self.shared = False
        self.door = threading.RLock()
        self.on_company: Callable[[], None] = lambda: None
        self.on_buried: Callable[[], None] = lambda: None
        self._folder, self._note = folder, note
        self._every = seconds_between() if every is None else every
        self._clock, self._pause, self._beats = clock, pause, beats
        self._crew: Heartbeats | None = None
        self._lock: filelock.BaseFileLock | None = None
        self._heart: threading.Thread | None = None
        self._seen: dict[str, Any] = {}
        self._sure = -math.inf  # when nobody had thought it dead
        self._stop = threading.Event()

    @property
    def crew(self) -> Heartbeats:
        """The workers of the study, once it has joined them."""
        assert self._crew is not None
        return self._crew

    @property
    def company(self) -> bool:
        """Whether others work on the study now, as far as one knows."""
        return self._crew is not None and bool(self._crew.others)

    @property
    def joined(self) -> bool:
        """Whether it has joined the others."""
        return self._crew is not None

    def join(
        self, store: StudyStorage, study: int, session: str | None = None, *, share: bool = False
    ) -> bool:
        """Become one of a study's workers; waits until it is known who else is.

        A worker that is alone begins at once where all others have left, or have died on this
        machine. Else it watches them for as long as it takes to know.

        Args:
            store: Where the study is.
            study: The storage's id of it.
            session: The token of a worker whose work is to be taken up again.
            share: There are, or were, others: it has to ask the storage what they did.

        Returns:
            Whether it is that worker now: it was gone, and nobody else is there.

        Raises:
            StorageError: The storage does not answer.
        """
        self._hold()
        crew = self._crew = Heartbeats(
            store, study, self.token, folder=self._held, every=self._every, clock=self._clock
        )
        self._decide(crew, session)
        alive = list(crew.others)
        back = session is not None and not alive and crew.may_be(session)
        if back and session is not None:
            crew.say("left")
            self._release()
            crew.rename(session)
            self.token = session
            self._hold()
        crew.spare(None)
        self.shared = share or bool(alive)
        crew.say("shared" if self.shared else "alone")
        if alive:
            self._note(f"{_others(len(alive))} on this study: trials are shared with them")
            self._wait_for_room(crew)
        if self._beats:
            self._heart = threading.Thread(target=self._run, name="paceline-heart", daemon=True)
            self._heart.start()
        return back

    def beat(self) -> None:
        """One beat, and what follows from what it shows.

        Raises:
            StorageError: The storage does not answer.
        """
        crew = self.crew
        crew.beat()
        self._sure = self._clock()
        if crew.buried:
            with self.door:
                self.shared = True
            self.on_buried()
            self._release()
            self.token = secrets.token_hex(8)
            crew.rename(self.token)
            self._hold()
            crew.say("shared")
        elif crew.others and crew.mode == "alone":
            with self.door:
                self.shared = True
            self.on_company()
            crew.say("shared")

    def fence(self) -> bool:
        """Whether nobody has thought this worker dead, as far as one can know.

        Raises:
            StorageError: The storage does not answer.
        """
        if self._clock() - self._sure > 2 * self._every:
            self.crew.look()
            self._sure = self._clock()
        return not self.crew.buried and self.crew.token == self.token

    def watch(self) -> None:
        """From now on, see whether the others live."""
        with contextlib.suppress(PacelineError):
            self.crew.look()  # a beat that was not seen yet may be older than this
        self._seen = {token: other.beat for token, other in self.crew.others.items()}

    def all_alive(self) -> bool:
        """Whether all others have beaten since ``watch``, or are gone."""
        with contextlib.suppress(PacelineError):
            self.crew.look()
        others = self.crew.others
        return all(others[t].beat != beat for t, beat in self._seen.items() if t in others)

    def leave(self) -> None:
        """End; what it has not ended is others' to take. Safe to call again."""
        self._stop.set()
        if self._heart is not None and self._heart is not threading.current_thread():
            self._heart.join()
        if self._crew is not None and self._crew.mode != "left":
            with contextlib.suppress(PacelineError):  # else they will find out
                self._crew.say("left")
            self._crew.close()
        self._release()

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            with contextlib.suppress(PacelineError):  # the writer tells that the storage is away
                self.beat()

    def _decide(self, crew: Heartbeats, session: str | None) -> None:
        """Wait until every other worker is known to be alive or gone."""
        waited, said = 0.0, False
        crew.spare(session)
        crew.beat()
        while any(not other.alive for other in crew.others.values()):
            if waited > 1.0 and not said:
                said = True
                self._note("another search of this study may be under way: watching for its signs")
            self._pause(self._every / 5)
            waited += self._every / 5
            crew.beat()

    def _wait_for_room(self, crew: Heartbeats) -> None:
        """Wait until no other worker numbers trials by itself."""
        while any(other.mode != "shared" for other in crew.others.values()):
            self._pause(self._every / 5)
            crew.beat()

    @property
    def _held(self) -> Path | None:
        return None if self._lock is None else self._folder

    def _hold(self) -> None:
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self._folder / lock_name(self.token), thread_local=False)
            lock.acquire(timeout=0)
            self._lock = lock
        except (OSError, RuntimeError):  # no folder, or no locks there: the signs must do
            self._lock = None

    def _release(self) -> None:
        if self._lock is None or self._folder is None:
            return
        self._lock.release()
        self._lock = None
        with contextlib.suppress(OSError):
            (self._folder / lock_name(self.token)).unlink(missing_ok=True)
            self._folder.rmdir()  # the last one


def _others(n: int) -> str:
    return "another search works" if n == 1 else f"{n} other searches work"
