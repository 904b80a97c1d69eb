"""Brings the workers of one search up on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable

from paceline.errors import UsageError
from paceline.executor.ray.session import RaySession
from paceline.executor.ray.settings import RaySettings
from paceline.executor.remote.host import HostOptions, Recipe
from paceline.executor.remote.pool import HostPool


def connect(
    settings: RaySettings, recipe: Recipe, options: HostOptions, note: Callable[[str], None]
) -> HostPool:
    """See ``Cluster.connect``."""
    data = recipe.data
    n_bytes = sum(each.nbytes for each in (data.train, data.validation) if each is not None)
    session = RaySession(settings, n_bytes, note)
    try:
        if not session.started and recipe.file_writers:
            raise UsageError(
                f"callbacks: {', '.join(recipe.file_writers)} write where a trial trains, which "
                "may be another machine's disk, and nobody collects these files yet; use track= "
                "for logs, keep_best= for models, or search on this machine alone."
            )
        from paceline.executor.ray.packing import pack  # imports ray, as the next does
        from paceline.executor.ray.pool import RayPool

        packed = session.ray.put(pack(recipe))
        return RayPool(session, settings, packed, options, recipe.code_digest, note)
    except BaseException:
        session.close()
        raise
