"""What a tracker is, and what it is told of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from paceline.study.trials.trial import Trial


@dataclass(frozen=True)
class TrackedStudy:
    """The study that a tracker is told of.

    Attributes:
        name: Its name.
        objective: The name of the objective, of several the first.
        direction: "maximize" or "minimize".
        folder: Its folder.
        meta: What it remembers of its search, JSON values.
        shared: Whether other processes search it, too.
    """

    name: str
    objective: str
    direction: str
    folder: Path
    meta: Mapping[str, Any]
    shared: bool = False

    @property
    def identity(self) -> str:
        """Tells it from all studies of its name: its id; of older studies the folder."""
        return str(self.meta.get("id") or self.folder.resolve())

    @property
    def objectives(self) -> list[str]:
        """The names of the objectives."""
        return list(self.meta.get("objectives") or [self.objective])

    def values_of(self, trial: Trial) -> dict[str, float]:
        """Objective -> the trial's value; of several objectives all, once it is complete."""
        if self.meta.get("objectives") and trial.values:
            return dict(zip(self.objectives, trial.values, strict=True))
        return {} if trial.value is None else {self.objective: trial.value}


@runtime_checkable
class Tracker(Protocol):
    """Is told of a study's trials, in a thread of its own, one after another.

    An exception of a method ends the tracker with one note; the search continues. A tracker may
    also have an attribute ``where``, a text that tells the user at the end how to look at what it
    holds.
    """

    def begin(self, study: TrackedStudy) -> Collection[int] | None:
        """A search begins.

        Returns:
            The numbers of the trials that the tracker has already: trials of the study that have
            ended and are not among them come first. None: only trials that end from now on.
        """
        ...

    def log_trial(self, trial: Trial) -> None:
        """A trial has ended: complete, pruned or failed."""
        ...

    def end(self, best: Trial | None, model: Path | None) -> None:
        """The search ends.

        Args:
            best: The best trial of the study; with several objectives the best by the first. None
                if no trial is complete.
            model: The file with its model; None if none is saved.
        """
        ...
