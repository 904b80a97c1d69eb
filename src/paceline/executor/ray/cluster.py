"""``paceline.Ray``: a Ray cluster as the machines of a search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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
        checkpoints: None, since the process that searches holds the states of trials: anything else
            is refused (docs/decisions/0043).
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
                f"checkpoints: {self.checkpoints!r}; there is no folder of the workers: the "
                "process that searches holds the states of trials, and its checkpoints go to the "
                "study's folder. Leave checkpoints out, and have directory= outlive the machine."
            )

    def connect(
        self, recipe: Recipe, options: HostOptions, note: Callable[[str], None]
    ) -> HostPool:
        """See ``Cluster``."""
        from paceline.executor.ray.session import RaySession  # loads much, and later Ray

        data = recipe.data
        n_bytes = sum(each.nbytes for each in (data.train, data.validation) if each is not None)
        session = RaySession(self, n_bytes, note)
        try:
            from paceline.executor.ray.packing import pack  # imports ray, as the next does
            from paceline.executor.ray.pool import RayPool

            packed = session.ray.put(pack(recipe))
            options = replace(options, elsewhere=not session.started)
            return RayPool(session, self, packed, options, recipe.code_digest, note)
        except BaseException:
            session.close()
            raise


def _whole(name: str, value: Any, least: int, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(
            f"{name}: {value!r}, but it says {what}: give a whole number from {least}."
        )
