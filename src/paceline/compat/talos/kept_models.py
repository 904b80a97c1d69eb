"""The models of a scan, kept in memory or on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np

from paceline.compat.talos import model_files
from paceline.compat.talos.errors import TalosModelError
from paceline.compat.talos.progress import say


class KeptModels:
    """Keeps the models of a scan by the number of the permutation.

    A Keras model is kept as JSON and weights, which takes the least memory. Kept as it is, the
    model itself, is one that JSON does not bring back: one with a metric, loss, layer or class of
    the user's own, and one of another package, such as scikit-learn.

    Args:
        folder: Folder for saved models.
        weights: Whether models are kept in memory.
        files: Whether each model is saved as a ``.keras`` file.
        whole: Whether all models are kept as they are; None: those that JSON does not bring back.
    """

    def __init__(
        self, folder: Path, *, weights: bool, files: bool, whole: bool | None = None
    ) -> None:
        self._folder, self._weights, self._files = folder, weights, files
        self._keep_whole = whole
        self._kept: dict[int, tuple[str, list[np.ndarray]]] = {}
        self._whole: dict[int, Any] = {}
        self._classes: dict[str, Any] = {}  # the user's own, for files that name them

    def add(self, number: int, model: Any) -> None:
        """Keeps the model of a permutation."""
        if not isinstance(model, keras.Model):
            self._add_other(number, model)
            return
        self._classes |= model_files.own_classes(model)
        if self._files:
            self._save(number, model)
        if self._keep_whole:
            self._whole[number] = model
        if not self._weights:
            return
        config, complete = model_files.to_json(model)
        if config is None:
            self._whole[number] = model
            return
        foreign = not complete or model_files.needs_objects(config)
        if foreign and self._keep_whole is None:
            self._whole[number] = model
        self._kept[number] = config, model.get_weights()

    def drop(self, number: int) -> None:
        """Forgets the model of a permutation, and removes its file."""
        self._kept.pop(number, None)
        self._whole.pop(number, None)
        self.path(number).unlink(missing_ok=True)

    def _save(self, number: int, model: Any) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            model_files.save(model, self.path(number))
        except TalosModelError as error:
            self._whole[number] = model
            say(f"save_models: permutation {number} is kept in memory: {error}")

    def _add_other(self, number: int, model: Any) -> None:
        """Keeps a model that is not Keras'."""
        if model is None or not (self._weights or self._files or self._keep_whole):
            return
        self._whole[number] = model
        if self._files and not self._weights:
            say(
                f"save_models: a {type(model).__name__} is no Keras model, and Paceline writes no "
                "pickles; it is kept in memory"
            )

    def path(self, number: int) -> Path:
        """Returns the file of a permutation's model."""
        return self._folder / f"{number}.keras"

    def config(self, number: int) -> str | None:
        """Returns a model as JSON; None if it is not kept so."""
        return self._kept[number][0] if number in self._kept else None

    def weights(self, number: int) -> list[np.ndarray] | None:
        """Returns the weights of a model; None if they are not kept, or are not Keras'."""
        if number in self._kept:
            return self._kept[number][1]
        whole = self._whole.get(number)
        return whole.get_weights() if isinstance(whole, keras.Model) else None

    def load(self, number: int, saved: bool, custom_objects: dict[str, Any] | None) -> Any:
        """Returns the trained model of a permutation.

        Args:
            number: Number of the permutation.
            saved: Whether the model is loaded from its file; else from memory.
            custom_objects: Name -> class or function, for Keras to load the model.

        Raises:
            TalosModelError: The model was not kept, its file is gone, or Keras cannot read it.
        """
        objects = {**self._classes, **(custom_objects or {})}
        if saved:
            if not self.path(number).is_file():
                raise TalosModelError(
                    f"saved: there is no {self.path(number)}; scan with save_models=True."
                )
            return model_files.load(self.path(number), objects)
        if number in self._whole:
            return self._whole_model(number)
        if number in self._kept:
            config, weights = self._kept[number]
            model = model_files.from_json(config, objects)
            model.set_weights(weights)
            return model
        if self.path(number).is_file():  # trained before the scan was resumed
            return model_files.load(self.path(number), objects)
        raise TalosModelError(
            "saved: the weights of this scan were not kept; scan with save_weights=True, or "
            "pass saved=True where it was made with save_models=True."
        )

    def _whole_model(self, number: int) -> Any:
        model = self._whole[number]
        shared = sum(each is model for each in self._whole.values()) > 1
        if shared and number in self._kept:  # a function returned one model again and again
            model.set_weights(self._kept[number][1])
        return model
