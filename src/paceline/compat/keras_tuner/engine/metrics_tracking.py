"""The metrics of a trial, by step, with the names and the JSON of KerasTuner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from paceline.compat.keras_tuner.protos import HasProto
from paceline.study.objectives import infer_direction

_THEIRS = "engine.metrics_tracking"


@dataclass
class MetricObservation(HasProto):
    """The values of one metric at one step, one value for each execution.

    Args:
        value: A number, or a list of numbers.
        step: The step.
    """

    theirs: ClassVar[str] = _THEIRS

    value: Any
    step: int

    def __post_init__(self) -> None:
        self.value = list(self.value) if isinstance(self.value, list) else [self.value]

    def append(self, value: Any) -> None:
        """Adds the value of one more execution, or the values of several."""
        self.value += value if isinstance(value, list) else [value]

    def mean(self) -> Any:
        """Returns the mean over executions."""
        return np.mean(self.value)

    def get_config(self) -> dict[str, Any]:
        """Returns the content as JSON values."""
        return {"value": self.value, "step": self.step}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> MetricObservation:
        """Returns the observation whose ``get_config`` gave ``config``."""
        return cls(**config)


class MetricHistory(HasProto):
    """The values of one metric over the steps of a trial.

    Args:
        direction: "min" if low values are better, "max" if high values are better.
    """

    theirs: ClassVar[str] = _THEIRS

    def __init__(self, direction: str = "min") -> None:
        if direction not in ("min", "max"):
            raise ValueError(f'`direction` should be one of {{"min", "max"}}, but got: {direction}')
        self.direction = direction
        self._observations: dict[int, MetricObservation] = {}

    def update(self, value: Any, step: int) -> None:
        """Adds a value at a step."""
        if step in self._observations:
            self._observations[step].append(value)
        else:
            self._observations[step] = MetricObservation(value, step)

    def get_best_value(self) -> Any:
        """Returns the best mean over executions; None without values."""
        means = [seen.mean() for seen in self._observations.values()]
        if not means:
            return None
        if np.all(np.isnan(means)):
            return np.nan
        return np.nanmin(means) if self.direction == "min" else np.nanmax(means)

    def get_best_step(self) -> int | None:
        """Returns the first step with the best value; None without values."""
        best = self.get_best_value()
        steps = (seen.step for seen in self._observations.values() if seen.mean() == best)
        return next(steps, None)

    def get_history(self) -> list[MetricObservation]:
        """Returns all observations, sorted by step."""
        return sorted(self._observations.values(), key=lambda seen: seen.step)

    def set_history(self, observations: Iterable[MetricObservation]) -> None:
        """Adds observations."""
        for seen in observations:
            self.update(seen.value, seen.step)

    def get_statistics(self) -> dict[str, float]:
        """Returns min, max, mean, median, var and std over steps; empty without values."""
        means = [seen.mean() for seen in self.get_history()]
        if not means:
            return {}
        names = ("min", "max", "mean", "median", "var", "std")
        return {name: float(getattr(np, f"nan{name}")(means)) for name in names}

    def get_last_value(self) -> Any:
        """Returns the mean at the last step; None without values."""
        history = self.get_history()
        return history[-1].mean() if history else None

    def get_config(self) -> dict[str, Any]:
        """Returns the content as JSON values."""
        seen = [each.get_config() for each in self.get_history()]
        return {"direction": self.direction, "observations": seen}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> MetricHistory:
        """Returns the history whose ``get_config`` gave ``config``."""
        history = cls(config["direction"])
        history.set_history(MetricObservation.from_config(each) for each in config["observations"])
        return history


class MetricsTracker(HasProto):
    """The metrics of a trial by their names.

    Args:
        metrics: Metrics to register at the start: objects with a ``name``.
    """

    theirs: ClassVar[str] = _THEIRS

    def __init__(self, metrics: Iterable[Any] | None = None) -> None:
        self.metrics: dict[str, MetricHistory] = {}
        self.register_metrics(metrics)

    def exists(self, name: str) -> bool:
        """Returns whether a metric is registered."""
        return name in self.metrics

    def register_metrics(self, metrics: Iterable[Any] | None = None) -> None:
        """Registers metrics by their names."""
        for metric in metrics or ():
            self.register(metric.name)

    def register(self, name: str, direction: str | None = None) -> None:
        """Registers a metric; ``direction`` is "min" or "max". None: by its name, or else "min"."""
        if self.exists(name):
            raise ValueError(f"Metric already exists: {name}")
        self.metrics[name] = MetricHistory(direction or infer_metric_direction(name) or "min")

    def update(self, name: str, value: Any, step: int = 0) -> bool:
        """Adds a value; returns whether it is the best so far."""
        if not self.exists(name):
            self.register(name)
        before = self.metrics[name].get_best_value()
        self.metrics[name].update(float(value), step)
        return self.metrics[name].get_best_value() != before

    def get_history(self, name: str) -> list[MetricObservation]:
        """Returns all observations of a metric, sorted by step."""
        return self._known(name).get_history()

    def set_history(self, name: str, observations: Iterable[MetricObservation]) -> None:
        """Adds observations of a metric."""
        if not self.exists(name):
            self.register(name)
        self.metrics[name].set_history(observations)

    def get_best_value(self, name: str) -> Any:
        """Returns the best value of a metric."""
        return self._known(name).get_best_value()

    def get_best_step(self, name: str) -> int | None:
        """Returns the step of the best value of a metric."""
        return self._known(name).get_best_step()

    def get_statistics(self, name: str) -> dict[str, float]:
        """Returns the statistics of a metric over its steps."""
        return self._known(name).get_statistics()

    def get_last_value(self, name: str) -> Any:
        """Returns the value of a metric at the last step."""
        return self._known(name).get_last_value()

    def get_direction(self, name: str) -> str:
        """Returns "min" if low values of a metric are better, "max" if high values are better."""
        return self._known(name).direction

    def get_config(self) -> dict[str, Any]:
        """Returns the content as JSON values."""
        return {"metrics": {name: each.get_config() for name, each in self.metrics.items()}}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> MetricsTracker:
        """Returns the tracker whose ``get_config`` gave ``config``."""
        tracker = cls()
        for name, each in config["metrics"].items():
            tracker.metrics[name] = MetricHistory.from_config(each)
        return tracker

    def _known(self, name: str) -> MetricHistory:
        if name not in self.metrics:
            raise ValueError(f"Unknown metric: {name}")
        return self.metrics[name]


def infer_metric_direction(metric: Any) -> str | None:
    """Returns "max" or "min" for a name in logs, or a metric or loss of Keras; None: unknown."""
    if isinstance(metric, str):
        found = infer_direction(metric)
    else:
        found = infer_direction(getattr(metric, "__name__", type(metric).__name__))
    return None if found is None else found[:3]
