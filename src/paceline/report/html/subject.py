"""The study that a report is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from paceline.report.html.standings import behind, standings
from paceline.study.ensemble_record import EnsembleRecord, read_ensemble
from paceline.study.objectives import objective_names
from paceline.study.timeline import SearchTimeline, read_timelines
from paceline.study.trials.lineage import first_of
from paceline.study.trials.table import TrialTable
from paceline.study.trials.trial import Trial


@dataclass(frozen=True)
class ReportSubject:
    """What a report tells of."""

    name: str
    meta: Mapping[str, Any]  # of the search; empty for a study of another program
    trials: TrialTable
    frozen: Sequence[FrozenTrial]  # the same trials as Optuna has them
    timelines: Sequence[SearchTimeline] = ()  # of its searches; empty where not recorded
    ensemble: EnsembleRecord | None = None  # the last one of its models

    @classmethod
    def beside(
        cls,
        folder: Path,
        name: str,
        meta: Mapping[str, Any],
        trials: TrialTable,
        frozen: Sequence[FrozenTrial],
    ) -> ReportSubject:
        """Return a study with what files in its folder tell of it."""
        timelines, ensemble = read_timelines(folder), read_ensemble(folder)
        return cls(name, meta, trials, frozen, timelines, ensemble)

    @property
    def objective(self) -> str:
        """The name of the objective."""
        return str(self.meta.get("objective") or "value")

    @property
    def objectives(self) -> list[str]:
        """The names of several objectives; empty for one."""
        return objective_names(self.meta, len(self.trials.directions))

    @cached_property
    def front(self) -> list[Trial]:
        """The trials of the Pareto front of several objectives; empty for one."""
        return self.trials.front if self.trials.several else []

    @property
    def maximize(self) -> bool:
        """Whether high values are good."""
        return self.trials.direction == "maximize"

    @cached_property
    def reached(self) -> list[Trial]:
        """The trials with a value, the best first, those that are not complete included."""
        return self.trials.ranked

    @cached_property
    def ranked(self) -> list[Trial]:
        """The complete trials with a value, the best first."""
        return [trial for trial in self.reached if trial.state == "complete"]

    @cached_property
    def n_cut(self) -> int:
        """How many trials with a value were stopped early or are unfinished."""
        return len(self.reached) - len(self.ranked)

    @cached_property
    def standings(self) -> dict[int, float]:
        """Number -> the value of a trial's place after as many epochs, the best place first."""
        return standings(self.reached, self.trials, self.objective)

    @cached_property
    def behind(self) -> list[float]:
        """How far each line was behind the best one after as many epochs, the best one's 0 too."""
        return behind(self.lines, self.trials, self.objective)

    @cached_property
    def lines(self) -> list[Trial]:
        """Of the trials in ``reached`` the best of each line: what trials grew from is one draw.

        Copies in a population share weights and most of their hyperparameters, and a trial that
        trains longer is the trial that it continues.
        """
        found: dict[int, Trial] = {}
        for trial in self.reached:
            found.setdefault(first_of(trial, self.trials.get), trial)
        return list(found.values())

    @cached_property
    def stored(self) -> dict[int, FrozenTrial]:
        """Number -> trial as Optuna has it."""
        return {trial.number: trial for trial in self.frozen}

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Hyperparameter, as Optuna stores it -> its distribution in the latest trial with it."""
        return {name: each for trial in self.frozen for name, each in trial.distributions.items()}
