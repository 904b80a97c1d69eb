"""The arguments of ``Tuner``, and what one search of it is given beside those of ``search``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import StopSignal
from paceline.executor.remote.cluster import Cluster
from paceline.report.progress import Progress
from paceline.study.sharing.worker import Worker
from paceline.tuner.arguments.constraints import Constraints
from paceline.tuner.checkpoint.files import SavePolicy
from paceline.tuner.search.timeouts import WhenStuck
from paceline.tuner.trackers.base import Tracker


@dataclass(frozen=True)
class TunerConfig:
    """The arguments of ``Tuner``, checked; attributes are called as they are."""

    builder: ModelBuilder
    study: str
    storage: Any
    sampler: Any
    warm_start_from: tuple[str, ...]
    pruner: Any
    seed: int
    executor: str  # its name
    cluster: Cluster | None  # None: this machine trains
    parallel_trials: Any
    plan: str
    share_widths: bool | str
    constraints: Constraints | None
    mesh: tuple[int, int | None] | None
    precision: str | None
    directory: Path
    folder: Path  # the study's
    keep_best: int
    trackers: Mapping[str, Tracker]
    origin: dict[str, Any] | None
    # Whether the pruner is as given, chosen by rules ("auto"), or so only where time ends the
    # search.
    pruner_rule: str = "given"
    pruner_reason: str | None = None  # why "auto" chose the pruner; None if the user chose
    sampler_reason: str | None = None  # why "auto" chose it; None if the user chose


@dataclass(frozen=True)
class Listeners:
    """The user's functions that a search calls, and the signal that stops it."""

    # Called with the search at this moment, a few times a second; False stops the search.
    progress: Callable[[Progress], object] | None
    notes: Callable[[str], None]  # called with sentences worth telling the user
    on_hang: WhenStuck | None  # None: a note says that the process must be ended
    stop: StopSignal

    def stuck(self, text: str, again: bool) -> None:
        """Says that this process cannot continue, and whether another one can."""
        if self.on_hang is not None:
            self.on_hang(text, again)
            return
        self.notes(
            f"{text}, and Python cannot interrupt it. End this process (restart the kernel) and "
            "search again" + (". The search continues without that trial" if again else "")
        )


@dataclass(frozen=True)
class WorkerFolder:
    """The folder of one search, among those of the workers of its study."""

    # Of this search's models and checkpoints: the study's folder, or one below it where another
    # process searches the study already.
    path: Path
    worker: Worker | None  # None for a search that a searcher decides, which is always alone
    policy: SavePolicy  # the checkpoints in the folder
