"""A change of another library that several searches want at once, and that goes with the last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class RefCountedPatch:
    """A change that is made when the first of its users comes and unmade when the last one goes.

    Args:
        install: Makes the change. Where it raises, the user has not come.
        remove: Unmakes it.
    """

    def __init__(self, install: Callable[[], None], remove: Callable[[], None]) -> None:
        self._install, self._remove = install, remove
        self._lock = threading.Lock()
        self._n_users = 0

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A user, who may be in any thread and inside of another."""
        with self._lock:
            if self._n_users == 0:
                self._install()
            self._n_users += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_users -= 1
                if self._n_users == 0:
                    self._remove()
