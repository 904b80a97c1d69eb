"""Where the machines of a search come from; ``executor/ray/`` has the one for Ray."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.executor.remote.host import HostOptions, JobFactory
    from paceline.executor.remote.pool import HostPool


class Cluster(ABC):
    """Machines that a search may use."""

    name: str  # what the study calls the executor

    @abstractmethod
    def connect(
        self, job_factory: JobFactory, options: HostOptions, note: Callable[[str], None]
    ) -> HostPool:
        """Brings the machines of one search up; ``job_factory`` is sent to each of them.

        Raises MissingExtraError if a package is not installed. Raises UsageError if something
        cannot be sent, or the cluster lacks what was asked for. Raises ClusterError if there is no
        cluster, or no machine is free.
        """
