"""When to save a search, so that a session that dies costs little, and saving costs less."""

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
#: Of the time that a checkpoint held the search up, so many times must pass before the next.
_REPAYS = 40.0
_VARIABLE = "PACELINE_CHECKPOINT_SECONDS"


class SavePolicy:
    """Saves a search now and then.

    Args:
        checkpoints: Of the study.
        key: What a search must share with this one to go on with its checkpoints, JSON values.

    Attributes:
        seconds: What the search has waited for.

    Raises:
        UsageError: PACELINE_CHECKPOINT_SECONDS is no number.
    """

    def __init__(self, checkpoints: CheckpointManager, key: Mapping[str, Any]) -> None:
        self._checkpoints, self._key = checkpoints, plain(dict(key))
        self._every = seconds_between()
        self._next = 0.0  # at once
        self.seconds = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time for another."""
        return time.perf_counter() >= self._next

    def hasten(self) -> None:
        """Has the next one be due at once."""
        self._next = 0.0

    def keep(self, snapshot: Snapshot) -> None:
        """Has a snapshot written in the background."""
        snapshot.facts["key"] = self._key
        self._checkpoints.save(snapshot)
        if not snapshot.arrays:  # as at the beginning: from now on it is known what began since
            self._checkpoints.flush()

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """A block in which a snapshot is taken and kept: the next one waits accordingly."""
        began = time.perf_counter()
        yield
        now = time.perf_counter()
        self.seconds += now - began
        self._next = now + max(self._every, _REPAYS * (now - began) if self._every else 0.0)

    def load(self, note: Callable[[str], None]) -> Snapshot | None:
        """The last snapshot, where this search can go on with it; ``note`` is told why not."""
        snapshot = self._checkpoints.load()
        if snapshot is None or snapshot.facts.get("shared"):  # which is no search (relay.py)
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
        """What a search must share with this one to go on with what it keeps, JSON values."""
        return self._key

    @property
    def any(self) -> bool:
        """Whether there is a checkpoint, of whatever use."""
        return self._checkpoints.any

    def refuse(self, values: Mapping[str, Any] | None) -> None:
        """Has the last snapshot forget values of the user's that are an error."""
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
        """Nothing is under way any more."""
        self._checkpoints.clear()


def seconds_between() -> float:
    """Seconds between checkpoints.

    Raises:
        UsageError: The environment holds no number.
    """
    text = os.environ.get(_VARIABLE)
    try:
        seconds = EVERY if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise UsageError(f"{_VARIABLE}: {text!r} is no number of seconds; give 0 or more.")
    return seconds
