"""Tells the trackers of a search, each in a thread of its own, so that none holds it up."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from paceline.study.storage.rdb import hide_password
from paceline.study.study import Study
from paceline.study.trials.trial import Trial
from paceline.tuner.trackers.base import TrackedStudy, Tracker

_ENDED = ("complete", "pruned", "failed")
#: The threads of searches that have ended, which may still log their last trials.
_late: list[_TrackerThread] = []


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
    _threads: list[_TrackerThread] = field(init=False, default_factory=list)

    def begin(self, tracked: TrackedStudy) -> None:
        """Begins to tell the trackers of the study; nothing is told before."""
        # Another process that searches the study logs the trials that it has ended.
        alone = not self.study.peers.shared
        before = [t for t in self.study.trials if t.state in _ENDED] if alone else []
        for name, tracker in self.trackers.items():
            earlier = [late for late in _late if late.precedes(name, tracker, tracked)]
            thread = _TrackerThread(name, tracker, tracked, deepcopy(before), earlier)
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
        _late.extend(self._threads)
        for thread in self._threads:
            ended = self._wait_for(thread, self.HURRY if hurried else math.inf)
            if ended:
                _late.remove(thread)
            if ended and not thread.failed and thread.where:
                self.note(f"{thread.name}: {thread.where}")
        self._tell_errors()

    def _wait_for(self, thread: _TrackerThread, limit: float) -> bool:
        """Wait until a tracker has ended; False if it takes too long."""
        began, told = time.monotonic(), False
        while not thread.join(0.2):
            now = time.monotonic()
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
                text = hide_password(f"{type(error).__name__}: {error}".split("\n")[0])[:300]
                self.note(f"{thread.name} no longer logs this search: {text}")


class _TrackerThread:
    """One tracker, its queue, and the thread that calls it.

    ``earlier`` are threads of earlier searches that end first. Those of the study must, so that
    nothing is logged again; those of the tracker, because it knows one study at a time.
    """

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        study: TrackedStudy,
        before: list[Trial],
        earlier: list[_TrackerThread],
    ) -> None:
        self.name, self._tracker, self._tracked = name, tracker, study
        self._before, self._earlier = before, earlier
        self._queue: queue.SimpleQueue[Trial | tuple[Trial | None, Path | None]]
        self._queue = queue.SimpleQueue()
        self.error: BaseException | None = None
        self.failed = False
        self.progressed = time.monotonic()
        self._n_put = self._n_logged = 0
        # A daemon, so that a tracker that never comes back does not keep the process alive.
        self._thread = threading.Thread(
            target=self._run, name=f"paceline-track-{name}", daemon=True
        )
        self._thread.start()

    def precedes(self, name: str, tracker: Tracker, study: TrackedStudy) -> bool:
        """Whether a tracker of a search that begins has to wait for this thread."""
        # In a session's own process each search has another object for a tracker.
        numbers = [getattr(e, "number_of_session", None) for e in (tracker, self._tracker)]
        same = self._tracker is tracker or (numbers[0] is not None and numbers[0] == numbers[1])
        return same or (self.name, self._tracked.identity) == (name, study.identity)

    @property
    def where(self) -> str | None:
        """How to look at what the tracker holds; None if it says nothing."""
        where = getattr(self._tracker, "where", None)
        return where if isinstance(where, str) else None

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
        self._queue.put((best, model))

    def join(self, seconds: float) -> bool:
        """Whether the tracker has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

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
            self._tracker.end(*item)
        except BaseException as error:  # a tracker is somebody else's code, as is what it calls
            self.error, self.failed = error, True

    def _wait_for_earlier(self) -> None:
        for earlier in self._earlier:
            while not earlier.join(0.2):
                self.progressed = max(self.progressed, earlier.progressed)
        self._earlier.clear()

    def _log(self, trial: Trial) -> None:
        self._tracker.log_trial(trial)
        self._n_logged += 1
        self.progressed = time.monotonic()
