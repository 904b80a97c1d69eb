"""``paceline.Ray``: a Ray cluster as the machines of a search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.executor.ray.settings import RaySettings
from paceline.executor.remote.cluster import Cluster

if TYPE_CHECKING:
    from paceline.executor.remote.host import HostOptions, JobFactory
    from paceline.executor.remote.pool import HostPool


@dataclass(frozen=True)
class Ray(RaySettings, Cluster):
    """A Ray cluster, for ``Tuner(executor=paceline.Ray(...))``.

    Attributes:
        address: The cluster's, such as "10.0.0.1:6379", or "auto" for the one that runs on this
            machine. None: the environment's ``RAY_ADDRESS``; without it, a cluster of this
            machine's devices, which ends with the search.
        workers: Processes that train, each with one device; "auto": one for each GPU, or on a
            cluster without GPUs one for each machine.
        cpus: Cores of each worker; None: a machine's cores, divided by its GPUs.
        gpus: GPUs of each worker, 0 or 1; None: 1 if the cluster has any.
        resources: Ray's own resources that each worker needs: name -> amount.
        runtime_env: Ray's ``runtime_env`` of the workers: packages, environment variables.

    Raises:
        UsageError: A value cannot work.
    """

    name = "ray"

    def connect(
        self, job_factory: JobFactory, options: HostOptions, note: Callable[[str], None]
    ) -> HostPool:
        """See ``Cluster``."""
        from paceline.executor.ray.session import RaySession  # loads much, and later Ray

        data = job_factory.data
        n_bytes = sum(each.nbytes for each in (data.train, data.validation) if each is not None)
        session = RaySession(self, n_bytes, note)
        try:
            from paceline.executor.ray.pool import RayPool
            from paceline.executor.ray.serialization import pack  # imports ray, as the next does

            packed = session.ray.put(pack(job_factory))
            options = replace(options, elsewhere=not session.started)
            return RayPool(session, self, packed, options, job_factory.code_digest, note)
        except BaseException:
            session.close()
            raise
