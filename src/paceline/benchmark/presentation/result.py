"""The result of a benchmark: its runs and the advice on them, as text, JSON and HTML.

Needs no device.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from paceline.benchmark.presentation import cluster, quota
from paceline.benchmark.presentation.advice import Advice, advise, fastest
from paceline.benchmark.presentation.cluster import ClusterPrediction
from paceline.benchmark.presentation.document import DocumentPart, document
from paceline.benchmark.presentation.html import page
from paceline.benchmark.presentation.text import text_of
from paceline.benchmark.records import (
    FORMAT,
    PlannedSearch,
    Run,
    from_json,
    labels,
    to_json,
)
from paceline.errors import DataError, UsageError
from paceline.report import formats
from paceline.report.forecast import Costs, TimePrediction, predict
from paceline.search_space.html import preformatted

T = TypeVar("T")
#: The endings of files that a result can be written to.
ENDINGS = (".html", ".json")


class Bench:
    """The result of a benchmark of one model: one run for each device and backend.

    Args:
        runs: The runs, in the order they were measured.
        target_value: A value of the metric, for the sentence on which batch size reaches it
            soonest; None: no such sentence.
        plan: A search whose time is predicted; None: no prediction.

    Attributes:
        runs: The runs.
        target_value: The target.
        plan: The planned search.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        target_value: float | None = None,
        plan: PlannedSearch | None = None,
    ) -> None:
        self.runs, self.target_value, self.plan = list(runs), target_value, plan

    @property
    def advice(self) -> list[Advice]:
        """The findings, of one to three sentences each."""
        return advise(self.runs, self.target_value)

    @property
    def outlook(self) -> list[str]:
        """Sentences on the time of the planned search on each device; empty without a plan."""
        found: list[str] = []
        for name, run in zip(labels(self.runs), self.runs, strict=True):
            costs = self.costs(run)
            if self.plan is not None and costs is not None:
                found += quota.sentences(costs, name, run.device.platform, self.plan)
                clustered = self.on_cluster(run)
                if clustered is not None:
                    found.append(cluster.sentence(clustered, name))
        return found

    def costs(self, run: Run) -> Costs | None:
        """Returns what the planned search costs on the device of a run; None if not measured."""
        return None if run.costs is None else msgspec.convert(dict(run.costs), Costs)

    def predicted(self, run: Run) -> TimePrediction | None:
        """Returns the seconds of the planned search on the device of a run; None if unknown."""
        costs = self.costs(run)
        if costs is None or self.plan is None:
            return None
        return predict(costs, self.plan.n_trials, self.plan.epochs, self.plan.share)

    def on_cluster(self, run: Run) -> ClusterPrediction | None:
        """Returns the seconds on a cluster of such devices; None if unknown or not asked for."""
        costs, plan = self.costs(run), self.plan
        if costs is None or plan is None or plan.workers is None or run.backend != "jax":
            return None
        count = 1 if run.device.platform == "cpu" else run.device.count
        return cluster.predict_cluster(costs, plan, count)

    def text(self, width: int | None = None) -> str:
        """Returns tables and advice as text.

        Args:
            width: Columns of the terminal; None: lines are as long as the tables need.
        """
        return text_of(self._parts(), width)

    def to_json(self) -> dict[str, Any]:
        """Returns what ``paceline bench --json`` prints and ``--merge`` reads."""
        best = fastest(self.runs)
        winner = None
        if best is not None:
            run, measurement = best
            winner = {"run": self.runs.index(run), "cell": run.cells.index(measurement)}
        return {
            "format": FORMAT,
            "runs": to_json(self.runs),
            "fastest": winner,
            "target_value": self.target_value,
            "plan": msgspec.to_builtins(self.plan),
            "prediction": [_seconds(self.predicted(run)) for run in self.runs],
            "cluster": [
                None if found is None else found.to_json()
                for found in map(self.on_cluster, self.runs)
            ],
            "outlook": self.outlook,
            "advice": [{"topic": each.topic, "text": each.text} for each in self.advice],
        }

    def html(self) -> str:
        """Returns one HTML page with figures, which needs no other file."""
        return page(self.runs, self._parts(), self.target_value)

    def _parts(self) -> list[DocumentPart]:
        return document(self.runs, self.advice, self.outlook)

    def save(self, path: str | Path) -> None:
        """Writes the result to a file.

        Args:
            path: A name that ends in ``.html``, for a page, or in ``.json``.

        Raises:
            UsageError: The name ends in something else, or the file cannot be written.
        """
        path = Path(path)
        if path.suffix not in ENDINGS:
            raise UsageError(f"output: {str(path)!r} must end in {' or '.join(ENDINGS)}")
        text = self.html() if path.suffix == ".html" else formats.to_json(self.to_json()) + "\n"
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"output: {path} cannot be written ({error})") from None

    def _repr_html_(self) -> str:
        return preformatted(self.text())

    def __str__(self) -> str:
        return self.text(formats.READABLE)


def merge(paths: Sequence[str | Path], note: Callable[[str], None]) -> Bench:
    """Returns the runs of several result files as one result, such as those of two machines.

    ``note`` gets a line about each difference, such as versions. Raises DataError if a file cannot
    be read, or the results are of different models, data or objectives.
    """
    found = [load(path) for path in paths]
    runs: list[Run] = []
    for bench, path in zip(found, paths, strict=True):
        for run in bench.runs:
            if run in runs:
                note(f"{path}: the run of {run.date} on {run.device.kind} appears twice")
                continue
            runs.append(run)
    _check_alike(runs, note)
    targets = [bench.target_value for bench in found if bench.target_value is not None]
    plans = [bench.plan for bench in found if bench.plan is not None]
    return Bench(
        runs,
        target_value=_common("targets", targets, note),
        plan=_common("planned searches", plans, note),
    )


def _common(what: str, values: Sequence[T], note: Callable[[str], None]) -> T | None:
    """The one value of several results; None if they have none, or several."""
    if any(value != values[0] for value in values[1:]):
        note(f"the results are for different {what}, so there is no comparison")
        return None
    return values[0] if values else None


def _seconds(prediction: TimePrediction | None) -> dict[str, float] | None:
    return None if prediction is None else {**asdict(prediction), "total": prediction.total}


def _check_alike(runs: Sequence[Run], note: Callable[[str], None]) -> None:
    first = runs[0]
    curves = [curve for run in runs for curve in run.curves if curve.values]
    objectives = sorted({f"{curve.direction} {curve.metric}" for curve in curves})
    if len(objectives) > 1:
        raise DataError(
            f"merge: the results have different objectives ({' and '.join(objectives)}). Measure "
            "with the same objective"
        )
    for run in runs[1:]:
        for what, ours, theirs in (
            ("models", first.model.get("variables"), run.model.get("variables")),
            ("hyperparameters", first.model.get("hparams"), run.model.get("hparams")),
            ("numbers of training examples", first.n_examples, run.n_examples),
        ):
            if ours != theirs:
                raise DataError(
                    f"merge: the results have different {what} ({ours} and {theirs}). Measure the "
                    "same model on the same data"
                )
        if first.precision != run.precision:
            note(f"{run.name} was measured in {run.precision}, {first.name} in {first.precision}")
        differ = [
            name
            for name, version in first.versions.items()
            if run.versions.get(name, version) != version
        ]
        if differ:
            text = ", ".join(
                f"{name} {first.versions[name]} and {run.versions[name]}" for name in differ
            )
            note(f"{first.name} and {run.name} have different versions: {text}")


def load(path: str | Path) -> Bench:
    """Reads what ``Bench.save`` wrote, or a file whose last line ``paceline bench --json`` printed.

    Raises DataError if the file cannot be read, or holds no result of a benchmark.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").strip().split("\n")
        value = json.loads(lines[-1] if lines else "")
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as a result of `paceline bench`: {error}") from None
    stored = from_json(value, str(path))
    return Bench(stored.runs, target_value=stored.target_value, plan=stored.plan)
