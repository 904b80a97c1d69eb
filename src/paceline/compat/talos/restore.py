"""``Restore``: what ``Deploy`` wrote, of ours and of Talos itself."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd

from paceline.compat.talos.errors import TalosDataError, TalosModelError


class Restore:
    """A deployed model.

    Nothing in the file is run: of models, Keras' safe mode refuses what would be, and arrays of
    objects, which Talos pickles, are refused here when they are asked for.

    Args:
        path_to_zip: The file.
        custom_objects: Name -> class or function, for Keras.
        model_factory: Not needed by Keras models.

    Attributes:
        model: The model.
        details: What was done.
        results, data: A row for each permutation.
        round_history: Metric -> one float per epoch, for each row; empty where not written.

    Raises:
        TalosDataError: It is no such file.
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
        """The values that were tried.

        Raises:
            TalosDataError: They are pickled.
        """
        text = self._text("params.json")
        return json.loads(text) if text else self._array("params.npy", "params")

    @property
    def x(self) -> Any:
        """Some examples: an array, or a table as Talos wrote it.

        Raises:
            TalosDataError: They are pickled.
        """
        return self._examples("x")

    @property
    def y(self) -> Any:
        """Targets of these examples; as ``x``."""
        return self._examples("y")

    def best_row(self, metric: str | None = None, asc: bool = False) -> int:
        """The row of the one model there is."""
        return int(self._row)

    def activate(self, row: int, saved: bool = False, custom_objects: Any = None) -> Any:
        """The one model there is.

        Raises:
            TalosModelError: Another was asked for.
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
        table = pd.read_csv(io.StringIO(text))
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
        with tempfile.TemporaryDirectory(prefix="paceline-restore-") as folder:
            try:
                for name in ("model.keras", "model/model.keras"):
                    content = self._files.get(self._prefix + name)
                    if content is not None:
                        path = Path(folder, "model.keras")
                        path.write_bytes(content)
                        return keras.models.load_model(path, custom_objects=custom_objects)
                config = self._text("model.json")
                if config is None:
                    raise TalosModelError(f"path_to_zip: there is no model in {self.path}.")
                model = keras.models.model_from_json(config, custom_objects=custom_objects)
                # Weights of Keras 3 and of Keras 2 are told apart by the file's name.
                content = self._files.get(f"{self._prefix}model.h5", b"")
                for name in ("model.weights.h5", "model.h5"):
                    path = Path(folder, name)
                    path.write_bytes(content)
                    try:
                        model.load_weights(path)
                    except Exception:
                        if name == "model.h5":
                            raise
                    else:
                        break
                return model
            except TalosModelError:
                raise
            except Exception as error:
                raise TalosModelError(
                    f"path_to_zip: Keras cannot read the model in {self.path}: "
                    f"{type(error).__name__}: {error}. Classes and functions of your own go into "
                    "custom_objects."
                ) from error


def _read(path: Path) -> dict[str, bytes]:
    """All that is in the file; nothing is unpacked to where its names say."""
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
    """What names in the file begin with: Talos 2 has none, others the model's name."""
    if "results.csv" in files:
        return ""
    ends = [name for name in files if name.endswith("_results.csv")]
    if len(ends) != 1:
        raise TalosDataError(f"path_to_zip: {path} is no zip file that Deploy wrote.")
    return ends[0].removesuffix("results.csv")
