"""The state of a running search: for its live view, and in a file for other processes.

The live view is given a ``Progress``, a few times a second at most. The file is written only while
a reader looks. A reader touches ``WATCHED`` every few seconds, and the search then writes ``LIVE``
once a second. So the two processes need no connection.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from paceline.records import Count
from paceline.study.storage.schema import UNREADABLE

#: The files of a watched search, in the folder of its study.
WATCHED, LIVE = ".watched", "live.json"
#: Seconds for which a look counts.
LATELY = 10.0
#: Bytes of a state that is read at most.
_MOST_LIVE = 4_000_000


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
    """One worker of a search on a cluster."""

    name: str
    device: str  # in words, and the machine
    busy: int  # trials that it trains
    slots: int  # trials that it can train at once
    rate: float | None  # trial-epochs per second since it came; None before the first one


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
            complete trial, or of the leading one while none is complete. None, None and {} before
            any has a value.
        rounds: Rounds in this call of ``search``; in a round, all trials that train at once do one
            epoch.
        pace: Number of trials at once and seconds of a round, over the last rounds; None before the
            first one.
        rows: The best trial, then the next complete ones, then some that run, each the best first.
        busy: Share of slot-epochs that trained a trial; None before the first one.
        devices: The devices in words: ``2 x NVIDIA H100``; None while unknown.
        compiles: Programs that are compiled, and that were asked for.
        others: The names of the objectives beside the first; empty for one objective.
        n_front: With several objectives, the number of trials on the Pareto front.
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


class LiveSlot(Struct):
    """A trial in a slot."""

    trial: Count
    epoch: Count
    epochs: Count
    value: float | None = None  # JSON has null for NaN and infinities


class LivePack(Struct):
    """A pack; None in ``slots`` stands for a free slot."""

    program: str
    plan: str
    slots: Annotated[list[LiveSlot | None], Meta(max_length=4096)] = []


class LiveState(Struct):
    """A search at one moment, as the file has it."""

    at: float  # Unix time
    progress: Progress  # without its tables: ``rows`` and ``workers``
    packs: Annotated[list[LivePack], Meta(max_length=1024)] = []
    notes: Annotated[list[str], Meta(max_length=100)] = []

    @property
    def fresh(self) -> bool:
        """Whether the search runs, as far as one can tell."""
        return self.progress.phase != "done" and time.time() - self.at < LATELY


def watch(folder: Path) -> None:
    """Ask the searches on a study to write what they do; nothing happens if there is none."""
    with contextlib.suppress(OSError):
        if folder.is_dir():
            (folder / WATCHED).touch()


def read_live(folder: Path) -> LiveState | None:
    """Return the last state that was written; None if there is none, or one of a stranger."""
    path = folder / LIVE
    try:
        if not path.is_file():  # a pipe in its place would be waited for
            return None
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MOST_LIVE), type=LiveState)
    except (OSError, *UNREADABLE):
        return None
