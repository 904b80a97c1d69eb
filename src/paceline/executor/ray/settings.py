"""``paceline.Ray``: which Ray cluster a search uses, and how much of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.errors import UsageError
from paceline.executor.remote.cluster import Cluster

if TYPE_CHECKING:
    from paceline.executor.remote.host import HostOptions, Recipe
    from paceline.executor.remote.pool import HostPool


@dataclass(frozen=True)
class Ray(Cluster):
    """A Ray cluster, for ``Tuner(executor=paceline.Ray(...))``.

    Attributes:
        address: The cluster's, such as "10.0.0.1:6379", or "auto" for the one that runs on this
            machine. None: the environment's ``RAY_ADDRESS``; without it, a cluster of this
            machine's devices, which ends with the search.
        workers: Processes that train, each with one device; "auto": one for each GPU, or on a
            cluster without GPUs one for each machine.
        cpus: Cores of each worker; None: a machine's cores, divided by its GPUs.
        gpus: GPUs of each worker, 0 or 1; None: 1 where the cluster has any.
        resources: Ray's own resources that each worker needs: name -> amount.
        checkpoints: Not supported yet; None.
        runtime_env: Ray's ``runtime_env`` of the workers: packages, environment variables.

    Raises:
        UsageError: A value cannot work.
    """

    address: str | None = None
    workers: int | str = "auto"
    cpus: int | None = None
    gpus: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    checkpoints: Any = None
    runtime_env: Mapping[str, Any] | None = None
    name = "ray"

    def __post_init__(self) -> None:
        if self.workers != "auto":
            _whole("workers", self.workers, 1, "how many processes train")
        if self.cpus is not None:
            _whole("cpus", self.cpus, 1, "the cores of each worker")
        if self.gpus is not None:
            if isinstance(self.gpus, float) and not self.gpus.is_integer():
                raise UsageError(
                    f"gpus: {self.gpus} is a fraction of a GPU, and one process must have a GPU "
                    "alone; give gpus=1: a pack fills it with many trials."
                )
            _whole("gpus", self.gpus, 0, "the GPUs of each worker")
            if self.gpus > 1:
                raise UsageError(
                    f"gpus: {self.gpus}, and a worker trains on one; give gpus=1, and more workers."
                )
        if self.checkpoints is not None:
            raise UsageError(
                f"checkpoints: {self.checkpoints!r} is not supported yet: the states of trials are "
                "held by the process that searches, and its checkpoints go to the study's folder; "
                "leave checkpoints out."
            )

    def connect(
        self, recipe: Recipe, options: HostOptions, note: Callable[[str], None]
    ) -> HostPool:
        """See ``Cluster``."""
        from paceline.executor.ray.connect import connect  # loads ray

        return connect(self, recipe, options, note)


def _whole(name: str, value: Any, least: int, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(
            f"{name}: {value!r}, but it says {what}: give a whole number from {least}."
        )
