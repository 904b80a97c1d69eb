"""Threads that train packs, one pack each at a time.

They are daemons, unlike those of a ``ThreadPoolExecutor``: a step that never returns would keep its
process from ending otherwise.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_Task = tuple[Future[Any], Callable[[], Any]]


class LaneThreads:
    """A few threads that do what they are given, in order.

    Args:
        n: How many; they begin when there is something to do.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Has a function called; the future tells what came of it."""
        future: Future[Any] = Future()
        self._tasks.put((future, function))
        if len(self._threads) < self._n:
            name = f"paceline-lane_{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()
        return future

    def close(self, patience: float) -> None:
        """Has the threads end, after what they do now.

        Args:
            patience: Seconds to wait for them.
        """
        for _ in self._threads:
            self._tasks.put(None)
        until = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, function = task
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
            del task, future, function  # an epoch's arrays need not wait for the next one
