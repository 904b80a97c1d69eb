"""What all parts of one search share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.executor.base import FamilyRules
from paceline.executor.fit import FitExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import StopSignal
from paceline.executor.protocol import PackExecutor
from paceline.report.progress import Progress
from paceline.study.objective import Objective
from paceline.study.pruners.pruners import Pruner
from paceline.study.study import Study
from paceline.tuner.arguments import SearchArguments
from paceline.tuner.checkpoint.best_models import TrainedModels
from paceline.tuner.checkpoint.files import SavePolicy
from paceline.tuner.checkpoint.trial_variables import TrialHandoff
from paceline.tuner.constraints import Constraints
from paceline.tuner.members import MemberReports
from paceline.tuner.running_trials import RunningTrials
from paceline.tuner.stopping import StoppingCheck
from paceline.tuner.timeouts import SearchTimeout, TrialTimeout
from paceline.tuner.trackers.threads import TrackerThreads

if TYPE_CHECKING:
    from paceline.study.objectives import Objectives
    from paceline.tuner.costs import TrialCosts


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchContext:
    """One search: ``SearchRun`` makes it, the parts of ``SearchLoop`` are made from it.

    No attribute is ever replaced. The objects keep their own state: who runs, what is counted.

    Attributes:
        study: Decides which trials are tried, and records them.
        arguments: The arguments of ``Tuner.search``, checked.
        objective: The log that is searched for, and its direction; of several objectives the first.
        objectives: All of several objectives; None for one.
        costs: What models cost, where that is among the objectives; else None.
        builder: Builds models from hyperparameters.
        widths: Whether trials of several widths train in one program: "auto", "apart" or
            "together".
        constraints: What a model must satisfy for its trial to be trained; None for nothing.
        family_rules: The rules by which they do so, those of when the study began.
        packs: Trains trials side by side; None when no trial of the search can be packed.
        fit: Trains the other trials with ``model.fit``, one after another.
        pruner: Judges trials after their epochs; None lets all of them train to their end.
        trials: Which trials run or are paused, and how many have ended.
        members: Turns the reports of a trial's members into reports of the trial.
        models: The weights and last variables of the best trials.
        trackers: Told of the trials that end; None for a search without trackers.
        timeout: The limit of the whole search.
        trial_timeout: The limit of each trial.
        stopping: Says whether the search ends before its last trial; None without such rules.
        policy: Says when a checkpoint is due and writes it; None when none are written.
        handoff: The trials of workers that have died; None for a search without a worker.
        stop: Says whether a signal has asked the search to stop.
        notes: Called with sentences worth telling the user.
        said: The last of these sentences.
        folder: The study's folder.
        began: When the call of ``Tuner.search`` began, by ``time.perf_counter``, in seconds.
        progress: Called with the search at this moment, a few times a second; stops the search by
            returning False. None for nobody.
    """

    study: Study
    arguments: SearchArguments
    objective: Objective
    objectives: Objectives | None
    costs: TrialCosts | None
    builder: ModelBuilder
    widths: str
    constraints: Constraints | None
    family_rules: FamilyRules
    packs: PackExecutor | None
    fit: FitExecutor
    pruner: Pruner | None
    trials: RunningTrials
    members: MemberReports
    models: TrainedModels
    trackers: TrackerThreads | None
    timeout: SearchTimeout
    trial_timeout: TrialTimeout
    stopping: StoppingCheck | None
    policy: SavePolicy | None
    handoff: TrialHandoff | None
    stop: StopSignal
    notes: Callable[[str], None]
    said: deque[str]
    folder: Path
    began: float
    progress: Callable[[Progress], object] | None
