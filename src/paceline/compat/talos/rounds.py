"""The results of the permutations, as tables and as a log file."""

from __future__ import annotations

import csv
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from paceline.study.objectives import Direction, infer_direction

#: Columns before those of metrics and parameters.
_TIMES = ["start", "end", "duration", "round_epochs"]
#: Columns that Talos 2 has beside those of metrics and parameters.
_RESERVED = {*_TIMES, "execution_time", "_warnings", "_trial_id", "_param_hash"}


@dataclass
class ScanRound:
    """The result of a permutation that was trained.

    Attributes:
        number: Position in the order in which permutations began.
        params: The parameter values.
        history: Metric -> one float per epoch.
        began, ended: When the permutation began and ended, in seconds since 1970.
        seconds: Its own share of the time, in seconds.
        model: The model that the user's function returned.
    """

    number: int
    params: dict[str, Any]
    history: dict[str, list[float]]
    began: float
    ended: float
    seconds: float
    model: Any = None

    @property
    def epochs(self) -> int:
        """Number of epochs trained."""
        return max((len(values) for values in self.history.values()), default=0)


@dataclass
class Failure:
    """A permutation that failed.

    Attributes:
        number: Position in the order in which permutations began.
        params: The parameter values.
        error: What its function raised.
    """

    number: int
    params: dict[str, Any]
    error: Exception


@dataclass
class Rounds:
    """The results of all permutations that have ended.

    Attributes:
        keys: Names of the parameters.
        path: The log of the experiment, with one row for each permutation.
        last_epoch: Whether the value of a metric is that of the last epoch; else of its best one.
        done: The permutations that were trained, in the order in which they began.
        failed: The permutations that failed.
    """

    keys: list[str]
    path: Path
    last_epoch: bool = True
    done: list[ScanRound] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    _header: list[str] = field(default_factory=list)

    def add(self, found: ScanRound) -> None:
        """Adds a permutation, and writes its row to the log."""
        self.done.append(found)
        row = self._row(found)
        if list(row) == self._header:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                csv.writer(file).writerow([_text(value) for value in row.values()])
        else:  # the first row, or one with other metrics: the header changes
            self.write()

    def drop_after(self, number: int) -> list[ScanRound]:
        """Drops the permutations after one, from the log too; returns those that were trained."""
        dropped = [found for found in self.done if found.number > number]
        self.done = [found for found in self.done if found.number <= number]
        self.failed = [failure for failure in self.failed if failure.number <= number]
        if dropped:
            self.write()
        return dropped

    def write(self) -> None:
        """Writes the whole log, with rows in the order in which permutations began."""
        table = self.table()
        self._header = list(table.columns)
        table.map(_text).to_csv(self.path, index=False)

    def table(self) -> pd.DataFrame:
        """Returns a table with one row for each permutation: times, metrics, parameters."""
        self.done.sort(key=lambda found: found.number)
        rows = [self._row(found) for found in self.done]
        columns = [*_TIMES, *self.metrics, *self.parameter_columns.values()]
        data = {name: [row.get(name) for row in rows] for name in columns}
        frame = pd.DataFrame(data, columns=columns)
        for name in self.parameter_columns.values():  # keeps lists, classes and None as they are
            if not all(isinstance(value, (int, float, str)) for value in frame[name]):
                frame[name] = pd.Series(data[name], dtype=object)
        return frame

    @property
    def metrics(self) -> list[str]:
        """Names of all metrics."""
        return list(dict.fromkeys(name for found in self.done for name in found.history))

    def best(self) -> str:
        """Returns the best value of the most telling metric, as text for a progress bar."""
        for name in ("val_acc", "val_accuracy", "val_loss", "loss"):
            values = [f.history[name][-1] for f in self.done if f.history.get(name)]
            if values:
                return f"best {name} {min(values) if is_loss(name) else max(values):.4f}"
        return ""

    @property
    def parameter_columns(self) -> dict[str, str]:
        """Parameter -> its column, which is ``param__NAME`` if a metric or a time is called so."""
        taken = {*self.metrics, *_RESERVED}
        columns: dict[str, str] = {}
        for key in self.keys:
            name = key
            while name in taken or (name != key and name in self.keys):
                name = f"param__{name}"
            columns[key] = name
        return columns

    def times(self) -> pd.DataFrame:
        """Returns a table with start, end and duration of each permutation."""
        table: Any = self.table()
        return table[_TIMES[:3]]

    def peaks(self) -> pd.DataFrame:
        """Returns a table with the epoch, from 0, of the best value of each metric."""
        return pd.DataFrame(
            [{name: best_epoch(name, v) for name, v in f.history.items()} for f in self.done]
        )

    def entropies(self) -> pd.DataFrame:
        """Returns a table that says how learning was spread over the epochs, for each metric.

        The figure is the relative entropy of the metric's values in validation against those in
        training; without validation, the entropy of the values. It is NaN if a value is negative or
        not finite.
        """
        found = [
            {
                name: _entropy(values, found.history.get(f"val_{name}"))
                for name, values in found.history.items()
                if not name.startswith("val_")
            }
            for found in self.done
        ]
        return pd.DataFrame(found)

    def _row(self, found: ScanRound) -> dict[str, Any]:
        row: dict[str, Any] = {
            "start": _moment(found.began),
            "end": _moment(found.ended),
            "duration": found.seconds,
            "round_epochs": found.epochs,
        }
        for name, values in found.history.items():
            at = -1 if self.last_epoch else best_epoch(name, values)
            row[name] = values[at] if values else np.nan
        columns = self.parameter_columns
        return row | {columns[key]: found.params[key] for key in self.keys}


def best_epoch(metric: str, values: list[float]) -> int:
    """Returns the epoch, from 0, of a metric's best value: the lowest for losses and errors."""
    if not values or not np.isfinite(values).any():
        return -1
    return int(np.nanargmin(values) if is_loss(metric) else np.nanargmax(values))


def is_loss(metric: str) -> bool:
    """Returns whether low values of a metric are better; False where its name does not say."""
    return known_direction(metric) == "minimize"


def known_direction(metric: str) -> Direction | None:
    """Returns in which direction a metric is better, judged by its name; None for one not known."""
    known = infer_direction(metric)
    if known is not None:
        return known
    name = metric.removeprefix("val_").lower()
    words = ("loss", "error", "mae", "mse", "mape", "msle", "crossentropy", "divergence", "hinge")
    return "minimize" if any(word in name for word in words) else None


def _entropy(values: list[float], validation: list[float] | None) -> float:
    from scipy.stats import entropy

    def usable(course: Any) -> bool:
        return len(course) > 0 and bool(
            np.isfinite(course).all() and min(course) >= 0 < sum(course)
        )

    if not usable(values):
        return float("nan")
    if validation is not None and len(validation) == len(values) and usable(validation):
        return float(entropy(validation, values))
    return float(entropy(values))


def _moment(seconds: float) -> str:
    """A time as Talos writes it."""
    return time.strftime("%m/%d/%y-%H%M%S", time.localtime(seconds))


def _text(value: Any) -> Any:
    """A value for the log: a class or a function as its name."""
    return getattr(value, "__name__", value) if callable(value) else value
