"""The permutations of a scan, which of them have begun, their results, and the files of a scan.

- ``metadata.json``: the settings, and digests of what decides the results.
- ``results.csv``: the table of results.
- ``round_data.jsonl``: a line for each trained permutation, with its history.
- ``checkpoint.json``: which permutations have begun and which are left.
- ``models/``: the trained models.

Talos 2 has files of these names. Here they are JSON or CSV, so that reading them runs no code.
Their content is checked.
"""

from __future__ import annotations

import csv
import json
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import keras
import msgspec
import numpy as np
import pandas as pd
from msgspec import Meta

from paceline.compat.talos import portable
from paceline.compat.talos.errors import FolderNotEmptyError, TalosDataError
from paceline.compat.talos.logs import (
    METADATA,
    RESULTS,
    ROUNDS,
    best_epoch,
    is_loss,
    read_lines,
)
from paceline.compat.talos.settings import identity_hash
from paceline.compat.talos.space import ParamSpace
from paceline.program.files import write_atomically, written_atomically

_CHECKPOINT = "checkpoint.json"
#: Columns before those of metrics and parameters.
_TIMES = ["start", "end", "duration", "round_epochs"]
#: Columns that Talos 2 has besides those of metrics and parameters.
_RESERVED = {*_TIMES, "execution_time", "_warnings", "_trial_id", "_param_hash"}

_Index = Annotated[int, Meta(ge=0)]


class ScanRound(msgspec.Struct):
    """A finished permutation; one that trained has a line with these names in a file."""

    round_index: _Index  # position in the order in which permutations began
    row: _Index  # of the space
    params: dict[str, Any]
    began: float  # in seconds since 1970
    ended: float
    seconds: float  # its own share of the time
    history: dict[str, list[float]] = {}  # metric -> one float per epoch
    error: Any = None  # the exception of one that failed

    @classmethod
    def read(cls, line: dict[str, Any], space: ParamSpace) -> ScanRound:
        """Returns the permutation of a line in a file."""
        try:
            found = msgspec.convert({**line, "params": {}, "error": None}, cls)
            # Not the params of the file, which has only the names of the user's own functions.
            found.params = space.parameters(found.row)
            if not all(map(math.isfinite, (found.began, found.ended, found.seconds))):
                raise ValueError("began, ended, seconds")
        except (msgspec.ValidationError, IndexError, ValueError) as error:
            raise TalosDataError(
                f"resume: a line of {ROUNDS} is damaged: {type(error).__name__}: {error}."
            ) from error
        return found

    def line(self) -> str:
        """Returns the line of a permutation that was trained."""
        record = msgspec.structs.asdict(self) | {"params": portable.encode(self.params)}
        del record["error"]
        return json.dumps({**record, "status": "completed"}) + "\n"


class RunFolder:
    """The folder of a new or resumed scan, and its ``metadata.json``."""

    def __init__(
        self, path: Path, identity: Mapping[str, str], split_seed: int, *, resume: bool
    ) -> None:
        self.path, self.models = path, path / "models"
        self.split_seed = split_seed  # of the split into training and validation data
        self._identity = dict(identity)  # what decides the results -> its digest
        self.identity_hash = identity_hash(identity)
        if resume:
            self._check()
        elif path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise FolderNotEmptyError(
                f"experiment_dir must be an empty folder, got {path}. Pass another folder, or "
                "resume=True to resume the scan in it."
            )

    def _check(self) -> None:
        files = (METADATA, RESULTS, ROUNDS, _CHECKPOINT)
        for each in (self.models, *(self.path / name for name in files)):
            if each.is_symlink():  # the scan would write through it, out of its folder
                raise TalosDataError(
                    f"resume: {each} is a link, which Paceline does not follow. Replace it by the "
                    "file."
                )
        saved = _read_json(self.path / METADATA)
        before, self.split_seed = saved.get("identity"), saved.get("split_seed")
        if not isinstance(before, dict) or type(self.split_seed) is not int:
            raise TalosDataError(f"resume: Paceline did not write {self.path / METADATA}.")
        for name, digest in self._identity.items():
            if before.get(name, digest) != digest:  # older folders lack some
                raise TalosDataError(
                    f"resume: the hash of {name} differs from that in {self.path / METADATA}. Pass "
                    "the same arguments as at first, or start a new scan in another folder."
                )

    def write_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Writes the settings, and the digests of what decides the results."""
        self.path.mkdir(parents=True, exist_ok=True)
        known = {
            "schema_version": "1.0",
            "made_by": "paceline",
            "identity": self._identity,
            "identity_hash": self.identity_hash,
            "split_seed": self.split_seed,
            "environment": {"keras": keras.__version__, "numpy": np.__version__},
        }
        _write_json(self.path / METADATA, {**known, **portable.encode(dict(metadata))})


@dataclass(eq=False, repr=False)
class Rounds:
    """The permutations of a scan, in memory and in its files: the log, lines, and a checkpoint.

    A permutation has a row in the log, and then a line. If the line is missing after a kill, the
    resumed scan trains the permutation again and rewrites the log.
    """

    space: ParamSpace
    folder: Path
    log: Path  # a row for each permutation, at the path of Talos
    last_epoch: bool  # whether the log has the last epoch of each metric; else the best one
    begun: list[int] = field(default_factory=list)  # rows of the space, in the order they began
    again: deque[int] = field(default_factory=deque)  # numbers that were running at a kill
    done: list[ScanRound] = field(default_factory=list)  # trained
    failed: list[ScanRound] = field(default_factory=list)
    _header: list[str] = field(default_factory=list)
    _checkpoint: tuple[float, float] = (-math.inf, 0.0)  # when it was written, and how long it took

    def next(self) -> tuple[int, dict[str, Any]] | None:
        """Returns number and params of the next permutation; None if there is none."""
        if self.again:
            number = self.again.popleft()
            return number, self.space.parameters(self.begun[number])
        rows = [int(row) for row in self.space.param_index[:1]]
        params = self.space.round_parameters()
        if not isinstance(params, dict):
            return None
        self.begun += rows
        return len(self.begun) - 1, params

    # -- files -------------------------------------------------------------------------------------

    def read(self) -> None:
        """Restores the space as it was when the scan ended, and reads the results."""
        saved = _read_json(self.folder / _CHECKPOINT)
        numbers = _rows(saved, "numbers", self.space.dimensions)
        begun, left = (_rows(saved, name, len(numbers)) for name in ("begun", "left"))
        if any(len(set(rows)) != len(rows) for rows in (numbers, [*begun, *left])):
            raise TalosDataError(f"resume: {self.folder / _CHECKPOINT} names a permutation twice.")
        self.space.take(numbers)
        rounds: dict[int, ScanRound] = {}
        for line in read_lines(self.folder / ROUNDS):
            found = ScanRound.read(line, self.space)
            number = found.round_index
            rounds[number] = found
            # The checkpoint is written only from time to time, so lines may be newer.
            while len(begun) <= number and left:
                begun.append(left.pop(0))
            if number >= len(begun) or begun[number] != found.row:
                raise TalosDataError(
                    f"resume: {self.folder / ROUNDS} does not match {_CHECKPOINT} in its folder."
                )
        self.space.param_index, self.begun, self.done = left, begun, list(rounds.values())
        self.again = deque(number for number in range(len(begun)) if number not in rounds)

    def add(self, found: ScanRound) -> None:
        """Adds a trained permutation, and writes its row and its line."""
        self.done.append(found)
        row = self._row(found)
        if list(row) == self._header:
            with self.log.open("a", newline="", encoding="utf-8") as file:
                csv.writer(file).writerow([_text(value) for value in row.values()])
        else:  # the first row, or one with other metrics, changes the header
            self._write_log()
        with (self.folder / ROUNDS).open("a", encoding="utf-8") as file:
            file.write(found.line())
        # A checkpoint of a large space takes long. It may cost a twentieth of the time.
        written, took = self._checkpoint
        if time.monotonic() - written > max(1.0, 20 * took):
            self._write_checkpoint()

    def drop_after(self, number: int) -> list[ScanRound]:
        """Makes a permutation the last one; returns the trained ones after it."""
        del self.begun[number + 1 :]
        self.space.param_index = []  # nothing is left for a resumed scan
        dropped = [found for found in self.done if found.round_index > number]
        self.done = [found for found in self.done if found.round_index <= number]
        self.failed = [found for found in self.failed if found.round_index <= number]
        self.write()
        return dropped

    def write(self) -> None:
        """Writes all files, with permutations in the order in which they began."""
        if self.done:
            table = self._write_log()
            if self.log != self.folder / RESULTS:
                table.to_csv(self.folder / RESULTS, index=False)
        with written_atomically(self.folder / ROUNDS) as path:
            path.write_text("".join(found.line() for found in self.done), encoding="utf-8")
        self._write_checkpoint()

    def _write_log(self) -> pd.DataFrame:
        table = self.table()
        self._header = list(table.columns)
        table.map(_text).to_csv(self.log, index=False)
        return table

    def _write_checkpoint(self) -> None:
        started = time.monotonic()
        left = [int(row) for row in self.space.param_index]
        saved = {"numbers": self.space.numbers, "begun": self.begun, "left": left}
        _write_json(self.folder / _CHECKPOINT, saved)
        ended = time.monotonic()
        self._checkpoint = ended, ended - started

    # -- tables ------------------------------------------------------------------------------------

    def table(self) -> pd.DataFrame:
        """Returns a table with one row for each permutation: times, metrics, parameters."""
        self.done.sort(key=lambda found: found.round_index)
        rows = [self._row(found) for found in self.done]
        columns = [*_TIMES, *self.metrics, *self.parameter_columns.values()]
        data = {name: [row.get(name) for row in rows] for name in columns}
        frame = pd.DataFrame(data, columns=columns)
        for name in self.parameter_columns.values():  # keeps lists, classes and None as they are
            if not all(isinstance(value, (int, float, str)) for value in frame[name]):
                frame[name] = pd.Series(data[name], dtype=object)
        return frame

    @property
    def metrics(self) -> list[str]:
        """Names of all metrics."""
        return list(dict.fromkeys(name for found in self.done for name in found.history))

    def best(self) -> str:
        """Returns the best value of the most telling metric, as text for a progress bar."""
        for name in ("val_acc", "val_accuracy", "val_loss", "loss"):
            values = [f.history[name][-1] for f in self.done if f.history.get(name)]
            if values:
                return f"best {name} {min(values) if is_loss(name) else max(values):.4f}"
        return ""

    @property
    def parameter_columns(self) -> dict[str, str]:
        """Parameter -> its column; ``param__NAME`` if a metric or a time has the same name."""
        taken = {*self.metrics, *_RESERVED}
        columns: dict[str, str] = {}
        for key in self.space.param_keys:
            name = key
            while name in taken or (name != key and name in self.space.param_keys):
                name = f"param__{name}"
            columns[key] = name
        return columns

    def peaks(self) -> pd.DataFrame:
        """Returns a table with the epoch, from 0, of the best value of each metric."""
        return pd.DataFrame(
            [{name: best_epoch(name, v) for name, v in f.history.items()} for f in self.done]
        )

    def entropies(self) -> pd.DataFrame:
        """Returns a table that says how learning was spread over the epochs, for each metric.

        With validation, it has the relative entropy of the metric in validation against training;
        else the entropy of the values. It is NaN if a value is negative or not finite.
        """
        found = [
            {
                name: _entropy(values, found.history.get(f"val_{name}"))
                for name, values in found.history.items()
                if not name.startswith("val_")
            }
            for found in self.done
        ]
        return pd.DataFrame(found)

    def _row(self, found: ScanRound) -> dict[str, Any]:
        row: dict[str, Any] = {
            "start": _moment(found.began),
            "end": _moment(found.ended),
            "duration": found.seconds,
            "round_epochs": max((len(values) for values in found.history.values()), default=0),
        }
        for name, values in found.history.items():
            at = -1 if self.last_epoch else best_epoch(name, values)
            row[name] = values[at] if values else np.nan
        columns = self.parameter_columns
        return row | {columns[key]: found.params[key] for key in self.space.param_keys}


def run_paths(folder: Path, experiment_dir: str | Path | None) -> tuple[Path, Path]:
    """Returns the folder of a scan and the path of its log.

    Without ``experiment_dir``, a new folder is made in that of the experiment, ``folder``. The log
    is next to it, as in Talos 1.
    """
    if experiment_dir is not None:
        run_dir = Path(experiment_dir).absolute()
        return run_dir, run_dir / RESULTS
    name = time.strftime("%m%d%y%H%M%S")
    while (folder / f"{name}.csv").exists() or not _made(folder / name):
        name = str(int(name) + 1).zfill(12)  # two scans began in one second
    return (folder / name).absolute(), folder / f"{name}.csv"


def _made(path: Path) -> bool:
    """Whether this process could make a folder; another process may be first."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def _entropy(values: list[float], validation: list[float] | None) -> float:
    from scipy.stats import entropy

    def usable(course: Any) -> bool:
        return len(course) > 0 and bool(
            np.isfinite(course).all() and min(course) >= 0 < sum(course)
        )

    if not usable(values):
        return float("nan")
    if validation is not None and len(validation) == len(values) and usable(validation):
        return float(entropy(validation, values))
    return float(entropy(values))


def _moment(seconds: float) -> str:
    """A time as Talos writes it."""
    return time.strftime("%m/%d/%y-%H%M%S", time.localtime(seconds))


def _text(value: Any) -> Any:
    """A value for the log: a class or a function as its name."""
    return getattr(value, "__name__", value) if callable(value) else value


def _rows(saved: dict[str, Any], name: str, below: int) -> list[int]:
    rows = saved.get(name)
    if not isinstance(rows, list) or not all(type(n) is int and 0 <= n < below for n in rows):
        raise TalosDataError(
            f"resume: {name} in {_CHECKPOINT} must be a list of integers below {below}."
        )
    return rows


def _read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TalosDataError(f"resume: {path} is missing, so there is no scan to resume.") from None
    except (ValueError, OSError, RecursionError) as error:
        raise TalosDataError(f"resume: {path} is damaged: {error}.") from error
    if not isinstance(found, dict):
        raise TalosDataError(f"resume: {path} is damaged: it is not a JSON object.")
    return found


def _write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value).encode())
