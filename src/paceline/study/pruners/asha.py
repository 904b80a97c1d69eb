"""ASHA with pauses: asynchronous successive halving that can continue the trials it held back.

``AshaPruner`` is the pruner, ``RungLadder`` the rule. A trial that reaches a rung continues if it
is among the best 1/eta of the rung's trials. Otherwise it is paused. As more trials reach the rung
its best 1/eta grows, and paused trials are promoted: they continue at the epoch where they were
paused. Optuna and Ray stop the trials that are paused here.

Source: Li et al., "A system for massively parallel hyperparameter tuning", 2020, algorithm 2. Three
differences. Rungs are absolute epochs. A paused trial that can no longer be promoted is given up at
once, so that its state need not be kept. If nothing is left to do and no trial is complete, the
best trial of the highest rung trains to its end.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import msgspec

from paceline.errors import UsageError
from paceline.study.objectives import Direction
from paceline.study.pruners.base import EndedTrial, Pruner, Verdict
from paceline.study.trials.trial import Trial


@dataclass(frozen=True)
class ASHA:
    """Settings of ASHA, as ``pruner=``.

    Attributes:
        min_epochs: The first rung, in epochs.
        reduction_factor: One in this many trials at a rung continues. Each rung has this many times
            the epochs of the one before.

    Raises:
        UsageError: A value that is not an integer, min_epochs below 1, or reduction_factor below 2.
    """

    min_epochs: int = 1
    reduction_factor: int = 3

    def __post_init__(self) -> None:
        for name, least in (("min_epochs", 1), ("reduction_factor", 2)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(
                    f"ASHA: {name} must be an integer of at least {least}, got {value!r}."
                )

    def rungs(self, epochs: int) -> list[int]:
        """Return the epochs, below ``epochs``, after which a trial of ``epochs`` is judged."""
        found, rung = [], self.min_epochs
        while rung < epochs:
            found.append(rung)
            rung *= self.reduction_factor
        return found

    def share_trained(self, epochs: int) -> float:
        """Return the share of its ``epochs`` that a trial trains, on average over many."""
        trained, before, share = 0.0, 0, 1.0
        for rung in (*self.rungs(epochs), epochs):
            trained += share * (rung - before)
            before, share = rung, share / self.reduction_factor
        return trained / epochs

    def check_validated(
        self, epochs: int | None, freq: int | Collection[int], first: int = 0
    ) -> None:
        """Check that trials have a value at each rung, where it comes from validation.

        ``epochs`` is None if they depend on hp; ``freq`` is as ``fit`` takes it, and so counts the
        ``first`` epochs, which are not trained.

        Raises:
            UsageError: A rung has none.
        """
        if isinstance(freq, int):
            # Where two rungs are validated, all are: they differ by multiples of that difference.
            most = epochs or self.min_epochs * self.reduction_factor + 1
            missed = [rung for rung in self.rungs(most) if (first + rung) % freq]
        else:
            most = epochs or max(freq) - first
            missed = [rung for rung in self.rungs(most) if first + rung not in freq]
        if missed:
            raise UsageError(
                f"pruner: ASHA compares trials after epoch {first + missed[0]}, which "
                f'validation_freq={freq!r} does not validate. Use min_epochs ("asha:MIN_EPOCHS") '
                "whose rungs are validated, or leave validation_freq out."
            )

    def check(self, epochs: int) -> None:
        """Check that trials of this many epochs reach a rung.

        Raises:
            UsageError: They do not.
        """
        if not self.rungs(epochs):
            raise UsageError(
                f"pruner: ASHA's first rung is at {self.min_epochs} epochs (min_epochs), but "
                f"trials have only {epochs}. Use fewer min_epochs or more epochs."
            )


@dataclass
class _Rung:
    """The trials that have reached one rung."""

    # (loss, trial), best first; of equal losses the earlier trial.
    losses: list[tuple[float, int]] = field(default_factory=list)
    paused: dict[int, float] = field(default_factory=dict)  # trial -> loss, of those that wait

    def rank(self, number: int, loss: float) -> int:
        """Return how many trials are better."""
        return bisect_left(self.losses, (loss, number))


#: What ``RungLadder.state`` returns: epoch, losses of trials, and losses by paused trials.
_StoredRungs = list[tuple[int, list[tuple[float, int]], list[tuple[int, float]]]]


class RungLadder:
    """The rungs of one study: judges trials that reach one, and promotes paused ones.

    ``n_trials`` is the study's total; None when only time bounds it. ``by_time``: time may end the
    search before. Then the best trial of a rung always continues: a model is there soon, and the
    end may come before others have reached the rung.
    """

    def __init__(self, settings: ASHA, n_trials: int | None, *, by_time: bool = False) -> None:
        self._settings, self._n_trials = settings, n_trials
        self._least = int(by_time)  # places at a rung, however few trials have reached it
        self._eta = settings.reduction_factor
        self._rungs: dict[int, _Rung] = {}

    def reach(
        self, number: int, epoch: int, epochs: int, loss: float, can_pause: bool = True
    ) -> Verdict:
        """Return what becomes of a trial after an epoch; "pause" lasts until ``promoted`` names it.

        ``epoch`` counts from 1, of the ``epochs`` that the trial would train in all; ``loss`` is
        its best so far. ``can_pause``: the trial could be continued later. If not, trials that are
        not among the best are pruned. The very best one continues even if 1/eta of the trials is
        less than one.
        """
        if epoch not in self._settings.rungs(epochs):
            return "go"
        rung = self._rungs.setdefault(epoch, _Rung())
        insort(rung.losses, (loss, number))
        places = max(self._least if can_pause else 1, len(rung.losses) // self._eta)
        if rung.rank(number, loss) < places:
            return "go"
        if not can_pause:
            return "prune"
        rung.paused[number] = loss
        return "pause"

    def state(self) -> list[Any]:
        """Return the trials of each rung, as JSON values, copied: a thread writes them."""
        return [
            [epoch, list(rung.losses), list(rung.paused.items())]
            for epoch, rung in self._rungs.items()
        ]

    def load_state(self, state: list[Any]) -> None:
        """Replace the rungs by those that ``state`` returned."""
        rungs = msgspec.convert(state, _StoredRungs)
        self._rungs = {epoch: _Rung(losses, dict(paused)) for epoch, losses, paused in rungs}

    def promoted(self) -> list[int]:
        """Return the paused trials that continue now, those of the highest rungs first."""
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
        """Return the paused trials that can never be promoted, whatever trials still come."""
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
        """Return the best paused trial of the highest rung, to continue when no other comes.

        If there are fewer trials than a full ladder needs, no trial would train to its end
        otherwise.
        """
        for epoch in sorted(self._rungs, reverse=True):
            rung = self._rungs[epoch]
            for _, number in rung.losses:
                if number in rung.paused:
                    del rung.paused[number]
                    return [number]
        return []

    def leader(self) -> int | None:
        """Return the paused trial with the best value, to continue as time runs out."""
        waiting = [(loss, n) for rung in self._rungs.values() for n, loss in rung.paused.items()]
        if not waiting:
            return None
        _, number = min(waiting)
        self.leave(number)
        return number

    def restart(self, numbers: Set[int]) -> None:
        """Take trials out of all rungs: they reach them again."""
        for rung in self._rungs.values():
            rung.losses = [entry for entry in rung.losses if entry[1] not in numbers]
            rung.paused = {n: loss for n, loss in rung.paused.items() if n not in numbers}

    def leave(self, number: int) -> None:
        """Note that a trial has ended and waits no longer; its losses stay in the rungs."""
        for rung in self._rungs.values():
            rung.paused.pop(number, None)


class AshaPruner(RungLadder, Pruner):
    """ASHA over a study's trials; those of the past keep their places in the rungs."""

    pauses = True

    def __init__(
        self,
        settings: ASHA,
        direction: Direction,
        n_trials: int | None,
        past: Iterable[EndedTrial],
        *,
        by_time: bool = False,
    ) -> None:
        super().__init__(settings, n_trials, by_time=by_time)
        self._sign = -1.0 if direction == "maximize" else 1.0
        for trial, values in past:
            self.learn_trial(trial, values)

    def learn_trial(self, trial: Trial, values: Mapping[int, float]) -> None:
        """Put a trial that has ended into the rungs that it reached; see ``Pruner``."""
        # One epoch more than it trained: its last epoch may have been at a rung.
        epochs = max(values, default=0) + 1
        for rung in self._settings.rungs(epochs):
            losses = [self._sign * value for epoch, value in values.items() if epoch <= rung]
            if losses:
                best = min((loss for loss in losses if not math.isnan(loss)), default=math.inf)
                self.reach(trial.number, rung, epochs, best)
        self.leave(trial.number)

    def judge(
        self, trial: Trial, epoch: int, epochs: int, value: float, can_pause: bool = True
    ) -> Verdict:
        """Return the verdict on a trial's best value so far."""
        best = value if trial.value is None else trial.value
        return self.reach(trial.number, epoch, epochs, self._sign * best, can_pause)

    def end_trial(self, trial: Trial) -> None:
        """Note that a trial has ended, so that it no longer waits."""
        self.leave(trial.number)
