"""The record that a running search gives to the live view, a few times a second at most."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TrialRow:
    """One trial of the live table.

    Attributes:
        number, state, value, hparams: The trial's.
        epoch, epochs: Epochs trained, and to train; ``epochs`` is 0 where the trial has ended.
        values: The trial's values of several objectives, once it is complete; empty otherwise.
        curve: The objective after each epoch, at most as many values as a small curve has points.
    """

    number: int
    state: str
    value: float | None
    epoch: int
    epochs: int
    hparams: dict[str, Any]
    curve: tuple[float, ...] = ()
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class WorkerRow:
    """One worker of a search on a cluster.

    Attributes:
        name: Its name.
        device: Its device in words, and the machine.
        busy, slots: Trials that it trains, and that it can train at once.
        rate: Trial-epochs per second since it came; None before the first one.
    """

    name: str
    device: str
    busy: int
    slots: int
    rate: float | None


@dataclass(frozen=True)
class Progress:
    """The state of a search at one moment.

    Attributes:
        study: Name of the study.
        phase: "building", "compiling", "training", "paused" or "done".
        n_trials: Total of the study's trials, copies and continued ones included; None if only a
            timeout bounds the search.
        n_complete, n_pruned, n_failed, n_running: Numbers of trials by state, those of earlier
            sessions included.
        n_rejected: The number of configurations that were rejected before training.
        trial_epochs: Epochs trained in this call of ``search``, summed over trials.
        seconds: Seconds since this call of ``search`` began.
        rate: Trial-epochs per second over the last few seconds; None before the first epoch.
        seconds_left: Estimate of the seconds that are left; None while unknown.
        objective: Name of the objective.
        best_number, best_value, best_hparams: Number, value and hyperparameters of the best
            complete trial, or while none is complete of the one that leads; None, None and {}
            before there is one.
        rounds: Rounds in this call of ``search``; in a round, all trials that train at once do one
            epoch.
        pace: Number of trials at once and seconds of a round, over the last rounds; None before the
            first one.
        rows: The best trial, then the next complete ones, then some that run, each the best first.
        busy: Share of slot-epochs that trained a trial; None before the first one.
        devices: The devices in words: ``2 x NVIDIA H100``; None while unknown.
        compiles: Programs that are compiled, and that were asked for.
        others: The names of the objectives beside the first; empty for one objective.
        n_front: With several objectives, the number of trials on the front.
        workers: The workers of a cluster; empty without one.
        round_epochs: Epochs trained in ``rounds``, summed over trials.
        trial_seconds: Seconds that ``trial_epochs`` took: each trial's share of its packs' time.
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
    rows: tuple[TrialRow, ...] = ()
    busy: float | None = None
    devices: str | None = None
    compiles: tuple[int, int] = (0, 0)
    n_rejected: int = 0
    others: tuple[str, ...] = ()
    n_front: int = 0
    workers: tuple[WorkerRow, ...] = ()
    round_epochs: int = 0
    trial_seconds: float = 0.0

    @property
    def doing(self) -> str:
        """The phase in words, such as ``compiling 2 of 4``."""
        if self.phase == "done":
            return "stopped" if self.n_running else "done"
        ready, asked = self.compiles
        if self.phase == "compiling" and asked:
            return f"compiling {min(ready + 1, asked)} of {asked}"
        if self.phase == "building":
            return f"building and tracing trial {self.n_running + 1}"
        return self.phase
