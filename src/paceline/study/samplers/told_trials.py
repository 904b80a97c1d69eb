"""The trials that TPE and CMA-ES choose from: finished, unfinished, or of earlier studies.

``ToldTrials`` shows them to Optuna's sampler in place of all trials of the study in memory. Of more
than ``FEW`` it shows the best and the newest, so that asking takes no longer from there on
(docs/decisions/0040). Trials of earlier studies are shown beside them, and then every value is a
rank within its own study.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from paceline.search_space import Parameter
from paceline.study.front import best_of
from paceline.study.samplers.earlier_studies import EarlierStudy
from paceline.study.samplers.values import LEARNT, random_value
from paceline.study.trials.trial_codec import NAMED, constraint_attributes, violation_of

#: Trials up to which all are shown.
FEW = 1000
#: Of more trials than ``FEW`` this many of the best and of the newest are shown; one may be both.
#: TPE takes at most 25 trials for good ones.
BEST, NEWEST = 128, 872

_LEARNT_FROM = (OptunaState.COMPLETE, OptunaState.PRUNED)


@dataclass(slots=True, eq=False)
class SeenTrial:
    """What samplers read of a trial that has ended, in attributes that cost nothing to read."""

    number: int  # in the study in memory
    state: OptunaState  # COMPLETE or PRUNED
    values: list[float] | None  # losses; None for a pruned one
    value: float | None  # the first loss, or the rank where studies are compared
    params: dict[str, Any]  # stored values
    distributions: dict[str, BaseDistribution]
    intermediate_values: dict[int, float]  # epoch -> loss
    system_attrs: dict[str, Any]
    constraints: dict[str, float]  # by how much each is violated
    violation: float = 0.0  # the sum of what is violated
    order: tuple[float, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, trial: FrozenTrial, state: OptunaState) -> SeenTrial:
        """Return what samplers read of a trial, as one in this state."""
        violation = violation_of(trial) or 0.0
        losses = trial.values
        value = losses[0] if losses else None
        if violation > 0:
            order = (2.0, violation)
        elif value is not None:
            order = (0.0, *losses)
        else:  # of pruned trials, those that trained longer are better to TPE
            last = max(trial.intermediate_values, default=0)
            order = (1.0, -last, trial.intermediate_values.get(last, 0.0))
        return cls(
            trial.number,
            state,
            losses,
            value,
            trial.params,
            trial.distributions,
            trial.intermediate_values,
            trial.system_attrs,
            getattr(trial, "constraints", {}),  # from Optuna 5.0 on
            violation,
            (*order, trial.number),
        )


class ToldTrials:
    """The trials that a sampler chooses from; the values that earlier studies lack are drawn."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        # Whether paused trials are shown as pruned ones are: time may end the search before any of
        # them continues.
        self.shows_paused = False
        self.shown = False  # whether the study in memory shows these in place of its own
        self.learnt: Sequence[EarlierStudy] = ()
        self._open: dict[int, int] = {}  # number -> id in the storage of the study in memory
        self._paused: set[int] = set()  # numbers of the shown trials that may continue
        self.all_ended: list[SeenTrial] = []  # of the study, by number
        self._ranked: list[SeenTrial] = []  # the best first
        self._best_kept: list[SeenTrial] = []  # when this many trials had ended
        self._n_at_best = 0
        self.any_violates = False  # whether some trial violates a constraint
        self._beside: list[SeenTrial] = []  # of earlier studies, as shown last
        self._made: dict[tuple[Any, ...], list[SeenTrial]] = {}

    def begin(self, number: int, trial_id: int) -> None:
        """Note an unfinished trial, by its number and id in the study in memory."""
        self._open[number] = trial_id

    def end(self, trial: FrozenTrial) -> None:
        """Note a trial that has ended; one that failed is forgotten."""
        self._forget(trial.number)
        if trial.state in _LEARNT_FROM:
            self._see(SeenTrial.of(trial, trial.state))

    def pause(self, trial: FrozenTrial) -> None:
        """Note that an unfinished trial is paused."""
        if self.shows_paused:
            self._forget(trial.number)
            self._paused.add(trial.number)
            self._see(SeenTrial.of(trial, OptunaState.PRUNED))

    def resume(self, number: int, trial_id: int) -> None:
        """Note that a paused trial continues."""
        if self.shows_paused:
            self._forget(number)
            self.begin(number, trial_id)

    def _forget(self, number: int) -> None:
        """Drop what is known of a trial that was open or paused."""
        self._open.pop(number, None)
        if number in self._paused:  # else it is not among the ended: there may be thousands
            self._paused.discard(number)
            self.all_ended = [seen for seen in self.all_ended if seen.number != number]
            self._ranked = [seen for seen in self._ranked if seen.number != number]

    def _see(self, seen: SeenTrial) -> None:
        bisect.insort(self.all_ended, seen, key=lambda other: other.number)
        bisect.insort(self._ranked, seen, key=lambda other: other.order)
        self.any_violates |= seen.violation > 0
        if self.learnt:
            self._rank()

    def learn(self, learnt: Sequence[EarlierStudy]) -> None:
        """Show trials of earlier studies too; from now on values are ranks."""
        self.learnt, self._made = learnt, {}
        if learnt:
            self._rank()

    @property
    def open_ids(self) -> list[int]:
        """Ids of the unfinished trials, in the storage of the study in memory."""
        return list(self._open.values())

    @property
    def ended(self) -> list[SeenTrial]:
        """The trials of the study that have ended and are shown, by number."""
        if len(self.all_ended) <= FEW:
            return self.all_ended
        newest = self.all_ended[-NEWEST:]
        first = newest[0].number
        best = [trial for trial in self._best() if trial.number < first]
        return sorted(best, key=lambda trial: trial.number) + newest

    def _best(self) -> list[SeenTrial]:
        """Return the best trials; of several objectives the front, the front of the rest..."""
        if len(self._ranked[0].values or ()) < 2:
            return self._ranked[:BEST]
        if len(self.all_ended) != self._n_at_best:
            allowed = [t for t in self._ranked if t.values and t.violation <= 0]
            places = best_of([t.values or [] for t in allowed], BEST)
            self._best_kept = [allowed[place] for place in places]
            self._n_at_best = len(self.all_ended)
        return self._best_kept

    def visible(self) -> list[SeenTrial]:
        """The trials that are shown and have ended, those of earlier studies first."""
        return self._beside + self.ended

    @contextmanager
    def showing(self, space: Mapping[str, BaseDistribution]) -> Iterator[None]:
        """Show these trials in place of those of the study in memory, inside a block.

        ``space`` are the hyperparameters that are chosen: a trial of an earlier study is shown if
        it has allowed values of them. Those that it does not have are drawn at random.
        """
        self._beside = self._earlier(space) if self.learnt else []
        self.shown = True
        try:
            yield
        finally:
            self.shown, self._beside = False, []

    def _earlier(self, space: Mapping[str, BaseDistribution]) -> list[SeenTrial]:
        """Return trials of earlier studies with values for a space; numbers below 0."""
        key = tuple(space.items())
        if key not in self._made:
            told = [(study, trial) for study in self.learnt for trial in study.trials]
            made = []
            for index, (study, trial) in enumerate(told):
                if found := study.values(trial, space):
                    params = self._values(found, index, space)
                    made.append(_seen(index - len(told), trial.rank, params, space))
            self._made[key] = made
        return self._made[key]

    def _values(
        self,
        found: dict[str, Any],
        index: int,
        space: Mapping[str, BaseDistribution],
    ) -> dict[str, Any]:
        """Return values of a whole space; those that were not found are drawn at random."""
        for name, distribution in space.items():
            if name not in found:
                parameter = Parameter(name, name, cast(Any, distribution), 0)
                found[name] = random_value(parameter, self._seed, LEARNT, index)
        return found

    def _rank(self) -> None:
        """Replace the losses of this study's trials by ranks, as those of other studies have."""
        complete = [t for t in self._ranked if t.values]
        complete.sort(key=lambda trial: (trial.values, trial.number))
        for place, trial in enumerate(complete):
            trial.value = (place + 0.5) / len(complete)


def _seen(
    number: int, rank: float, params: dict[str, Any], space: Mapping[str, BaseDistribution]
) -> SeenTrial:
    """Return a trial of an earlier study as samplers read it."""
    # To TPE before Optuna 5, a trial without constraints is worse than one that violates them.
    allowed = {} if NAMED else constraint_attributes({"violation": 0.0})
    kinds = dict(space)
    return SeenTrial(number, OptunaState.COMPLETE, [rank], rank, params, kinds, {}, allowed, {})
