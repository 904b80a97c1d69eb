"""Which of a study's trials go on, when its best ones are to train longer."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.objective import Direction
from paceline.trial import Trial


def to_go_on(
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
