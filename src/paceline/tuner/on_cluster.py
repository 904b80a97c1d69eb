"""The executor of a search whose trials train on a cluster."""

from __future__ import annotations

from collections.abc import Callable

from paceline.executor.remote.cluster import Cluster
from paceline.executor.remote.driver import RemoteExecutor
from paceline.executor.remote.host import HostOptions
from paceline.executor.remote.messages import KeptWeights
from paceline.study.objective import Objective
from paceline.tuner.checkpoint.best_models import TrainedModels
from paceline.tuner.recipe import TrialRecipe


def cluster_executor(
    cluster: Cluster,
    recipe: TrialRecipe,
    options: HostOptions,
    objective: Objective,
    models: TrainedModels,
    note: Callable[[str], None],
) -> RemoteExecutor:
    """The executor of a search on a cluster.

    Args:
        cluster: The machines.
        recipe: Makes the search's jobs.
        options: How the machines train.
        objective: The log that is searched for.
        models: Keeps the best trials' weights.
        note: Told what users may want to know.

    Raises:
        UsageError, ClusterError, MissingExtraError: As from ``Cluster.connect``.
    """
    sign = -1 if objective.direction == "maximize" else 1
    members = recipe.arguments.n_members

    def kept() -> KeptWeights:
        return KeptWeights(objective.name, sign, models.best.least, members)

    pool = cluster.connect(recipe, options, note)
    try:
        packs = RemoteExecutor(
            recipe.data,
            pool,
            options.pack,
            note=note,
            in_order=options.in_order,
            kept=kept,
        )
    except BaseException:
        pool.close()
        raise
    packs.limit = options.limit
    return packs
