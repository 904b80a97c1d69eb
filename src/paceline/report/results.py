"""A study's trials as a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.report import tables
from paceline.study.trial import Trial

if TYPE_CHECKING:
    import pandas as pd

#: The key in a table's ``attrs`` under which it says what its columns hold.
HPARAMS = "hparams"
# The dtypes of numeric columns; pandas chooses the dtype of text, which differs between versions.
_DTYPES = {
    "number": "int64",
    "value": "float64",
    "spread": "float64",
    "best_epoch": "Int64",
    "epochs": "int64",
    "seconds": "float64",
    "seed": "int64",
    "continues": "Int64",
}


def results_frame(trials: Sequence[Trial], objectives: Sequence[str] = ()) -> pd.DataFrame:
    """Return a table with one row per trial.

    Returns:
        Columns value, or one for each of several objectives; with repeats or folds spread; one
        column for each hyperparameter; number, state, best_epoch (that of the value), epochs,
        seconds, seed, program and plan; if some trial goes on with another one also continues (the
        number of that one); with a cluster also worker; if some trial has failed, was rejected or
        was stopped by hand also error. A hyperparameter with the name of another column, or
        ``value``, has the column ``hp.NAME``. A value that a trial lacks is missing in its row.
        ``attrs["hparams"]`` has the hyperparameter of each column, None of the other columns.
    """
    import pandas as pd

    fixed = tables.columns(trials, objectives)
    hparams = tables.hparam_columns(trials, objectives)
    dtypes = {**_DTYPES, **dict.fromkeys(objectives, "float64")}
    frame = pd.DataFrame(
        {
            name: pd.Series(values, dtype=dtypes.get(name) if name in fixed else _dtype(values))
            for name, values in tables.values_by_column(trials, objectives).items()
        }
    )
    frame.attrs[HPARAMS] = {
        **dict.fromkeys(fixed),
        **{column: name for name, column in hparams.items()},
    }
    return frame


def _dtype(values: Sequence[Any]) -> str | None:
    """The dtype in which integers and booleans stay what they are if some values are missing."""
    there = [value for value in values if value is not None]
    kinds = {type(value) for value in there}
    whole = len(there) == len(values)
    if kinds == {bool}:
        return "bool" if whole else "boolean"
    if kinds == {int}:
        return "int64" if whole else "Int64"
    if kinds <= {int, float} and kinds:
        return "float64"
    return None  # pandas infers the dtype of text
