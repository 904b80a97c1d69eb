"""Configurations to try next: what users have enqueued, and what an interruption left open."""

from __future__ import annotations

import collections
import json
from collections.abc import Mapping
from typing import Any

from paceline.study import trial_codec


class EnqueuedTrials:
    """A queue of values that come before what a sampler chooses.

    Args:
        resumed: Of ``snapshot``, in a session that goes on with another.

    Attributes:
        refused: The last values of a user that were an error.
    """

    def __init__(self, resumed: Mapping[str, Any]) -> None:
        self.refused: dict[str, Any] | None = None
        # Plain name -> real value, and whether the user asked for them.
        self._queue: collections.deque[tuple[dict[str, Any], bool]] = collections.deque(
            (dict(values), users) for values, users in resumed.get("queue", ())
        )
        # What the user has given in the session that goes on: its script gives it once more.
        self._given: list[dict[str, Any]] = [dict(values) for values in resumed.get("given", ())]
        self._given_again = collections.Counter(map(key_of, self._given))

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, values: Mapping[str, Any], *, users: bool) -> None:
        """Have values tried next; see ``Proposer.enqueue``."""
        if users:
            key = key_of(values)
            if self._given_again[key]:
                self._given_again[key] -= 1
                return
            self._given.append(dict(values))
        self._queue.append((dict(values), users))

    def pop(self) -> tuple[dict[str, Any], bool]:
        """The next values, and whether the user asked for them."""
        return self._queue.popleft()

    def waiting(self) -> list[tuple[dict[str, Any], bool]]:
        """All that wait, in order; ``put_back`` takes it."""
        return list(self._queue)

    def put_back(self, waiting: list[tuple[dict[str, Any], bool]]) -> None:
        """Have waiting what was waiting before."""
        self._queue = collections.deque(waiting)

    def snapshot(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "queue": [[trial_codec.plain(values), users] for values, users in self._queue],
            "given": trial_codec.plain(self._given),
        }


def key_of(hparams: Mapping[str, Any]) -> str:
    """Return a text that is equal for equal values; 1, 1.0 and True are not equal."""
    return json.dumps(dict(hparams), sort_keys=True)
