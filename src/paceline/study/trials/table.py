"""The trials of a study as users see them, the best of them, and those that are to train longer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from paceline.errors import StudyError
from paceline.study.front import front_of
from paceline.study.objectives import Direction, is_better
from paceline.study.trials.trial import INTERRUPTED, UNDER_WAY, Trial

#: Trials to reckon with at the beginning of a search that time ends.
_FIRST = 24


class TrialTable(Sequence[Trial]):
    """The trials of a study, in the order of their numbers, those still running included."""

    def __init__(self, study: str) -> None:
        self._study = study
        # Of each objective; empty while that is not known.
        self.directions: tuple[Direction, ...] = ()
        self._trials: dict[int, Trial] = {}

    def add(self, trial: Trial) -> None:
        """Add a trial, or replace the one of its number."""
        self._trials[trial.number] = trial

    def remove(self, number: int) -> None:
        """Remove the trial of this number, if there is one."""
        self._trials.pop(number, None)

    def get(self, number: int) -> Trial | None:
        """Return one trial; None if there is none of this number."""
        return self._trials.get(number)

    def by_number(self, number: int) -> Trial:
        """Return one trial; StudyError if there is none of this number."""
        if number not in self._trials:
            last = f"the last is {max(self._trials)}" if self._trials else "it has no trials yet"
            raise StudyError(f'study "{self._study}" has no trial {number!r}: {last}.')
        return self._trials[number]

    # A number may be missing, of a trial that its worker has withdrawn: positions are not numbers.

    @overload
    def __getitem__(self, index: int) -> Trial: ...

    @overload
    def __getitem__(self, index: slice) -> list[Trial]: ...

    def __getitem__(self, index: int | slice) -> Trial | list[Trial]:
        return list(self)[index]

    def __iter__(self) -> Iterator[Trial]:
        return iter([self._trials[number] for number in sorted(self._trials)])

    def __len__(self) -> int:
        return len(self._trials)

    @property
    def direction(self) -> Direction | None:
        """The direction of the first objective; None while it is not known."""
        return self.directions[0] if self.directions else None

    @property
    def several(self) -> bool:
        """Whether the study has several objectives."""
        return len(self.directions) > 1

    @property
    def front(self) -> list[Trial]:
        """The complete trials that no other one is better than throughout.

        Of one objective the best trials, complete or not. Those that are better by the first
        objective come first, of equals the earlier one.
        """
        there = [t for t in self.ranked if len(t.values or [t.value]) == len(self.directions)]
        losses = [self.losses(t.values or [t.value or 0.0]) for t in there]
        return [there[place] for place in front_of(losses)]

    @property
    def best(self) -> Trial | None:
        """The trial with the best value at any epoch, the first of equals; None without a value.

        Complete, pruned, paused or still running: what it has reached stays reached. A failed trial
        is never the best, and as in Optuna none that violates a constraint. Of several objectives
        the first one counts.
        """
        return self._first(t for t in self._trials.values() if self.may_be_best(t))

    @staticmethod
    def may_be_best(trial: Trial) -> bool:
        """Whether a trial's best epoch counts: it has not failed, and violates no constraint."""
        return trial.state not in ("failed", "rejected") and not trial.violates

    @property
    def ties(self) -> list[int]:
        """Numbers of the other trials whose value is the best one's.

        Continuations and copies of the best trial are none: they have its value until they reach a
        better one.
        """
        best = self.best
        if best is None:
            return []
        equal = [t for t in self if self.may_be_best(t) and t.value == best.value]
        if all(trial.continued_from is None for trial in equal):
            return [trial.number for trial in equal if trial is not best]
        from paceline.study.trials.lineage import first_of  # most searches need none

        first = first_of(best, self.get)
        return [trial.number for trial in equal if first_of(trial, self.get) != first]

    @property
    def ranked(self) -> list[Trial]:
        """The trials with a value that may be best, the best first; the first of equals first."""
        direction = self.direction
        if direction is None:
            return []
        there = [(t.value, t) for t in self if self.may_be_best(t) and t.value is not None]
        numbers = [pair for pair in there if not math.isnan(pair[0])]
        return [t for _, t in sorted(numbers, key=lambda pair: rank(pair[0], direction))]

    @property
    def ranked_models(self) -> list[Trial]:
        """As ``ranked``, but without trials that continued and reached no better value."""
        return [trial for trial in self.ranked if self.repeated_by(trial) is None]

    def repeated_by(self, trial: Trial) -> Trial | None:
        """Return the trial whose best epoch this one has, since it continued without a better one.

        None for a trial with a best epoch of its own. A copy of a population has a seed of its own.
        """
        if (
            trial.continued_from is None
            or trial.continued_at is not None
            or trial.best_epoch is None
        ):
            return None
        source = self.get(trial.continued_from)
        # A storage may have been written by others: no line leads back to itself.
        if source is None or source.number >= trial.number:
            return None
        same = (trial.best_epoch, trial.value) == (source.best_epoch, source.value)
        return source if same else None

    def _first(self, trials: Iterable[Trial]) -> Trial | None:
        """Return the trial with the best value; running searches ask for it ten times a second."""
        there = ((t.value, t.number) for t in trials if t.value is not None)
        numbers = [pair for pair in there if pair[0] == pair[0]]  # NaN is not equal to itself
        if not numbers:
            return None
        if self.direction is None:
            raise RuntimeError("a value before set_direction")
        sign = self.sign
        return self._trials[min((sign * value, number) for value, number in numbers)[1]]

    def set_direction(self, *directions: Direction) -> None:
        """Say whether high or low values are good; StudyError if other objectives are stored."""
        if self.directions not in ((), directions):
            n = len(self.directions)
            word = "direction" if n == 1 else "directions"
            raise StudyError(
                f'study "{self._study}" is stored with {word} {", ".join(self.directions)}, not '
                f"{', '.join(directions)}; pass the objective{'s' if n > 1 else ''} that it was "
                "created with, or choose another study name."
            )
        self.directions = directions

    @property
    def sign(self) -> int:
        """A value times this is a loss: 1 where low values are good, -1 where high ones are."""
        return -1 if self.direction == "maximize" else 1

    @property
    def signs(self) -> tuple[int, ...]:
        """``sign`` of each objective; (1,) while the directions are not known."""
        found = tuple(-1 if each == "maximize" else 1 for each in self.directions)
        return found or (1,)

    def losses(self, values: Sequence[float]) -> list[float]:
        """Return the values of a trial, one for each objective, as losses."""
        return [sign * value for sign, value in zip(self.signs, values, strict=True)]

    def better(self, value: float | None, than: float | None) -> bool:
        """Whether a value is better than another; any is better than none."""
        if self.direction is None:
            raise RuntimeError("a value before set_direction")
        return is_better(value, than, self.direction)

    def note_epoch(
        self,
        trial: Trial,
        epoch: int,
        logs: Mapping[str, float],
        value: float | None,
        members: Sequence[float],
    ) -> None:
        """Note an epoch of a trial, with the arguments of ``TrialUpdates.report``."""
        trial.epochs = epoch
        if members:
            trial.runs[epoch - 1 :] = [[float(member) for member in members]]
        note_logs(trial.history, epoch, logs)
        if value is not None and self.better(value, trial.value):
            trial.value, trial.best_epoch = value, epoch


def expected_by_time(n_begun: int) -> int:
    """How many trials to reckon with where time ends a search: as many again, at first 24.

    Nobody knows how many there will be. By this rule what is spent on trials to come is never much
    more than what was spent on those that came. It asks no clock: a search that continues from a
    checkpoint decides the same.
    """
    return max(_FIRST, 2 * n_begun)


def counts(trial: Trial) -> bool:
    """Whether a trial counts for ``n_trials``: not one interrupted, continued or rejected."""
    return trial.error != INTERRUPTED and trial.continued_from is None and trial.rejected is None


def note_logs(history: dict[str, list[float]], epoch: int, logs: Mapping[str, float]) -> None:
    """Note the logs of an epoch, from 1, in a history; those of later epochs are dropped."""
    for name in dict.fromkeys([*history, *logs]):
        column = history.setdefault(name, [])
        del column[epoch - 1 :]
        # A metric that is missing for some epochs keeps its place in the others.
        column.extend([math.nan] * (epoch - 1 - len(column)))
        column.append(float(logs.get(name, math.nan)))


def trials_to_continue(
    trials: Sequence[Trial], best: int, epochs: int | None, direction: Direction
) -> list[int]:
    """Return the numbers of the trials to continue up to ``epochs`` (None: not known), best first.

    Optuna cannot open a finished trial again, so another trial continues it, with the same hparams,
    seed and history so far. The finished one stays as it is and is not continued a second time. A
    trial that another worker continues at this moment still counts among the best: of the best two
    trials, two workers continue one each.
    """
    # A copy has other hyperparameters from some epoch on: its source can still continue as it is.
    longer = [trial for trial in trials if trial.continued_at is None]
    continued = {trial.continued_from for trial in longer if trial.state != "failed"}
    going_on = {trial.continued_from for trial in longer if trial.state in UNDER_WAY}
    candidates: list[Trial] = []
    for trial in trials:
        over = trial.number in continued - going_on
        ended = trial.state == "complete" and not trial.violates
        if ended and trial.value is not None and not over:
            candidates.append(trial)
    # The sort is stable: of equal trials the earlier one comes first.
    candidates.sort(key=lambda trial: rank(trial.value or 0.0, direction))
    left = [trial for trial in candidates[:best] if trial.number not in going_on]
    return [t.number for t in left if epochs is None or t.epochs < epochs]


def rank(value: float, direction: Direction) -> float:
    """Return a key that sorts values, the best first."""
    return -value if direction == "maximize" else value


def best_record(trial: Trial, ties: Sequence[int] = ()) -> dict[str, Any]:
    """Return the best trial as summaries have it, with the numbers of others of the same value."""
    return {
        "number": trial.number,
        "state": trial.state,
        "value": trial.value,
        "hparams": trial.hparams,
        "epochs": trial.epochs,
        "best_epoch": trial.best_epoch,
        **({"value_std": trial.value_std} if trial.runs else {}),
        **({"ties": list(ties)} if ties else {}),
    }


def front_record(trial: Trial, objectives: Sequence[str]) -> dict[str, Any]:
    """Return a complete trial of the Pareto front as summaries have it."""
    return {**best_record(trial), "values": dict(zip(objectives, trial.values, strict=True))}
