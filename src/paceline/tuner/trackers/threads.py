"""Tells the trackers of a search, each in a thread of its own, so that none holds it up.

Trackers of a search in the session's own process log in the session. There they find what the user
has set up: addresses, runs, logins. Their threads are there, too: they may still log when the
search has ended, and know which searches have the same tracker.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.study.storage.rdb import hide_password
from paceline.study.study import Study
from paceline.study.trials.trial import Trial
from paceline.tuner.trackers.base import TrackedStudy, Tracker

_ENDED = ("complete", "pruned", "failed")
#: The threads that have not ended: of searches that run, and of others whose last trials are late.
_begun: list[TrackerThread] = []
_beginning = threading.Lock()


@dataclass(eq=False, repr=False)
class TrackerThreads:
    """The trackers of one search."""

    #: Seconds that the end of a search waits for a tracker that logs nothing.
    PATIENCE = 60.0
    #: Seconds that the end of a search that was stopped waits at all.
    HURRY = 10.0
    #: Seconds after which the wait is noted.
    LONG = 3.0

    trackers: Mapping[str, Tracker]  # by name
    study: Study
    # Told of a tracker that fails or is late, in the thread of the search alone.
    note: Callable[[str], None]
    _pending: list[Trial] = field(init=False, default_factory=list)
    _threads: list[TrackerThread | SessionTracker] = field(init=False, default_factory=list)

    def begin(self, tracked: TrackedStudy) -> None:
        """Begins to tell the trackers of the study; nothing is told before."""
        # Another process that searches the study logs the trials that it has ended.
        alone = not self.study.peers.shared
        before = [t for t in self.study.trials if t.state in _ENDED] if alone else []
        for name, tracker in self.trackers.items():
            begin = getattr(tracker, "begin_in_session", None)
            if begin is None:
                thread = TrackerThread(name, tracker, tracked, deepcopy(before))
            else:
                thread = begin(tracked, before)
            self._threads.append(thread)

    def log_trial(self, trial: Trial) -> None:
        """A trial has ended."""
        if self._threads:
            self._pending.append(trial)

    def pass_on(self) -> None:
        """Hands over the trials that have ended, once the storage has confirmed their numbers."""
        if self._pending and not self.study.writer.unnumbered:
            for trial in self._pending:
                for thread in self._threads:
                    thread.put(deepcopy(trial))
            self._pending.clear()
        self._tell_errors()

    def close(self, model: Callable[[Trial], Path | None], *, hurried: bool = False) -> None:
        """Waits until the trackers know everything; ``model`` finds the file with a trial's model.

        ``hurried``: the search was stopped, and the user waits: for ``HURRY`` seconds then.
        """
        if not self._threads:
            return
        self.pass_on()
        trials = self.study.trials
        best = next(iter(trials.front), None) if trials.several else trials.best
        path = None if best is None else model(best)
        for thread in self._threads:
            thread.finish(deepcopy(best), path)
        for thread in self._threads:
            ended = self._wait_for(thread, self.HURRY if hurried else math.inf)
            if ended and not thread.failed and thread.where:
                self.note(f"{thread.name}: {thread.where}")
        self._tell_errors()

    def abandon(self) -> None:
        """The search logs no more, though an error may have kept it from ``close``.

        A later search with a tracker of these waits for their threads.
        """
        for thread in self._threads:
            thread.abandon()

    def _wait_for(self, thread: TrackerThread | SessionTracker, limit: float) -> bool:
        """Wait until a tracker has ended; False if it takes too long."""
        began, told = time.monotonic(), False
        while not thread.join(0.2):
            now = time.monotonic()
            if thread.waits:  # perhaps for this search to return: it runs in a callback, say
                self.note(
                    f"{thread.name} logs another search that still runs: {thread.left} trials of "
                    "this one are logged after it. If the program ends before, the next search on "
                    "the study logs them. To log both at once, pass each search its own tracker"
                )
                return False
            if not told and now - began > self.LONG:
                told = True
                self.note(f"waiting for {thread.name}, which has {thread.left} trials to log")
            if now - max(began, thread.progressed) > self.PATIENCE or now - began > limit:
                self.note(
                    f"stopped waiting for {thread.name}: {thread.left} trials are not logged. The "
                    "next search on the study logs them"
                )
                return False
        return True

    def _tell_errors(self) -> None:
        for thread in self._threads:
            error, thread.error = thread.error, None
            if error is not None:
                self.note(f"{thread.name} no longer logs this search: {error}")


@dataclass(frozen=True)
class LogState:
    """How far a tracker's thread has come."""

    ended: bool
    failed: bool  # whether the tracker has raised
    waits: bool  # whether another search, which still runs, has the tracker
    left: int  # trials that are not logged yet
    idle: float  # seconds since something was logged
    error: str | None  # what the tracker has raised, once; None: nothing, or that was told
    where: str | None  # as of ``TrackerThread``


class TrackerThread:
    """One tracker, its queue, and the thread that calls it; ``before`` are trials that have ended.

    Threads of earlier searches end first. Those of the study must, so that nothing is logged again;
    those of the tracker, because it knows one study at a time.
    """

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        study: TrackedStudy,
        before: list[Trial],
    ) -> None:
        self.name, self._tracker, self._tracked, self._before = name, tracker, study, before
        self._queue: queue.SimpleQueue[Trial | tuple[Trial | None, Path | None] | None]
        self._queue = queue.SimpleQueue()
        self.error: str | None = None
        # How to look at what the tracker holds, known at its end; None if the tracker says nothing.
        self.where: str | None = None
        self.failed = self._over = False  # over: the search has ended
        self.progressed = time.monotonic()
        self._n_put = self._n_logged = 0
        # A daemon, so that a tracker that never comes back does not keep the process alive.
        self._thread = threading.Thread(
            target=self._run, name=f"paceline-track-{name}", daemon=True
        )
        with _beginning:
            self._earlier = [thread for thread in _begun if thread._precedes(self)]
            _begun.append(self)
        self._thread.start()

    def _precedes(self, other: TrackerThread) -> bool:
        """Whether a thread of a search that begins has to wait for this one."""
        same = (self.name, self._tracked.identity) == (other.name, other._tracked.identity)
        return self._tracker is other._tracker or (self._over and same)

    @property
    def waits(self) -> bool:
        """Whether another search, which still runs, has the tracker."""
        return any(not earlier._over for earlier in self._earlier)

    @property
    def left(self) -> int:
        """Trials that are not logged yet."""
        return self._n_put - self._n_logged

    def put(self, trial: Trial) -> None:
        """Log a trial in its turn."""
        self._n_put += 1
        self._queue.put(trial)

    def finish(self, best: Trial | None, model: Path | None) -> None:
        """End after all that was put before."""
        self._over = True
        self._queue.put((best, model))

    def abandon(self) -> None:
        """End after all that was put before; unless ``finish`` came, do not end the tracker."""
        self._over = True
        self._queue.put(None)

    def join(self, seconds: float) -> bool:
        """Whether the tracker has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def state(self) -> LogState:
        """How far it has come; its error is told once."""
        ended, idle = not self._thread.is_alive(), time.monotonic() - self.progressed
        error, self.error = self.error, None
        return LogState(ended, self.failed, self.waits, self.left, idle, error, self.where)

    def _run(self) -> None:
        try:
            self._wait_for_earlier()
            known = self._tracker.begin(self._tracked)
            self.progressed = time.monotonic()
            missing = [t for t in self._before if known is not None and t.number not in known]
            self._n_put += len(missing)
            for trial in missing:
                self._log(trial)
            logged = {*(known or ()), *(trial.number for trial in missing)}
            while isinstance(item := self._queue.get(), Trial):
                if item.number in logged:  # before the checkpoint that the search continued from
                    self._n_logged += 1
                else:
                    self._log(item)
            if item is not None:
                self._tracker.end(*item)
                where = getattr(self._tracker, "where", None)  # perhaps a property that raises
                self.where = where if isinstance(where, str) else None
        except BaseException as error:  # a tracker is somebody else's code, as is what it calls
            self.error = hide_password(f"{type(error).__name__}: {error}".split("\n")[0])[:300]
            self.failed = True
        finally:
            self._over = True
            with _beginning:
                _begun.remove(self)

    def _wait_for_earlier(self) -> None:
        for earlier in self._earlier:
            while not earlier.join(0.2):
                self.progressed = max(self.progressed, earlier.progressed)
        self._earlier = []

    def _log(self, trial: Trial) -> None:
        self._tracker.log_trial(trial)
        self._n_logged += 1
        self.progressed = time.monotonic()


class TrackersOfSession:
    """The trackers of one search, by name, for the process that the search runs in."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = trackers
        self._threads: dict[str, TrackerThread] = {}
        #: What the process calls.
        self.functions: Mapping[str, Callable[..., Any]] = {"track": self._track}

    def _track(self, name: str, method: str | None, *arguments: Any) -> LogState:
        """Calls a method of a tracker's thread, if any; returns how far the thread has come."""
        if method == "begin":
            self._threads[name] = TrackerThread(name, self._trackers[name], *arguments)
        elif method is not None:
            getattr(self._threads[name], method)(*arguments)
        return self._threads[name].state()

    def end_call(self) -> None:
        """The process logs no more, though it may have died before it could say so."""
        for thread in self._threads.values():
            thread.abandon()
        self._threads.clear()


class SessionTracker:
    """A tracker of the session and its thread, as a search in the session's process sees them."""

    def __init__(self, name: str, ask: Callable[..., Any]) -> None:
        self.name, self._ask = name, ask
        self.error: str | None = None
        self.where: str | None = None
        self.failed = self.waits = False
        self.left, self.progressed = 0, 0.0

    def begin_in_session(self, study: TrackedStudy, before: list[Trial]) -> SessionTracker:
        """Begins the thread; as ``TrackerThread``, whose other methods are these."""
        self._call("begin", study, before)
        return self

    def put(self, trial: Trial) -> None:
        """Log a trial in its turn."""
        self._call("put", trial)

    def finish(self, best: Trial | None, model: Path | None) -> None:
        """End after all that was put before."""
        self._call("finish", best, model)

    def abandon(self) -> None:
        """The session does so at the end of the call."""

    def join(self, seconds: float) -> bool:
        """Whether the tracker has ended."""
        if ended := self._call(None):
            return ended
        time.sleep(seconds)
        return False

    def _call(self, method: str | None, *arguments: Any) -> bool:
        state: LogState = self._ask("track", self.name, method, *arguments)
        self.failed, self.waits, self.left = state.failed, state.waits, state.left
        self.progressed, self.where = time.monotonic() - state.idle, state.where
        self.error = state.error or self.error
        return state.ended
