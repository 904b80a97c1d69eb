"""ASHA with pauses: successive halving that takes nothing back and wastes nothing.

A trial that reaches a rung goes on if it is among the best 1/eta of those that have reached it, and
is paused otherwise. As others arrive the best 1/eta grows, and paused trials are promoted where
they stopped. Optuna's and Ray's form stops what we pause.

Source: Li et al., "A system for massively parallel hyperparameter tuning", 2020, algorithm 2. Three
differences: rungs are absolute epochs; a paused trial that can no longer be promoted, however the
trials still to come turn out, is given up at once, so that its state need not be kept; and when
nothing is left to do and no trial is complete, the best one of the highest rung goes on to the end.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.errors import UsageError

#: What becomes of a trial after an epoch.
Verdict = Literal["go", "prune", "pause"]


@dataclass(frozen=True)
class ASHA:
    """Settings of ASHA, as ``pruner=``.

    Attributes:
        min_epochs: The first rung, in epochs.
        reduction_factor: Of the trials at a rung, one in this many goes on; each rung has this many
            times the epochs of the one before.

    Raises:
        UsageError: No whole numbers, min_epochs below 1, or reduction_factor below 2.
    """

    min_epochs: int = 1
    reduction_factor: int = 3

    def __post_init__(self) -> None:
        for name, least in (("min_epochs", 1), ("reduction_factor", 2)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(
                    f"ASHA: {name} is {value!r}; give a whole number of at least {least}."
                )

    def rungs(self, epochs: int) -> list[int]:
        """Epochs at which a trial of ``epochs`` epochs is judged; its last is none of them."""
        found, rung = [], self.min_epochs
        while rung < epochs:
            found.append(rung)
            rung *= self.reduction_factor
        return found

    def check(self, epochs: int) -> None:
        """Checks that there is a rung at all.

        Raises:
            UsageError: The first rung lies beyond the trials' epochs.
        """
        if not self.rungs(epochs):
            raise UsageError(
                f"pruner: ASHA's first rung is at {self.min_epochs} epochs (min_epochs), and "
                f"trials have {epochs}; give fewer min_epochs or more epochs."
            )


@dataclass
class _Rung:
    """Those that have reached one rung.

    Attributes:
        losses: (loss, trial), best first; of equal losses the earlier trial.
        paused: Those that wait here, with their losses.
    """

    losses: list[tuple[float, int]] = field(default_factory=list)
    paused: dict[int, float] = field(default_factory=dict)

    def rank(self, number: int, loss: float) -> int:
        """How many are better."""
        return bisect_left(self.losses, (loss, number))


class RungLadder:
    """The rungs of one study, and who stands where.

    Args:
        settings: Of the pruner.
        n_trials: The study's total; None when only time bounds it.
    """

    pauses = True

    def __init__(self, settings: ASHA, n_trials: int | None) -> None:
        self._settings, self._n_trials = settings, n_trials
        self._eta = settings.reduction_factor
        self._rungs: dict[int, _Rung] = {}

    def judge(
        self, number: int, epoch: int, epochs: int, loss: float, can_pause: bool = True
    ) -> Verdict:
        """A trial has ended an epoch: "go", or "pause" until ``promoted`` names it.

        Args:
            number: The trial's.
            epoch: From 1.
            epochs: Epochs it would train in all.
            loss: The best so far; low is good.
            can_pause: False where it runs to its end or not at all: then the best one so far goes
                on too, and the others are pruned.
        """
        if epoch not in self._settings.rungs(epochs):
            return "go"
        rung = self._rungs.setdefault(epoch, _Rung())
        insort(rung.losses, (loss, number))
        places = len(rung.losses) // self._eta
        if rung.rank(number, loss) < (places if can_pause else max(1, places)):
            return "go"
        if not can_pause:
            return "prune"
        rung.paused[number] = loss
        return "pause"

    def snapshot(self) -> list[Any]:
        """Who stands where, as JSON values: copies, which are written while the search goes on."""
        return [
            [epoch, list(rung.losses), list(rung.paused.items())]
            for epoch, rung in self._rungs.items()
        ]

    def restore(self, facts: list[Any]) -> None:
        """Has everyone stand where a snapshot says."""
        self._rungs = {
            epoch: _Rung(
                [(loss, number) for loss, number in losses],
                dict(paused),
            )
            for epoch, losses, paused in facts
        }

    def promoted(self) -> list[int]:
        """Paused trials that go on now, those of the highest rungs first."""
        found = []
        for epoch in sorted(self._rungs, reverse=True):
            rung = self._rungs[epoch]
            places = len(rung.losses) // self._eta
            best = [number for _, number in rung.losses[:places] if number in rung.paused]
            for number in best:
                del rung.paused[number]
            found += best
        return found

    def given_up(self) -> list[int]:
        """Paused trials that can never go on, whatever comes."""
        if self._n_trials is None:
            return []
        found, places = [], max(1, self._n_trials // self._eta)
        for rung in self._rungs.values():
            gone = [n for n, loss in rung.paused.items() if rung.rank(n, loss) >= places]
            for number in gone:
                del rung.paused[number]
            found += gone
        return found

    def last(self) -> list[int]:
        """The best of the highest rung, when no other trial will come.

        With fewer trials than a full ladder needs nobody would get to the end otherwise.
        """
        for epoch in sorted(self._rungs, reverse=True):
            rung = self._rungs[epoch]
            for _, number in rung.losses:
                if number in rung.paused:
                    del rung.paused[number]
                    return [number]
        return []

    def leave(self, number: int) -> None:
        """A trial has ended: it waits no more."""
        for rung in self._rungs.values():
            rung.paused.pop(number, None)
