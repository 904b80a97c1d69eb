"""What the live view costs a search: records, the terminal's panel, a notebook's table.

    python benchmarks/live.py [--floors]

Studies of 60, 500 and 5,000 trials are made by hand (``tests/subjects.py``). A search gives a
record ten times a second and looks the table's trials up once a second; a terminal draws twice a
second, a notebook once. Printed are the processor seconds of each, and their share of one core.
Claimed: at 5,000 trials at most 5 % of a core, records and terminal together.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from rich.console import Console

from paceline.report.notebook import NotebookScreen
from paceline.report.progress import Progress
from paceline.report.screens import PanelScreen
from paceline.tuner.search.progress import BETWEEN_LOOKS, BETWEEN_TABLES, ProgressReporter
from paceline.tuner.search.running_trials import UnfinishedTrials
from subjects import subject_of

SIZES, LIMIT = (60, 500, 5000), 0.05
RUNS = 200


def reporter_of(n: int) -> ProgressReporter:
    """Return the reporter of a search of ``n`` trials, of which sixteen still train."""
    table = subject_of(n, epochs=30).trials
    trials = UnfinishedTrials(list(table)[:-16])
    for trial in list(table)[-16:]:
        trial.state = "running"
        trials.begin(trial.number, 30)
    context: Any = SimpleNamespace(
        study=SimpleNamespace(name="made", trials=table),
        trials=trials,
        fit=None,
        packs=None,
        arguments=SimpleNamespace(n_trials=n + 100),
        objective=SimpleNamespace(name="val_accuracy"),
        progress=None,
    )
    return ProgressReporter(context)


def milliseconds(action: Callable[[], Any]) -> float:
    """Return the processor milliseconds of an action, the mean of many."""
    action()
    began = time.process_time()
    for _ in range(RUNS):
        action()
    return 1000 * (time.process_time() - began) / RUNS


def measure(n: int) -> dict[str, float]:
    """Return milliseconds of each part, and the shares of a core."""
    reporter = reporter_of(n)
    progress: Progress = reporter.progress("done")  # looks the table up

    def with_table() -> None:
        reporter.progress("done")

    def without_table() -> None:
        reporter.progress("training")

    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=40)
    panel = PanelScreen(console, "made")
    shown: list[Any] = []
    notebook = NotebookScreen(_Display(shown), io.StringIO())
    panel.open()
    notebook.open()
    record, table = milliseconds(without_table), milliseconds(with_table)
    drawn = milliseconds(lambda: panel.draw(progress))
    cell = milliseconds(lambda: notebook.draw(progress))
    panel.close(None)
    records = record / 1000 / BETWEEN_LOOKS + (table - record) / 1000 / BETWEEN_TABLES
    return {
        "record ms": round(record, 3),
        "record with table ms": round(table, 3),
        "terminal ms": round(drawn, 3),
        "notebook ms": round(cell, 3),
        "terminal share": round(records + drawn / 1000 / panel.interval, 4),
        "notebook share": round(records + cell / 1000 / notebook.interval, 4),
    }


class _Display:
    """Stands for IPython's ``display`` and its handle."""

    def __init__(self, shown: list[Any]) -> None:
        self._shown = shown

    def __call__(self, data: Any, **options: Any) -> _Display:
        self.update(data)
        return self

    def update(self, data: Any, **options: Any) -> None:
        self._shown[:] = [data]


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--floors", action="store_true", help="exit 1 where the claim is missed")
    arguments = parser.parse_args()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    rows = {}
    for n in SIZES:
        rows[str(n)] = measure(n)
        print(f"{n:6,} trials: {rows[str(n)]}", flush=True)
    machine.keep("live", {"machine": found, "rows": rows})
    missed = rows[str(SIZES[-1])]["terminal share"] > LIMIT
    print(f"claimed: at most {LIMIT:.0%} of a core at {SIZES[-1]:,} trials: {not missed}")
    return 1 if arguments.floors and missed else 0


if __name__ == "__main__":
    sys.exit(main())
