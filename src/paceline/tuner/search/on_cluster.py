"""The executor of a search whose trials train on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.errors import UsageError
from paceline.executor.base import EpochLimit, PackOptions, SearchOutlook
from paceline.executor.ray.cluster import Ray
from paceline.executor.remote.cluster import Cluster
from paceline.executor.remote.driver import RemoteExecutor
from paceline.executor.remote.host import HostOptions
from paceline.executor.remote.messages import WeightsToReport
from paceline.pack.mesh import check_mesh
from paceline.program.numbers import number_settings
from paceline.study.objectives import Objective
from paceline.study.samplers.samplers import strategy_of
from paceline.study.trials.table import expected_by_time
from paceline.tuner.arguments.arguments import SearchArguments
from paceline.tuner.arguments.config import TunerConfig
from paceline.tuner.checkpoint.best_models import TrainedModels
from paceline.tuner.search.job_factory import TrialJobFactory


def cluster_of(executor: Any, mesh: Any, sampler: Any) -> tuple[str, Cluster]:
    """The name of an executor of several machines, and the machines; arguments are ``Tuner``'s."""
    if executor == "ray":
        executor = Ray()
    if not isinstance(executor, Cluster):
        raise UsageError(
            f"executor must be a name or a paceline.Ray object, got {executor!r}. Pass "
            "paceline.Ray() for a Ray cluster."
        )
    if check_mesh(mesh) is not None:
        raise UsageError(
            "mesh: on a cluster each worker trains on one device. Leave mesh out, and pass the "
            "number of workers as paceline.Ray(workers=...)."
        )
    if not strategy_of(sampler).resumable:
        raise UsageError(
            "executor: a cluster does not support a Searcher. Use executor='auto', or a sampler "
            "such as 'tpe'."
        )
    return executor.name, executor


def cluster_executor(
    config: TunerConfig,
    arguments: SearchArguments,
    how: tuple[PackOptions, EpochLimit, bool, SearchOutlook],
    objective: Objective,
    models: TrainedModels,
    note: Callable[[str], None],
) -> RemoteExecutor:
    """The executor of a search on a cluster; raises as ``Cluster.connect``."""
    assert config.cluster is not None
    options, limit, in_order, outlook = how
    if outlook.core_seconds:  # workers make families at once: only the search itself works ahead
        first = expected_by_time(0)
        outlook = SearchOutlook(min(outlook.trials or first, first))
    numbers = number_settings()
    job_factory = TrialJobFactory(
        config.builder, arguments, config.share_widths, outlook, config.precision, numbers
    )
    sign = -1 if objective.direction == "maximize" else 1

    def kept() -> WeightsToReport:
        return WeightsToReport(objective.name, sign, models.best.least, arguments.n_members)

    pool = config.cluster.connect(job_factory, HostOptions(options, in_order, limit), note)
    try:
        packs = RemoteExecutor(
            job_factory.data, pool, options, note=note, in_order=in_order, kept=kept
        )
    except BaseException:
        pool.close()
        raise
    packs.limit = limit
    return packs
