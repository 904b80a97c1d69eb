"""What a running search tells the live view: a plain record, made a few times a second at most."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Progress:
    """A search at one moment.

    Attributes:
        study: Name of the study.
        phase: building, compiling, training or done.
        n_trials: The study's total; None when only a timeout bounds it.
        n_complete, n_pruned, n_failed, n_running: Trials by state, earlier sessions included.
        trial_epochs: Epochs trained in this call, summed over trials.
        seconds: Since this call of ``search`` began.
        rate: Trial-epochs per second of the last few seconds; None before the first epoch.
        seconds_left: Estimate; None while unknown.
        objective: Name of the objective.
        best_number, best_value, best_hparams: The best trial so far; None and {} before there is
            one.
        rounds: Epochs of everything that trains at once, in this call.
        pace: Trials at once and seconds of a round, lately; None before the first.
    """

    study: str
    phase: str
    n_trials: int | None
    n_complete: int
    n_pruned: int
    n_failed: int
    n_running: int
    trial_epochs: int
    seconds: float
    rate: float | None
    seconds_left: float | None
    objective: str
    best_number: int | None = None
    best_value: float | None = None
    best_hparams: dict[str, Any] = field(default_factory=dict)
    rounds: int = 0
    pace: tuple[float, float] | None = None
