"""The folder of a scan: what it was, its results, and what it needs to go on.

``metadata.json``
    the settings, and digests of all that decides the results;
``results.csv``
    the table of results;
``round_data.jsonl``
    a line for each permutation that was trained, with its history;
``checkpoint.json``
    which permutations have begun and which are left;
``models/``
    the trained models.

Talos 2 has files of these names. All of them are JSON or CSV here, so that reading them runs no
code; what they hold is checked.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import keras
import numpy as np

from paceline.compat.talos import portable
from paceline.compat.talos.errors import FolderNotEmptyError, TalosDataError
from paceline.compat.talos.rounds import ScanRound
from paceline.compat.talos.space import ParamSpace
from paceline.program.files import write_atomically, written_atomically

METADATA, RESULTS = "metadata.json", "results.csv"
_ROUNDS, _CHECKPOINT = "round_data.jsonl", "checkpoint.json"
_FILES = (METADATA, RESULTS, _ROUNDS, _CHECKPOINT)


@dataclass
class Order:
    """Which permutations of a scan have begun, in which order.

    Attributes:
        begun: Row of the space of each permutation that has begun; the position is its number.
        again: Numbers of permutations that began before the scan was resumed, and did not end.
    """

    begun: list[int] = field(default_factory=list)
    again: deque[int] = field(default_factory=deque)

    def next(self, space: ParamSpace) -> tuple[int, dict[str, Any]] | None:
        """Returns number and params of the permutation to begin; None if there is none."""
        if self.again:
            number = self.again.popleft()
            return number, space.parameters(self.begun[number])
        rows = [int(row) for row in space.param_index[:1]]
        params = space.round_parameters()
        if not isinstance(params, dict):
            return None
        self.begun += rows
        return len(self.begun) - 1, params


class RunFolder:
    """The files of one scan.

    Args:
        path: The folder.
        identity: What decides the results -> its digest.
        resume: Whether the scan in the folder goes on; else the folder must be empty.

    Attributes:
        path: The folder.
        models: The folder of the trained models.
        results: The file of the table.
        split_seed: Seed of the split into training and validation data.

    Raises:
        TalosDataError: The folder is not empty, or its scan cannot go on with these arguments.
    """

    def __init__(
        self, path: Path, identity: Mapping[str, str], split_seed: int, *, resume: bool
    ) -> None:
        self.path = path
        self.models = path / "models"
        self.results = path / RESULTS
        self.split_seed = split_seed
        self._identity = dict(identity)
        self._written, self._took = -math.inf, 0.0  # of the checkpoint: when, and how long
        if resume:
            self._check()
        elif path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise FolderNotEmptyError(
                f"experiment_dir: {path} is not empty; name another folder, or go on with its scan "
                "by resume=True."
            )

    @property
    def identity_hash(self) -> str:
        """One digest of all that decides the results."""
        return _digest(json.dumps(self._identity, sort_keys=True))

    def _check(self) -> None:
        for each in (self.models, *(self.path / name for name in _FILES)):
            if each.is_symlink():  # the scan would write through it, out of its folder
                raise TalosDataError(f"resume: {each} is a link, which Paceline does not follow.")
        saved = _object(self.path / METADATA)
        before, self.split_seed = saved.get("identity"), saved.get("split_seed")
        if not isinstance(before, dict) or type(self.split_seed) is not int:
            raise TalosDataError(f"resume: {self.path / METADATA} was not written by Paceline.")
        for name, digest in self._identity.items():
            if before.get(name, digest) != digest:  # older folders lack some
                raise TalosDataError(
                    f"resume: the hash of {name} is another one than in {self.path / METADATA}; "
                    "give what the scan began with, or begin another scan in another folder."
                )

    def restore(self, space: ParamSpace) -> tuple[list[ScanRound], Order]:
        """Makes a space what it was, and returns what was trained.

        Args:
            space: The space of the scan that goes on.

        Returns:
            The permutations that were trained, and which have begun.

        Raises:
            TalosDataError: A file is missing or damaged.
        """
        saved = _object(self.path / _CHECKPOINT)
        numbers = _rows(saved, "numbers", space.dimensions)
        begun, left = (_rows(saved, name, len(numbers)) for name in ("begun", "left"))
        if any(len(set(rows)) != len(rows) for rows in (numbers, [*begun, *left])):
            raise TalosDataError(f"resume: {self.path / _CHECKPOINT} names a permutation twice.")
        space.take(numbers)
        rounds: dict[int, ScanRound] = {}
        for line in _lines(self.path / _ROUNDS):
            found, row = _round(line, space)
            rounds[found.number] = found
            # The checkpoint is written now and then, so that lines may be younger.
            while len(begun) <= found.number and left:
                begun.append(left.pop(0))
            if found.number >= len(begun) or begun[found.number] != row:
                raise TalosDataError(
                    f"resume: {self.path / _ROUNDS} does not belong to {_CHECKPOINT} beside it."
                )
        space.param_index = left
        again = deque(number for number in range(len(begun)) if number not in rounds)
        return list(rounds.values()), Order(begun, again)

    # -- writing -----------------------------------------------------------------------------------

    def begin(
        self,
        metadata: Mapping[str, Any],
        rounds: Iterable[ScanRound],
        space: ParamSpace,
        order: Order,
    ) -> None:
        """Writes the files with which a scan can go on, before anything trains."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_metadata(metadata)
        self.write_rounds(rounds, order)  # a killed scan may have left a part of a line
        self.write_checkpoint(space, order)

    def add(self, found: ScanRound, row: int, space: ParamSpace, order: Order) -> None:
        """Writes the line of a permutation that was trained."""
        with (self.path / _ROUNDS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(_record(found, row)) + "\n")
        # A checkpoint of a large space takes long; it may cost a twentieth of the time.
        if time.monotonic() - self._written > max(1.0, 20 * self._took):
            self.write_checkpoint(space, order)

    def write_rounds(self, rounds: Iterable[ScanRound], order: Order) -> None:
        """Writes the lines of all permutations that were trained, in their order."""
        with written_atomically(self.path / _ROUNDS) as path:
            lines = [json.dumps(_record(each, order.begun[each.number])) for each in rounds]
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def write_checkpoint(self, space: ParamSpace, order: Order) -> None:
        """Writes which permutations have begun and which are left."""
        began = time.monotonic()
        left = [int(row) for row in space.param_index]
        saved = {"numbers": space.numbers, "begun": order.begun, "left": left}
        _write_json(self.path / _CHECKPOINT, saved)
        self._written = time.monotonic()
        self._took = self._written - began

    def write_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Writes the settings, and what decides the results."""
        known = {
            "schema_version": "1.0",
            "made_by": "paceline",
            "identity": self._identity,
            "identity_hash": self.identity_hash,
            "split_seed": self.split_seed,
            "environment": {"keras": keras.__version__, "numpy": np.__version__},
        }
        _write_json(self.path / METADATA, {**known, **portable.encode(dict(metadata))})


def run_paths(folder: Path, experiment_dir: str | Path | None) -> tuple[Path, Path]:
    """Returns the folder of a scan, and the path of its log.

    Args:
        folder: Folder of the experiment.
        experiment_dir: The folder of the scan; None: a new one in ``folder``, which is made, and
            the log beside it, where Talos 1 has it.
    """
    if experiment_dir is not None:
        run_dir = Path(experiment_dir).absolute()
        return run_dir, run_dir / RESULTS
    name = time.strftime("%m%d%y%H%M%S")
    while (folder / f"{name}.csv").exists() or not _made(folder / name):
        name = str(int(name) + 1).zfill(12)  # two scans began in one second
    return (folder / name).absolute(), folder / f"{name}.csv"


def _made(path: Path) -> bool:
    """Whether a folder could be made: of two processes, one makes it."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def identity(x: Iterable[Any], y: Iterable[Any], scan: Any) -> dict[str, str]:
    """Returns digests of what decides the results of a scan.

    Args:
        x: The features that the scan is given, those to validate on among them.
        y: The targets that the scan is given.
        scan: The ``Scan``: its function, and the settings by which permutations are trained.
    """
    named = {}
    for name, value in _settings(scan).items():
        text = _code(value) if callable(value) else json.dumps(portable.encode(value))
        named[name] = _digest(re.sub(r" at 0x[0-9a-f]+", "", text))  # addresses of objects
    model = _digest(_source(scan.model))
    return {"x": _data_digest(list(x)), "y": _data_digest(list(y)), "model": model, **named}


def scan_details(scan: Any) -> dict[str, Any]:
    """Returns the settings of a ``Scan`` that has ended, for its ``details``."""
    names = """experiment_name experiment_id status random_method reduction_method
        reduction_interval reduction_window reduction_threshold reduction_metric minimize_loss
        seed""".split()
    return {
        **{name: getattr(scan, name) for name in names},
        "run_dir": str(scan.run_dir),
        "complete_time": time.strftime("%m/%d/%y/%H:%M"),
        "x_shape": getattr(scan.x, "shape", "multi-input"),
        "y_shape": getattr(scan.y, "shape", "multi-output"),
    }


def folder_of(log: str | Path) -> Path:
    """Returns the folder of the scan that wrote a log: the one it is in, or the one beside it."""
    path = Path(log)
    return path.parent if path.name == RESULTS else path.with_suffix("")


def parameter_columns(log: str | Path) -> dict[str, str] | None:
    """Returns parameter -> its column in a log; None if the log's scan left no ``metadata.json``.

    Args:
        log: Path of the log.
    """
    path = folder_of(log) / METADATA
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        columns, params = found["parameter_columns"], found["params"]
        return {str(name): str(columns.get(name, name)) for name in params}
    except (ValueError, TypeError, KeyError, AttributeError):  # some other program's file
        return None


def trained_params(log: str | Path, durations: Iterable[float]) -> list[dict[str, Any] | None]:
    """Returns the params of rows of a log, as they were; None for a row whose scan left none.

    Args:
        log: Path of the log.
        durations: For each row, its value in the column ``duration``, in seconds.
    """
    path = folder_of(log) / _ROUNDS
    lines = _lines(path) if path.is_file() else []
    # The place of a row is not that of its line: the log may have been sorted since.
    return [_params_of(lines, duration) for duration in durations]


def _params_of(lines: list[dict[str, Any]], duration: float) -> dict[str, Any] | None:
    """The params of the one line with a duration, to the rounding of the log."""
    found = [
        line
        for line in lines
        if isinstance(line.get("seconds"), (int, float)) and math.isclose(line["seconds"], duration)
    ]
    params = portable.decode(found[0].get("params")) if len(found) == 1 else None
    return params if isinstance(params, dict) else None


def _settings(scan: Any) -> dict[str, Any]:
    """The settings of a ``Scan`` that decide which permutations are trained, and how."""
    names = """seed val_split random_method fraction_limit round_limit performance_target
        reduction_method""".split()
    if scan.reduction_method is not None:
        names += "reduction_interval reduction_window reduction_threshold reduction_metric".split()
        names.append("minimize_loss")
    return {
        **{name: getattr(scan, name) for name in names},
        "boolean_limit": getattr(scan.params, "boolean_limit", scan.boolean_limit),
        "params": getattr(scan.params, "params", scan.params),
    }


def _source(function: Callable[..., Any]) -> str:
    """The source of a function; where there is none, what it was compiled to, or its class."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # made by exec, or an object that is called
        found: Any = getattr(function, "__code__", None)
        return repr(found.co_code) if found is not None else type(function).__qualname__


def _code(function: Callable[..., Any]) -> str:
    """What tells a function from others; the lines of a lambda hold the call of ``Scan`` too."""
    if getattr(function, "__name__", None) == "<lambda>":
        return repr(_compiled(function.__code__))
    return _source(function)


def _compiled(code: CodeType) -> list[Any]:
    """What a function was compiled to, alike in every process."""
    constants = [
        _compiled(each)
        if isinstance(each, CodeType)
        else sorted(map(repr, each))
        if isinstance(each, frozenset)  # the order of a set of text is another in each process
        else repr(each)
        for each in code.co_consts
    ]
    return [code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _data_digest(data: Any) -> str:
    """The digest of arrays, tables, and lists and dictionaries of them."""
    if isinstance(data, Mapping):
        return _digest("".join(f"{key!r}{_data_digest(each)}" for key, each in data.items()))
    nested = (list, tuple, dict, type(None))
    if isinstance(data, (list, tuple)) and any(
        hasattr(each, "shape") or isinstance(each, nested) for each in data
    ):
        return _digest("".join(map(_data_digest, data)))
    if data is None:
        return _digest("None")
    array = np.asarray(data)
    found = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
    if array.dtype.hasobject:
        found.update(repr(array.tolist()).encode())
    else:
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _record(found: ScanRound, row: int) -> dict[str, Any]:
    return {
        "round_index": found.number,
        "row": row,
        "params": portable.encode(found.params),
        "history": found.history,
        "began": found.began,
        "ended": found.ended,
        "seconds": found.seconds,
        "status": "completed",
    }


def _round(line: dict[str, Any], space: ParamSpace) -> tuple[ScanRound, int]:
    try:
        row, number = line["row"], line["round_index"]
        if not (type(row) is type(number) is int) or not 0 <= row < len(space.param_space):
            raise ValueError("round_index, row")
        history = {str(k): [float(v) for v in values] for k, values in line["history"].items()}
        times = [float(line[name]) for name in ("began", "ended", "seconds")]
        if number < 0 or not all(map(math.isfinite, times)):
            raise ValueError("round_index, began, ended, seconds")
        # Not the params of the file: functions of the user's own are only names there.
        return ScanRound(number, space.parameters(row), history, *times), row
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TalosDataError(
            f"resume: a line of {_ROUNDS} is damaged: {type(error).__name__}: {error}."
        ) from error


def _rows(saved: dict[str, Any], name: str, below: int) -> list[int]:
    rows = saved.get(name)
    if not isinstance(rows, list) or not all(type(n) is int and 0 <= n < below for n in rows):
        raise TalosDataError(f"resume: {_CHECKPOINT}: {name} is no list of numbers below {below}.")
    return rows


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TalosDataError(f"resume: there is no {path}; there is no scan to go on.") from None
    except (ValueError, OSError, RecursionError) as error:
        raise TalosDataError(f"resume: {path} is damaged: {error}.") from error
    if not isinstance(found, dict):
        raise TalosDataError(f"resume: {path} is damaged: it is no JSON object.")
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; a last one without its end was being written."""
    if not path.is_file():
        raise TalosDataError(f"resume: there is no {path}; there is no scan to go on.")
    whole = path.read_bytes().rpartition(b"\n")[0]
    try:
        found = [json.loads(line) for line in whole.splitlines()]
    except (ValueError, RecursionError) as error:
        raise TalosDataError(f"resume: {path} is damaged: {error}.") from error
    if not all(isinstance(line, dict) for line in found):
        raise TalosDataError(f"resume: {path} is damaged: a line is no JSON object.")
    return found


def _write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value).encode())
