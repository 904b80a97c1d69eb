"""The models of a scan, kept in memory or on disk; and Keras models in files and as JSON.

A file has the names of the user's own classes and functions, but not their code. Without the code
Keras cannot compile a model again, but the model can predict. So a model that cannot be compiled is
read uncompiled, with a note.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np

from paceline.compat.talos.errors import TalosModelError
from paceline.compat.talos.notes import say


@dataclass(eq=False, repr=False)
class KeptModels:
    """Keeps the models of a scan by the number of the permutation.

    A Keras model is kept as JSON and weights, which takes the least memory. JSON cannot restore a
    model with the user's own metric, loss, layer or class, or of another package, such as
    scikit-learn. Such a model is kept as it is.
    """

    folder: Path
    in_memory: bool
    as_files: bool
    as_they_are: bool | None  # None: those that JSON cannot restore
    _kept: dict[int, tuple[str, list[np.ndarray]]] = field(default_factory=dict)
    _whole: dict[int, Any] = field(default_factory=dict)
    _classes: dict[str, Any] = field(default_factory=dict)  # the user's own, which files name

    def add(self, number: int, model: Any) -> None:
        """Keeps the model of a permutation."""
        if not isinstance(model, keras.Model):
            self._add_other(number, model)
            return
        self._classes |= own_classes(model)
        if self.as_files:
            self._save(number, model)
        if self.as_they_are:
            self._whole[number] = model
        if not self.in_memory:
            return
        config, complete = to_json(model)
        if config is None:
            self._whole[number] = model
            return
        foreign = not complete or needs_objects(config)
        if foreign and self.as_they_are is None:
            self._whole[number] = model
        self._kept[number] = config, model.get_weights()

    def drop(self, number: int) -> None:
        """Forgets the model of a permutation, and removes its file."""
        self._kept.pop(number, None)
        self._whole.pop(number, None)
        self.path(number).unlink(missing_ok=True)

    def _save(self, number: int, model: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            save(model, self.path(number))
        except TalosModelError as error:
            self._whole[number] = model
            say(f"save_models: the model of permutation {number} stays in memory: {error}")

    def _add_other(self, number: int, model: Any) -> None:
        """Keeps a model that is not Keras'."""
        if model is None or not (self.in_memory or self.as_files or self.as_they_are):
            return
        self._whole[number] = model
        if self.as_files and not self.in_memory:
            say(
                f"save_models: {type(model).__name__} is not a Keras model, and Paceline writes no "
                "pickles, so the model stays in memory"
            )

    def path(self, number: int) -> Path:
        """Returns the file of a permutation's model."""
        return self.folder / f"{number}.keras"

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
        """Returns the trained model of a permutation; ``saved``: from its file, not from memory."""
        objects = {**self._classes, **(custom_objects or {})}
        if saved:
            if not self.path(number).is_file():
                raise TalosModelError(
                    f"saved: {self.path(number)} is missing. Scan with save_models=True."
                )
            return load(self.path(number), objects)
        if number in self._whole:
            return self._whole_model(number)
        if number in self._kept:
            config, weights = self._kept[number]
            model = from_json(config, objects)
            model.set_weights(weights)
            return model
        if self.path(number).is_file():  # trained before the scan was resumed
            return load(self.path(number), objects)
        raise TalosModelError(
            "saved: this scan did not keep its weights. Scan with save_weights=True. If it had "
            "save_models=True, pass saved=True."
        )

    def _whole_model(self, number: int) -> Any:
        model = self._whole[number]
        shared = sum(each is model for each in self._whole.values()) > 1
        if shared and number in self._kept:  # a function returned the same model each time
            model.set_weights(self._kept[number][1])
        return model


def load_model(
    saved_model: str | Path,
    custom_objects: dict[str, Any] | None = None,
    backend: str = "keras",
    model_factory: Any = None,
) -> Any:
    """Returns a saved model.

    Args:
        saved_model: Path of a ``.keras`` or ``.h5`` file. Or a path without an ending, for the
            ``.json`` file and the ``.h5`` or ``.weights.h5`` file of Talos 1.
        custom_objects: Name -> class or function, for Keras to load the model.
        backend: Has no effect: all models are Keras models.
        model_factory: Has no effect: Keras models need none.

    Raises:
        TalosModelError: The file does not exist, or Keras cannot read it.
    """
    path = Path(saved_model)
    if path.suffix in (".keras", ".h5"):
        if not path.is_file():
            raise TalosModelError(f"saved_model must be an existing file, got {path}.")
        return load(path, custom_objects)
    config = path.with_name(path.name + ".json")
    endings = (path.with_name(path.name + ending) for ending in (".weights.h5", ".h5"))
    weights = next((each for each in endings if each.is_file()), None)
    if weights is None or not config.is_file():
        raise TalosModelError(f"saved_model: {path}.json and {path}.h5 must exist. Check the path.")
    model = from_json(config.read_text(encoding="utf-8"), custom_objects, str(config))
    load_weights(model, weights.read_bytes())
    return model


# -- models in files and as JSON -------------------------------------------------------------------


def save(model: Any, path: Path) -> None:
    """Saves a model as a ``.keras`` file, uncompiled if Keras cannot save how it was compiled.

    Raises TalosModelError if Keras cannot save the model.
    """
    try:
        model.save(path)
    except Exception:  # such as metrics=[f1score]: Keras saves no metric that is a class
        try:
            _uncompiled(model).save(path)
        except Exception as error:
            raise TalosModelError(
                f"Keras cannot save the model: {type(error).__name__}: {error}. Define get_config "
                "in your own classes."
            ) from error


def to_json(model: Any) -> tuple[str | None, bool]:
    """Returns a model as JSON (None: its class has no configuration), and whether that compiles."""
    try:
        return model.to_json(), True
    except Exception:
        try:
            return _uncompiled(model).to_json(), False
        except Exception:
            return None, False


def _uncompiled(model: Any) -> Any:
    """A copy of a model, with its weights."""
    with keras.saving.custom_object_scope(own_classes(model)):
        copy = type(model).from_config(model.get_config())
    copy.set_weights(model.get_weights())
    return copy


def load(
    path: str | Path, custom_objects: dict[str, Any] | None = None, what: str | None = None
) -> Any:
    """Returns the model of a ``.keras`` or ``.h5`` file, which notes and errors call ``what``."""

    def read(compile: bool) -> Any:
        return keras.models.load_model(path, custom_objects=custom_objects, compile=compile)

    return _compiled_if_possible(read, what or str(path))


def from_json(
    text: str, custom_objects: dict[str, Any] | None = None, what: str = "the model"
) -> Any:
    """Returns the model, with fresh weights, of a text that ``model.to_json`` returned."""

    def read(compile: bool) -> Any:
        config = json.loads(text)
        if not compile:
            config.pop("compile_config", None)
        return keras.models.model_from_json(json.dumps(config), custom_objects=custom_objects)

    return _compiled_if_possible(read, what)


def load_weights(model: Any, content: bytes) -> None:
    """Loads the weights of an HDF5 file of Keras 3 or Keras 2 into a model."""
    with tempfile.TemporaryDirectory(prefix="paceline-weights-") as folder:
        # Keras tells weights of Keras 3 and of Keras 2 apart by the name of the file.
        for name in ("model.weights.h5", "model.h5"):
            path = Path(folder, name)
            path.write_bytes(content)
            try:
                model.load_weights(path)
            except Exception:
                if name == "model.h5":
                    raise
            else:
                return


def _compiled_if_possible(read: Callable[[bool], Any], what: str) -> Any:
    try:
        return read(True)
    except Exception as error:
        try:
            model = read(False)
        except Exception as other:
            raise TalosModelError(
                f"Keras cannot read {what}: {type(other).__name__}: {other}. Pass your own classes "
                "and functions as custom_objects."
            ) from other
        say(
            f"{what}: the model can predict, but is not compiled, because its loss, metrics or "
            f"optimizer are unknown here ({_first_line(error)}). Pass custom_objects to compile it"
        )
        return model


def _first_line(error: Exception) -> str:
    return str(error).partition(". ")[0].partition("\n")[0]


def needs_objects(text: str) -> bool:
    """Returns whether a model's JSON names classes or functions that are not Keras' or Talos'.

    Classes that are registered with Keras count, too. If a function registers its class in each
    permutation, Keras would find the class of the last one.
    """
    return any(map(_is_foreign, _objects(json.loads(text))))


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """All serialized objects in a configuration, at any depth."""
    if isinstance(value, dict):
        if "class_name" in value:
            yield value
        for each in value.values():
            yield from _objects(each)
    elif isinstance(value, list):
        for each in value:
            yield from _objects(each)


def _is_foreign(found: dict[str, Any]) -> bool:
    if found["class_name"] == "__lambda__":  # Keras refuses to read one
        return True
    module = found.get("module")
    if not isinstance(module, str) or module.partition(".")[0] == "keras":
        return False
    return not str(found.get("registered_name")).startswith("talos>")


def own_classes(model: Any) -> dict[str, Any]:
    """Returns the classes of a model and of its layers that are not Keras' own, by name."""
    found = [model]
    for layer in found:
        found.extend(getattr(layer, "layers", None) or ())
    kinds = {type(each) for each in found}
    return {kind.__name__: kind for kind in kinds if kind.__module__.partition(".")[0] != "keras"}
