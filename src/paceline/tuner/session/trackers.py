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
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from paceline.executor.session.messages import RaisedError
from paceline.tuner.trackers.base import Tracker

#: Seconds between two looks whether a tracker has done what it was told.
_LOOK = 0.1

#: What a tracker has returned, the error that it has raised, and its ``where``.
Outcome = tuple[Any, RaisedError | None, Any]
#: Outcomes by number, of all searches: a tracker may still log when the next search runs.
_outcomes: dict[int, Outcome] = {}
_numbers = itertools.count()


@dataclass(eq=False, repr=False)
class TrackersOfSession:
    """The trackers of a search, as the session calls them."""

    trackers: Mapping[str, Tracker]
    _queues: dict[str, queue.SimpleQueue[tuple[int, str, tuple[Any, ...]]]] = field(
        init=False, default_factory=dict
    )

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """What the process calls, by name."""
        return {"track": self._track, "tracked": lambda number: _outcomes.pop(number, None)}

    def _track(self, name: str, method: str, arguments: tuple[Any, ...]) -> int:
        """Has a tracker do something; returns the number of its outcome."""
        number = next(_numbers)
        if name not in self._queues:
            self._queues[name] = queue.SimpleQueue()
            # A daemon, so that a tracker that never comes back does not keep the process alive.
            threading.Thread(target=self._run, args=[name], daemon=True).start()
        self._queues[name].put((number, method, arguments))
        return number

    def _run(self, name: str) -> None:
        tracker = self.trackers[name]
        while True:
            number, method, arguments = self._queues[name].get()
            value = failed = None
            try:
                value = getattr(tracker, method)(*arguments)
            except BaseException as error:  # a tracker is somebody else's code
                failed = RaisedError.of(error)
            _outcomes[number] = value, failed, getattr(tracker, "where", None)


class SessionTracker:
    """A tracker of the session, as a search in the session's process calls it."""

    def __init__(self, name: str, ask: Callable[..., Any]) -> None:
        self.name_of_session, self._ask = name, ask
        self.where: Any = None
        self.begin = partial(self._call, "begin")
        self.log_trial = partial(self._call, "log_trial")
        self.end = partial(self._call, "end")

    def _call(self, method: str, *arguments: Any) -> Any:
        number = self._ask("track", self.name_of_session, method, arguments)
        while (outcome := self._ask("tracked", number)) is None:
            time.sleep(_LOOK)
        value, failed, self.where = outcome
        if failed is not None:
            raise failed.again()
        return value
