"""The objective: the number of an epoch's logs to improve, and whether high or low is good."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline.errors import ObjectiveError

Direction = Literal["maximize", "minimize"]

# Keras' built-in metrics, and the losses that can be given as metrics, by the names that logs have:
# an instance's own name, the string passed to compile, or an alias. Lower case, no underscores.
# Without dice, tversky and circle: Keras has losses of these names, and users scores of the same.
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
    objective: Any, direction: str | None, metric_names: Sequence[str] | None
) -> Objective:
    """Return the objective meant.

    Args:
        objective: A name in the logs, ``max:NAME``, ``min:NAME``, an object with ``name`` and
            ``direction`` as KerasTuner's, or None: ``val_`` and the first metric that is no loss,
            else ``val_loss``.
        direction: maximize or minimize (``max`` and ``min`` as well); None infers it.
        metric_names: Names of an epoch's logs, in the order of ``compile``; None when not known
            yet, then nothing is checked against them and ``objective`` must name a metric.

    Raises ObjectiveError: no such metric, an unknown direction, or two that contradict each other.
    """
    wanted = None if direction is None else _direction(direction)
    name, own = named_objective(objective)
    if own is not None:
        if wanted is not None and wanted != own:
            raise ObjectiveError(
                f"objective {objective!r} says {own} and direction says {wanted}; give one of them."
            )
        wanted = own
    if name is None:
        if metric_names is None:
            raise ObjectiveError("objective is None before the metrics are known; name a metric.")
        name = _default(metric_names)
    if metric_names is not None and name not in metric_names:
        raise ObjectiveError(_missing(name, metric_names))
    if wanted is None:
        wanted = infer_direction(name, metric_names)
    if wanted is None:
        raise ObjectiveError(
            f'objective "{name}": whether high or low is good is not known of this metric; write '
            f'"max:{name}" or "min:{name}".'
        )
    return Objective(name, wanted)


def infer_direction(name: str, metric_names: Sequence[str] | None = None) -> Direction | None:
    """Return the direction of one of Keras' metrics or losses; None for a name not known.

    ``name`` is that in the logs: with ``val_``, with the number that tells equal metrics apart
    (``auc_1``), with the name of an output before it. A name is taken for that of an output when it
    has a loss of its own among ``metric_names``, all names of the logs, as Keras gives every output
    of several.
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
    """Return the name and the direction that ``objective`` gives; None for what it does not.

    Raises ObjectiveError where it is neither a name nor an object with a name.
    """
    if objective is None:
        return None, None
    if not isinstance(objective, str):
        name, direction = getattr(objective, "name", None), getattr(objective, "direction", None)
        if not isinstance(name, str) or not name:
            raise ObjectiveError(
                f'objective is {objective!r}; give the name of one metric, such as "val_accuracy".'
            )
        return name, None if direction is None else _direction(direction)
    mark, colon, rest = objective.partition(":")
    if colon and mark in ("max", "min"):
        name, own = rest.strip(), _DIRECTIONS[mark]
    else:
        name, own = objective.strip(), None
    if not name:
        raise ObjectiveError(
            f'objective is {objective!r}; give the name of a metric, such as "val_accuracy".'
        )
    return name, own


def _direction(direction: Any) -> Direction:
    found = _DIRECTIONS.get(direction) if isinstance(direction, str) else None
    if found is None:
        raise ObjectiveError(f'direction is {direction!r}; give "maximize" or "minimize".')
    return found


def _default(metric_names: Sequence[str]) -> str:
    for name in metric_names:
        if not name.startswith("val_") and name != "loss" and not name.endswith("_loss"):
            return f"val_{name}"
    return "val_loss"


def _missing(name: str, metric_names: Sequence[str]) -> str:
    there = ", ".join(metric_names) or "none"
    trained = name.removeprefix("val_")
    if (
        name.startswith("val_")
        and trained in metric_names
        and not any(known.startswith("val_") for known in metric_names)
    ):
        return (
            f'objective "{name}": there is no validation data; pass validation_data= or '
            f'validation_split=, or objective="{trained}".'
        )
    return f'objective "{name}" is no metric of this model; it has: {there}.'
