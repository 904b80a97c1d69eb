"""Trials as JSON records, as CSV, and as a table for the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Sequence, Set
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.report import formats
from paceline.study.trial import Trial

FIXED_COLUMNS = (
    *("number", "state", "value", "best_epoch"),
    *("epochs", "seconds", "seed", "program", "plan"),
)
#: A further column if some trial has repeats or folds: the spread of its members' values.
SPREAD = "spread"
#: A further column if some trial goes on with another one: the number of that one.
CONTINUES = "continues"
#: A further column if some trial was trained by a machine of a cluster: the machine's name.
WORKER = "worker"
#: A further column if some trial has failed or was rejected: the reason.
ERROR = "error"


def trial_record(trial: Trial, objectives: Sequence[str] = ()) -> dict[str, Any]:
    """Return a trial as ``paceline trials --json`` prints it, with values of several objectives."""
    values = dict(zip(objectives, trial.values, strict=False))
    return {
        "number": trial.number,
        "state": trial.state,
        "value": trial.value,
        **({"values": values or None} if objectives else {}),
        "hparams": trial.hparams,
        "best_epoch": trial.best_epoch,
        "epochs": trial.epochs,
        # What it had taken is not known of a trial that another program has ended.
        "seconds": trial.seconds if trial.seconds or not trial.epochs else None,
        "seed": trial.seed,
        "program": trial.program,
        "plan": trial.plan,
        **_spread(trial),
        **({"costs": trial.costs} if trial.costs else {}),
        **({CONTINUES: trial.continues} if trial.continues is not None else {}),
        **({"enqueued": True} if trial.enqueued else {}),
        **({WORKER: trial.worker} if trial.worker is not None else {}),
        **({ERROR: trial.error or trial.rejected} if trial.error or trial.rejected else {}),
    }


def _spread(trial: Trial) -> dict[str, Any]:
    return {SPREAD: trial.spread} if trial.members else {}


def columns(trials: Iterable[Trial], objectives: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the columns beside those of hyperparameters."""
    found = list(trials)
    fixed = [name for name in FIXED_COLUMNS if name != "value" or not objectives]
    further = {
        SPREAD: any(trial.members for trial in found),
        CONTINUES: any(trial.continues is not None for trial in found),
        WORKER: any(trial.worker is not None for trial in found),
        ERROR: any(trial.error or trial.rejected for trial in found),
    }
    return (*fixed, *objectives, *(name for name, there in further.items() if there))


def hparam_names(trials: Iterable[Trial]) -> list[str]:
    """Return the names of all hyperparameters, in the order in which trials first have them."""
    return list(dict.fromkeys(name for trial in trials for name in trial.hparams))


def column_names(hparams: Sequence[str], taken: Sequence[str]) -> dict[str, str]:
    """Return hyperparameter -> its column: its name, or ``hp.NAME`` if that name is taken.

    ``taken``: the names of the other columns.
    """
    found = {hparam: hparam for hparam in hparams}
    used = {*taken, *hparams}
    for hparam in hparams:
        if hparam in taken:
            while found[hparam] in used:
                found[hparam] = f"hp.{found[hparam]}"
            used.add(found[hparam])
    return found


def hparam_columns(trials: Iterable[Trial], objectives: Sequence[str] = ()) -> dict[str, str]:
    """Return hyperparameter -> its column in a table of trials, in the order of the columns.

    ``value`` is never a hyperparameter: of several objectives it is another name of the first one.
    """
    found = list(trials)
    return column_names(hparam_names(found), (*columns(found, objectives), "value"))


def values_by_column(
    trials: Sequence[Trial], objectives: Sequence[str] = ()
) -> dict[str, list[Any]]:
    """Return column -> one value per trial, None where a trial lacks it.

    The order is that of ``Tuner.results()``: the value and its spread, the hyperparameters, the
    rest. Each of several objectives has a column of its own in place of the value's.
    """
    records, fixed = [trial_record(trial) for trial in trials], columns(trials, objectives)
    found = {name: [record.get(name) for record in records] for name in fixed}
    for place, name in enumerate(objectives):
        found[name] = [objective_value(trial, place) for trial in trials]
    hparams = {
        column: [trial.hparams.get(name) for trial in trials]
        for name, column in hparam_columns(trials, objectives).items()
    }
    first = {name: found.pop(name) for name in ("value", *objectives, SPREAD) if name in found}
    return {**first, **hparams, **found}


def objective_value(trial: Trial, place: int) -> float | None:
    """Return a trial's value of one of several objectives; a trial that trains has the first."""
    if trial.values:
        return trial.values[place]
    return trial.value if place == 0 else None


def to_csv(trials: Sequence[Trial], objectives: Sequence[str] = ()) -> str:
    """Return CSV with the columns of ``Tuner.results()``; a value that a trial lacks is empty."""
    found = values_by_column(trials, objectives)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(found)
    writer.writerows(zip(*found.values(), strict=True))
    return text.getvalue()


def trials_table(
    trials: Sequence[Trial],
    *,
    best: int | Collection[int] | None,
    width: int | None = None,
    objectives: Sequence[str] = (),
) -> str:
    """Return a table for people, its lines never longer than ``width``; None: as long as it needs.

    Each hyperparameter has a column of its own if there is room; else all share one column. There
    are no colours, and the last line has a line end. ``best``: number of the trial to mark, or
    numbers of several.
    """
    marked = {best} if isinstance(best, int) else set(best or ())
    text = render(_build(trials, marked, hparam_names(trials), objectives), None)
    if width is not None and max(map(len, text.splitlines())) > width:
        text = render(_build(trials, marked, None, objectives), width)
    return text


def render(table: Table, width: int | None) -> str:
    """Return a table as lines without colours and without blanks at their ends."""
    # In a notebook Rich would display an empty box as well.
    console = Console(
        file=io.StringIO(), width=width or 100_000, color_system=None, force_jupyter=False
    )
    with console.capture() as capture:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _build(
    trials: Sequence[Trial], marked: Set[int], names: list[str] | None, objectives: Sequence[str]
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("trial", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    first = columns(trials, objectives)
    spread, copies = SPREAD in first, any(trial.continues is not None for trial in trials)
    head = [*(objectives or ["value"]), *([SPREAD] if spread else []), "epoch", "time"]
    for column in (*head, *([CONTINUES] if copies else [])):
        table.add_column(Text(column), justify="right", no_wrap=True)
    if names is None:
        table.add_column("hparams", overflow="fold")
    else:
        for column in hparam_columns(trials, objectives).values():
            table.add_column(Text(column), justify="right", no_wrap=True)
    hparams = [trial.hparams for trial in trials]
    cells = [
        [f"{'* ' if trial.number in marked else ''}{trial.number}" for trial in trials],
        [trial.state for trial in trials],
        *(
            formats.objectives(name, [objective_value(trial, i) for trial in trials])
            for i, name in enumerate(objectives or ["value"])
        ),
        *([formats.metrics([trial.spread for trial in trials])] if spread else []),
        [_epochs(trial) for trial in trials],
        formats.seconds_column([trial.seconds or None for trial in trials]),
        *([[_continued(trial) for trial in trials]] if copies else []),
        *(
            [[formats.hparams(values) for values in hparams]]
            if names is None
            else [formats.hparam_cells(hparams, name, "-") for name in names]
        ),
    ]
    for row in zip(*cells, strict=True):
        table.add_row(*map(Text, row))
    return table


def _continued(trial: Trial) -> str:
    """The trial that a trial continues: ``3``."""
    return "" if trial.continues is None else str(trial.continues)


def _epochs(trial: Trial) -> str:
    """The epoch of the value, of the epochs trained: ``7 of 10``."""
    if trial.best_epoch is None:
        return str(trial.epochs)
    return f"{trial.best_epoch} of {trial.epochs}"
