"""What a study had before this search: as the storage has it, or as a checkpoint has it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from paceline.study import trial_codec
from paceline.study.metadata import StoredStudy
from paceline.study.trial import INTERRUPTED, Trial, TrialState


class RestoredStudy:
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
        if (stored.state, stored.values) == (trial_codec.OPTUNA_STATES[state], values):
            return None
        # Something was not as it had been (another device, a build that was mended).
        return trial_codec.from_frozen(stored)

    def not_again(self) -> Iterator[Trial]:
        """Trials that were to come again and have not, as they ended before."""
        for stored in self._ended.values():
            trial = trial_codec.from_frozen(stored)
            if trial is not None:
                yield trial


def rolled_back(
    trials: Sequence[FrozenTrial], facts: Mapping[str, Any]
) -> tuple[list[FrozenTrial], dict[int, dict[str, Any]]] | None:
    """The trials of a study as they were when ``Study.snapshot`` was taken.

    Args:
        trials: All that the storage holds now, by number.
        facts: The snapshot.

    Returns:
        The trials there were, those under way running again; and the hparams of those that began
        since, by number. None where the storage holds others than it should.
    """
    n, opened = facts["next"], facts["open"]
    if len(trials) < n:
        return None
    past = []
    for stored in trials[:n]:
        trial, was = stored, opened.get(str(stored.number))
        if was is None and not stored.state.is_finished():
            return None
        if was is not None:
            trial = copy.copy(stored)
            trial.state, trial.values, trial.datetime_complete = OptunaState.RUNNING, None, None
            values = trial.intermediate_values.items()
            trial.intermediate_values = {e: v for e, v in values if e <= was["epochs"]}
            attrs = {key: trial.user_attrs.get(key) for key in ("hparams", "seed", "draw")}
            attrs["program"] = was["program"]
            if stored.user_attrs.get("error") == INTERRUPTED:
                return None  # it has been tried again since
            if not isinstance(attrs["hparams"], dict) or attrs["hparams"] != was["hparams"]:
                return None
            trial.user_attrs = {key: value for key, value in attrs.items() if value is not None}
        past.append(trial)
    later = {trial.number: trial.user_attrs.get("hparams") for trial in trials[n:]}
    if not all(isinstance(hparams, dict) for hparams in later.values()):
        return None
    return past, {number: hparams or {} for number, hparams in later.items()}
