"""The metrics of a trial, by step: as KerasTuner's users read them, and as its files have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from paceline.study.objective import infer_direction


class MetricObservation:
    """The values of one metric at one step, one for each execution.

    Args:
        value: A number, or a list of them.
        step: The step.
    """

    def __init__(self, value: Any, step: int) -> None:
        self.value: list[float] = list(value) if isinstance(value, list) else [value]
        self.step = step

    def append(self, value: Any) -> None:
        """Adds the value of one more execution, or of several."""
        self.value += value if isinstance(value, list) else [value]

    def mean(self) -> Any:
        """The mean over executions."""
        return np.mean(self.value)

    def get_config(self) -> dict[str, Any]:
        """JSON values."""
        return {"value": self.value, "step": self.step}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> MetricObservation:
        """What ``get_config`` described."""
        return cls(**config)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, MetricObservation)
        return same and (other.value, other.step) == (self.value, self.step)

    __hash__ = None  # pyright: ignore[reportAssignmentType] - it changes

    def __repr__(self) -> str:
        return f"MetricObservation(value={self.value}, step={self.step})"


class MetricHistory:
    """One metric over the steps of a trial.

    Args:
        direction: "min" or "max".
    """

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
        """The best of the means; None where there are none."""
        means = [seen.mean() for seen in self._observations.values()]
        if not means:
            return None
        if np.all(np.isnan(means)):
            return np.nan
        return np.nanmin(means) if self.direction == "min" else np.nanmax(means)

    def get_best_step(self) -> int | None:
        """The first step with the best value."""
        best = self.get_best_value()
        steps = (seen.step for seen in self._observations.values() if seen.mean() == best)
        return next(steps, None)

    def get_history(self) -> list[MetricObservation]:
        """All observations, by step."""
        return sorted(self._observations.values(), key=lambda seen: seen.step)

    def set_history(self, observations: Iterable[MetricObservation]) -> None:
        """Adds observations."""
        for seen in observations:
            self.update(seen.value, seen.step)

    def get_statistics(self) -> dict[str, float]:
        """min, max, mean, median, var and std of the means over steps; empty without any."""
        means = [seen.mean() for seen in self.get_history()]
        if not means:
            return {}
        names = ("min", "max", "mean", "median", "var", "std")
        return {name: float(getattr(np, f"nan{name}")(means)) for name in names}

    def get_last_value(self) -> Any:
        """The mean at the last step; None where there is none."""
        history = self.get_history()
        return history[-1].mean() if history else None

    def get_config(self) -> dict[str, Any]:
        """JSON values."""
        seen = [each.get_config() for each in self.get_history()]
        return {"direction": self.direction, "observations": seen}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> MetricHistory:
        """What ``get_config`` described."""
        history = cls(config["direction"])
        history.set_history(MetricObservation.from_config(each) for each in config["observations"])
        return history


class MetricsTracker:
    """All metrics of a trial.

    Args:
        metrics: Objects with a ``name`` to register at once.
    """

    def __init__(self, metrics: Iterable[Any] | None = None) -> None:
        self.metrics: dict[str, MetricHistory] = {}
        self.register_metrics(metrics)

    def exists(self, name: str) -> bool:
        """Whether a metric is known."""
        return name in self.metrics

    def register_metrics(self, metrics: Iterable[Any] | None = None) -> None:
        """Registers metrics by their names."""
        for metric in metrics or ():
            self.register(metric.name)

    def register(self, name: str, direction: str | None = None) -> None:
        """Registers a metric; a direction that nobody gives or knows is "min"."""
        if self.exists(name):
            raise ValueError(f"Metric already exists: {name}")
        self.metrics[name] = MetricHistory(direction or infer_metric_direction(name) or "min")

    def update(self, name: str, value: Any, step: int = 0) -> bool:
        """Adds a value; whether it is the best so far."""
        if not self.exists(name):
            self.register(name)
        before = self.metrics[name].get_best_value()
        self.metrics[name].update(float(value), step)
        return self.metrics[name].get_best_value() != before

    def get_history(self, name: str) -> list[MetricObservation]:
        """All observations of a metric, by step."""
        return self._known(name).get_history()

    def set_history(self, name: str, observations: Iterable[MetricObservation]) -> None:
        """Adds observations of a metric."""
        if not self.exists(name):
            self.register(name)
        self.metrics[name].set_history(observations)

    def get_best_value(self, name: str) -> Any:
        """The best value of a metric."""
        return self._known(name).get_best_value()

    def get_best_step(self, name: str) -> int | None:
        """The step of the best value."""
        return self._known(name).get_best_step()

    def get_statistics(self, name: str) -> dict[str, float]:
        """Statistics of a metric over its steps."""
        return self._known(name).get_statistics()

    def get_last_value(self, name: str) -> Any:
        """The value at the last step."""
        return self._known(name).get_last_value()

    def get_direction(self, name: str) -> str:
        """Whether low ("min") or high ("max") values are good."""
        return self._known(name).direction

    def get_config(self) -> dict[str, Any]:
        """JSON values."""
        return {"metrics": {name: each.get_config() for name, each in self.metrics.items()}}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> MetricsTracker:
        """What ``get_config`` described."""
        tracker = cls()
        for name, each in config["metrics"].items():
            tracker.metrics[name] = MetricHistory.from_config(each)
        return tracker

    def _known(self, name: str) -> MetricHistory:
        if name not in self.metrics:
            raise ValueError(f"Unknown metric: {name}")
        return self.metrics[name]


def infer_metric_direction(metric: Any) -> str | None:
    """Whether high ("max") or low ("min") values of one of Keras' metrics or losses are good.

    Args:
        metric: A name in the logs, or a metric or loss of Keras.

    Returns:
        None where it is not known.
    """
    if isinstance(metric, str):
        found = infer_direction(metric)
    else:
        found = infer_direction(getattr(metric, "__name__", type(metric).__name__))
    return None if found is None else found[:3]
