"""What stands in data that hold no numbers, and what to write instead.

Each message names the argument and the column, shows up to three values, and says what fits them.
"""

from __future__ import annotations

import datetime
import math
import numbers
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import keras
import numpy as np

from paceline.errors import DataError

#: Values that are looked at, of each column, and characters of a value that are shown.
_SEEN, _SHOWN = 1000, 30
#: Text that is a number but for separators of thousands, a sign for a currency, or a unit.
_NUMBER = re.compile(r"\s*[-+]?\W?\s?\d[\d,. '_]*(e[-+]?\d+)?\s*(%|\D{0,3})\s*", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+,(\d{1,2}|\d{4,})\s*")
_DATE = re.compile(r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})\b.*")
_CLOCK = re.compile(r"\s*\d{1,2}:\d{2}(:\d{2})?(\.\d+)?\s*([ap]m)?\s*", re.IGNORECASE)
_IMAGE = re.compile(r".*\.(png|jpe?g|gif|bmp|tiff?|webp)", re.IGNORECASE)
#: Words of a value from which on it is text, rather than the name of a category.
_WORDS = 3
_SECONDS = "(x - np.datetime64('2000-01-01')) / np.timedelta64(1, 's')"


def refuse_values(
    values: Any, name: str, what: str, *, column: Any = None, others: int = 0
) -> NoReturn:
    """Refuses values that are not numbers.

    ``values``: an array or a sequence. ``name``: the argument, ``what``: name of the data.
    ``column``: name of a data frame's column; ``others``: further columns without numbers.
    """
    where = name if column is None else f"column {column!r} of {name}"
    found, fits = _finding(values, labels=name.startswith("y"), column=column)
    more = f" {others} other columns hold no numbers, either." if others > 1 else ""
    more = " Another column holds no numbers, either." if others == 1 else more
    raise DataError(f"{what}: {where} must hold numbers, got {found}. {fits}{more}")


def refuse_columns(frame: Any, name: str, what: str) -> None:
    """Refuses a data frame with columns that hold no numbers; the first of them is described."""
    bad = [at for at, dtype in enumerate(frame.dtypes) if not _is_number(dtype)]
    if bad:
        column, values = frame.columns[bad[0]], frame.iloc[:, bad[0]]
        refuse_values(values, name, what, column=column, others=len(bad) - 1)


def _is_number(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in "biufc" and not hasattr(dtype, "categories")


def is_text(array: np.ndarray) -> bool:
    """Whether an array holds text, with which backends other than JAX can train."""
    if array.dtype.kind in "SU":
        return True
    seen = _seen(array) if array.dtype.kind == "O" else []
    return bool(seen) and all(isinstance(value, (str, bytes)) for value in seen)


def mostly_numbers(text: Sequence[Any]) -> bool:
    """Whether at least half of the values are text that is a number, but for its form."""
    found = [isinstance(value, str) and bool(_NUMBER.fullmatch(value)) for value in text]
    return 2 * sum(found) >= len(found) > 0


def is_category(values: Any) -> bool:
    """Whether a column holds text, or a data frame's categories, that are not numbers or dates."""
    seen = _seen(values)
    return (
        bool(seen)
        and all(isinstance(value, (str, bool, np.bool_)) for value in seen)
        and not mostly_numbers(seen)
        and not any(
            all(isinstance(value, str) and form.fullmatch(value) for value in seen)
            for form in (_DATE, _CLOCK)
        )
    )


def trains_text() -> bool:
    """Whether Keras' backend may train on text, by a layer that makes numbers of it."""
    return keras.backend.backend() != "jax"


def _finding(values: Any, *, labels: bool, column: Any) -> tuple[str, str]:
    """What values are, in words, and a sentence on what to pass instead."""
    dtype: Any = getattr(values, "dtype", None)
    x = "x" if column is None else f"x[{column!r}]"
    x = "y" if labels else x
    if hasattr(dtype, "categories"):
        shown = _shown(_seen(values))
        return f"categories such as {shown}", f"Pass their codes: {x}.cat.codes."
    if getattr(dtype, "names", None):
        fields = ", ".join(map(repr, islice(dtype.names, 3)))
        rest = "numpy.lib.recfunctions.structured_to_unstructured(x)"
        return f"records with the fields {fields}", f"Pass an array of numbers: {rest}."
    seen = _seen(values)
    text = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in seen]
    shown = _shown(text)
    if not seen:
        return "missing values only", "Drop them, or fill them in."
    if all(isinstance(value, (datetime.date, np.datetime64)) for value in seen):
        if getattr(seen[0], "tzinfo", None) is not None:
            x = f"pd.to_datetime({x}, utc=True).dt.tz_convert(None)"
        elif getattr(dtype, "kind", "O") == "O":
            x = f"pd.to_datetime({x})"
        return f"dates such as {shown}", f"Pass seconds since a date: {_of(_SECONDS, x)}."
    if all(isinstance(value, (datetime.timedelta, np.timedelta64)) for value in seen):
        return f"durations such as {shown}", f"Pass seconds: {x} / np.timedelta64(1, 's')."
    if all(map(_has_length, seen)):
        return _sequences(seen, x)
    if all(isinstance(value, (numbers.Number, np.number, np.bool_)) for value in seen):
        return _python_numbers(values, seen, x)
    if not all(isinstance(value, str) for value in text):
        kinds = sorted({type(value).__name__ for value in seen})
        return f"objects of the type {', '.join(kinds[:3])}", "Pass arrays of numbers."
    return f"text such as {shown}", _for_text(text, x, labels=labels)


def _for_text(text: Sequence[str], x: str, *, labels: bool) -> str:
    """What fits values that are text."""
    if all(map(_DATE.fullmatch, text)):
        dates = f"pd.to_datetime({x})"
        return f"Pass seconds since a date: {_of(_SECONDS, dates)}."
    if all(map(_CLOCK.fullmatch, text)):
        return f"Pass seconds: pd.to_timedelta({x}).dt.total_seconds()."
    if all(map(_DECIMAL_COMMA.fullmatch, text)):
        return f"Convert the text to numbers: pd.to_numeric({x}.str.replace(',', '.'))."
    if mostly_numbers(text) and not all(map(_NUMBER.fullmatch, text)):
        other = next(value for value in text if not _NUMBER.fullmatch(value))
        return (
            f"Most are numbers, but not {_shown([other])}. pd.to_numeric({x}, errors='coerce') "
            "replaces it by a missing value, which you can fill in or drop."
        )
    if all(map(_NUMBER.fullmatch, text)):
        return (
            "Convert the text without separators and units: "
            f"pd.to_numeric({x}.str.replace(r'[^0-9.eE+-]', '', regex=True))."
        )
    if all(map(_IMAGE.fullmatch, text)):
        return (
            "Read the files first, with keras.utils.image_dataset_from_directory or "
            "keras.utils.load_img."
        )
    if labels:
        return "Number the classes from 0: np.unique(y, return_inverse=True)[1]."
    if sum(len(value.split()) for value in text) >= _WORDS * len(text):
        return (
            "JAX trains on numbers only. Convert the text before the search, for instance with "
            "scikit-learn's TfidfVectorizer (docs/guides/data.md), or set "
            "KERAS_BACKEND=tensorflow for Keras' TextVectorization."
        )
    return (
        "Encode the categories before the search, with scikit-learn's OrdinalEncoder or "
        "OneHotEncoder, or Keras' StringLookup, which needs TensorFlow. For words see "
        "docs/guides/data.md."
    )


def _sequences(seen: Sequence[Any], x: str) -> tuple[str, str]:
    """What is said of values that are sequences themselves; those looked at are ``seen``."""
    lengths = [len(value) for value in seen]
    low, high = min(lengths), max(lengths)
    if low == high:
        return f"an array of objects, each of {low} values", f"Pass np.stack({x})."
    return (
        f"sequences of {low:,} to {high:,} values",
        f"Make them equally long: keras.utils.pad_sequences({x}, padding='post').",
    )


def _python_numbers(values: Any, seen: Sequence[Any], x: str) -> tuple[str, str]:
    """What is said of numbers that stand in an array as objects; some may be missing."""
    for place, value in enumerate(_flat(values)):
        if _is_missing(value):
            array = np.asarray(values, dtype=object)
            row = place // max(1, math.prod(array.shape[1:]))
            return (
                f"a missing value ({value}) in example {row}",
                "Fill in missing values, for instance with pandas' fillna, or drop those examples.",
            )
    return f"Python objects such as {_shown(seen)}", f"Pass {x}.astype('float32')."


def _of(expression: str, x: str) -> str:
    return expression.replace("x", x, 1)


def _seen(values: Any) -> list[Any]:
    """The first values, at any depth of an array, without those that are missing."""
    first = values[:_SEEN] if getattr(values, "ndim", 1) else values
    return [value for value in islice(_flat(first), _SEEN) if not _is_missing(value)]


def _flat(values: Any) -> Iterable[Any]:
    kind = getattr(getattr(values, "dtype", None), "kind", "O")
    return iter(np.asarray(values, dtype=None if kind in "Mm" else object).ravel())


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    try:
        return bool(value != value)  # NaN and NaT
    except (TypeError, ValueError):
        return False


def _has_length(value: Any) -> bool:
    return not isinstance(value, (str, bytes)) and (
        isinstance(value, (list, tuple)) or bool(getattr(value, "shape", ()))
    )


def _shown(seen: Iterable[Any]) -> str:
    """Up to three different values as text."""
    found: list[str] = []
    for value in seen:
        plain = isinstance(value, (datetime.date, datetime.timedelta, np.generic))
        text = str(value) if plain and not isinstance(value, str) else repr(value)
        if isinstance(value, np.datetime64):
            text = str(np.datetime_as_string(value, unit="auto"))
        text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
        if text not in found:
            found.append(text)
        if len(found) == 3:
            break
    return ", ".join(found)


def refuse_masked(where: str) -> NoReturn:
    """Refuses an array of ``np.ma`` with places left out: what lies there would be trained on.

    ``where``: name of the data in the message.
    """
    raise DataError(
        f"{where} is a masked array, but Keras has no masks of data. Fill it (x.filled(0)), or "
        "drop those rows."
    )


def refuse_path(value: Any, name: str) -> None:
    """Refuses the path of a file or folder in place of data, with what reads such a file."""
    if not isinstance(value, (str, Path)):
        return
    path = Path(value)
    try:
        folder = path.is_dir()
    except (OSError, ValueError):  # no path: too long, or with a null character
        folder = False
    shown = str(value) if len(str(value)) <= 60 else f"{str(value)[:57]}..."
    reader = {
        ".npy": "np.load(path)",
        ".npz": "np.load(path)['x']",
        ".csv": "pd.read_csv(path)",
        ".tsv": "pd.read_csv(path, sep='\\t')",
        ".parquet": "pd.read_parquet(path)",
        ".xlsx": "pd.read_excel(path)",
        ".h5": "h5py.File(path)['x'][:]",
        ".hdf5": "h5py.File(path)['x'][:]",
        ".tfrecord": "tf.data.TFRecordDataset(path)",
    }.get(path.suffix.lower())
    if folder or reader is None:
        how = (
            "Read the folder first: keras.utils.image_dataset_from_directory(path), or "
            "text_dataset_from_directory."
            if folder or not path.suffix
            else "Read the file first, and pass its arrays."
        )
    else:
        how = f"Read the file first: {reader}."
    raise DataError(f"{name} must be arrays or a data set, got the path {shown!r}. {how}")
