"""A benchmark's result: the runs, and what follows from them, as text and JSON. Needs no device."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.benchmark.advice import Advice, advise, fastest
from paceline.benchmark.records import FORMAT, Run, from_json, to_json
from paceline.errors import DataError, UsageError
from paceline.report import bench_table, numbers


class Bench:
    """What was measured of one model: one run for each device and backend.

    Args:
        runs: In the order they were measured.

    Attributes:
        runs: The records.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)

    @property
    def advice(self) -> list[Advice]:
        """What follows, a few sentences."""
        return advise(self.runs)

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
            "advice": [{"topic": each.topic, "text": each.text} for each in self.advice],
        }

    def save(self, path: str | Path) -> None:
        """Writes JSON (a name that ends in .json).

        Raises:
            UsageError: Another ending, or a file that cannot be written.
        """
        path = Path(path)
        if path.suffix != ".json":
            raise UsageError(f"output: {str(path)!r} must end in .json")
        try:
            path.write_text(numbers.to_json(self.to_json()) + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"output: {path} cannot be written ({error})") from None

    def __str__(self) -> str:
        return self.text()


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
    return Bench(from_json(value, str(path)))
