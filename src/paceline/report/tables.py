"""Trials as JSON records, as CSV, as a DataFrame, and as a table for the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Sequence, Set
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.report import formats
from paceline.study.trials.trial import Trial

if TYPE_CHECKING:
    import pandas as pd

FIXED_COLUMNS = (
    *("number", "state", "value", "best_epoch"),
    *("epochs", "train_seconds", "seed", "program_id", "plan"),
)
#: A further column if some trial has repeats or folds: the standard deviation of its runs' values.
VALUE_STD = "value_std"
#: A further column if some trial continues another one: the number of that one.
CONTINUED_FROM = "continued_from"
#: A further column if some trial was trained by a machine of a cluster: the machine's name.
WORKER = "worker"
#: A further column if some trial has failed or was rejected: the reason.
REASON = "reason"
#: The key in a table's ``attrs`` under which it says what its columns hold.
HPARAMS = "hparams"
# The dtypes of numeric columns; pandas chooses the dtype of text, which differs between versions.
_DTYPES = {
    "number": "int64",
    "value": "float64",
    "value_std": "float64",
    "best_epoch": "Int64",
    "epochs": "int64",
    "train_seconds": "float64",
    "seed": "int64",
    "continued_from": "Int64",
}


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
        "train_seconds": trial.train_seconds if trial.train_seconds or not trial.epochs else None,
        "seed": trial.seed,
        "program_id": trial.program_id,
        "plan": trial.plan,
        **_value_std(trial),
        **({"costs": trial.costs} if trial.costs else {}),
        **({CONTINUED_FROM: trial.continued_from} if trial.continued_from is not None else {}),
        **({"enqueued": True} if trial.enqueued else {}),
        **({WORKER: trial.worker} if trial.worker is not None else {}),
        **({REASON: trial.error or trial.rejected} if trial.error or trial.rejected else {}),
    }


def _value_std(trial: Trial) -> dict[str, Any]:
    return {VALUE_STD: trial.value_std} if trial.runs else {}


def columns(trials: Iterable[Trial], objectives: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the columns beside those of hyperparameters."""
    found = list(trials)
    fixed = [name for name in FIXED_COLUMNS if name != "value" or not objectives]
    further = {
        VALUE_STD: any(trial.runs for trial in found),
        CONTINUED_FROM: any(trial.continued_from is not None for trial in found),
        WORKER: any(trial.worker is not None for trial in found),
        REASON: any(trial.error or trial.rejected for trial in found),
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
    """Return column -> one value per trial, None if a trial lacks it.

    The order is that of ``Tuner.results()``: the value and its standard deviation, the
    hyperparameters, the rest. Each of several objectives has a column of its own in place of the
    value's.
    """
    records, fixed = [trial_record(trial) for trial in trials], columns(trials, objectives)
    found = {name: [record.get(name) for record in records] for name in fixed}
    for place, name in enumerate(objectives):
        found[name] = [objective_value(trial, place) for trial in trials]
    hparams = {
        column: [trial.hparams.get(name) for trial in trials]
        for name, column in hparam_columns(trials, objectives).items()
    }
    first = {name: found.pop(name) for name in ("value", *objectives, VALUE_STD) if name in found}
    return {**first, **hparams, **found}


def objective_value(trial: Trial, place: int) -> float | None:
    """Return a trial's value of one of several objectives; a trial that trains has the first."""
    if trial.values:
        return trial.values[place]
    return trial.value if place == 0 else None


def results_frame(trials: Sequence[Trial], objectives: Sequence[str] = ()) -> pd.DataFrame:
    """Return the table that ``Tuner.results()`` describes, a row for each trial.

    A value that a trial lacks is missing. ``attrs["hparams"]`` has the hyperparameter of each
    column, None of the other columns.
    """
    import pandas as pd

    fixed = columns(trials, objectives)
    hparams = hparam_columns(trials, objectives)
    dtypes = {**_DTYPES, **dict.fromkeys(objectives, "float64")}
    own = {column: _dtype(name, trials) for name, column in hparams.items()}
    frame = pd.DataFrame(
        {
            name: pd.Series(values, dtype=dtypes.get(name) if name in fixed else own.get(name))
            for name, values in values_by_column(trials, objectives).items()
        }
    )
    frame.attrs[HPARAMS] = {
        **dict.fromkeys(fixed),
        **{column: name for name, column in hparams.items()},
    }
    return frame


def _dtype(hparam: str, trials: Sequence[Trial]) -> str | None:
    """The dtype in which each value stays what it is, also if some trials have none."""
    kinds = {type(trial.hparams[hparam]) for trial in trials if hparam in trial.hparams}
    whole = all(hparam in trial.hparams for trial in trials)
    if kinds == {bool}:
        return "bool" if whole else "boolean"
    if kinds == {int}:
        return "int64" if whole else "Int64"
    if kinds == {float}:
        return "float64"
    # pandas infers the dtype of text; of several types each value stays what it is.
    return None if len(kinds) < 2 else "object"


def to_csv(trials: Sequence[Trial], objectives: Sequence[str] = ()) -> str:
    """Return CSV with the columns of ``Tuner.results()``; a value that a trial lacks is empty.

    A hyperparameter that is None is the word None.
    """
    found = values_by_column(trials, objectives)
    for name, column in hparam_columns(trials, objectives).items():
        nones = (name in trial.hparams and trial.hparams[name] is None for trial in trials)
        pairs = zip(found[column], nones, strict=True)
        found[column] = [str(value) if none else value for value, none in pairs]
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

    Each hyperparameter has its own column if there is room; else all share one column. The text
    has no colours, and the last line has a line end. ``best``: number of the trial to mark, or
    numbers of several.
    """
    marked = {best} if isinstance(best, int) else set(best or ())
    text = render(_build(trials, marked, hparam_names(trials), objectives), None)
    if width is not None and max(map(len, text.splitlines())) > width:
        text = render(_build(trials, marked, None, objectives), width)
    return text


def plain_table() -> Table:
    """Return an empty table in the style of all tables of text."""
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))


def render(table: Table, width: int | None) -> str:
    """Return a table as lines without colours and without spaces at their ends."""
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
    numbers = [trial.number for trial in trials]
    cells: list[tuple[str, Sequence[str]]] = [
        ("trial", [f"{'* ' if number in marked else ''}{number}" for number in numbers]),
        ("state", [trial.state for trial in trials]),
    ]
    for i, name in enumerate(objectives or ["value"]):
        values = [objective_value(trial, i) for trial in trials]
        cells.append((name, formats.objectives(name, values)))
    if any(trial.runs for trial in trials):
        cells.append((VALUE_STD, formats.metrics([trial.value_std for trial in trials])))
    cells.append(("epoch", [_epochs(trial) for trial in trials]))
    cells.append(
        ("time", formats.seconds_column([trial.train_seconds or None for trial in trials]))
    )
    of = [trial.continued_from for trial in trials]
    if any(number is not None for number in of):
        cells.append((CONTINUED_FROM, ["" if number is None else str(number) for number in of]))
    hparams = [trial.hparams for trial in trials]
    if names is not None:
        named = hparam_columns(trials, objectives)
        cells += [(named[name], formats.hparam_cells(hparams, name, "-")) for name in names]
    table = plain_table()
    for i, (head, _) in enumerate(cells):
        table.add_column(Text(head), justify="left" if i == 1 else "right", no_wrap=True)
    if names is None:
        table.add_column("hparams", overflow="fold")
        cells.append(("hparams", [formats.hparams(values) for values in hparams]))
    for row in zip(*(column for _, column in cells), strict=True):
        table.add_row(*map(Text, row))
    return table


def _epochs(trial: Trial) -> str:
    """The epoch of the value, of the epochs trained: ``7 of 10``."""
    if trial.best_epoch is None:
        return str(trial.epochs)
    return f"{trial.best_epoch} of {trial.epochs}"
