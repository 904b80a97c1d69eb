"""The models of a scan, kept in memory as JSON and weights, or on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np

from paceline.compat.talos.errors import TalosModelError


class KeptModels:
    """Keeps the models of a scan by the number of the permutation.

    Args:
        folder: Folder for saved models.
        weights: Whether JSON and weights are kept in memory.
        files: Whether each model is saved as a ``.keras`` file.
    """

    def __init__(self, folder: Path, *, weights: bool, files: bool) -> None:
        self._folder, self._weights, self._files = folder, weights, files
        self._kept: dict[int, tuple[str, list[np.ndarray]]] = {}
        # Models whose class has no configuration: they cannot be rebuilt from JSON, so they are
        # kept as they are.
        self._whole: dict[int, Any] = {}

    def add(self, number: int, model: Any) -> None:
        """Keeps the model of a permutation."""
        if not isinstance(model, keras.Model):
            return
        if self._files:
            self._folder.mkdir(parents=True, exist_ok=True)
            model.save(self.path(number))
        if not self._weights:
            return
        try:
            config = model.to_json()
        except Exception:  # the user's class has no get_config, or one that raises
            self._whole[number] = model
            return
        self._kept[number] = config, model.get_weights()

    def drop(self, number: int) -> None:
        """Forgets the model of a permutation, and removes its file."""
        self._kept.pop(number, None)
        self._whole.pop(number, None)
        self.path(number).unlink(missing_ok=True)

    def path(self, number: int) -> Path:
        """Returns the file of a permutation's model."""
        return self._folder / f"{number}.keras"

    def config(self, number: int) -> str | None:
        """Returns a model as JSON; None if it is not kept so."""
        return self._kept[number][0] if number in self._kept else None

    def weights(self, number: int) -> list[np.ndarray] | None:
        """Returns the weights of a model; None if they are not kept."""
        if number in self._whole:
            return self._whole[number].get_weights()
        return self._kept[number][1] if number in self._kept else None

    def load(self, number: int, saved: bool, custom_objects: dict[str, Any] | None) -> Any:
        """Returns the trained model of a permutation.

        Args:
            number: Number of the permutation.
            saved: Whether the model is loaded from its file; else from memory.
            custom_objects: Name -> class or function, for Keras to load the model.

        Raises:
            TalosModelError: The model was not kept, or its file is gone.
        """
        if saved:
            if not self.path(number).is_file():
                raise TalosModelError(
                    f"saved: there is no {self.path(number)}; scan with save_models=True."
                )
            return keras.models.load_model(self.path(number), custom_objects=custom_objects)
        if number in self._whole:
            return self._whole[number]
        if number not in self._kept:
            raise TalosModelError(
                "saved: the weights of this scan were not kept; scan with save_weights=True, or "
                "pass saved=True where it was made with save_models=True."
            )
        config, weights = self._kept[number]
        model = keras.models.model_from_json(config, custom_objects=custom_objects)
        model.set_weights(weights)
        return model
