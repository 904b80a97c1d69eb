"""Several objectives: metrics of an epoch, and what a model costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import ObjectiveError, StudyError
from paceline.study.objective import Direction, Objective, named_objective, resolve_objective

#: What a model costs -> the unit. All of them are to be low, unless "max:" stands before the name.
COSTS = {
    "params": "weights",
    "bytes": "bytes of the weights",
    "flops": "floating-point operations of the forward pass of one example",
    "latency": "milliseconds of predict_on_batch for one example",
}


@dataclass(frozen=True)
class Objectives:
    """The objectives of a search that has several."""

    all: tuple[Objective, ...]  # in the order given; the first one is a metric of an epoch

    @property
    def first(self) -> Objective:
        """The objective whose best epoch is the trial's."""
        return self.all[0]

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [each.name for each in self.all]

    @property
    def directions(self) -> list[Direction]:
        """Their directions."""
        return [each.direction for each in self.all]

    @property
    def costs(self) -> list[str]:
        """Those that are costs of the model."""
        return [name for name in self.names if name in COSTS]

    def check_study(self, study: str, meta: Mapping[str, Any]) -> None:
        """Refuse a study that was begun with other objectives, or with these in another order.

        ``meta`` is its attribute ``paceline``; empty for a new study, and one of another program.
        """
        known = meta.get("objectives") or [meta.get("objective")]
        if meta and known != self.names:
            raise StudyError(
                f"study: {study!r} was made with the objective{'s' if len(known) > 1 else ''} "
                f"{', '.join(map(repr, known))}, not {', '.join(map(repr, self.names))}; use "
                "another study name, or those objectives in their order."
            )

    def note_on_pruner(self, pruner: str | None) -> str:
        """Return a sentence for the user on what a pruner goes by."""
        return (
            f"pruner: {pruner} goes by {self.first.name}, the first objective, alone; a trial that "
            f"it stops might have been good in {', '.join(self.names[1:])}"
        )

    def values(
        self, history: Mapping[str, Sequence[float]], epoch: int, costs: Mapping[str, float]
    ) -> list[float]:
        """Return the values of a trial, one for each objective.

        ``history`` has one value of a metric for each epoch, ``epoch`` is the best one of the first
        objective, from 1, and ``costs`` are of the trial's model. Raises ObjectiveError where a
        metric has no number in that epoch, or the name of a cost.
        """
        found = []
        for name in self.names:
            if name in COSTS:
                if name in history:  # a callback has added it
                    raise ObjectiveError(_two_meanings(name))
                found.append(float(costs[name]))
                continue
            column = history.get(name, ())
            value = column[epoch - 1] if len(column) >= epoch else math.nan
            if not math.isfinite(value):
                raise ObjectiveError(
                    f'objective "{name}" is {value} in epoch {epoch}, the best one of '
                    f'"{self.first.name}"; each objective must have a number there.'
                )
            found.append(float(value))
        return found


def objective_names(meta: Mapping[str, Any], n: int) -> list[str]:
    """Return the names of a study's ``n`` objectives; empty for one.

    ``meta`` is its attribute ``paceline``; empty for a study of another program.
    """
    names = meta.get("objectives")
    if n < 2:
        return []
    if isinstance(names, list) and len(names) == n:
        return [str(name) for name in names]
    return [f"objective {i}" for i in range(n)]


def resolve_objectives(
    given: Sequence[Any],
    direction: str | None,
    metric_names: Sequence[str] | None,
    *,
    callbacks: bool = False,
) -> Objectives:
    """Return the objectives meant.

    Args:
        given: As the argument ``objective`` of ``Tuner``: several of what one may be, but None.
        direction: As the argument of ``Tuner``, which is of one objective.
        metric_names: Names of an epoch's logs; None when not known yet.
        callbacks: Whether trials have callbacks, which may add metrics to the logs.

    Raises ObjectiveError where they cannot be searched for together, or one of them is unknown.
    """
    if direction is not None:
        raise ObjectiveError(
            f"direction: {direction!r} is of one objective, and there are {len(given)}; write "
            '"max:NAME" or "min:NAME" in the list instead.'
        )
    found = [_one(each, metric_names, callbacks) for each in given]
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise ObjectiveError(f'objective: "{name}" is given twice; give each objective once.')
    if all(name in COSTS for name in names):
        raise ObjectiveError(
            f"objective: {', '.join(names)} are costs, which show nothing of what a model learns, "
            "so the smallest model would be the best one; add a metric, as in "
            f'["val_loss", "{names[0]}"].'
        )
    if names[0] in COSTS:
        metric = next(name for name in names if name not in COSTS)
        raise ObjectiveError(
            f'objective: "{names[0]}" comes first, and the values of a trial are those of the best '
            f'epoch of the first objective, so that one must be a metric; put "{metric}" first.'
        )
    return Objectives(tuple(found))


def _one(given: Any, metric_names: Sequence[str] | None, callbacks: bool) -> Objective:
    if given is None:
        raise ObjectiveError("objective: the list holds None; name a metric or a cost.")
    name, direction = named_objective(given)
    if name in COSTS:
        if metric_names is not None and name in metric_names:
            raise ObjectiveError(_two_meanings(name))
        return Objective(name, direction or "minimize")
    try:
        return resolve_objective(given, None, metric_names)
    except ObjectiveError as error:
        if not callbacks or direction is None:
            if metric_names is None or name in metric_names:
                raise
            raise ObjectiveError(f"{error} Costs are {', '.join(COSTS)}.") from None
        return resolve_objective(given, None, None)


def _two_meanings(name: str) -> str:
    return (
        f'objective "{name}" is a cost of the model ({COSTS[name]}), and the model or a callback '
        "has a metric of this name; give the metric another name."
    )
