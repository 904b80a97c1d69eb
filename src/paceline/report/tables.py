"""Trials as JSON records, as CSV, and as a table for the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.report import formats
from paceline.study.trial import Trial

FIXED_COLUMNS = ("number", "state", "value", "epochs", "seconds", "seed", "program", "plan")
#: A further column if some trial has repeats or folds: the spread of its members' values.
SPREAD = "spread"
#: A further column if some trial goes on with another one: the number of that one.
CONTINUES = "continues"
#: A further column if some trial was trained by a machine of a cluster: the machine's name.
WORKER = "worker"
#: A further column if some trial has failed or was rejected: the reason.
ERROR = "error"


def trial_record(trial: Trial) -> dict[str, Any]:
    """Return a trial as ``paceline trials --json`` prints it."""
    return {
        "number": trial.number,
        "state": trial.state,
        "value": trial.value,
        "hparams": trial.hparams,
        "epochs": trial.epochs,
        "seconds": trial.seconds,
        "seed": trial.seed,
        "program": trial.program,
        "plan": trial.plan,
        **_spread(trial),
        **({CONTINUES: trial.continues} if trial.continues is not None else {}),
        **({WORKER: trial.worker} if trial.worker is not None else {}),
        **({ERROR: trial.error or trial.rejected} if trial.error or trial.rejected else {}),
    }


def _spread(trial: Trial) -> dict[str, Any]:
    return {SPREAD: trial.spread} if trial.members else {}


def columns(trials: Iterable[Trial]) -> tuple[str, ...]:
    """Return the names of the columns beside those of hyperparameters."""
    found = list(trials)
    further = {
        SPREAD: any(trial.members for trial in found),
        CONTINUES: any(trial.continues is not None for trial in found),
        WORKER: any(trial.worker is not None for trial in found),
        ERROR: any(trial.error or trial.rejected for trial in found),
    }
    return (*FIXED_COLUMNS, *(name for name, there in further.items() if there))


def hparam_names(trials: Iterable[Trial]) -> list[str]:
    """Return the names of all hyperparameters, in the order in which trials first have them."""
    return list(dict.fromkeys(name for trial in trials for name in trial.hparams))


def column_name(hparam: str, taken: Sequence[str] = FIXED_COLUMNS) -> str:
    """Return the column of a hyperparameter: its name, or ``hp.NAME`` if that name is taken."""
    return f"hp.{hparam}" if hparam in taken else hparam


def values_by_column(trials: Sequence[Trial]) -> dict[str, list[Any]]:
    """Return column -> one value per trial, None where a trial lacks it.

    The order is that of ``Tuner.results()``: the value and its spread, the hyperparameters, the
    rest.
    """
    records, fixed = [trial_record(trial) for trial in trials], columns(trials)
    found = {name: [record.get(name) for record in records] for name in fixed}
    hparams = {
        column_name(name, fixed): [trial.hparams.get(name) for trial in trials]
        for name in hparam_names(trials)
    }
    first = {name: found.pop(name) for name in ("value", SPREAD) if name in found}
    return {**first, **hparams, **found}


def to_csv(trials: Sequence[Trial]) -> str:
    """Return CSV with the columns of ``Tuner.results()``; a value that a trial lacks is empty."""
    found = values_by_column(trials)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(found)
    writer.writerows(zip(*found.values(), strict=True))
    return text.getvalue()


def trials_table(trials: Sequence[Trial], *, best: int | None, width: int | None = None) -> str:
    """Return a table for people, its lines never longer than ``width``.

    Each hyperparameter has a column of its own if there is room; else all share one column.

    Args:
        trials: The trials, in the order of the rows.
        best: Number of the trial to mark; None: none is marked.
        width: Columns of the terminal; None: lines are as long as the table needs.

    Returns:
        Lines without colours, the last one with a line end.
    """
    text = render(_build(trials, best, hparam_names(trials)), None)
    if width is not None and max(map(len, text.splitlines())) > width:
        text = render(_build(trials, best, None), width)
    return text


def render(table: Table, width: int | None) -> str:
    """Return a table as lines without colours and without blanks at their ends."""
    console = Console(file=io.StringIO(), width=width or 100_000, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _build(trials: Sequence[Trial], best: int | None, names: list[str] | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("trial", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    first = columns(trials)
    spread = SPREAD in first
    for column in ("value", *([SPREAD] if spread else []), "epochs", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    if names is None:
        table.add_column("hparams", overflow="fold")
    else:
        for name in names:
            table.add_column(Text(column_name(name, first)), justify="right", no_wrap=True)
    for trial in trials:
        cells = [
            f"{'* ' if trial.number == best else ''}{trial.number}",
            trial.state,
            formats.metric(trial.value),
            *([formats.metric(trial.spread)] if spread else []),
            str(trial.epochs),
            formats.seconds(trial.seconds),
        ]
        if names is None:
            cells.append(formats.hparams(trial.hparams))
        else:
            cells += [_cell(trial, name) for name in names]
        table.add_row(*map(Text, cells))
    return table


def _cell(trial: Trial, name: str) -> str:
    return formats.hparam(trial.hparams[name]) if name in trial.hparams else "-"
