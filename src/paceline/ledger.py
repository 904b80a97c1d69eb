"""Where a study's records go: to a thread that writes the storage behind its back."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from paceline.errors import PacelineError
from paceline.objective import Direction
from paceline.record import Record
from paceline.stopwatch import Stopwatch
from paceline.storage import Store
from paceline.writer import Writer


class Ledger:
    """Records of one study, in order. ``put`` does not wait for the storage; the others do.

    Args:
        store: Where they end up.

    Attributes:
        stopwatch: Of the calling thread.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._writer = store, Writer(store)
        self.stopwatch = Stopwatch()
        self._in_trouble = False
        weakref.finalize(self, _close_quietly, self._writer)

    @property
    def seconds(self) -> float:
        """Time of the calling thread."""
        return self.stopwatch.seconds

    @property
    def started(self) -> bool:
        """Whether anything is being written yet."""
        return self._writer.started

    @property
    def trouble(self) -> PacelineError | None:
        """Why records wait; None while the storage takes them."""
        return self._writer.trouble

    @property
    def waiting(self) -> int:
        """Records that are not in the storage yet."""
        return self._writer.waiting

    @property
    def cpu_seconds(self) -> float:
        """Processor time that the writer's thread has taken."""
        return self._writer.cpu_seconds

    def look_after(self, note: Callable[[str], None]) -> bool:
        """Say when the storage stops taking records and when it takes them again.

        Args:
            note: Told so.

        Returns:
            Whether it takes them.
        """
        trouble = self.trouble
        if trouble is not None and not self._in_trouble:
            note(
                f"{trouble} Training goes on; {self.waiting} records wait, and are written when it "
                "answers"
            )
        elif trouble is None and self._in_trouble:
            note("the storage answers again; what waited is written")
        self._in_trouble = trouble is not None
        return trouble is None

    def know(self, number: int, trial: int) -> None:
        """Write to a trial that is in the storage, by the storage's id of it."""
        self._writer.know(number, trial)

    def guard(self, fence: Callable[[], bool]) -> None:
        """Have ``fence`` asked whether a trial may still be begun in the storage."""
        self._writer.fence = fence

    def fence_off(self) -> None:
        """Drop the trials that are not in the storage yet."""
        self._writer.fence_off()

    @property
    def lost(self) -> frozenset[int]:
        """Numbers of trials that were dropped."""
        return self._writer.lost

    def put(self, *records: Record) -> None:
        """Have records written."""
        with self.stopwatch.running():
            self._writer.put(records)

    def create(self, name: str, direction: Direction, meta: Mapping[str, Any]) -> None:
        """Make the study in the storage."""
        with self.stopwatch.running():
            self._store.create(name, direction, dict(meta))

    def start(self, name: str) -> None:
        """Begin to write, what was put before as well."""
        with self.stopwatch.running():
            self._writer.start(name)

    def flush(self) -> None:
        """Wait until everything is in the storage.

        Raises:
            StorageError: It cannot be written now.
        """
        with self.stopwatch.running():
            self._writer.flush()

    def close(self) -> None:
        """Write what is left and end the writer; safe to call again.

        Raises:
            StorageError: The storage has not answered for a minute.
        """
        with self.stopwatch.running():
            self._writer.close()


def _close_quietly(writer: Writer) -> None:
    with contextlib.suppress(PacelineError):
        writer.close()
