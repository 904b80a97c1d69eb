"""``Restore``: reads a file that ``Deploy`` wrote, Paceline's or that of Talos itself."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from paceline.compat.talos import model_files, portable
from paceline.compat.talos.columns import read_table
from paceline.compat.talos.errors import TalosDataError, TalosModelError


class Restore:
    """A deployed model and its results.

    No code of the file is run. Keras' safe mode refuses models that would run code. Arrays of
    objects, which Talos pickles, are refused when they are asked for.

    Args:
        path_to_zip: Path of the file.
        custom_objects: Name -> class or function, for Keras to load the model.
        model_factory: Has no effect: Keras models need none.

    Attributes:
        model: The model.
        details: Settings and times of the scan.
        results: A table with one row for each permutation.
        data: The same table.
        round_history: For each row, metric -> one float per epoch; empty if the file has none.

    Raises:
        TalosDataError: The file is missing, or ``Deploy`` did not write it.
        TalosModelError: Keras cannot read the model.
    """

    def __init__(
        self,
        path_to_zip: str | Path,
        custom_objects: dict[str, Any] | None = None,
        model_factory: Any = None,
    ) -> None:
        self.path = str(path_to_zip)
        self._files = _read(Path(path_to_zip))
        self._prefix = _prefix(self._files, self.path)
        self.details = self._details()
        self.results = self.data = self._results()
        history = self._text("history.json")
        self.round_history = json.loads(history) if history else []
        manifest = json.loads(self._text("manifest.json") or "{}")
        self.parameter_columns: dict[str, str] = manifest.get("parameter_columns", {})
        self._row = manifest.get("row", manifest.get("selected_model_id", 0))
        self.model = self._model(custom_objects)

    @property
    def params(self) -> Any:
        """The params dictionary of the scan; functions of the user's own are their names.

        Raises:
            TalosDataError: The dictionary is pickled, or is not what ``Deploy`` writes.
        """
        text = self._text("params.json")
        return portable.decode(json.loads(text)) if text else self._array("params.npy", "params")

    @property
    def x(self) -> Any:
        """Features of some examples: an array, or a table that Talos wrote.

        Raises:
            TalosDataError: They are pickled.
        """
        return self._examples("x")

    @property
    def y(self) -> Any:
        """Targets of the examples in ``x``: an array, or a table that Talos wrote.

        Raises:
            TalosDataError: They are pickled.
        """
        return self._examples("y")

    def best_row(self, metric: str | None = None, asc: bool = False) -> int:
        """Returns the row of the model; the file has only one."""
        return int(self._row)

    def activate(self, row: int, saved: bool = False, custom_objects: Any = None) -> Any:
        """Returns the model; the file has only one.

        Raises:
            TalosModelError: The row is that of another model.
        """
        if row != self._row:
            raise TalosModelError(
                f"model_id: {row} is not in {self.path}; it holds the model of row {self._row}."
            )
        return self.model

    # -- what is in the file -----------------------------------------------------------------------

    def _text(self, name: str) -> str | None:
        content = self._files.get(self._prefix + name)
        return None if content is None else content.decode()

    def _details(self) -> pd.Series | pd.DataFrame:
        text = self._text("details.json")
        if text:
            return pd.Series(json.loads(text), dtype=object)
        text = self._text("details.txt")
        return pd.read_csv(io.StringIO(text), header=None) if text else pd.Series(dtype=object)

    def _results(self) -> pd.DataFrame:
        text = self._text("results.csv")
        if text is None:
            raise TalosDataError(f"path_to_zip: {self.path} has no {self._prefix}results.csv.")
        table = read_table(io.StringIO(text))
        return table.loc[:, ~table.columns.astype(str).str.startswith("Unnamed:")]

    def _examples(self, name: str) -> Any:
        content = self._files.get(f"{self._prefix}{name}.npz")
        if content is not None:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                found = {key: arrays[key] for key in arrays.files}
            numbered = list(found) == [str(i) for i in range(len(found))]
            if not numbered:
                return found
            return found["0"] if len(found) == 1 else list(found.values())
        text = self._text(f"{name}.csv")
        if text is not None:
            return pd.read_csv(io.StringIO(text), header=None) if text.strip() else pd.DataFrame()
        return self._array(f"{name}.npy", name)

    def _array(self, file: str, name: str) -> Any:
        content = self._files.get(self._prefix + file)
        if content is None:
            raise TalosDataError(f"{name}: {self.path} has none.")
        try:
            return np.load(io.BytesIO(content), allow_pickle=False)
        except ValueError as error:
            raise TalosDataError(
                f"{name}: {self._prefix}{file} in {self.path} is pickled, and reading it can run "
                "any code that its author put there. If you trust the author, unpack it and read "
                f"it yourself: numpy.load({file!r}, allow_pickle=True).item()"
            ) from error

    def _model(self, custom_objects: dict[str, Any] | None) -> Any:
        what = f"the model in {self.path}"
        with tempfile.TemporaryDirectory(prefix="paceline-restore-") as folder:
            try:
                for name in ("model.keras", "model/model.keras"):
                    content = self._files.get(self._prefix + name)
                    if content is not None:
                        path = Path(folder, "model.keras")
                        path.write_bytes(content)
                        return model_files.load(path, custom_objects, what)
                config = self._text("model.json")
                if config is None:
                    raise TalosModelError(f"path_to_zip: there is no model in {self.path}.")
                model = model_files.from_json(config, custom_objects, what)
                model_files.load_weights(model, self._files.get(f"{self._prefix}model.h5", b""))
                return model
            except TalosModelError:
                raise
            except Exception as error:
                raise TalosModelError(
                    f"path_to_zip: Keras cannot read {what}: "
                    f"{type(error).__name__}: {error}. Classes and functions of your own go into "
                    "custom_objects."
                ) from error


def _read(path: Path) -> dict[str, bytes]:
    """The contents of a zip file by name, in memory: a path in the file cannot be written to."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {
                each.filename: archive.read(each)
                for each in archive.infolist()
                if not each.is_dir()
            }
    except FileNotFoundError:
        raise TalosDataError(f"path_to_zip: there is no file {path}.") from None
    except (zipfile.BadZipFile, OSError) as error:
        raise TalosDataError(f"path_to_zip: {path} is no zip file that Deploy wrote.") from error


def _prefix(files: dict[str, bytes], path: str) -> str:
    """The prefix of the names in a file: nothing in Talos 2, else the name of the model."""
    if "results.csv" in files:
        return ""
    ends = [name for name in files if name.endswith("_results.csv")]
    if len(ends) != 1:
        raise TalosDataError(f"path_to_zip: {path} is no zip file that Deploy wrote.")
    return ends[0].removesuffix("results.csv")
