"""What a search improves: one number of an epoch's logs or several, and costs of the model.

Whether high or low is good, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline.errors import ObjectiveError, StudyError, with_keras_3

Direction = Literal["maximize", "minimize"]

# Keras' built-in metrics, and losses that can be metrics, by their names in logs: an instance's
# name, the string passed to compile, or an alias. Lower case, no underscores. Without dice, tversky
# and circle, which are losses of Keras, but scores of users.
_MAXIMIZE = frozenset(
    "accuracy acc binaryaccuracy categoricalaccuracy sparsecategoricalaccuracy "
    "topkcategoricalaccuracy sparsetopkcategoricalaccuracy auc precision recall precisionatrecall "
    "recallatprecision sensitivityatspecificity specificityatsensitivity truepositives "
    "truenegatives f1score fbetascore iou binaryiou meaniou onehotiou onehotmeaniou "
    "cosinesimilarity r2score concordancecorrelation pearsoncorrelation".split()
)
_MINIMIZE = frozenset(
    "loss crossentropy ce binarycrossentropy bce categoricalcrossentropy "
    "sparsecategoricalcrossentropy binaryfocalcrossentropy categoricalfocalcrossentropy "
    "categoricalgeneralizedcrossentropy kldivergence kld kullbackleiblerdivergence poisson "
    "meansquarederror mse rootmeansquarederror rmse meanabsoluteerror mae "
    "meanabsolutepercentageerror mape meansquaredlogarithmicerror msle logcosh logcosherror huber "
    "hinge squaredhinge categoricalhinge falsepositives falsenegatives ctc".split()
)
_DIRECTIONS: dict[str, Direction] = {
    "max": "maximize",
    "maximize": "maximize",
    "min": "minimize",
    "minimize": "minimize",
}


@dataclass(frozen=True)
class Objective:
    """The number that a search improves."""

    name: str  # in an epoch's logs, such as ``val_accuracy``
    direction: Direction

    def better(self, value: float | None, than: float | None) -> bool:
        """Return whether ``value`` beats ``than``; see ``is_better``."""
        return is_better(value, than, self.direction)


def is_better(value: float | None, than: float | None, direction: Direction) -> bool:
    """Return whether ``value`` beats ``than``; None and NaN beat nothing and lose to any number."""
    if value is None or math.isnan(value):
        return False
    if than is None or math.isnan(than):
        return True
    return value > than if direction == "maximize" else value < than


def resolve_objective(
    objective: Any,
    direction: str | None,
    metric_names: Sequence[str] | None,
    compiled: Collection[str] | None = None,
) -> Objective:
    """Return the objective meant; ObjectiveError where there is none, or no direction, or two.

    Args:
        objective: A name in the logs, ``max:NAME``, ``min:NAME``, or an object with ``name`` and
            ``direction`` as KerasTuner's. None: ``val_`` and the first validated metric that is not
            a loss, else ``val_loss``.
        direction: maximize or minimize (``max`` and ``min`` as well); None infers it.
        metric_names: Names of an epoch's logs, in the order of ``compile``. None if they are not
            known yet; ``objective`` must then name a metric, which is not checked.
        compiled: The names given to ``compile``. A metric that the model's own ``call`` creates is
            the default only if its direction is known. None: all names.
    """
    wanted = None if direction is None else _direction(direction)
    name, own = named_objective(objective)
    if own is not None:
        if wanted is not None and wanted != own:
            raise ObjectiveError(
                f"objective {objective!r} says {own}, but direction says {wanted}. Pass only one."
            )
        wanted = own
    if name is None:
        if metric_names is None:
            raise ObjectiveError("objective is None before the metrics are known. Name a metric.")
        name = _default(metric_names, metric_names if wanted or compiled is None else compiled)
    if metric_names is not None and name not in metric_names:
        raise ObjectiveError(_missing(name, metric_names))
    if wanted is None:
        wanted = infer_direction(name, metric_names)
    if wanted is None:
        raise ObjectiveError(
            f'objective "{name}": the direction of this metric is unknown. Write "max:{name}" or '
            f'"min:{name}".'
        )
    return Objective(name, wanted)


def infer_direction(name: str, metric_names: Sequence[str] | None = None) -> Direction | None:
    """Return the direction of one of Keras' metrics or losses; None for a name not known.

    ``name`` is that in the logs: with ``val_``, the number of equal metrics (``auc_1``), and the
    name of an output. ``metric_names`` are all names of the logs. A name is an output's if
    ``metric_names`` has its loss, since Keras logs one for every output of several.
    """
    bare = re.sub(r"_\d+$", "", name.removeprefix("val_")).removeprefix("weighted_")
    if bare.endswith("_loss"):
        return "minimize"
    names = set(metric_names or ())
    candidates = [bare]
    for cut in (at.start() for at in re.finditer("_", bare)):
        if f"{bare[:cut]}_loss" in names:
            candidates.append(bare[cut + 1 :])
    for candidate in candidates:
        known = candidate.lower().replace("_", "")
        if known in _MAXIMIZE:
            return "maximize"
        if known in _MINIMIZE:
            return "minimize"
    return None


def named_objective(objective: Any) -> tuple[str | None, Direction | None]:
    """Return the name and the direction that ``objective`` gives; None for what it does not."""
    if objective is None:
        return None, None
    if not isinstance(objective, str):
        name, direction = getattr(objective, "name", None), getattr(objective, "direction", None)
        if not isinstance(name, str) or not name:
            raise ObjectiveError(
                'objective must be the name of one metric, such as "val_accuracy", got '
                f"{objective!r}."
            )
        return name, None if direction is None else _direction(direction)
    mark, colon, rest = objective.partition(":")
    if colon and mark in ("max", "min"):
        name, own = rest.strip(), _DIRECTIONS[mark]
    else:
        name, own = objective.strip(), None
    if not name:
        raise ObjectiveError(
            f'objective must be the name of a metric, such as "val_accuracy", got {objective!r}.'
        )
    return name, own


def _direction(direction: Any) -> Direction:
    found = _DIRECTIONS.get(direction) if isinstance(direction, str) else None
    if found is None:
        raise ObjectiveError(f'direction must be "maximize" or "minimize", got {direction!r}.')
    return found


def _default(metric_names: Sequence[str], compiled: Collection[str]) -> str:
    validated = any(name.startswith("val_") for name in metric_names)
    for name in metrics_beside_loss(metric_names):
        meant = name in compiled or infer_direction(f"val_{name}", metric_names) is not None
        if meant and (f"val_{name}" in metric_names or not validated):
            return f"val_{name}"
    return "val_loss"


def metrics_beside_loss(metric_names: Sequence[str]) -> list[str]:
    """Return the metrics of training among names of logs, without losses."""
    return [
        name
        for name in metric_names
        if not name.startswith("val_") and name != "loss" and not name.endswith("_loss")
    ]


def _missing(name: str, metric_names: Sequence[str]) -> str:
    there = ", ".join(metric_names) or "none"
    trained = name.removeprefix("val_")
    if (
        name.startswith("val_")
        and trained in metric_names
        and not any(known.startswith("val_") for known in metric_names)
    ):
        return (
            f'objective "{name}" needs validation data. Pass validation_data= or '
            f'validation_split=, or use objective="{trained}".'
        )
    return with_keras_3(f'objective "{name}" is not a metric of this model. Its metrics: {there}.')


# -- several objectives ----------------------------------------------------------------------------

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
        """Refuse a study that was begun with other objectives, or with these in another order."""
        known = meta.get("objectives") or [meta.get("objective")]
        if meta and known != self.names:
            raise StudyError(
                f"study: {study!r} was created with the objective{'s' if len(known) > 1 else ''} "
                f"{', '.join(map(repr, known))}, not {', '.join(map(repr, self.names))}. Use "
                "another study name, or the same objectives in the same order."
            )

    def note_on_pruner(self, pruner: str | None) -> str:
        """Return a sentence for the user on what a pruner goes by."""
        return (
            f"pruner: {pruner} uses only the first objective, {self.first.name}. A pruned trial "
            f"might have been good in {', '.join(self.names[1:])}"
        )

    def values(
        self, history: Mapping[str, Sequence[float]], epoch: int, costs: Mapping[str, float]
    ) -> list[float]:
        """Return the values of a trial, one for each objective, at the best epoch of the first.

        ``history`` has one value of a metric for each epoch; ``costs`` are of the trial's model.
        Raises ObjectiveError if a metric has no number in that epoch, or the name of a cost.
        """
        found = []
        for name in self.names:
            if name in COSTS:
                if name in history:  # a callback has added it
                    raise ObjectiveError(_name_clash(name))
                found.append(float(costs[name]))
                continue
            column = history.get(name, ())
            value = column[epoch - 1] if len(column) >= epoch else math.nan
            if not math.isfinite(value):
                raise ObjectiveError(
                    f'objective "{name}" is {value} in epoch {epoch}, the best one of '
                    f'"{self.first.name}". Each objective must be a number in that epoch.'
                )
            found.append(float(value))
        return found


def objective_names(meta: Mapping[str, Any], n: int) -> list[str]:
    """Return the names of a study's ``n`` objectives; empty for one."""
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
    """Return the objectives meant; ObjectiveError where they cannot be searched for together.

    ``direction`` is the argument of ``Tuner``, which is of one objective. ``metric_names`` are
    names of an epoch's logs; None when not known yet. ``callbacks`` may add metrics to the logs.
    """
    if direction is not None:
        raise ObjectiveError(
            f"direction: {direction!r} applies to one objective, but there are {len(given)}. "
            'Write "max:NAME" or "min:NAME" in the list.'
        )
    found = [_one(each, metric_names, callbacks) for each in given]
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise ObjectiveError(f'objective: "{name}" appears twice. Pass each objective once.')
    if all(name in COSTS for name in names):
        raise ObjectiveError(
            f"objective: with costs alone ({', '.join(names)}) the smallest model would always be "
            f'the best. Add a metric, as in ["val_loss", "{names[0]}"].'
        )
    if names[0] in COSTS:
        metric = next(name for name in names if name not in COSTS)
        raise ObjectiveError(
            "objective: the first objective must be a metric, since it decides the best epoch of "
            f'a trial, got "{names[0]}". Put "{metric}" first.'
        )
    return Objectives(tuple(found))


def _one(given: Any, metric_names: Sequence[str] | None, callbacks: bool) -> Objective:
    if given is None:
        raise ObjectiveError(
            "objective: the list contains None. Use the name of a metric or a cost."
        )
    name, direction = named_objective(given)
    if name in COSTS:
        if metric_names is not None and name in metric_names:
            raise ObjectiveError(_name_clash(name))
        return Objective(name, direction or "minimize")
    try:
        return resolve_objective(given, None, metric_names)
    except ObjectiveError as error:
        if not callbacks or direction is None:
            if metric_names is None or name in metric_names:
                raise
            raise ObjectiveError(f"{error} Costs are {', '.join(COSTS)}.") from None
        return resolve_objective(given, None, None)


def _name_clash(name: str) -> str:
    return (
        f'objective "{name}" is a cost of the model ({COSTS[name]}), but a metric has the same '
        "name. Rename the metric of the model or callback."
    )
