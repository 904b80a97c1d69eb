"""``Deploy``: writes the best model of a scan and its results to a zip file."""

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

from paceline.compat.talos import model_files, portable
from paceline.compat.talos.errors import TalosModelError
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

{name}_model.keras    the whole model: keras.models.load_model reads it
{name}_model.json     its architecture, {name}_model.h5 its weights, apart
{name}_params.json    the values that were tried; {name}_details.json, .txt what was done
{name}_results.csv    a row for each permutation; {name}_history.json their epochs
{name}_x.npz, _y.npz  some examples; as .csv where they are tables
"""


class Deploy:
    """Writes ``MODEL_NAME.zip``, which ``Restore`` reads.

    Args:
        scan_object: A ``Scan``.
        model_name: Path of the file, with or without ".zip"; the names of the files in it begin
            with its last part.
        metric: The model is the one that is best in this column of the scan's ``data``.
        asc: Whether low values of the metric are better.
        saved: Whether the model is loaded from the file that the scan saved; else from memory.
        custom_objects: Name -> class or function, for Keras to load the model.
        model_factory: Has no effect: Keras models need none.

    Attributes:
        path: Path of the file.
        best_model: The row of the model in the scan's ``data``.
        model: The model.

    Raises:
        TalosModelError: The model is no Keras model, or was not kept.
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
                f"model: a {type(self.model).__name__} is no Keras model, and Paceline writes no "
                "pickles; save scan.best_model(...) by the means of its package."
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
            model_files.save(self.model, whole)
            self.model.save_weights(weights)
            found[f"{name}_model.keras"] = whole.read_bytes()
            found[f"{name}_model.h5"] = weights.read_bytes()
        config, _ = model_files.to_json(self.model)
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

    An array of objects is written as text, because an archive of objects can run code when it is
    read.
    """
    parts = (
        data
        if isinstance(data, dict)
        else {
            str(i): part
            for i, part in enumerate(data if isinstance(data, list) and _nested(data) else [data])
        }
    )
    arrays = {key: np.asarray(part)[:_EXAMPLES] for key, part in parts.items()}
    arrays = {key: a.astype(str) if a.dtype.hasobject else a for key, a in arrays.items()}
    buffer = io.BytesIO()
    save: Any = np.savez_compressed
    save(buffer, **arrays)
    found = {f"{name}.npz": buffer.getvalue()}
    (first, *others) = arrays.values()
    if not others and first.ndim <= 2:
        found[f"{name}.csv"] = pd.DataFrame(first).to_csv(header=False, index=False).encode()
    return found


def _nested(data: list[Any]) -> bool:
    return bool(data) and hasattr(data[0], "shape")


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, default=_plain).encode()


def _plain(value: Any) -> Any:
    """A value for JSON: NumPy numbers as Python's, a class or a function by its name."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return getattr(value, "__name__", None) or str(value)
