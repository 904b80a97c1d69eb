"""``Predict``: what a scan's best model makes of other data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.compat.talos.evaluate import classes

if TYPE_CHECKING:
    from paceline.compat.talos.restore import Restore
    from paceline.compat.talos.scan import Scan


class Predict:
    """Predicts with models of a scan.

    Args:
        scan_object: A ``Scan``.
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
        """A model's outputs.

        Args:
            x: Features.
            metric: The model is the best in this column of the scan's data.
            asc: Less is better.
            model_id: The model of this row instead.
            saved: The model from its file.
            custom_objects: For Keras.
            model_factory: Not needed by Keras models.
            **options: For ``model.predict``.
        """
        row = self.scan_object.best_row(metric, asc) if model_id is None else model_id
        model = self.scan_object.activate(row, saved, custom_objects)
        return model.predict(x, **{"verbose": 0, **options})

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
        """Classes; arguments as for ``predict``, ``task`` as for ``Evaluate``."""
        return classes(self.predict(x, metric, asc, model_id, saved, custom_objects), task)
