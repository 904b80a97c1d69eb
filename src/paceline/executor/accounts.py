"""Where an executor's time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.pack import EpochTimes


@dataclass
class Seconds:
    """Where the time went; tracing and compiling overlap with training."""

    trace: float = 0.0
    train: float = 0.0
    validate: float = 0.0

    def add(self, wall: float, times: Sequence[EpochTimes]) -> None:
        """Splits a round's wall time into training and validation.

        Args:
            wall: Seconds on the clock.
            times: Of its packs, which train side by side.
        """
        train, validate = sum(t.train for t in times), sum(t.validate for t in times)
        share = train / (train + validate) if train + validate else 1.0
        self.train += wall * share
        self.validate += wall * (1.0 - share)
