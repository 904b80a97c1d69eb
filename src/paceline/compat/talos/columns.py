"""Reads the table of a scan's log, and finds the column of a metric in it and its best row."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

import pandas as pd

from paceline.compat.talos.errors import TalosParamsError

# Digests. pandas 2.3 takes digits, an "e" and more digits for a number, and one with an exponent as
# long as a digest may have crashes the process.
_DIGESTS = ("_trial_id", "_param_hash")


def read_table(file: Path | str | TextIO) -> pd.DataFrame:
    """Returns the table of a scan's log: one row for each permutation.

    Args:
        file: Path of the file, or its open text.

    Raises:
        ValueError: pandas', where it is no table.
    """
    return pd.read_csv(file, dtype=dict.fromkeys(_DIGESTS, str))


def column(name: str, columns: Iterable[str], what: str = "metric") -> str:
    """Returns the column of a metric.

    Keras calls ``metrics=["accuracy"]`` "accuracy", which it once called "acc". The defaults of
    Talos and many notebooks still say "acc".

    Args:
        name: The name that the user gives.
        columns: Names of all columns.
        what: What the name stands for, in the error.

    Raises:
        TalosParamsError: There is no such column.
    """
    columns = list(columns)
    for known in (name, *_others(name)):
        if known in columns:
            return known
    raise TalosParamsError(f"{what}: {name!r} is not one of {', '.join(map(str, columns))}.")


def best_row(table: pd.DataFrame, metric: str, asc: bool) -> int:
    """Returns the number of the row that is best in a metric.

    Args:
        table: One row for each permutation.
        metric: Name of the column, as the user gives it.
        asc: Whether low values are better.

    Raises:
        TalosParamsError: There is no such column, or it holds no number.
    """
    numbers: Any = pd.to_numeric(table[column(metric, table.columns)], errors="coerce")
    values = numbers.dropna()
    if values.empty:
        raise TalosParamsError(f"metric: {metric!r} has no value in any permutation.")
    return int(values.idxmin() if asc else values.idxmax())


def _others(name: str) -> tuple[str, ...]:
    prefix, base = ("val_", name[4:]) if str(name).startswith("val_") else ("", str(name))
    twins = {"acc": "accuracy", "accuracy": "acc"}
    return (prefix + twins[base],) if base in twins else ()
