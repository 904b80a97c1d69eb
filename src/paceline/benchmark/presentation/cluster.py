"""How long a planned search takes on a cluster, and whether a cluster is worth it.

Each worker has one device like the one that was measured, and trains its share of the trials at the
measured pace. Each loads its libraries, builds, traces and compiles for itself.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from paceline.benchmark.records import PlannedSearch
from paceline.executor.remote.payoff import PAYS
from paceline.report import formats
from paceline.report.forecast import Costs, predict, rounds_left


@dataclass(frozen=True)
class ClusterPrediction:
    """The predicted seconds of a search on a cluster, in parts."""

    workers: int  # each with one device
    startup: float  # until a worker has loaded its libraries
    ready: float  # until its first trials train: building, tracing, compiling
    compiling: float  # of its share of further programs
    rounds: float  # of all its rounds
    finish: float  # after the last epoch
    alone: float  # of the search on one such device, without a cluster

    @property
    def total(self) -> float:
        """Seconds of the whole search."""
        return self.startup + self.ready + self.compiling + self.rounds + self.finish

    @property
    def pays(self) -> bool:
        """Whether workers train long enough, and the search ends sooner than on one device."""
        return self.rounds >= PAYS and self.total < self.alone

    def to_json(self) -> dict[str, Any]:
        """All of it, as ``paceline bench --json`` prints it."""
        return {**asdict(self), "total": self.total, "pays": self.pays}


def predict_cluster(costs: Costs, plan: PlannedSearch, n_devices: int = 1) -> ClusterPrediction:
    """Predicts a search that has workers; ``n_devices`` were measured, its trials spread over them.

    A worker with fewer trials than fit into its slots is counted with the time of a full round.
    """
    assert plan.workers is not None
    n_trials, epochs, share, workers = plan.n_trials, plan.epochs, plan.share, plan.workers
    pace = costs.pace
    # Trials of several devices train side by side, so one device has its part of them a round.
    slots = max(1.0, pace.at_once / n_devices)
    most = math.ceil(n_trials / workers)  # trials of the worker that has most
    n_rounds = rounds_left((), most, epochs * share, min(slots, most))
    further = max(0.0, min(costs.programs, n_trials) / workers - 1)
    alone = predict(costs, n_trials, epochs, share)
    alone_rounds = rounds_left((), n_trials, epochs * share, min(slots, n_trials)) * pace.round
    return ClusterPrediction(
        workers,
        costs.startup or 0.0,
        costs.ready,
        further * costs.compile,
        n_rounds * pace.round,
        costs.finish,
        alone.total - alone.rounds + alone_rounds,
    )


def sentence(found: ClusterPrediction, name: str) -> str:
    """Returns the time of a search on a cluster of devices named ``name``, and whether it is worth
    it.
    """
    s, alone = formats.seconds, formats.seconds(found.alone)
    parts = [
        f"{s(found.startup)} until a worker has loaded JAX and Keras",
        f"{s(found.ready + found.compiling)} building, tracing and compiling on each",
        f"{s(found.rounds)} of rounds",
        f"{s(found.finish)} at the end",
    ]
    text = (
        f"On {found.workers} Ray workers with one such device each: about {s(found.total)} "
        f"({'; '.join(parts)}), compared with {alone} on one {name} device. "
    )
    if found.pays:
        return f"{text}Ray is worth it: {found.alone / found.total:.1f} times as fast."
    if found.rounds < PAYS:
        return (
            f"{text}Ray isn't worth it, because each worker would train for less than {s(PAYS)}. "
            "Use executor='auto', which starts at once."
        )
    return f"{text}Ray isn't worth it, because it wouldn't be faster."
