"""The fastest plan and number of slots: known from earlier searches, or tried out while training.

What is fastest depends on the model, the device and the versions. Rules choose at first. Where a
search is long enough to repay it, other candidates are compiled in the background, and each trains
the search's own trials for a few epochs. The fastest candidate trains the rest. The answer is kept
on disk beside the compiled programs, so that the next search of this model begins with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jaxlib.version

from paceline.program.compilation_cache import DiskCache, source_digest
from paceline.program.compile import Effort

_DISK = DiskCache("plans", kept=500)
#: Epochs of full packs that a candidate is timed for; the fastest counts. The first epoch after a
#: change does not count.
_EPOCHS = 2
#: A candidate must be faster by this factor to replace the first one, since timings scatter.
_GAIN = 1.1
#: Trying out all candidates may cost one second for every so many seconds of training left.
_REPAYS = 20.0


@dataclass(frozen=True)
class Candidate:
    """A way to train a program's trials."""

    plan: str  # "stacked", "mapped" or "sequential"
    slots: int  # of a pack

    def __str__(self) -> str:
        return f"{self.plan} with {self.slots} slots" if self.slots > 1 else self.plan


@dataclass(frozen=True)
class RestoredProgram:
    """How a group's program was compiled until its search stopped."""

    candidate: Candidate
    effort: Effort  # how well the program was compiled
    # Devices that slots were spread over and batches were split over; None: one device.
    layout: tuple[int, int] | None


@dataclass
class PlanChoice:
    """The candidates of one group, and the seconds that their epochs take."""

    candidates: Sequence[Candidate]  # what may be tried; the first is what the rules choose
    key: str  # name of the answer on disk
    settled: Candidate | None = None  # the answer; None while candidates are tried
    _seconds: dict[Candidate, list[float]] = field(default_factory=dict)  # of a trial's epoch

    def note(self, candidate: Candidate, n_trials: int, seconds: float) -> None:
        """Adds the seconds that an epoch of ``n_trials`` trials took, all slots taken."""
        self._seconds.setdefault(candidate, []).append(seconds / n_trials)

    def timed(self, candidate: Candidate) -> bool:
        """Whether enough epochs of a candidate were timed; two are enough if it is hopeless."""
        n = len(self._seconds.get(candidate, ()))
        others = [self.cost(other) for other in self._seconds if other != candidate]
        hopeless = n > 1 and self.cost(candidate) > 2 * min(others, default=float("inf"))
        return n > _EPOCHS or hopeless

    def rule_out(self, candidate: Candidate) -> None:
        """Counts a candidate that cannot be compiled as infinitely slow."""
        self._seconds[candidate] = [float("inf")] * (_EPOCHS + 1)

    def cost(self, candidate: Candidate) -> float:
        """Seconds of one trial's epoch with a candidate; infinity if it was not timed."""
        return min(self._seconds.get(candidate, ())[1:], default=float("inf"))

    def to_try(self, now: Candidate, trial_epochs: int, compile_seconds: float) -> Candidate | None:
        """The next candidate to try, or None.

        None while the present candidate, ``now``, is not timed yet, when all have been tried, and
        where too little training is left: all trials together have ``trial_epochs``, and compiling
        a program of the group took ``compile_seconds``.
        """
        left = [c for c in self.candidates if c not in self._seconds]
        if self.settled or not left or not self.timed(now):
            return None
        best = min(self.cost(c) for c in self._seconds)
        # Each try costs a compile, and some epochs that are assumed to be three times slower.
        price = len(left) * compile_seconds + 3 * (_EPOCHS + 1) * best * sum(c.slots for c in left)
        return left[0] if trial_epochs * best > _REPAYS * price else None

    def may_pay(self, seconds: float, compile_seconds: float) -> bool:
        """Whether a candidate may be worth a try where so many ``seconds`` of training are left."""
        n_others = 0 if self.settled else len(self.candidates) - 1
        return n_others > 0 and seconds > _REPAYS * n_others * compile_seconds

    def settle(self, now: Candidate) -> Candidate:
        """Settles for the fastest candidate, or for ``now`` if none was timed.

        The answer is kept for later searches if several candidates were timed.
        """
        first = self.candidates[0]
        best = min(self._seconds, key=self.cost, default=now)
        if first in self._seconds and self.cost(best) * _GAIN > self.cost(first):
            best = first
        self.settled = best
        if len(self._seconds) > 1 and self.cost(best) < float("inf"):
            _DISK.write(f"{self.key}.json", json.dumps([best.plan, best.slots]).encode())
        return best


def remembered(key: str, plans: Sequence[str]) -> Candidate | None:
    """The answer of an earlier search; None if there is none, or its plan is not in ``plans``."""
    body = _DISK.read(f"{key}.json")
    try:
        plan, slots = json.loads(body or b"null")
        candidate = Candidate(str(plan), int(slots))
    except (TypeError, ValueError):
        return None
    return candidate if candidate.plan in plans and 1 <= candidate.slots <= 4096 else None


def key_of(fingerprint: str, batch_size: int, lanes: int, devices: Sequence[object]) -> str:
    """A digest of everything that decides which plan is fastest.

    ``fingerprint`` is of the group's training step; ``lanes`` packs train at once. Of the devices,
    the kinds count.
    """
    kinds = [getattr(device, "device_kind", "") for device in devices]
    parts = (source_digest(), jax.__version__, jaxlib.version.__version__, fingerprint)
    text = "\0".join((*parts, f"{batch_size} {lanes} {kinds}"))
    return hashlib.sha256(text.encode()).hexdigest()
