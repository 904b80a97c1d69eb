"""The arguments of ``Tuner``, and what one search of it is given beside those of ``search``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import StopSignal
from paceline.executor.remote.cluster import Cluster
from paceline.pack.mesh import check_mesh
from paceline.report.progress import Progress
from paceline.study.pruners.pruners import pruner_text
from paceline.study.samplers.samplers import strategy_of
from paceline.study.workers.worker import Worker
from paceline.tuner.checkpoint.files import SavePolicy
from paceline.tuner.constraints import Constraints
from paceline.tuner.timeouts import WhenStuck
from paceline.tuner.trackers.base import Tracker

EXECUTORS = ("auto", "local", "fit", "ray")


def one_of(name: str, value: Any, known: Sequence[str]) -> None:
    """Checks an argument that names a choice.

    Raises:
        UsageError: The value is none of those known.
    """
    if value not in known:
        raise UsageError(f"{name}: {value!r} is not one of {', '.join(known)}.")


@dataclass(frozen=True)
class TunerConfig:
    """The arguments of ``Tuner``, checked; attributes are called as they are.

    Attributes:
        builder: Builds models, by the ``build`` that was given.
        executor: Its name.
        cluster: The machines that train, for an executor of several; None: this one.
    """

    builder: ModelBuilder
    study: str
    storage: Any
    sampler: Any
    learn_from: tuple[str, ...]
    pruner: Any
    seed: int
    executor: str
    cluster: Cluster | None
    slots: Any
    plan: str
    widths: str
    constraints: Constraints | None
    mesh: tuple[int, int | None] | None
    precision: str | None
    directory: Path
    keep_best: int
    track: Mapping[str, Tracker]
    origin: dict[str, Any] | None

    @property
    def folder(self) -> Path:
        """The study's folder."""
        return self.directory / self.study

    def decisive(self) -> dict[str, Any]:
        """The arguments that decide the trials of a study, as JSON values."""
        sampler = self.sampler
        return {
            "sampler": sampler if isinstance(sampler, str) else type(sampler).__name__,
            "seed": self.seed,
            "slots": self.slots,
            "plan": self.plan,
            "pruner": None if self.pruner is None else pruner_text(self.pruner),
            "precision": self.precision,
            "mesh": None if self.mesh is None else list(self.mesh),
            # Left out where it is the default: studies from before there was a choice go on.
            **({} if self.widths == "auto" else {"widths": self.widths}),
            **({"constraints": self.constraints.to_json()} if self.constraints else {}),
        }


@dataclass(frozen=True)
class Listeners:
    """The user's functions that a search calls, and the signal that stops it.

    Attributes:
        progress: Called with the search at this moment, a few times a second; stops the search by
            returning False. None for nobody.
        notes: Called with sentences worth telling the user.
        when_stuck: As the argument of ``Tuner``; None notes that the process must be ended.
        stop: Says whether a signal has asked the search to stop.
    """

    progress: Callable[[Progress], object] | None
    notes: Callable[[str], None]
    when_stuck: WhenStuck | None
    stop: StopSignal

    def stuck(self, text: str, again: bool) -> None:
        """Says that this process cannot go on, and whether another one can."""
        if self.when_stuck is not None:
            self.when_stuck(text, again)
            return
        self.notes(
            f"{text}, and what it waits for cannot be interrupted: end this process (restart the "
            "kernel) and search again"
            + ("; the search goes on without that trial" if again else "")
        )


@dataclass(frozen=True)
class WorkerFolder:
    """The folder of one search, among those of the workers of its study.

    Attributes:
        path: Where this search keeps its models and checkpoints: the study's folder, or a folder
            below it where another process searches the study already.
        worker: Joins the study's other workers, if there are any; None for a search that a
            searcher decides, which is always alone.
        policy: The checkpoints in the folder.
    """

    path: Path
    worker: Worker | None
    policy: SavePolicy


def cluster_of(executor: str | Cluster, mesh: Any, sampler: Any) -> tuple[str, Cluster | None]:
    """The argument ``executor`` of ``Tuner``, checked.

    Args:
        executor: A name, or where the machines come from.
        mesh: As of ``Tuner``.
        sampler: As of ``Tuner``.

    Returns:
        The executor's name, and its machines where they are others than this one.

    Raises:
        UsageError: There is no such executor, or a cluster cannot do what is asked for.
    """
    if executor == "ray":
        from paceline.executor.ray.settings import Ray  # seldom needed

        executor = Ray()
    if not isinstance(executor, Cluster):
        one_of("executor", executor, EXECUTORS)
        return executor, None
    if check_mesh(mesh) is not None:
        raise UsageError(
            "mesh: on a cluster each worker trains on one device; leave mesh out, and say with "
            "paceline.Ray(workers=...) how many there are."
        )
    if not strategy_of(sampler).resumable:
        raise UsageError(
            "executor: a cluster trains the trials of samplers, and here a Searcher decides; use "
            "executor='auto', or a sampler such as 'tpe'."
        )
    return executor.name, executor
