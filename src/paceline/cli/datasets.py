"""Loads the data for a search: what ``--data`` names, or what the user's ``data()`` returns.

N: training examples. V: validation examples.
x: [N, ...]; y: [N, ...]; x_val: [V, ...]; y_val: [V, ...]; any dtype, images may stay uint8.
"""

from __future__ import annotations

import contextlib
import functools
import pkgutil
import sys
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import DataError, UsageError

FORMS = "FILE.npz, FILE.csv or FILE.parquet with --target, digits or keras:NAME"
#: Endings of tables, and of all files.
_TABLES = (".csv", ".parquet")
_FILES = (".npz", *_TABLES)
#: Names of arrays in an NPZ file without a validation part, in lower case.
_X_NAMES = ("x", "features", "data", "inputs", "images")
_Y_NAMES = ("y", "labels", "label", "targets", "target", "classes")
#: Endings of the names of the part that compares trials; the last one is not a validation part.
_PARTS = ("val", "valid", "validation", "test")
#: The share that is held out for validation by default.
_HELD_OUT = 0.2

Pairs = tuple[tuple[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Dataset:
    """Training and validation data.

    Attributes:
        x, y: The training data: x [N, ...], y [N, ...].
        x_val, y_val: The validation data, which compare the trials: [V, ...].
        note: A sentence about the data that the user should see; None without one.
        sample_weight: Factors of the examples' losses [N], or None.
        sample_weight_val: The same for the validation data [V], or None.
        batched: Whether ``x`` is a data set that comes in batches, as ``x_val`` then may be.
        encoding: How a table became x and y, as JSON values; None for other data.
    """

    x: Any
    y: Any
    x_val: Any
    y_val: Any
    note: str | None = None
    sample_weight: Any = None
    sample_weight_val: Any = None
    batched: bool = False
    encoding: dict[str, Any] | None = None

    @property
    def validation_data(self) -> Any:
        """The validation data as ``Tuner.search`` takes them."""
        if self.y_val is None:
            return self.x_val
        pair = (self.x_val, self.y_val)
        return pair if self.sample_weight_val is None else (*pair, self.sample_weight_val)


def load(spec: str, *, target: str | None = None, validation_split: float | None = None) -> Dataset:
    """Load what ``--data`` names.

    Args:
        spec: ``digits``, ``keras:NAME``, or the path of a file. A table is CSV or Parquet. An NPZ
            file has x_train, y_train and x_val, y_val (or x_test, y_test), or x and y.
        target: The column of a table that is y.
        validation_split: The share that is held out for validation if the data have no such part;
            None: a fifth.

    Raises:
        DataError: Nothing has that name, the file cannot be read or lacks arrays, or a download
            failed.
    """
    path = Path(spec)
    if target is not None and path.suffix not in _TABLES:
        raise UsageError(
            f"--target {target!r} needs a table, and --data {spec} is not a table. Leave it out."
        )
    if path.suffix in _TABLES:
        return _from_table(path, target, validation_split)
    if path.suffix == ".npz":
        return _from_npz(path, validation_split)
    if spec == "digits" or spec.startswith("keras:"):
        _check_no_split(validation_split, f"--data {spec}")
        return _dataset(digits()) if spec == "digits" else _from_keras(spec.removeprefix("keras:"))
    raise DataError(f"--data must be {FORMS}, got {spec!r}.")


def portable_spec(spec: str) -> str:
    """Return ``spec`` as it works from any folder: a file's path becomes absolute."""
    return str(Path(spec).resolve()) if Path(spec).suffix in _FILES else spec


def digits() -> Pairs:
    """Return the handwritten digits that ship inside scikit-learn, always split the same way.

    Returns:
        ``(x, y), (x_val, y_val)``: x f32[1437, 64] and f32[360, 64] in 0 to 1, y i64 in 0 to 9.
        Each class has its share in both parts.
    """
    x, x_val, y, y_val = map(np.copy, _digits())
    return (x, y), (x_val, y_val)


@functools.cache
def _digits() -> list[Any]:
    """The parts of ``digits``, read once: a function that trains may ask for them in each call."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    return train_test_split(
        images.astype(np.float32) / np.float32(16),
        labels,
        test_size=360,
        stratify=labels,
        random_state=0,
    )


def from_function(
    data: Callable[[], Any], where: str, *, validation_split: float | None = None
) -> Dataset:
    """Call the user's ``data()`` and check the form of what it returns.

    Args:
        data: The function. Its errors reach the caller. Each of its two parts is ``(x, y)`` or
            ``(x, y, sample_weight)``, or a data set that comes in batches.
        where: Name of the user's file, for messages.
        validation_split: The share of ``(x, y)`` that is held out if the function returns no more.

    Raises:
        DataError: The function returned something other than two such parts.
    """
    returned = data()
    if validation_split is not None and _is_pair(returned):
        x, y = returned
        return _split(x, y, validation_split, where)
    try:
        if not isinstance(returned, (tuple, list)):
            raise TypeError  # unpacking a data set would give its batches
        train, validation = returned
        x, y, weight = _examples(train)
        x_val, y_val, weight_val = _examples(validation)
    except (TypeError, ValueError):
        more = " Or use --validation-split." if _is_pair(returned) else ""
        raise DataError(
            f"{where}: data() must return (x, y), (x_val, y_val), got {_outline(returned)}. For "
            "weights of the examples, return (x, y, sample_weight) for each part. For data sets in "
            f"batches, return training_set, validation_set.{more}"
        ) from None
    _check_no_split(validation_split, f"data() of {where}")
    return Dataset(
        x, y, x_val, y_val, sample_weight=weight, sample_weight_val=weight_val, batched=y is None
    )


def _is_pair(returned: Any) -> bool:
    """Whether ``data()`` returned arrays x and y alone."""
    pair = isinstance(returned, (tuple, list)) and len(returned) == 2
    shapes: list[Any] = [getattr(part, "shape", ()) for part in returned] if pair else []
    return bool(shapes) and all(shapes) and len({shape[0] for shape in shapes}) == 1


def _check_no_split(validation_split: float | None, where: str) -> None:
    if validation_split is not None:
        raise UsageError(
            f"--validation-split {validation_split} has no effect, because {where} has a "
            "validation part. Leave it out."
        )


def _examples(part: Any) -> tuple[Any, Any, Any]:
    """Return x, y and the weights, which may be None; raises TypeError or ValueError for others."""
    if not isinstance(part, (tuple, list)):
        from paceline.data.adapters import is_data_set  # loads JAX and Keras

        if not is_data_set(part):
            raise TypeError  # unpacking an array would give its rows
        return part, None, None
    x, y, weight = part if len(part) == 3 else (*part, None)
    return x, y, weight


def _dataset(pairs: Pairs, note: str | None = None) -> Dataset:
    (x, y), (x_val, y_val) = pairs
    return Dataset(x, y, x_val, y_val, note)


def _test_note(name: str) -> str:
    return (
        f"{name} has no validation part: its test part steers the search, so the best value is "
        "optimistic. Keep other data for a final check."
    )


def _from_npz(path: Path, validation_split: float | None) -> Dataset:
    try:
        with path.open("rb") as file:
            # Pickles are refused, because an NPZ file from a stranger must not run code.
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(
                    f"--data {path} must hold x and y, got one bare array. Write them with "
                    "numpy.savez."
                )
            names, part = _names_in(archive.files, path)
            arrays = [archive[name] for name in names]
    except FileNotFoundError:
        raise DataError(f"--data {path}: no such file") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"--data {path} cannot be read ({error}). Write plain numeric arrays with numpy.savez."
        ) from error
    x, y, *held_out = arrays
    if part is None:
        return _split(x, y, validation_split, path.name)
    _check_no_split(validation_split, f"--data {path}")
    x_val, y_val = held_out
    return Dataset(x, y, x_val, y_val, _test_note(path.name) if part == "test" else None)


def _names_in(names: Sequence[str], path: Path) -> tuple[list[str], str | None]:
    """Return the names of x, y and perhaps x_val, y_val in an NPZ file; its validation part."""
    known = {name.lower(): name for name in names}
    if {"x_train", "y_train"} <= set(known):
        part = next((p for p in _PARTS if {f"x_{p}", f"y_{p}"} <= set(known)), None)
        more = [] if part is None else [f"x_{part}", f"y_{part}"]
        return [known[name] for name in ["x_train", "y_train", *more]], part
    xs, ys = ([known[n] for n in wanted if n in known] for wanted in (_X_NAMES, _Y_NAMES))
    if len(xs) != 1 or len(ys) != 1:
        raise DataError(
            f"--data {path} must hold x_train, y_train, x_val and y_val, or x and y, got "
            f"{', '.join(sorted(names)) or 'nothing'}. x_test and y_test, or features and labels, "
            "are accepted, too."
        )
    return [*xs, *ys], None


def _from_table(path: Path, target: str | None, validation_split: float | None) -> Dataset:
    import pandas as pd

    from paceline.data.table_encoding import TableEncoding

    try:
        with path.open("rb") as file:
            frame = pd.read_csv(file) if path.suffix == ".csv" else pd.read_parquet(file)
    except FileNotFoundError:
        raise DataError(f"--data {path}: no such file") from None
    except ImportError:
        raise DataError(
            f"--data {path}: Parquet files need pyarrow. Run pip install pyarrow."
        ) from None
    except (OSError, ValueError) as error:  # from pandas and pyarrow
        raise DataError(f"--data {path} cannot be read as a table: {error}") from error
    frame.columns = [str(name) for name in frame.columns]
    if not frame.columns.is_unique:
        raise DataError(f"--data {path} must have columns with different names. Rename some.")
    if target is None:
        raise UsageError(
            f"--data {path} is a table. Choose the column to predict: --target "
            f"{' or '.join(map(repr, frame.columns[-3:]))}"
        )
    index = [name for name in frame.columns if name.startswith("Unnamed: ") and name != target]
    frame = frame.drop(columns=index)
    encoding = TableEncoding.of(frame, target, path.name)
    found = _split(encoding.x(frame), encoding.y(frame), validation_split, path.name)
    classes = encoding.target.categories
    notes = [
        f"{path.name}: {len(frame):,} rows; x has {_count(encoding.names)}; y is {target!r}"
        + ("" if classes is None else f", {len(classes)} classes: {', '.join(classes[:10])}")
    ]
    if index:
        notes.append(f"the column {index[0]} has no name and numbers the rows, so it is left out")
    if rounded := encoding.rounded(frame):
        notes.append(
            f"float32 rounds the integers of {', '.join(rounded[:3])}; remove such a column if its "
            "numbers are names"
        )
    return replace(found, note=". ".join([*notes, found.note or ""]), encoding=encoding.to_json())


def _count(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > 8 else ""
    return f"{len(names)} column{'s' * (len(names) != 1)} ({', '.join(names[:8])}{more})"


def _split(x: Any, y: Any, fraction: float | None, where: str) -> Dataset:
    """Hold out validation data, always the same and stratified by class, with a note."""
    from sklearn.model_selection import train_test_split

    n, share = len(x), _HELD_OUT if fraction is None else fraction
    held = round(n * share)
    if len(y) != n:
        raise DataError(
            f"{where}: x and y must have the same number of examples, got {n} and {len(y)}."
        )
    if not 0 < held < n:
        raise DataError(
            f"--validation-split {share} leaves one part empty: there are only {n} examples. "
            "Use another share, or more data."
        )
    y_flat = np.asarray(y)
    flat = y_flat.ndim == 1 or (y_flat.ndim == 2 and y_flat.shape[1] == 1)
    classes = y_flat.ravel() if flat and y_flat.dtype.kind in "iubSU" else None
    if classes is not None:
        counts = np.unique(classes, return_counts=True)[1]
        if counts.min() < 2 or len(counts) > min(held, n - held):
            classes = None  # some class has one example, or there are too many
    train, validation = map(
        np.sort, train_test_split(np.arange(n), test_size=held, random_state=0, stratify=classes)
    )
    how = "at random" if classes is None else "at random, stratified by class"
    note = (
        f"{where} has no validation part, so {held:,} of its {n:,} examples are held out {how}; "
        "--validation-split changes how many"
    )
    return Dataset(x[train], y[train], x[validation], y[validation], note)


def _from_keras(name: str) -> Dataset:
    import keras.datasets

    known = sorted(module.name for module in pkgutil.iter_modules(keras.datasets.__path__))
    if name not in known:
        raise DataError(f"--data keras:{name} does not exist. Keras has {', '.join(known)}.")
    try:
        # Keras draws its download bar on stdout; stdout is for results only.
        with contextlib.redirect_stdout(sys.stderr):
            pairs = getattr(keras.datasets, name).load_data()
    except Exception as error:  # Keras raises a bare Exception when a download fails
        raise DataError(
            f"--data keras:{name} could not be loaded ({error}). Without a network, save the "
            "arrays with numpy.savez and use --data FILE.npz."
        ) from error
    return _dataset(pairs, _test_note(f"keras:{name}"))


def _outline(value: object) -> str:
    """The type and length of a value in a few words: ``a tuple of 2 (ndarray, ndarray)``."""
    if isinstance(value, (tuple, list)):
        inner = ", ".join(type(item).__name__ for item in value[:4])
        return (
            f"a {type(value).__name__} of {len(value)} ({inner}{', ...' if len(value) > 4 else ''})"
        )
    return "None" if value is None else f"one {type(value).__name__}"
