"""Python's garbage collector during a search.

Tracing makes objects by the hundred thousand, which sets the collector off, and every full
collection walks all of JAX and Keras: a tenth of a second each time. What was there before a search
is set aside while it runs, so that collections walk only what the search has made.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: Objects made before the youngest are looked at; and how many of those looks before the older ones
#: are.
_THRESHOLDS = (50_000, 10, 5)
_searched = False


@contextmanager
def calm() -> Iterator[None]:
    """Sets what is there aside; all is as before afterwards.

    What an earlier search left is collected first: its last models, in cycles, would else be set
    aside again and again, and no collection would ever see them.
    """
    global _searched
    before = gc.get_threshold()
    ours = gc.get_freeze_count() == 0 and before[0] > 0  # else the user has plans of his own
    if not ours:
        yield
        return
    if _searched:
        gc.collect()
    _searched = True
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


class Dropped:
    """Counts bytes of models that are no longer needed, whose cycles keep their weights alive."""

    def __init__(self, limit: int = 2**28) -> None:
        self._limit, self._bytes = limit, 0

    def add(self, nbytes: int) -> None:
        """Notes a dropped model; collects once enough has gathered.

        Args:
            nbytes: Bytes of its variables.
        """
        self._bytes += nbytes
        if self._bytes >= self._limit:
            self._bytes = 0
            gc.collect()
