"""When a search is saved: often enough that a dead process costs little, seldom enough to be cheap.

A checkpoint is due every 60 s (PACELINE_CHECKPOINT_SECONDS), and not before 40 times as long has
passed as the last one held the search up. So checkpoints take at most 2.5 % of a search.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from paceline.errors import UsageError
from paceline.study.trial_codec import plain
from paceline.tuner.checkpoint.files import CheckpointManager, Snapshot

#: Seconds between checkpoints, or an epoch where that is longer.
EVERY = 60.0
#: How many times as long as a checkpoint held the search up must pass before the next one.
_REPAYS = 40.0
_VARIABLE = "PACELINE_CHECKPOINT_SECONDS"


class SavePolicy:
    """Says when a checkpoint of a search is due, and writes it.

    Args:
        checkpoints: The study's checkpoints, or the worker's.
        key: What a search must have in common with this one to go on with its checkpoints; JSON
            values.

    Attributes:
        seconds: The time that the search has waited for its checkpoints.

    Raises:
        UsageError: PACELINE_CHECKPOINT_SECONDS is no number.
    """

    def __init__(self, checkpoints: CheckpointManager, key: Mapping[str, Any]) -> None:
        self._checkpoints, self._key = checkpoints, plain(dict(key))
        self._every = seconds_between()
        self._next = 0.0  # the first one is due at once
        self.seconds = 0.0

    @property
    def due(self) -> bool:
        """Whether a checkpoint is due."""
        return time.perf_counter() >= self._next

    def hasten(self) -> None:
        """Makes the next checkpoint due at once."""
        self._next = 0.0

    def save(self, snapshot: Snapshot) -> None:
        """Writes a snapshot in the background."""
        snapshot.facts["key"] = self._key
        self._checkpoints.save(snapshot)
        # The first snapshot is waited for: with it, a search that goes on knows which trials have
        # begun since.
        if not snapshot.arrays:
            self._checkpoints.flush()

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """A block in which a snapshot is taken; its time decides when the next one is due."""
        began = time.perf_counter()
        yield
        now = time.perf_counter()
        self.seconds += now - began
        self._next = now + max(self._every, _REPAYS * (now - began) if self._every else 0.0)

    def load(self, note: Callable[[str], None]) -> Snapshot | None:
        """The last snapshot; None, and a note says why, where this search cannot go on with it."""
        snapshot = self._checkpoints.load()
        if snapshot is None or snapshot.facts.get("shared"):  # of single trials: trial_variables.py
            return None
        if snapshot.facts.get("key") == self._key:
            return snapshot
        before = snapshot.facts.get("key", {})
        names = ", ".join(name for name in self._key if before.get(name) != self._key[name])
        if snapshot.facts["trials"]:
            note(
                f"this search is not the one that was stopped ({names}): what has ended stays, and "
                f"the {len(snapshot.facts['trials'])} trials that were under way begin again as "
                "new ones"
            )
        return None

    @property
    def key(self) -> Mapping[str, Any]:
        """What a search must have in common with this one to go on with its checkpoints."""
        return self._key

    @property
    def any(self) -> bool:
        """Whether there is a checkpoint, usable or not."""
        return self._checkpoints.any

    def forget_enqueued(self, values: Mapping[str, Any] | None) -> None:
        """Removes values that were enqueued and are an error from the last snapshot.

        Otherwise every further search of the study would try them again and fail.
        """
        self._checkpoints.flush()
        snapshot = self._checkpoints.load()
        if values is None or snapshot is None or snapshot.facts.get("key") != self._key:
            return
        if snapshot.facts.get("shared"):
            return
        study = snapshot.facts["study"]
        study["queue"] = [one for one in study["queue"] if one != [values, True]]
        study["given"] = [one for one in study["given"] if one != values]
        self._checkpoints.save(snapshot)

    def clear(self) -> None:
        """Removes all checkpoints, when no trial is under way."""
        self._checkpoints.clear()


def seconds_between() -> float:
    """Seconds between checkpoints: PACELINE_CHECKPOINT_SECONDS, or 60.

    Raises:
        UsageError: The environment variable is no number from 0.
    """
    text = os.environ.get(_VARIABLE)
    try:
        seconds = EVERY if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise UsageError(f"{_VARIABLE}: {text!r} is no number of seconds; give 0 or more.")
    return seconds
