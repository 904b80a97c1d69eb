"""Trackers of a search that runs in the session's own process: they log in the session.

There they find what the user has set up: addresses, runs, logins. As in any session each tracker
has a thread of its own, so that the search waits for none.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from paceline.executor.session.messages import RaisedError
from paceline.tuner.trackers.base import Tracker

#: Seconds between two looks whether a tracker has done what it was told.
_LOOK = 0.1

#: What a tracker has returned, the error that it has raised, and its ``where``.
Outcome = tuple[Any, RaisedError | None, Any]
#: The trackers of all searches: one may still log when the next search runs.
_trackers: list[Tracker] = []
#: What each is to do, by its number; and what came of it, by the number of the call.
_queues: dict[int, queue.SimpleQueue[tuple[int, str, tuple[Any, ...]]]] = {}
_outcomes: dict[int, Outcome] = {}
_calls = itertools.count()


def register(trackers: Mapping[str, Tracker]) -> list[tuple[str, int]]:
    """Registers the trackers of a search; returns the name and the number of each.

    A tracker that an earlier search had keeps its number, and so its thread.
    """
    for tracker in trackers.values():
        if not any(each is tracker for each in _trackers):
            _trackers.append(tracker)
    numbers = {id(tracker): number for number, tracker in enumerate(_trackers)}
    return [(name, numbers[id(tracker)]) for name, tracker in trackers.items()]


def track(tracker: int, method: str, arguments: tuple[Any, ...]) -> int:
    """Has a tracker do something; returns the number of the call."""
    if tracker not in _queues:
        _queues[tracker] = queue.SimpleQueue()
        # A daemon, so that a tracker that never comes back does not keep the process alive.
        threading.Thread(target=_run, args=[tracker], daemon=True).start()
    _queues[tracker].put((call := next(_calls), method, arguments))
    return call


def tracked(call: int) -> Outcome | None:
    """What came of a call; None while the tracker works."""
    return _outcomes.pop(call, None)


def _run(number: int) -> None:
    tracker = _trackers[number]
    while True:
        call, method, arguments = _queues[number].get()
        value = failed = None
        try:
            value = getattr(tracker, method)(*arguments)
        except BaseException as error:  # a tracker is somebody else's code
            failed = RaisedError.of(error)
        _outcomes[call] = value, failed, getattr(tracker, "where", None)


#: What the process calls.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {"track": track, "tracked": tracked}


class SessionTracker:
    """A tracker of the session, as a search in the session's process calls it."""

    def __init__(self, name: str, number: int, ask: Callable[..., Any]) -> None:
        self.name_of_session, self.number_of_session, self._ask = name, number, ask
        self.where: Any = None
        self.begin = partial(self._call, "begin")
        self.log_trial = partial(self._call, "log_trial")
        self.end = partial(self._call, "end")

    def _call(self, method: str, *arguments: Any) -> Any:
        call = self._ask("track", self.number_of_session, method, arguments)
        while (outcome := self._ask("tracked", call)) is None:
            time.sleep(_LOOK)
        value, failed, self.where = outcome
        if failed is not None:
            raise failed.again()
        return value
