"""Python's garbage collector during a search.

Tracing makes objects by the hundred thousand, which sets the collector off, and every full
collection walks all of JAX and Keras: a tenth of a second each time. What was there before a search
is set aside while it runs, so that collections walk only what the search has made.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from paceline.program.patch import RefCountedPatch

#: Objects made before the youngest are looked at; and how many of those looks before the older ones
#: are.
_THRESHOLDS = (50_000, 10, 5)
#: Of the time between two collections that searches begin with, what the later one may take.
_SHARE = 0.05


@contextmanager
def gc_calmed() -> Iterator[None]:
    """Sets what is there aside; all is as before when the last of several searches has ended.

    What earlier searches left is collected first: their last models, in cycles, would else be set
    aside again and again, and no collection would ever see them. Where searches are short and what
    is there is large, not before each of them: one collection in twenty times what it takes.
    """
    if _is_free():
        _left.collect()  # before the lock of the patch: what is collected may be a search's own
    with _patch.applied():
        yield


def _is_free() -> bool:
    """Whether nobody has plans of his own with the collector: the user, or another search."""
    return gc.get_freeze_count() == 0 and gc.get_threshold()[0] > 0


#: Thresholds before the first search; None where the user's plans are left alone.
_before: tuple[int, int, int] | None = None


def _install() -> None:
    global _before
    _before = gc.get_threshold() if _is_free() else None
    if _before is not None:
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)


def _remove() -> None:
    if _before is not None:
        gc.set_threshold(*_before)
        gc.unfreeze()


_patch = RefCountedPatch(_install, _remove)


class _LeftoverCollector:
    """Collects what searches left, unless the last collection was too short a while ago.

    Args:
        clock: Seconds, from anywhere.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._again: float | None = None  # when a collection has earned its time; None: no search

    def collect(self) -> None:
        """Before a search; before the first there is nothing to collect."""
        began = self._clock()
        if self._again is None:
            self._again = began
        elif began >= self._again:
            gc.collect()
            ended = self._clock()
            self._again = ended + (ended - began) / _SHARE


_left = _LeftoverCollector()


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
