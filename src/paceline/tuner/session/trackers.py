"""Trackers of a search that runs in the session's own process: they log in the session.

There they find what the user has set up: addresses, runs, logins. As in any session each tracker
has a thread of its own, so that the search waits for none. The threads are in the session, and may
still log when the search has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.study.trials.trial import Trial
from paceline.tuner.trackers.base import TrackedStudy, Tracker
from paceline.tuner.trackers.threads import LogState, TrackerThread


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
        self.name = self.name_of_session = name
        self._ask = ask
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
