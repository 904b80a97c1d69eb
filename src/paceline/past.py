"""What a study had before this search: as the storage has it, or as a checkpoint has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from optuna.trial import FrozenTrial

from paceline import trial_record
from paceline.study_record import StoredStudy, rolled_back
from paceline.trial import Trial, TrialState


class Past:
    """The trials that a search begins with.

    Args:
        stored: What the storage holds of the study; None for a new one.
        resumed: Of ``Study.snapshot``, or None.

    Attributes:
        resumed: The snapshot, where the storage allows to go on from it; else None.
        trials: Those trials, by number.
        foretold: The hparams of trials that will come again, by number.
    """

    def __init__(self, stored: StoredStudy | None, resumed: Mapping[str, Any] | None) -> None:
        self.trials: list[FrozenTrial] = stored.trials if stored is not None else []
        self.resumed: Mapping[str, Any] | None = None
        self.foretold: dict[int, dict[str, Any]] = {}
        # Trials that are to come again, and have ended in the storage: its word stands.
        self._ended: dict[int, FrozenTrial] = {}
        session = "" if stored is None else stored.meta.get("session", "")
        if stored is None or resumed is None or resumed.get("session") != session:
            return
        back = rolled_back(stored.trials, resumed)
        if back is None:
            return
        self.resumed = resumed
        self._ended = {
            trial.number: trial
            for trial in stored.trials
            if trial.state.is_finished()
            and (trial.number >= resumed["next"] or str(trial.number) in resumed["open"])
        }
        self.trials, self.foretold = back
        self._stored = set(self.foretold)

    def has(self, number: int) -> bool:
        """Whether the storage has a trial that is being begun, and perhaps its end too."""
        return self.resumed is not None and number in self._stored

    def end_of(self, number: int, state: TrialState, value: float | None) -> Trial | None:
        """The trial as it had ended before, where that is not how it ends now."""
        stored = self._ended.pop(number, None)
        if stored is None:
            return None
        values = None if state == "failed" or value is None else [value]
        if (stored.state, stored.values) == (trial_record.OPTUNA_STATES[state], values):
            return None
        # Something was not as it had been (another device, a build that was mended).
        return trial_record.read(stored)

    def not_again(self) -> Iterator[Trial]:
        """Trials that were to come again and have not, as they ended before."""
        for stored in self._ended.values():
            trial = trial_record.read(stored)
            if trial is not None:
                yield trial
