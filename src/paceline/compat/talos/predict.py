"""``Predict``: predicts with the best model of a scan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.compat.talos.evaluate import classes, outputs

if TYPE_CHECKING:
    from paceline.compat.talos.restore import Restore
    from paceline.compat.talos.scan import Scan


class Predict:
    """Predicts with models of a scan.

    Args:
        scan_object: A ``Scan`` or a ``Restore``.
    """

    def __init__(self, scan_object: Scan | Restore) -> None:
        self.scan_object = scan_object
        self.data = scan_object.data

    def predict(
        self,
        x: Any,
        metric: str | None = "val_acc",
        asc: bool = False,
        model_id: int | None = None,
        saved: bool = False,
        custom_objects: dict[str, Any] | None = None,
        model_factory: Any = None,
        **options: Any,
    ) -> Any:
        """Returns the outputs of a model.

        Args:
            x: Features [N, ...].
            metric: The model is the one that is best in this column of the scan's ``data``.
            asc: Whether low values of the metric are better.
            model_id: Number of a row of ``data``: its model predicts instead.
            saved: Whether the model is loaded from the file that the scan saved; else from memory.
            custom_objects: Name -> class or function, for Keras to load the model.
            model_factory: Has no effect: Keras models need none.
            **options: Further arguments of ``model.predict``.
        """
        row = self.scan_object.best_row(metric, asc) if model_id is None else model_id
        model = self.scan_object.activate(row, saved, custom_objects)
        return outputs(model, x, **options)

    def predict_classes(
        self,
        x: Any,
        metric: str | None = "val_acc",
        asc: bool = False,
        task: str = "multi_class",
        model_id: int | None = None,
        saved: bool = False,
        custom_objects: dict[str, Any] | None = None,
        model_factory: Any = None,
    ) -> np.ndarray:
        """Returns the classes that a model predicts.

        Args:
            x: Features [N, ...].
            metric: As for ``predict``.
            asc: As for ``predict``.
            task: "binary", "multi_class" or "multi_label".
            model_id: As for ``predict``.
            saved: As for ``predict``.
            custom_objects: As for ``predict``.
            model_factory: As for ``predict``.
        """
        return classes(self.predict(x, metric, asc, model_id, saved, custom_objects), task)
