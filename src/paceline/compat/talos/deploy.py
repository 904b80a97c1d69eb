"""The zip file with a scan's best model and results: ``Deploy`` writes it, ``Restore`` reads it."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pandas as pd

from paceline.compat.talos import kept_models, portable
from paceline.compat.talos.errors import TalosDataError, TalosModelError
from paceline.compat.talos.evaluate import is_several
from paceline.compat.talos.logs import read_table
from paceline.program.files import written_atomically

if TYPE_CHECKING:
    from paceline.compat.talos.scan import Scan

#: Number of examples of x and y in the file.
_EXAMPLES = 100
_README = """\
{name}: the best model of a scan, by {metric}.

    from paceline.compat import talos
    restored = talos.Restore("{name}.zip")
    restored.model.predict(...)

{name}_model.keras    The whole model. keras.models.load_model reads it.
{name}_model.json     Its architecture. {name}_model.h5 has its weights.
{name}_params.json    The values that were tried. {name}_details.json and .txt have the settings.
{name}_results.csv    A row for each permutation. {name}_history.json has their epochs.
{name}_x.npz, _y.npz  Some examples, also as .csv if they are tables.
"""


class Deploy:
    """Writes ``MODEL_NAME.zip``, which ``Restore`` reads.

    Args:
        scan_object: A ``Scan``.
        model_name: Path of the file, with or without ".zip". The names of the files in it begin
            with its last part.
        metric: The model is the best one in this column of the scan's ``data``.
        asc: Whether low values of the metric are better.
        saved: Whether the model is loaded from the file that the scan saved; else from memory.
        custom_objects: Name -> class or function, for Keras to load the model.
        model_factory: Has no effect: Keras models need none.

    Attributes:
        path: Path of the file.
        best_model: The row of the model in the scan's ``data``.
        model: The model.

    Raises:
        TalosModelError: The model is not a Keras model, or was not kept.
    """

    def __init__(
        self,
        scan_object: Scan,
        model_name: str | Path,
        metric: str | None = "val_acc",
        asc: bool = False,
        saved: bool = False,
        custom_objects: dict[str, Any] | None = None,
        model_factory: Any = None,
    ) -> None:
        self.scan_object, self.metric, self.asc = scan_object, metric, asc
        self.data = scan_object.data
        self.best_model = scan_object.best_row(metric, asc)
        self.model = scan_object.activate(self.best_model, saved, custom_objects)
        if not isinstance(self.model, keras.Model):
            raise TalosModelError(
                f"model must be a Keras model, got {type(self.model).__name__}. Paceline writes no "
                "pickles. Save scan.best_model(...) with the package of the model."
            )
        path = Path(model_name)
        path = path if path.suffix == ".zip" else path.with_name(path.name + ".zip")
        self.model_name, self.path = path.stem, str(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            written_atomically(path) as temporary,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for name, content in self._files().items():
                archive.writestr(name, content)

    def _files(self) -> dict[str, bytes]:
        scan, name = self.scan_object, self.model_name
        found: dict[str, bytes] = {}
        with tempfile.TemporaryDirectory(prefix="paceline-deploy-") as folder:
            whole, weights = Path(folder, "model.keras"), Path(folder, "model.weights.h5")
            kept_models.save(self.model, whole)
            self.model.save_weights(weights)
            found[f"{name}_model.keras"] = whole.read_bytes()
            found[f"{name}_model.h5"] = weights.read_bytes()
        config, _ = kept_models.to_json(self.model)
        if config is not None:
            found[f"{name}_model.json"] = config.encode()
        found[f"{name}_details.txt"] = scan.details.to_csv(header=False).encode()
        found[f"{name}_details.json"] = _json(scan.details.to_dict())
        found[f"{name}_results.csv"] = scan.data.to_csv(index=False).encode()
        params = portable.encode(getattr(scan.params, "params", scan.params))
        found[f"{name}_params.json"] = json.dumps(params, indent=1).encode()
        found[f"{name}_history.json"] = _json(scan.round_history)
        manifest = {
            "paceline_archive_version": 1,
            "row": self.best_model,
            "metric": self.metric,
            "asc": self.asc,
            "parameter_columns": scan.parameter_columns,
        }
        found[f"{name}_manifest.json"] = _json(manifest)
        for part in ("x", "y"):
            found |= _examples(f"{name}_{part}", getattr(scan, part))
        found["README.txt"] = _README.format(name=name, metric=self.metric).encode()
        return found


def _examples(name: str, data: Any) -> dict[str, bytes]:
    """The files with the first examples: arrays and, if they make one table, also Talos' CSV.

    An array of objects is written as text, because reading an archive of objects can run code.
    """
    if not isinstance(data, dict):
        data = {str(i): part for i, part in enumerate(data if is_several(data) else [data])}
    arrays = {key: np.asarray(part)[:_EXAMPLES] for key, part in data.items()}
    arrays = {key: a.astype(str) if a.dtype.hasobject else a for key, a in arrays.items()}
    buffer = io.BytesIO()
    save: Any = np.savez_compressed
    save(buffer, **arrays)
    found = {f"{name}.npz": buffer.getvalue()}
    (first, *others) = arrays.values()
    if not others and first.ndim <= 2:
        found[f"{name}.csv"] = pd.DataFrame(first).to_csv(header=False, index=False).encode()
    return found


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, default=_plain).encode()


def _plain(value: Any) -> Any:
    """A value for JSON: NumPy numbers as Python's, a class or a function by its name."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return getattr(value, "__name__", None) or str(value)


class Restore:
    """A deployed model and its results.

    Reading the file runs no code. Keras' safe mode refuses models that would run code. Arrays of
    objects, which Talos pickles, raise an error when you read them.

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
        self._files = _contents(Path(path_to_zip))
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
        """The params dictionary of the scan, with the names of your own functions in their place.

        Raises TalosDataError if the dictionary is pickled, or not what ``Deploy`` writes.
        """
        text = self._text("params.json")
        return portable.decode(json.loads(text)) if text else self._array("params.npy", "params")

    @property
    def x(self) -> Any:
        """Features of some examples: an array, or a table of Talos; TalosDataError for pickles."""
        return self._examples("x")

    @property
    def y(self) -> Any:
        """Targets of these examples: an array, or a table of Talos; TalosDataError for pickles."""
        return self._examples("y")

    def best_row(self, metric: str | None = None, asc: bool = False) -> int:
        """Returns the row of the model; the file has only one."""
        return int(self._row)

    def activate(self, row: int, saved: bool = False, custom_objects: Any = None) -> Any:
        """Returns the model; the file has only one."""
        if row != self._row:
            raise TalosModelError(
                f"model_id must be {self._row}, the only row with a model in {self.path}, got "
                f"{row}."
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
            raise TalosDataError(
                f"path_to_zip: {self.path} has no {self._prefix}results.csv. Pass a file that "
                "Deploy wrote."
            )
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
            raise TalosDataError(f"{name} is missing from {self.path}.")
        try:
            return np.load(io.BytesIO(content), allow_pickle=False)
        except ValueError as error:
            raise TalosDataError(
                f"{name}: {self._prefix}{file} in {self.path} is pickled, and reading it can run "
                "any code of its author. If you trust the author, unpack the file and read "
                f"{file} yourself: numpy.load({file!r}, allow_pickle=True).item()"
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
                        return kept_models.load(path, custom_objects, what)
                config = self._text("model.json")
                if config is None:
                    raise TalosModelError(
                        f"path_to_zip: {self.path} has no model. Pass a file that Deploy wrote."
                    )
                model = kept_models.from_json(config, custom_objects, what)
                kept_models.load_weights(model, self._files.get(f"{self._prefix}model.h5", b""))
                return model
            except TalosModelError:
                raise
            except Exception as error:
                raise TalosModelError(
                    f"path_to_zip: Keras cannot read {what}: {type(error).__name__}: {error}. Pass "
                    "your own classes and functions as custom_objects."
                ) from error


def _contents(path: Path) -> dict[str, bytes]:
    """The contents of a zip file by name, in memory: a path in the file cannot be written to."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {
                each.filename: archive.read(each)
                for each in archive.infolist()
                if not each.is_dir()
            }
    except FileNotFoundError:
        raise TalosDataError(f"path_to_zip must be an existing file, got {path}.") from None
    except (zipfile.BadZipFile, OSError) as error:
        raise _not_deployed(path) from error


def _prefix(files: dict[str, bytes], path: str) -> str:
    """The prefix of the names in a file: nothing in Talos 2, else the name of the model."""
    if "results.csv" in files:
        return ""
    ends = [name for name in files if name.endswith("_results.csv")]
    if len(ends) != 1:
        raise _not_deployed(path)
    return ends[0].removesuffix("results.csv")


def _not_deployed(path: str | Path) -> TalosDataError:
    return TalosDataError(f"path_to_zip must be a zip file that Deploy wrote, got {path}.")
