"""A study's trials as a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.report import tables
from paceline.study.trial import Trial

if TYPE_CHECKING:
    import pandas as pd

# Those of numbers; text is what this pandas makes of it.
_DTYPES = {
    "number": "int64",
    "value": "float64",
    "spread": "float64",
    "epochs": "int64",
    "seconds": "float64",
    "seed": "int64",
    "continues": "Int64",
}


def results_frame(trials: Sequence[Trial]) -> pd.DataFrame:
    """One row per trial.

    Returns:
        Columns number, state, value, epochs, seconds, seed, program, plan, with repeats or folds
        spread, where trials go on with others continues (which), where a trial has failed error,
        then hyperparameters; ``hp.NAME`` is one called like a column. What a trial does not have is
        missing in its row.
    """
    import pandas as pd

    columns: dict[str, pd.Series] = {}
    records = [tables.trial_record(trial) for trial in trials]
    first = tables.columns(trials)
    for name in first:
        values = [record.get(name) for record in records]
        columns[name] = pd.Series(values, dtype=_DTYPES.get(name))
    for name in tables.hparam_names(trials):
        values = [trial.hparams.get(name) for trial in trials]
        columns[tables.column_name(name, first)] = pd.Series(values, dtype=_dtype(values))
    return pd.DataFrame(columns)


def _dtype(values: Sequence[Any]) -> str | None:
    """What keeps whole numbers whole and truths true where some trials lack the hyperparameter."""
    there = [value for value in values if value is not None]
    kinds = {type(value) for value in there}
    whole = len(there) == len(values)
    if kinds == {bool}:
        return "bool" if whole else "boolean"
    if kinds == {int}:
        return "int64" if whole else "Int64"
    if kinds <= {int, float} and kinds:
        return "float64"
    return None  # pandas infers its own kind of text
