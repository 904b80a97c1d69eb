"""Converts the CSV log of a Talos scan into a study of Paceline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from paceline.compat.talos.columns import column, read_table
from paceline.compat.talos.errors import TalosDataError, TalosParamsError
from paceline.compat.talos.rounds import known_direction
from paceline.compat.talos.run_folder import parameter_columns
from paceline.errors import StudyError
from paceline.search_space import HyperParameters
from paceline.study.objectives import Direction, named_objective
from paceline.study.study import Study

#: Columns that ``power_draw_append`` adds to the metrics.
_POWER = ("watts_min", "watts_max", "seconds", "Ws")
#: Columns that are neither metrics nor parameters.
_OTHERS = ("start", "end", "duration", "execution_time", "round_epochs")
_METRICS = ("loss", "acc", "accuracy")
#: What trials are compared by where nothing else is named.
_USUAL = ("val_acc", "val_accuracy", "val_loss")


def from_talos_csv(
    path: str | Path,
    study: str | None = None,
    *,
    objective: str | None = None,
    params: Sequence[str] | None = None,
    storage: Any = None,
    directory: str | Path = "runs",
) -> str:
    """Makes a study from the permutations in the log of a scan; the file is not changed.

    Every parameter becomes a choice among the values that were tried. The history of a trial is its
    last epoch, which is what Talos writes. ``paceline.Tuner(build, study=...)`` goes on with the
    study if ``build`` declares the same choices, as ``hp.Choice("lr", [...])`` with the values in
    the order of the log.

    Args:
        path: The log: ``experiment_name/*.csv``.
        study: Name of the new study; None: the name of the file.
        objective: The metric that trials are compared by; None: val_acc or val_accuracy, else
            val_loss. ``"min:NAME"`` or ``"max:NAME"`` says which values of a metric are better.
        params: Columns that are parameters; None: those that ``metadata.json`` in the folder of the
            scan names; without it, the columns after the last metric.
        storage: Storage of the study, as ``Tuner`` takes it.
        directory: Folder of studies, as ``Tuner`` takes it.

    Returns:
        The name of the study.

    Raises:
        TalosDataError: The file is missing, or is no log of a scan.
        TalosParamsError: The log lacks a column that is named, or nothing says whether low values
            of the objective are better.
        StudyError: There is a study of that name already.
    """
    path = Path(path)
    table: Any = _read(path)
    names = _parameters(table, path) if params is None else list(params)
    for name in names:
        column(name, table.columns, "params")
    metrics = [c for c in table.columns if c not in names and c not in _OTHERS and c[0] != "_"]
    metrics = [name for name in metrics if pd.api.types.is_numeric_dtype(table[name])]
    wanted, direction = _objective(objective, metrics, path)
    name = path.stem if study is None else study
    made = Study(name, storage=storage, directory=Path(directory), direction=direction)
    if made.exists:
        raise StudyError(f"study: there is a study {name!r} already; give another name for study=.")
    choices = {each: _choices(table[each]) for each in names}
    made.persist(
        {
            "objective": wanted,
            "direction": direction,
            "search": {},
            "imported": {"from": "talos", "project": str(path.resolve())},
        }
    )
    try:
        for row in table.to_dict("records"):
            values = {_named(each): _plain(row[each], choices[each]) for each in names}
            hp = HyperParameters(values=values)
            for each in names:
                hp.Choice(_named(each), choices[each])
            number = made.accept(made.proposer.ask(0), hp)
            attrs = {"seconds": float(row["duration"])} if "duration" in row else {}
            value = float(row[wanted])
            if not math.isfinite(value):
                made.updates.finish(
                    number, "failed", attrs={**attrs, "error": f"{wanted} is {value}"}
                )
                continue
            epochs = max(1, int(row.get("round_epochs", 1)))
            made.updates.report(number, epochs, {m: float(row[m]) for m in metrics}, value)
            made.updates.finish(number, "complete", attrs=attrs)
    finally:
        made.close()
    return name


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise TalosDataError(
            f"path: there is no file {path}; pass the log of a scan, experiment_name/*.csv."
        )
    try:
        table = read_table(path)
    except (ValueError, UnicodeDecodeError) as error:  # pandas' errors are ValueErrors too
        raise TalosDataError(f"path: {path} is no table of comma-separated values.") from error
    if table.empty:
        raise TalosDataError(f"path: {path} has no rows.")
    return table


def _parameters(table: pd.DataFrame, path: Path) -> list[str]:
    """The columns of parameters: Talos writes times, then metrics, then parameters."""
    written = list((parameter_columns(path) or {}).values())
    if written and all(name in table.columns for name in written):
        return written
    columns = [c for c in table.columns if c not in _OTHERS and c[0] != "_"]
    known = [
        at
        for at, name in enumerate(columns)
        if name.startswith("val_") or f"val_{name}" in columns or name in _METRICS
    ]
    if not known or "round_epochs" not in table.columns:
        raise TalosDataError(
            f"path: {path} is no log of a scan: it has no round_epochs, or no metric that can be "
            "told from parameters; name these with params=[...]."
        )
    names = [name for name in columns[max(known) + 1 :] if not _logged(name, table)]
    if not names:
        raise TalosDataError(f"path: {path} has no parameters after its metrics.")
    return names


def _logged(name: str, table: pd.DataFrame) -> bool:
    """Whether a column after the last metric that is known as one was logged in training, too."""
    if name in _POWER:
        return all(each in table.columns for each in _POWER)
    if name != "learning_rate" or not pd.api.types.is_float_dtype(table[name]):
        return False
    # ReduceLROnPlateau logs the rate of the optimizer, a float32: 0.01 is 0.009999999776482582.
    values = table[name].dropna().to_numpy(float)
    single = values.astype(np.float32)
    exact = np.isclose(values, single.astype(float), rtol=1e-12, atol=0).all()
    return bool(exact and any(float(str(s)) != v for s, v in zip(single, values, strict=True)))


def _named(column: str) -> str:
    """The parameter of a column; Talos 2 calls that of ``loss``, a metric too, ``param__loss``."""
    return column.removeprefix("param__") or column


def _objective(given: str | None, metrics: list[str], path: Path) -> tuple[str, Direction]:
    name, said = named_objective(given)
    if name is None:
        name = next((each for each in _USUAL if each in metrics), None)
    if name is None:
        raise TalosParamsError(
            f"objective: {path} has neither val_acc nor val_loss; name one of {', '.join(metrics)}."
        )
    wanted = column(name, metrics, "objective")
    direction = said or known_direction(wanted)
    if direction is None:
        raise TalosParamsError(
            f"objective: nothing says whether low values of {wanted!r} are better; give "
            f"'min:{wanted}' or 'max:{wanted}'."
        )
    return wanted, direction


def _choices(values: pd.Series) -> list[Any]:
    """The values of a parameter; all as text if they are of several types or if one is missing."""
    found = list(dict.fromkeys(_item(value) for value in values))
    kinds = {type(value) for value in found}
    if len(kinds) > 1 or kinds - {bool, int, float, str} or any(value != value for value in found):
        return list(dict.fromkeys(map(str, found)))
    return found


def _plain(value: Any, choices: list[Any]) -> Any:
    value = _item(value)
    return str(value) if isinstance(choices[0], str) else value


def _item(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
