"""Configurations to try first: given as a mapping, a list, a DataFrame or a file of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from paceline.errors import SpaceError, UsageError
from paceline.report import tables

if TYPE_CHECKING:
    import pandas as pd

#: What ``Tuner.enqueue`` takes.
Configurations: TypeAlias = "Mapping[str, Any] | Iterable[Mapping[str, Any]] | pd.DataFrame"

#: Columns of ``Tuner.results`` beside those of objectives and hyperparameters; a hyperparameter
#: called like another column has a column with this prefix.
_RESULTS = {
    *(*tables.FIXED_COLUMNS, tables.VALUE_STD),
    *(tables.CONTINUED_FROM, tables.WORKER, tables.REASON),
}
_HP = "hp."
#: Before the names of hyperparameters in the table of ``optuna.Study.trials_dataframe``.
_OPTUNA = "params_"


def read_configurations(given: Configurations) -> list[dict[str, Any]]:
    """Reads configurations; what they do not name, the sampler chooses.

    A DataFrame has a column for each hyperparameter and a row for each configuration. It may be a
    table of ``Tuner.results`` or of ``optuna.Study.trials_dataframe``. A missing cell is not named.
    """
    found: list[dict[str, Any]] = []
    if isinstance(given, Mapping):
        found.append(dict(cast("Mapping[str, Any]", given)))
    elif hasattr(given, "columns") and hasattr(given, "to_dict"):
        found = _rows(given)
    else:
        for values in [] if isinstance(given, str) else given:
            if not isinstance(values, Mapping):
                raise SpaceError(
                    'enqueue: a configuration must be a dict such as {"lr": 1e-3, "units": 64}, '
                    f"got {values!r}."
                )
            found.append(dict(values))
    if not found or not all(found):
        raise SpaceError(
            "enqueue: a configuration is empty. Pass a dict, a list of dicts or a DataFrame, with "
            "at least one value in each."
        )
    return found


def _rows(frame: Any) -> list[dict[str, Any]]:
    """The configurations of a DataFrame."""
    names = _hparams_of(frame)
    return [
        {text: row[name] for name, text in names.items() if not _missing(row[name])}
        for row in frame.to_dict("records")
    ]


def _hparams_of(frame: Any) -> dict[Any, str]:
    """Column -> the hyperparameter whose values it holds, without the other columns."""
    names = {name: str(name) for name in frame.columns}
    known = getattr(frame, "attrs", {}).get(tables.HPARAMS)
    if isinstance(known, Mapping):
        found = {name: known.get(text, text) for name, text in names.items()}
        return {name: text for name, text in found.items() if text is not None}
    if not {"number", "state"} <= set(names):
        return names
    if optuna := {n: t.removeprefix(_OPTUNA) for n, t in names.items() if t.startswith(_OPTUNA)}:
        return optuna
    # A table of ``results`` that was read from a file, or has lost its ``attrs`` otherwise.
    texts = set(names.values())
    others = _RESULTS | {text for text in texts if f"{_HP}{text}" in texts}
    return {
        name: text.removeprefix(_HP) if text.removeprefix(_HP) in others else text
        for name, text in names.items()
        if text not in others
    }


def _missing(value: Any) -> bool:
    """Whether a cell is empty: None, NaN, or pandas' NA and NaT, which are equal to nothing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return True
    return type(value).__name__ in ("NAType", "NaTType")


def read_file(path: Path) -> list[dict[str, Any]]:
    """Reads configurations from a file of JSON: one or a list.

    Each is name -> value, or from the output of ``paceline best --json`` or ``trials --json``.
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--enqueue {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise UsageError(
            f"--enqueue {path} is not JSON. Use a file such as `paceline best STUDY --json` writes."
        ) from None
    records = held if isinstance(held, list) else [held]
    found = [
        record["hparams"] if isinstance(record, dict) and "hparams" in record else record
        for record in records
    ]
    try:
        return read_configurations(found)
    except SpaceError as error:
        raise UsageError(f"--enqueue {path}: {str(error).removeprefix('enqueue: ')}") from None
