"""Trials whose compiled step does not come back: remembered for the process that goes on.

A step that runs cannot be stopped from inside its process, so the process must end, and the search
goes on from its last checkpoint in another one. That one must not train the same trial again.
Where several trials trained side by side, one of them or all may be the reason: they are suspects,
and train one by one through the epoch that did not end.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.errors import TrialTimeoutError
from paceline.trial_record import plain


class Condemned:
    """What is known of such trials, in a file.

    Args:
        path: Of the file; made when there is something to write.

    Attributes:
        suspects: Number of a job -> epochs it had trained when its pack did not come back.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._trials: dict[int, tuple[dict[str, Any], str]] = {}
        self.suspects: dict[int, int] = {}
        try:
            held = json.loads(path.read_text())
            self._trials = {int(n): (dict(h), str(text)) for n, (h, text) in held["trials"].items()}
            self.suspects = {int(n): int(epoch) for n, epoch in held["suspects"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            pass  # none, or one that another program has left there

    def condemn(self, number: int, hparams: Mapping[str, Any], text: str) -> None:
        """Remembers that a trial is not to be trained again, and why."""
        self._trials[number] = plain(dict(hparams)), text
        self._write()

    def suspect(self, epochs: Mapping[int, int]) -> bool:
        """Remembers jobs of a pack that did not come back, and the epochs that they had trained.

        Returns:
            Whether that is news; if not, suspicion does not help.
        """
        new = any(self.suspects.get(job) != epoch for job, epoch in epochs.items())
        self.suspects.update(epochs)
        self._write()
        return new

    def verdict(self, number: int, hparams: Mapping[str, Any]) -> TrialTimeoutError | None:
        """Why a trial is not to be trained; None where it is."""
        held, text = self._trials.get(number, ({}, ""))
        return TrialTimeoutError(text) if text and held == plain(dict(hparams)) else None

    def clear(self) -> None:
        """The search has come to its end."""
        self._trials.clear()
        self.suspects.clear()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _write(self) -> None:
        held = {
            "trials": {str(number): trial for number, trial in self._trials.items()},
            "suspects": {str(job): epoch for job, epoch in self.suspects.items()},
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f".{os.getpid()}-{self._path.name}")
        temporary.write_text(json.dumps(held))
        os.replace(temporary, self._path)
