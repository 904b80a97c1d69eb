"""Brings the workers of one search up on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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
        from paceline.executor.ray.packing import pack  # imports ray, as the next does
        from paceline.executor.ray.pool import RayPool

        packed = session.ray.put(pack(recipe))
        options = replace(options, elsewhere=not session.started)
        return RayPool(session, settings, packed, options, recipe.code_digest, note)
    except BaseException:
        session.close()
        raise
