"""A benchmark's result: the runs, and what follows from them, as text and JSON. Needs no device."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paceline.benchmark.advice import Advice, advise, fastest
from paceline.benchmark.convergence import sentences
from paceline.benchmark.records import FORMAT, Run, from_json, to_json
from paceline.errors import DataError, UsageError
from paceline.report import bench_html, bench_table, numbers

#: Of files that a result can be written to.
ENDINGS = (".html", ".json")


class Bench:
    """What was measured of one model: one run for each device and backend.

    Args:
        runs: In the order they were measured.
        target: A value of the metric: which batch size reaches it soonest?

    Attributes:
        runs: The records.
        target: As given.
    """

    def __init__(self, runs: Sequence[Run], *, target: float | None = None) -> None:
        self.runs, self.target = list(runs), target

    @property
    def advice(self) -> list[Advice]:
        """What follows, a few sentences."""
        found = advise(self.runs)
        return found + [Advice("accuracy", text) for text in sentences(self.runs, self.target)]

    def text(self, width: int | None = None) -> str:
        """Tables and advice for a terminal of so many columns; None: as wide as it takes."""
        return bench_table.result_text(self.runs, self.advice, width)

    def to_json(self) -> dict[str, Any]:
        """What ``--json`` prints and ``--merge`` reads."""
        best = fastest(self.runs)
        winner = None
        if best is not None:
            run, cell = best
            winner = {"run": self.runs.index(run), "cell": run.cells.index(cell)}
        return {
            "format": FORMAT,
            "runs": to_json(self.runs),
            "fastest": winner,
            "target": self.target,
            "advice": [{"topic": each.topic, "text": each.text} for each in self.advice],
        }

    def html(self) -> str:
        """One page with figures that needs no other file."""
        return bench_html.page(self.runs, self.advice, target=self.target)

    def save(self, path: str | Path) -> None:
        """Writes a page (a name that ends in .html) or JSON (.json).

        Raises:
            UsageError: Another ending, or a file that cannot be written.
        """
        path = Path(path)
        if path.suffix not in ENDINGS:
            raise UsageError(f"output: {str(path)!r} must end in {' or '.join(ENDINGS)}")
        text = self.html() if path.suffix == ".html" else numbers.to_json(self.to_json()) + "\n"
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"output: {path} cannot be written ({error})") from None

    def __str__(self) -> str:
        return self.text()


def merge(paths: Sequence[str | Path], note: Callable[[str], None]) -> Bench:
    """Several results as one: a GPU's and a TPU's are seldom of one machine.

    Args:
        paths: Files that ``load`` reads.
        note: Told where results do not quite compare.

    Raises:
        DataError: As ``load``; or the results are of different models or data.
    """
    found = [load(path) for path in paths]
    runs: list[Run] = []
    for bench, path in zip(found, paths, strict=True):
        for run in bench.runs:
            if run in runs:
                note(f"{path}: the run of {run.date} on {run.device.kind} is there twice")
                continue
            runs.append(run)
    _check_alike(runs, note)
    targets = [bench.target for bench in found if bench.target is not None]
    return Bench(runs, target=targets[0] if targets else None)


def _check_alike(runs: Sequence[Run], note: Callable[[str], None]) -> None:
    first = runs[0]
    for run in runs[1:]:
        for what, ours, theirs in (
            ("models", first.model.get("variables"), run.model.get("variables")),
            ("hyperparameters", first.model.get("hparams"), run.model.get("hparams")),
            ("numbers of training examples", first.n_examples, run.n_examples),
        ):
            if ours != theirs:
                raise DataError(
                    f"merge: the results are of different {what} ({ours} and {theirs}); measure "
                    "the same model on the same data"
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
    """Reads what ``save`` wrote, or a file whose last line ``paceline bench --json`` printed.

    Raises:
        DataError: The file cannot be read, or is no such result.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").strip().splitlines()
        value = json.loads(lines[-1] if lines else "")
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a result of `paceline bench`: {error}") from None
    return Bench(from_json(value, str(path)), target=value.get("target"))
