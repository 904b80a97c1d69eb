"""The trials of a study as users see them: by number, the best of them, epoch by epoch.

Which of a study's trials go on, when its best ones are to train longer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from paceline.errors import StudyError
from paceline.study.objective import Direction, is_better
from paceline.study.trial import Trial


class TrialTable:
    """Trials by number.

    Args:
        study: Name of the study, for messages.

    Attributes:
        direction: Whether values are to maximize or minimize; None while it is not known.
    """

    def __init__(self, study: str) -> None:
        self._study = study
        self.direction: Direction | None = None
        self._trials: dict[int, Trial] = {}

    def put(self, trial: Trial) -> None:
        """Add a trial, or replace the one of its number."""
        self._trials[trial.number] = trial

    def drop(self, number: int) -> None:
        """Forget a trial, if there is one of this number."""
        self._trials.pop(number, None)

    def get(self, number: int) -> Trial | None:
        """Return one trial, or None."""
        return self._trials.get(number)

    @property
    def trials(self) -> list[Trial]:
        """All trials by number."""
        return [self._trials[number] for number in sorted(self._trials)]

    def trial(self, number: int) -> Trial:
        """Return one trial.

        Raises:
            StudyError: There is none of this number.
        """
        if number not in self._trials:
            last = f"the last is {max(self._trials)}" if self._trials else "it has none yet"
            raise StudyError(f'study "{self._study}" has no trial {number!r}: {last}.')
        return self._trials[number]

    @property
    def best(self) -> Trial | None:
        """The complete trial with the best value, the first of equals; None when there is none."""
        best: Trial | None = None
        for trial in self.trials:
            if trial.state == "complete" and self.better(trial.value, best and best.value):
                best = trial
        return best

    @property
    def leading(self) -> Trial | None:
        """The trial with the best value so far, whatever its state; None when there is none."""
        leading: Trial | None = None
        for trial in self.trials:
            if trial.value is not None and trial.state != "failed":
                if self.better(trial.value, leading and leading.value):
                    leading = trial
        return leading

    def set_direction(self, direction: Direction) -> None:
        """Say whether high or low values are good.

        Raises:
            StudyError: The study is searched in the other direction.
        """
        if self.direction not in (None, direction):
            raise StudyError(
                f'study "{self._study}" is stored with direction {self.direction}, not '
                f"{direction}; give the objective that it was begun with, or choose another study "
                "name."
            )
        self.direction = direction

    @property
    def sign(self) -> int:
        """A value times this is a loss: 1 where low values are good, -1 where high ones are."""
        return -1 if self.direction == "maximize" else 1

    def better(self, value: float | None, than: float | None) -> bool:
        """Whether a value is better than another; any is better than none."""
        if self.direction is None:
            raise RuntimeError("a value before set_direction")
        return is_better(value, than, self.direction)

    def note_epoch(
        self,
        trial: Trial,
        epoch: int,
        logs: Mapping[str, float],
        value: float | None,
        members: Sequence[float],
    ) -> None:
        """Note an epoch of a trial, as ``Course.report``; it replaces one that was there."""
        trial.epochs = epoch
        if members:
            trial.members[epoch - 1 :] = [[float(member) for member in members]]
        for name in dict.fromkeys([*trial.history, *logs]):
            column = trial.history.setdefault(name, [])
            del column[epoch - 1 :]
            # A metric that is missing for some epochs keeps its place in the others.
            column.extend([math.nan] * (epoch - 1 - len(column)))
            column.append(float(logs.get(name, math.nan)))
        if value is not None and self.better(value, trial.value):
            trial.value, trial.best_epoch = value, epoch


def trials_to_continue(
    trials: Sequence[Trial], best: int, epochs: int | None, direction: Direction
) -> list[int]:
    """Numbers of the trials that go on, the best first.

    A finished trial of Optuna's cannot be opened again, so one that goes on is another trial, which
    continues it: of the same hparams and seed, with the same history so far. The one that was
    continued is left as it is, and does not go on a second time. While another worker trains what
    continues a trial, that trial is one of the best all the same: of the best two that two workers
    are to continue, each begins one.

    Args:
        trials: All of the study.
        best: How many of the best complete trials are meant.
        epochs: Epochs that they are to have; those that have them stay. None: not known yet.
        direction: Whether high or low values are good.
    """
    continued = {trial.continues for trial in trials if trial.state != "failed"}
    going_on = {trial.continues for trial in trials if trial.state in ("running", "paused")}
    there: list[Trial] = []
    for trial in trials:
        over = trial.number in continued - going_on
        if trial.state == "complete" and trial.value is not None and not over:
            there.append(trial)
    # Stable: of equals the earlier one.
    there.sort(key=lambda trial: rank(trial.value or 0.0, direction))
    left = [trial for trial in there[:best] if trial.number not in going_on]
    return [t.number for t in left if epochs is None or t.epochs < epochs]


def rank(value: float, direction: Direction) -> float:
    """Sorts values, the best first."""
    return -value if direction == "maximize" else value
