"""Loads the data for a search: what ``--data`` names, or what the user's ``data()`` returns.

N: training examples. V: validation examples.
x: [N, ...]; y: [N, ...]; x_val: [V, ...]; y_val: [V, ...]; any dtype, images may stay uint8.
"""

from __future__ import annotations

import contextlib
import pkgutil
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import DataError

FORMS = "FILE.npz, digits or keras:NAME"

Pairs = tuple[tuple[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Dataset:
    """Training and validation data.

    Attributes:
        x, y: The training data: x [N, ...], y [N, ...].
        x_val, y_val: The validation data, by which trials are compared: [V, ...].
        note: A sentence about the data that the user should see; None without one.
        sample_weight: Factors of the examples' losses [N]; None without.
        sample_weight_val: The same of the validation data [V]; None without.
    """

    x: Any
    y: Any
    x_val: Any
    y_val: Any
    note: str | None = None
    sample_weight: Any = None
    sample_weight_val: Any = None

    @property
    def validation_data(self) -> tuple[Any, ...]:
        """The validation data as ``Tuner.search`` takes them."""
        pair = (self.x_val, self.y_val)
        return pair if self.sample_weight_val is None else (*pair, self.sample_weight_val)


def load(spec: str) -> Dataset:
    """Load what ``--data`` names.

    Args:
        spec: ``digits``, ``keras:NAME``, or the path of an NPZ file with x_train, y_train and
            x_val, y_val (or else x_test, y_test).

    Returns:
        The data.

    Raises:
        DataError: Nothing has that name, the file cannot be read or lacks arrays, or a download
            failed.
    """
    if spec == "digits":
        return _dataset(digits())
    if spec.startswith("keras:"):
        return _from_keras(spec.removeprefix("keras:"))
    if Path(spec).suffix == ".npz":
        return _from_npz(Path(spec))
    raise DataError(f"--data {spec!r} is not known; give {FORMS}")


def portable_spec(spec: str) -> str:
    """Return ``spec`` as it works from any folder: a file's path becomes absolute."""
    return str(Path(spec).resolve()) if Path(spec).suffix == ".npz" else spec


def digits() -> Pairs:
    """Return the handwritten digits that ship inside scikit-learn, always split the same way.

    Returns:
        ``(x, y), (x_val, y_val)``: x f32[1437, 64] and f32[360, 64] in 0 to 1, y i64 in 0 to 9.
        Each class has its share in both parts.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    x, x_val, y, y_val = train_test_split(
        images.astype(np.float32) / np.float32(16),
        labels,
        test_size=360,
        stratify=labels,
        random_state=0,
    )
    return (x, y), (x_val, y_val)


def from_function(data: Callable[[], Any], where: str) -> Dataset:
    """Call the user's ``data()`` and check the form of what it returns.

    Args:
        data: The function. Its errors reach the caller. Each of its two parts is ``(x, y)`` or
            ``(x, y, sample_weight)``.
        where: Name of the user's file, for messages.

    Raises:
        DataError: The function returned something other than two such parts.
    """
    returned = data()
    try:
        train, validation = returned
        x, y, weight = _examples(train)
        x_val, y_val, weight_val = _examples(validation)
    except (TypeError, ValueError):
        raise DataError(
            f"{where}: data() returned {_outline(returned)}; it must return (x, y), (x_val, y_val)"
            "; weights of the examples come third, (x, y, sample_weight)"
        ) from None
    return Dataset(x, y, x_val, y_val, sample_weight=weight, sample_weight_val=weight_val)


def _examples(part: Any) -> tuple[Any, Any, Any]:
    """Return x, y and the weights, None where there are none.

    Raises:
        TypeError: The part is no tuple or list. An array could be unpacked too, into its rows.
        ValueError: It does not have two or three items.
    """
    if not isinstance(part, (tuple, list)):
        raise TypeError
    x, y, weight = part if len(part) == 3 else (*part, None)
    return x, y, weight


def _dataset(pairs: Pairs, note: str | None = None) -> Dataset:
    (x, y), (x_val, y_val) = pairs
    return Dataset(x, y, x_val, y_val, note)


def _test_note(name: str) -> str:
    return (
        f"{name} has no validation part: its test part steers the search, so the best value is "
        "optimistic; keep other data for a final check"
    )


def _from_npz(path: Path) -> Dataset:
    try:
        with path.open("rb") as file:
            # Pickles are refused, because an NPZ file from a stranger must not run code.
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"--data {path} holds one bare array; write it with numpy.savez")
            names = set(archive.files)
            part = next((p for p in ("val", "test") if {f"x_{p}", f"y_{p}"} <= names), None)
            if part is None or not {"x_train", "y_train"} <= names:
                raise DataError(
                    f"--data {path} holds {', '.join(sorted(names)) or 'nothing'}; it needs "
                    "x_train, y_train and x_val, y_val (or x_test, y_test)"
                )
            wanted = ("x_train", "y_train", f"x_{part}", f"y_{part}")
            x, y, x_val, y_val = (archive[name] for name in wanted)
    except FileNotFoundError:
        raise DataError(f"--data {path}: no such file") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"--data {path} cannot be read ({error}); write plain numeric arrays with numpy.savez"
        ) from error
    return Dataset(x, y, x_val, y_val, _test_note(path.name) if part == "test" else None)


def _from_keras(name: str) -> Dataset:
    import keras.datasets

    known = sorted(module.name for module in pkgutil.iter_modules(keras.datasets.__path__))
    if name not in known:
        raise DataError(f"--data keras:{name} is not known; Keras has {', '.join(known)}")
    try:
        # Keras draws its download bar on stdout; stdout is for results only.
        with contextlib.redirect_stdout(sys.stderr):
            pairs = getattr(keras.datasets, name).load_data()
    except Exception as error:  # Keras raises a bare Exception when a download fails
        raise DataError(
            f"--data keras:{name} could not be loaded ({error}); without a network, save the "
            "arrays with numpy.savez and give --data FILE.npz"
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
