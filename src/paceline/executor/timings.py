"""Where an executor's time and slots go."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.executor.reporting import Epoch
from paceline.pack.pack import EpochTimes, Pack

#: Rounds that tell how fast the search goes now.
_LATELY = 64


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


class ExecutorTimings:
    """What an executor has spent.

    Attributes:
        seconds: Where the time went.
        n_rounds: Rounds in which something was trained.
        rounds: The last of them: seconds on the clock, and trials.
    """

    def __init__(self) -> None:
        self.seconds = Seconds()
        self.n_rounds = 0
        self.rounds: deque[tuple[float, int]] = deque(maxlen=_LATELY)
        self._slot_epochs = self._busy_epochs = 0

    def enter(self, wall: float, packs: Sequence[Pack], trained: Sequence[Epoch]) -> None:
        """Adds a round.

        Args:
            wall: Seconds on the clock.
            packs: Those that it had, with the trials that began it.
            trained: Their epochs, without those that failed.
        """
        self._slot_epochs += sum(len(pack.slots) for pack in packs)
        self._busy_epochs += sum(len(pack.live) for pack in packs)
        self.seconds.add(wall, [times for _, times in trained])
        if trained:
            self.n_rounds += 1
            self.rounds.append((wall, sum(len(results) for results, _ in trained)))

    @property
    def busy_share(self) -> float | None:
        """Slots with a trial in them, over all slots of the packs that trained; by epochs."""
        return self._busy_epochs / self._slot_epochs if self._slot_epochs else None
