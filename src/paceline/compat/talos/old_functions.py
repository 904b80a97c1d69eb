"""Functions of Talos that are methods of a scan here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.compat.talos import model_files
from paceline.compat.talos.errors import TalosModelError
from paceline.compat.talos.evaluate import evaluate_models
from paceline.compat.talos.results import ScanResults

__all__ = ["activate_model", "best_model", "func_best_model", "func_evaluate", "load_model"]

#: Talos calls it so in ``talos.scan.scan_addon``.
func_evaluate = evaluate_models


def best_model(scan: ScanResults, metric: str | None = "val_acc", asc: bool = False) -> int:
    """Returns the row of the scan's ``data`` that is best in a metric.

    Args:
        scan: A ``Scan`` or a ``Restore``.
        metric: A column of ``data``.
        asc: Whether low values are better.
    """
    return scan.best_row(metric, asc)


def activate_model(
    scan: ScanResults,
    model_id: int,
    saved: bool = False,
    custom_objects: dict[str, Any] | None = None,
    model_factory: Any = None,
) -> Any:
    """Returns the trained model of a row of the scan's ``data``.

    Args:
        scan: A ``Scan`` or a ``Restore``.
        model_id: Number of the row.
        saved: Whether the model is loaded from its file; else from memory.
        custom_objects: Name -> class or function, for Keras to load the model.
        model_factory: Has no effect: Keras models need none.
    """
    return scan.activate(int(model_id), saved, custom_objects)


def func_best_model(
    scan: ScanResults,
    metric: str | None = "val_acc",
    asc: bool = False,
    saved: bool = False,
    custom_objects: dict[str, Any] | None = None,
) -> Any:
    """Returns the trained model that is best in a metric; arguments as for the two above."""
    return activate_model(scan, best_model(scan, metric, asc), saved, custom_objects)


def load_model(
    saved_model: str | Path,
    custom_objects: dict[str, Any] | None = None,
    backend: str = "keras",
    model_factory: Any = None,
) -> Any:
    """Returns a saved model.

    Args:
        saved_model: Path of a ``.keras`` or ``.h5`` file; or, without an ending, of a ``.json``
            file and a file of weights, ``.h5`` or ``.weights.h5``, as Talos 1 saved them.
        custom_objects: Name -> class or function, for Keras to load the model.
        backend: Has no effect: all models are Keras models.
        model_factory: Has no effect: Keras models need none.

    Raises:
        TalosModelError: There is no such file, or Keras cannot read it.
    """
    path = Path(saved_model)
    if path.suffix in (".keras", ".h5"):
        if not path.is_file():
            raise TalosModelError(f"saved_model: there is no file {path}.")
        return model_files.load(path, custom_objects)
    config = path.with_name(path.name + ".json")
    endings = (path.with_name(path.name + ending) for ending in (".weights.h5", ".h5"))
    weights = next((each for each in endings if each.is_file()), None)
    if weights is None or not config.is_file():
        raise TalosModelError(f"saved_model: there are no files {path}.json and {path}.h5.")
    model = model_files.from_json(config.read_text(encoding="utf-8"), custom_objects, str(config))
    model_files.load_weights(model, weights.read_bytes())
    return model
