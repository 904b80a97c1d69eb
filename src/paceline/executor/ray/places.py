"""Where workers are to run: one for each device of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.executor.ray.settings import RaySettings


@dataclass(frozen=True)
class WorkerPlace:
    """Room for one worker."""

    node: str | None  # Ray's id of the machine; None: Ray chooses
    cpus: int
    gpus: int


def places(ray: Any, settings: RaySettings) -> list[WorkerPlace]:
    """The places that there are now; ``ray`` is the module, connected."""
    nodes = [node for node in ray.nodes() if node.get("Alive")]
    totals = [node.get("Resources", {}) for node in nodes]
    gpus = settings.gpus
    if gpus is None:
        gpus = 1 if any(total.get("GPU", 0) >= 1 for total in totals) else 0
    if isinstance(settings.workers, int):
        cpus = settings.cpus or _share(totals, settings.workers, gpus)
        return [WorkerPlace(None, cpus, gpus)] * settings.workers
    found: list[WorkerPlace] = []
    for node, total in zip(nodes, totals, strict=True):
        cores = int(total.get("CPU", 0))
        n = int(total.get("GPU", 0)) if gpus else 1
        if settings.cpus is not None:
            n = min(n, cores // settings.cpus) if gpus else cores // settings.cpus
        for name, amount in settings.resources.items():
            n = min(n, int(total.get(name, 0) // amount)) if amount else n
        if not cores or not n:
            continue
        cpus = settings.cpus or max(1, cores // n)
        found += [WorkerPlace(node["NodeID"], cpus, gpus)] * n
    return found


def _share(totals: list[dict[str, float]], workers: int, gpus: int) -> int:
    """The cores of each of this many workers."""
    if gpus:
        shares = [t.get("CPU", 0) // t["GPU"] for t in totals if t.get("GPU", 0) >= 1]
        return max(1, int(min(shares, default=1)))
    cores = sorted((int(total.get("CPU", 0)) for total in totals), reverse=True)
    share = max(1, sum(cores) // workers)
    while share > 1 and sum(n // share for n in cores) < workers:
        share -= 1
    return share
