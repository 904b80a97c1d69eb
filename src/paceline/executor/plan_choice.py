"""Which plan, and how many slots: remembered from earlier searches, else tried out while it trains.

What is faster depends on the model, the device and the versions. Rules choose at first. Where a
search is long enough to repay it, other candidates are compiled in the background and each trains a
few epochs of the search, trials and all; the fastest goes on. The answer is kept on disk beside the
compiled programs, so that the next search of this model begins with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jaxlib.version

from paceline.program.disk_cache import DiskCache, source_digest

_DRAWER = DiskCache("plans", kept=500)
#: Epochs of full packs that a candidate is timed for; the fastest counts. The first epoch after a
#: change is not timed.
_EPOCHS = 2
#: A candidate must be so much faster to be taken, since timings scatter.
_GAIN = 1.1
#: Seconds of training left for each second that trying out all candidates may cost.
_REPAYS = 20.0


@dataclass(frozen=True)
class Candidate:
    """A way to train a program's trials.

    Attributes:
        plan: "stacked", "mapped" or "sequential".
        slots: Of a pack.
    """

    plan: str
    slots: int

    def __str__(self) -> str:
        return f"{self.plan} with {self.slots} slots" if self.slots > 1 else self.plan


@dataclass
class PlanChoice:
    """The candidates of one group, and what their epochs cost.

    Attributes:
        candidates: To be tried; the first is the one that rules choose.
        key: Where the answer is kept.
        settled: The answer, once there is one.
    """

    candidates: Sequence[Candidate]
    key: str
    settled: Candidate | None = None
    _seconds: dict[Candidate, list[float]] = field(default_factory=dict)  # of a trial's epoch

    def note(self, candidate: Candidate, n_trials: int, seconds: float) -> None:
        """Notes an epoch of ``n_trials`` trials, all slots taken."""
        self._seconds.setdefault(candidate, []).append(seconds / n_trials)

    def timed(self, candidate: Candidate) -> bool:
        """Whether enough epochs of it were timed; one where it is hopeless."""
        n = len(self._seconds.get(candidate, ()))
        others = [self.cost(other) for other in self._seconds if other != candidate]
        hopeless = n > 1 and self.cost(candidate) > 2 * min(others, default=float("inf"))
        return n > _EPOCHS or hopeless

    def rule_out(self, candidate: Candidate) -> None:
        """A candidate that cannot be compiled is as good as endlessly slow."""
        self._seconds[candidate] = [float("inf")] * (_EPOCHS + 1)

    def cost(self, candidate: Candidate) -> float:
        """Seconds of a trial's epoch; infinity where it was not timed."""
        return min(self._seconds.get(candidate, ())[1:], default=float("inf"))

    def to_try(self, now: Candidate, trial_epochs: int, compile_seconds: float) -> Candidate | None:
        """The next candidate to try, once the present one is timed.

        Args:
            now: What trains at present.
            trial_epochs: Epochs left, of all trials together.
            compile_seconds: What compiling a program of the group took.
        """
        left = [c for c in self.candidates if c not in self._seconds]
        if self.settled or not left or not self.timed(now):
            return None
        best = min(self.cost(c) for c in self._seconds)
        # Compiling, and some epochs at a third of the speed.
        price = len(left) * compile_seconds + 3 * (_EPOCHS + 1) * best * sum(c.slots for c in left)
        return left[0] if trial_epochs * best > _REPAYS * price else None

    def settle(self, now: Candidate) -> Candidate:
        """The fastest, kept for later searches where others were tried; ``now`` if none is."""
        first = self.candidates[0]
        best = min(self._seconds, key=self.cost, default=now)
        if first in self._seconds and self.cost(best) * _GAIN > self.cost(first):
            best = first
        self.settled = best
        if len(self._seconds) > 1 and self.cost(best) < float("inf"):
            _DRAWER.write(f"{self.key}.json", json.dumps([best.plan, best.slots]).encode())
        return best


def remembered(key: str, plans: Sequence[str]) -> Candidate | None:
    """The answer of an earlier search, where its plan is one that may be taken."""
    body = _DRAWER.read(f"{key}.json")
    try:
        plan, slots = json.loads(body or b"null")
        candidate = Candidate(str(plan), int(slots))
    except (TypeError, ValueError):
        return None
    return candidate if candidate.plan in plans and 1 <= candidate.slots <= 4096 else None


def key_of(fingerprint: str, batch_size: int, lanes: int, devices: Sequence[object]) -> str:
    """What decides which plan is fastest, as a digest."""
    kinds = [getattr(device, "device_kind", "") for device in devices]
    parts = (source_digest(), jax.__version__, jaxlib.version.__version__, fingerprint)
    text = "\0".join((*parts, f"{batch_size} {lanes} {kinds}"))
    return hashlib.sha256(text.encode()).hexdigest()
