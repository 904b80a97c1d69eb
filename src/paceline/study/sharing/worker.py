"""One process that searches a study: it joins the other workers, beats while it works, and leaves.

A worker without peers numbers its trials itself and writes them asynchronously. As soon as another
worker joins, trials are numbered by the storage.
"""

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
from paceline.study.sharing.heartbeat import (
    PLACE,
    Heartbeats,
    lock_name,
    make_place,
    seconds_between,
)
from paceline.study.storage.storage import StudyStorage
from paceline.study.storage.write_behind import WriteBehind

#: The folder, in a study's, where workers hold their lock files and keep their models.
WORKERS = "workers"


class Worker:
    """A worker of one study, before, while and after it works.

    In ``folder``, made if need be, it holds a file locked, so that others on this machine know at
    once that it died; None: it holds none. ``every`` is seconds between beats; None takes
    PACELINE_HEARTBEAT_SECONDS, or 5. ``beats``: a thread beats from ``join`` to ``leave``;
    otherwise ``beat`` has to be called.
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
        self.token = secrets.token_hex(8)  # tells this worker from all others
        # Whether others search the study, or have since this worker joined: then trials are
        # numbered by the storage.
        self.shared = False
        # Held while a trial gets its number, and while ``shared`` changes.
        self.numbering_lock = threading.RLock()
        # How often others have declared this worker dead since it joined. Each time it continues
        # under another token, and its unfinished trials are no longer its own.
        self.n_deaths = 0
        self._folder, self._note = folder, note
        self._every = seconds_between() if every is None else every
        self._clock, self._pause, self._beats = clock, pause, beats
        self._heartbeats: Heartbeats | None = None
        self._writer: WriteBehind | None = None
        self._lock: filelock.BaseFileLock | None = None
        self._thread: threading.Thread | None = None
        self._watched: dict[str, Any] = {}
        self._seen_alive = -math.inf  # when the storage last said that nobody declared it dead
        self._stop = threading.Event()

    @property
    def heartbeats(self) -> Heartbeats:
        """The study's workers, once this one has joined them."""
        assert self._heartbeats is not None
        return self._heartbeats

    @property
    def has_peers(self) -> bool:
        """Whether other workers are known to search the study now."""
        return self._heartbeats is not None and bool(self._heartbeats.others)

    @property
    def joined(self) -> bool:
        """Whether it is one of the study's workers."""
        return self._heartbeats is not None

    def join(
        self,
        store: StudyStorage,
        study: int,
        writer: WriteBehind,
        session: str | None = None,
        *,
        share: bool = False,
    ) -> bool:
        """Become one of a study's workers; waits until all the others are known.

        A worker begins at once where all others have left, or have died on this machine. Otherwise
        it watches their heartbeats for as long as it takes to tell the living from the dead.
        ``writer`` is flushed before others are told that they may claim trials, so that they find
        all that this one has numbered. ``session`` is the token of a worker whose work is to be
        continued. ``share``: others have trials in the study, so it has to ask the storage for
        them.

        Returns whether it has become the worker ``session``: that one was gone, and no other is
        there.
        """
        self._writer = writer
        self._lock_file()
        beats = self._heartbeats = Heartbeats(
            store,
            study,
            self.token,
            folder=self._locked_folder,
            every=self._every,
            clock=self._clock,
        )
        self._watch_until_known(beats, session)
        alive = list(beats.others)
        back = session is not None and not alive and beats.may_become(session)
        if back and session is not None:
            beats.set_mode("left")
            self._unlock_file()
            beats.rename(session)
            self.token = session
            self._lock_file()
        beats.spare(None)
        self.shared = share or bool(alive)
        beats.set_mode("shared" if self.shared else "alone")
        if alive:
            self._note(f"{_others(len(alive))} on this study, so trials are shared")
            self._wait_until_shared(beats)
        if self._beats:
            self._thread = threading.Thread(target=self._run, name="paceline-heart", daemon=True)
            self._thread.start()
        return back

    def beat(self) -> None:
        """Write one heartbeat, read those of others, and act on what they show."""
        beats = self.heartbeats
        beats.beat()
        self._seen_alive = self._clock()
        if beats.declared_dead:
            with self.numbering_lock:
                self.shared = True
            # Before the token changes: from now on ``still_mine`` says no.
            self.n_deaths += 1
            self._unlock_file()
            self.token = secrets.token_hex(8)
            beats.rename(self.token)
            self._lock_file()
            beats.set_mode("shared")
        elif beats.others and beats.mode == "alone":
            with self.numbering_lock:
                self.shared = True
            if self._writer is not None:
                self._writer.flush()
            beats.set_mode("shared")

    def still_mine(self) -> bool:
        """Whether nobody has declared this worker dead, so that its trials are still its own."""
        if self._heartbeats is None:
            return True
        if self._clock() - self._seen_alive > 2 * self._every:
            self._heartbeats.look()
            self._seen_alive = self._clock()
        return not self.n_deaths and not self._heartbeats.declared_dead

    def watch_peers(self) -> None:
        """From now on, note which of the other workers beat; see ``all_peers_alive``."""
        with contextlib.suppress(PacelineError):
            self.heartbeats.look()  # a beat that was not seen yet may be older than this call
        self._watched = {token: peer.beat for token, peer in self.heartbeats.others.items()}

    def all_peers_alive(self) -> bool:
        """Whether all other workers have beaten since ``watch_peers``, or are gone."""
        with contextlib.suppress(PacelineError):
            self.heartbeats.look()
        others = self.heartbeats.others
        return all(others[t].beat != beat for t, beat in self._watched.items() if t in others)

    def leave(self) -> None:
        """End; other workers take over the trials that it has not ended. Safe to call again."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        told = True
        if self._heartbeats is not None and self._heartbeats.mode != "left":
            try:
                self._heartbeats.set_mode("left")
            except PacelineError:  # the others will find out by watching, or by the folder
                told = False
            self._heartbeats.close_connections()
        self._unlock_file()
        if told:
            self._remove_folder()

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            with contextlib.suppress(PacelineError):  # the writer tells the user
                self.beat()

    def _watch_until_known(self, beats: Heartbeats, session: str | None) -> None:
        """Wait until every other worker is known to be alive or gone."""
        waited, said = 0.0, False
        beats.spare(session)
        beats.beat()
        while any(not peer.alive for peer in beats.others.values()):
            if waited > 1.0 and not said:
                said = True
                self._note(
                    "another search may be running on this study: waiting for its heartbeats"
                )
            self._pause(self._every / 5)
            waited += self._every / 5
            beats.beat()

    def _wait_until_shared(self, beats: Heartbeats) -> None:
        """Wait until no other worker numbers trials by itself."""
        while any(peer.mode != "shared" for peer in beats.others.values()):
            self._pause(self._every / 5)
            beats.beat()

    @property
    def _locked_folder(self) -> Path | None:
        return None if self._lock is None else self._folder

    def _lock_file(self) -> None:
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self._folder / lock_name(self.token), thread_local=False)
            lock.acquire(timeout=0)
            self._lock = lock
        except (OSError, RuntimeError):  # no folder, or no locks there: heartbeats must do
            self._lock = None
            return
        with contextlib.suppress(OSError):
            make_place(self._folder)

    def _unlock_file(self) -> None:
        if self._lock is None or self._folder is None:
            return
        self._lock.release()
        self._lock = None
        with contextlib.suppress(OSError):
            (self._folder / lock_name(self.token)).unlink(missing_ok=True)

    def _remove_folder(self) -> None:
        """Remove the folder after the last worker, if none has left anything else there."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            # A worker that joins at this moment keeps its id. Later workers see it in another
            # place; its heartbeats show them that it lives.
            if [path.name for path in self._folder.iterdir()] == [PLACE]:
                (self._folder / PLACE).unlink()
            self._folder.rmdir()


def _others(n: int) -> str:
    return "another search works" if n == 1 else f"{n} other searches work"
