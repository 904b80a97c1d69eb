"""Where the machines of a search come from; ``executor/ray/`` has the one for Ray."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.executor.remote.host import HostOptions, Recipe
    from paceline.executor.remote.pool import HostPool


class Cluster(ABC):
    """Machines that a search may use.

    Attributes:
        name: What the study calls the executor.
    """

    name: str

    @abstractmethod
    def connect(
        self, recipe: Recipe, options: HostOptions, note: Callable[[str], None]
    ) -> HostPool:
        """Brings the machines of one search up.

        Args:
            recipe: Makes the search's jobs; it is sent to each machine.
            options: How the machines train.
            note: Told what users may want to know.

        Raises:
            MissingExtraError: A package is not installed.
            UsageError: Something of the search cannot be sent, or the cluster is asked for what it
                cannot give.
            ClusterError: There is no cluster, or no machine of it is free.
        """
        ...
