"""What all parts of one search share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.executor.base import SearchOutlook
from paceline.executor.fit import FitExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.pack_executor import PackExecutor
from paceline.executor.process import StopSignal
from paceline.executor.wall.guard import TrialGuard
from paceline.report.progress import Progress
from paceline.study.objectives import Objective
from paceline.study.pruners.base import Pruner
from paceline.study.study import Study
from paceline.tuner.arguments.arguments import SearchArguments
from paceline.tuner.arguments.constraints import Constraints
from paceline.tuner.checkpoint.best_models import TrainedModels
from paceline.tuner.checkpoint.files import SavePolicy
from paceline.tuner.checkpoint.trial_variables import TrialHandoff
from paceline.tuner.search.members import MemberReports
from paceline.tuner.search.running_trials import UnfinishedTrials
from paceline.tuner.search.stopping import StoppingCheck
from paceline.tuner.search.timeouts import SearchTimeout, TrialTimeout
from paceline.tuner.trackers.threads import TrackerThreads

if TYPE_CHECKING:
    from paceline.study.objectives import Objectives
    from paceline.tuner.arguments.costs import TrialCosts
    from paceline.tuner.search.session import SearchSession


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchContext:
    """One search: ``SearchRun`` makes it, the parts of ``SearchLoop`` are made from it.

    No attribute is ever replaced. The objects keep their own state: who runs, what is counted.
    """

    study: Study  # decides which trials are tried, and records them
    arguments: SearchArguments  # of ``Tuner.search``, checked
    objective: Objective  # the log that is searched for; of several objectives the first
    objectives: Objectives | None  # all of several; None for one
    costs: TrialCosts | None  # of models, where these are among the objectives; else None
    builder: ModelBuilder
    # Whether trials of several widths share a program; "auto": if it is faster.
    share_widths: bool | str
    constraints: Constraints | None  # of models to be trained
    outlook: SearchOutlook  # what was expected when the study began
    packs: PackExecutor | None  # trains trials side by side; None when no trial can be packed
    fit: FitExecutor  # trains the other trials with ``model.fit``, one after another
    pruner: Pruner | None  # None lets all trials train to their end
    trials: UnfinishedTrials  # which trials run or are paused, and how many have ended
    members: MemberReports  # turns reports of a trial's members into reports of the trial
    models: TrainedModels  # weights and last variables of the best trials
    trackers: TrackerThreads | None
    timeout: SearchTimeout  # of the whole search
    trial_timeout: TrialTimeout  # of each trial
    stopping: StoppingCheck | None  # ends the search before its last trial; None without such rules
    policy: SavePolicy | None  # None when no checkpoints are written
    handoff: TrialHandoff | None  # trials of workers that have died; None without a worker
    stop: StopSignal  # whether a signal has asked the search to stop
    notes: Callable[[str], None]  # called with sentences worth telling the user
    said: deque[str]  # the last of these sentences
    folder: Path  # the study's
    began: float  # when ``Tuner.search`` was called, by ``time.perf_counter``, in seconds
    # Called with the search at this moment, a few times a second; False stops the search.
    progress: Callable[[Progress], object] | None
    guard: TrialGuard  # notes what runs, for whoever continues if this process dies
    # Whose process this is; None: the search is in the user's own.
    session: SearchSession | None = None
