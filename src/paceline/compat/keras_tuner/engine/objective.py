"""Objectives: the number in the logs of a trial to improve, or a sum of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.compat.keras_tuner.engine.metrics_tracking import infer_metric_direction


class Objective:
    """One metric to improve, and its direction.

    Args:
        name: Name of the metric in the logs.
        direction: "min" or "max".
    """

    def __init__(self, name: str, direction: str) -> None:
        self.name, self.direction = name, direction

    def has_value(self, logs: Mapping[str, Any]) -> bool:
        """Returns whether the logs hold the metric."""
        return self.name in logs

    def get_value(self, logs: Mapping[str, Any]) -> Any:
        """Returns the value of the metric in the logs."""
        return logs[self.name]

    def better_than(self, a: Any, b: Any) -> bool:
        """Returns whether the value ``a`` is better than ``b``."""
        return bool(a > b if self.direction == "max" else a < b)

    def __eq__(self, other: object) -> bool:
        mine = (self.name, self.direction)
        return mine == (getattr(other, "name", None), getattr(other, "direction", None))

    def __hash__(self) -> int:
        return hash((self.name, self.direction))

    def __str__(self) -> str:
        return f'Objective(name="{self.name}", direction="{self.direction}")'


class DefaultObjective(Objective):
    """The single number that a user's ``run_trial`` or ``fit`` returns; lower is better."""

    def __init__(self) -> None:
        super().__init__("default_objective", "min")


class MultiObjective(Objective):
    """Several objectives: the sum of those to minimise minus the sum of those to maximise."""

    def __init__(self, objectives: list[Objective]) -> None:
        super().__init__("multi_objective", "min")
        self.objectives = objectives
        self.name_to_direction = {each.name: each.direction for each in objectives}

    def has_value(self, logs: Mapping[str, Any]) -> bool:
        """Returns whether the logs hold the metrics of all objectives."""
        return all(name in logs for name in self.name_to_direction)

    def get_value(self, logs: Mapping[str, Any]) -> Any:
        """Returns the sum."""
        signs = {name: 1 if way == "min" else -1 for name, way in self.name_to_direction.items()}
        return sum(signs[name] * value for name, value in logs.items() if name in signs)

    def __eq__(self, other: object) -> bool:
        return self.name_to_direction == getattr(other, "name_to_direction", None)

    def __hash__(self) -> int:
        return hash(frozenset(self.name_to_direction.items()))

    def __str__(self) -> str:
        return f"Multi{super().__str__()}: [{', '.join(map(str, self.objectives))}]"


def create_objective(objective: Any) -> Objective:
    """Returns an objective for a user's argument.

    Args:
        objective: Name of a metric, an ``Objective`` of this package or of KerasTuner, or a list of
            these. None: the single number that a user's function returns.

    Raises:
        TypeError: It is something else.
        ValueError: Paceline cannot tell whether high or low values of the metric are better.
    """
    if objective is None:
        return DefaultObjective()
    if isinstance(objective, list):
        return MultiObjective([create_objective(each) for each in objective])
    if isinstance(objective, Objective):
        return objective
    if not isinstance(objective, str):
        name, direction = getattr(objective, "name", None), getattr(objective, "direction", None)
        several = getattr(objective, "objectives", None)
        if isinstance(several, list):
            return MultiObjective([create_objective(each) for each in several])
        if isinstance(name, str) and direction in ("min", "max"):
            return Objective(name, direction)
        raise TypeError(
            "`objective` not understood, expected str (the name of a metric), an `Objective` or a "
            f"list of them, found: {objective!r}"
        )
    direction = infer_metric_direction(objective)
    if direction is None:
        raise ValueError(
            'Could not infer optimization direction ("min" or "max") of the metric '
            f'"{objective}". Pass a `keras_tuner.Objective`, for example '
            f'`keras_tuner.Objective("{objective}", direction="min")`.'
        )
    return Objective(objective, direction)
