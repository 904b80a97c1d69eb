"""Says when a cluster isn't worth it: its workers train for less time than they take to start."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `paceline bench` reads PAYS, and shows results without JAX
    from paceline.executor.sharing.grouping import TrialGroup
    from paceline.executor.training.reporting import ExecutorTimings
    from paceline.executor.training.slots import TrialDemand

#: Seconds of training per worker from which on a cluster is worth it.
PAYS = 60.0
#: Epochs of packs that show how fast a worker is.
_ENOUGH = 5


@dataclass(eq=False, repr=False)
class ClusterPayoff:
    """Looks once, after the first epochs, how long the workers will train."""

    demand: TrialDemand
    timings: ExecutorTimings
    tell: Callable[[str], None]  # is told if a cluster isn't worth it
    _looked: bool = field(init=False, default=False)
    startup: float = field(init=False, default=0.0)  # seconds until the first worker was there

    def look(self, groups: Iterable[TrialGroup], n_workers: int) -> None:
        """Looks, if enough was trained and nobody has looked yet."""
        if self._looked or self.timings.n_rounds < _ENOUGH or not n_workers:
            return
        self._looked = True
        seconds, trained = (sum(each) for each in zip(*self.timings.rounds, strict=True))
        left = self.demand.epochs_left([trial for group in groups for trial in group.trials])
        alone = (left + trained) * seconds / max(1, trained)
        if alone / n_workers < PAYS:
            self.tell(
                f"a cluster isn't worth it for this search: about {alone / n_workers:.0f} s of "
                f"training on each of {n_workers} workers, plus {self.startup:.0f} s to start "
                f"them. One such device needs about {alone:.0f} s; executor='auto' starts at once"
            )
