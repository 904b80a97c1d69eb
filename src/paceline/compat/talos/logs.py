"""The CSV log of a scan: its table, its columns, and the files beside it.

``from_talos_csv`` converts a log, also one of Talos itself, into a study of Paceline.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pandas as pd

from paceline.compat.talos import portable
from paceline.compat.talos.errors import TalosDataError, TalosParamsError
from paceline.errors import StudyError
from paceline.program.files import written_atomically
from paceline.search_space import HyperParameters
from paceline.study.objectives import Direction, infer_direction, named_objective
from paceline.study.study import Study

#: Files in the folder of a scan.
METADATA, RESULTS, ROUNDS = "metadata.json", "results.csv", "round_data.jsonl"
# Digests. pandas 2.3 reads digits, an "e" and more digits as a number. An exponent as long as a
# digest may have crashes the process.
_DIGESTS = ("_trial_id", "_param_hash")
#: Columns that ``power_draw_append`` adds to the metrics.
_POWER = ("watts_min", "watts_max", "seconds", "Ws")
#: Columns that are neither metrics nor parameters.
_OTHERS = ("start", "end", "duration", "execution_time", "round_epochs")
_METRICS = ("loss", "acc", "accuracy")
#: The default objective: the first of these that a log has.
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
    last epoch, because Talos writes no other. ``paceline.Tuner(build, study=...)`` continues the
    study if ``build`` declares the same choices: ``hp.Choice("lr", [...])`` with the values in the
    order of the log.

    Args:
        path: The log: ``experiment_name/*.csv``.
        study: Name of the new study; None: the name of the file.
        objective: The metric that ranks trials; None: val_acc or val_accuracy, else val_loss.
            ``"min:NAME"`` or ``"max:NAME"`` says which values of a metric are better.
        params: Columns that are parameters. None: those that ``metadata.json`` in the folder of the
            scan names; without that file, the columns after the last metric.
        storage: Storage of the study, as ``Tuner`` takes it.
        directory: Folder of studies, as ``Tuner`` takes it.

    Returns:
        The name of the study.

    Raises:
        TalosDataError: The file is missing, or is not the log of a scan.
        TalosParamsError: The log lacks a column that you name, or Paceline cannot tell whether low
            values of the objective are better.
        StudyError: A study of that name exists.
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
        raise StudyError(f"study must be a new name, got {name!r}, which exists. Pass another one.")
    choices = {each: _choices(table[each]) for each in names}
    imported = {"from": "talos", "project": str(path.resolve())}
    made.persist({"objective": wanted, "direction": direction, "search": {}, "imported": imported})
    try:
        for row in table.to_dict("records"):
            values = {_named(each): _plain(row[each], choices[each]) for each in names}
            hp = HyperParameters(values=values)
            for each in names:
                hp.Choice(_named(each), choices[each])
            number = made.accept(made.proposer.ask(0), hp)
            attrs: dict[str, Any] = {}
            if "duration" in row:
                attrs["train_seconds"] = float(row["duration"])
            value = float(row[wanted])
            if math.isfinite(value):
                epochs = max(1, int(row.get("round_epochs", 1)))
                made.updates.report(number, epochs, {m: float(row[m]) for m in metrics}, value)
                made.updates.finish(number, "complete", attrs=attrs)
            else:
                attrs["error"] = f"{wanted} is {value}"
                made.updates.finish(number, "failed", attrs=attrs)
    finally:
        made.close()
    return name


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise TalosDataError(
            f"path must be an existing file, got {path}. Pass the log of a scan, "
            "experiment_name/*.csv."
        )
    try:
        table = read_table(path)
    except (ValueError, UnicodeDecodeError) as error:  # pandas' errors are ValueErrors too
        raise TalosDataError(
            f"path must be a table of comma-separated values, got {path}."
        ) from error
    if table.empty:
        raise TalosDataError(f"path must be a log with results, got {path}, which has no rows.")
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
            f"path must be the log of a scan, got {path}. Paceline cannot tell its metrics and "
            "parameters apart. Name the parameters with params=[...]."
        )
    names = [name for name in columns[max(known) + 1 :] if not _logged(name, table)]
    if not names:
        raise TalosDataError(
            f"path: {path} has no parameters after its metrics. Name them with params=[...]."
        )
    return names


def _logged(name: str, table: pd.DataFrame) -> bool:
    """Whether a column after the last known metric was also logged in training."""
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
    """The parameter of a column; Talos 2 names the column of a parameter "loss" ``param__loss``."""
    return column.removeprefix("param__") or column


def _objective(given: str | None, metrics: list[str], path: Path) -> tuple[str, Direction]:
    name, said = named_objective(given)
    if name is None:
        name = next((each for each in _USUAL if each in metrics), None)
    if name is None:
        raise TalosParamsError(
            f"objective is missing, and {path} has neither val_acc nor val_loss. Pass one of "
            f"{', '.join(metrics)}."
        )
    wanted = column(name, metrics, "objective")
    direction = said or known_direction(wanted)
    if direction is None:
        raise TalosParamsError(
            f"objective must say whether low values are better, got {wanted!r}. Pass "
            f"'min:{wanted}' or 'max:{wanted}'."
        )
    return wanted, direction


def _choices(values: pd.Series) -> list[Any]:
    """The values of a parameter; all as text if they have several types or if one is missing."""
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


# -- columns ---------------------------------------------------------------------------------------


def read_table(file: Path | str | TextIO) -> pd.DataFrame:
    """Returns the table of a scan's log, one row for each permutation.

    Before Talos 2 a parameter named ``loss`` and the metric had the same header. pandas names the
    second column ``loss.1``.
    """
    table = pd.read_csv(file, dtype=dict.fromkeys(_DIGESTS, str))
    twice = {f"{name}.1": f"param__{name}" for name in table.columns}
    return table.rename(columns={n: new for n, new in twice.items() if new not in table.columns})


def write_beside(table: pd.DataFrame, folder: Path, note: Callable[[str], None]) -> None:
    """Writes a scan's table next to its folder, as Talos did before version 0.6."""
    path = folder.with_name(f"{folder.name}.csv")
    if path.exists() and "round_epochs" not in path.read_text("utf-8", "replace")[:2000]:
        note(f"{path} is not the log of a scan and stays as it is. This scan's log is in {folder}")
        return
    with written_atomically(path) as made:
        table.to_csv(made, index=False)


def column(name: str, columns: Iterable[str], what: str = "metric") -> str:
    """Returns the column of a metric, which an error calls ``what``.

    Keras names ``metrics=["accuracy"]`` "accuracy", and once named it "acc". The defaults of Talos
    and many notebooks still say "acc".
    """
    columns = list(columns)
    for known in (name, *_others(name)):
        if known in columns:
            return known
    raise TalosParamsError(f"{what} must be one of {', '.join(map(str, columns))}, got {name!r}.")


def best_row(table: pd.DataFrame, metric: str, asc: bool) -> int:
    """Returns the number of the row that is best in a metric; ``asc``: low values are better."""
    numbers: Any = pd.to_numeric(table[column(metric, table.columns)], errors="coerce")
    values = numbers.dropna()
    if values.empty:
        raise TalosParamsError(
            f"metric must have a value in some permutation, got {metric!r}, which has none."
        )
    return int(values.idxmin() if asc else values.idxmax())


def _others(name: str) -> tuple[str, ...]:
    prefix, base = ("val_", name[4:]) if str(name).startswith("val_") else ("", str(name))
    twins = {"acc": "accuracy", "accuracy": "acc"}
    return (prefix + twins[base],) if base in twins else ()


def best_epoch(metric: str, values: list[float]) -> int:
    """Returns the epoch, from 0, of a metric's best value: the lowest for losses and errors."""
    if not values or not np.isfinite(values).any():
        return -1
    return int(np.nanargmin(values) if is_loss(metric) else np.nanargmax(values))


def is_loss(metric: str) -> bool:
    """Returns whether low values of a metric are better; False if its name does not say."""
    return known_direction(metric) == "minimize"


def known_direction(metric: str) -> Direction | None:
    """Returns in which direction a metric is better, by its name; None if that is unknown."""
    known = infer_direction(metric)
    if known is not None:
        return known
    name = metric.removeprefix("val_").lower()
    words = ("loss", "error", "mae", "mse", "mape", "msle", "crossentropy", "divergence", "hinge")
    return "minimize" if any(word in name for word in words) else None


# -- the folder of the scan ------------------------------------------------------------------------


def folder_of(log: str | Path) -> Path:
    """Returns the folder of the scan that wrote a log: the log is in it or next to it."""
    path = Path(log)
    return path.parent if path.name == RESULTS else path.with_suffix("")


def parameter_columns(log: str | Path) -> dict[str, str] | None:
    """Returns parameter -> its column in a log; None if its scan left no ``metadata.json``."""
    path = folder_of(log) / METADATA
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        columns, params = found["parameter_columns"], found["params"]
        return {str(name): str(columns.get(name, name)) for name in params}
    except (ValueError, TypeError, KeyError, AttributeError):  # another program's file
        return None


def trained_params(log: str | Path, durations: Iterable[float]) -> list[dict[str, Any] | None]:
    """Returns the params of the rows with these durations; None for those that are not stored."""
    path = folder_of(log) / ROUNDS
    lines = read_lines(path) if path.is_file() else []
    # A row and its line may have different positions: the log may have been sorted since.
    return [_params_of(lines, duration) for duration in durations]


def _params_of(lines: list[dict[str, Any]], duration: float) -> dict[str, Any] | None:
    """The params of the only line with a duration, apart from the rounding of the log."""
    found = [
        line
        for line in lines
        if isinstance(line.get("seconds"), (int, float)) and math.isclose(line["seconds"], duration)
    ]
    params = portable.decode(found[0].get("params")) if len(found) == 1 else None
    return params if isinstance(params, dict) else None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file; a kill may have cut off the last one."""
    if not path.is_file():
        raise TalosDataError(f"resume: {path} is missing, so there is no scan to resume.")
    whole = path.read_bytes().rpartition(b"\n")[0]
    try:
        found = [json.loads(line) for line in whole.splitlines()]
    except (ValueError, RecursionError) as error:
        raise TalosDataError(f"resume: {path} is damaged: {error}.") from error
    if not all(isinstance(line, dict) for line in found):
        raise TalosDataError(f"resume: {path} is damaged: a line is not a JSON object.")
    return found
