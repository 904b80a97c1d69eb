"""Writes Keras models, and reads them from files and from JSON, with objects of the user's own.

The names of such classes and functions are in a file, but not their code. Without them Keras
cannot compile a model again, yet the model predicts as before: so a model that cannot be compiled
is read uncompiled, with a note.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras

from paceline.compat.talos.errors import TalosModelError
from paceline.compat.talos.progress import say


def save(model: Any, path: Path) -> None:
    """Saves a model as a ``.keras`` file; uncompiled if what it was compiled with cannot be saved.

    Args:
        model: The model.
        path: The file.

    Raises:
        TalosModelError: Keras cannot save the model.
    """
    try:
        model.save(path)
    except Exception:  # such as metrics=[f1score]: Keras saves no metric that is given as a class
        try:
            _uncompiled(model).save(path)
        except Exception as error:
            raise TalosModelError(
                f"Keras cannot save the model: {type(error).__name__}: {error}. A class of your "
                "own needs get_config."
            ) from error


def to_json(model: Any) -> tuple[str | None, bool]:
    """Returns a model as JSON, and whether the JSON has all that the model was compiled with.

    The JSON is None if the model's class has no configuration.
    """
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
    """Returns the model of a ``.keras`` or ``.h5`` file; uncompiled, with a note, if need be.

    Args:
        path: The file.
        custom_objects: Name -> class or function.
        what: What notes and errors call the file; None: its path.

    Raises:
        TalosModelError: Keras cannot read the model.
    """

    def read(compile: bool) -> Any:
        return keras.models.load_model(path, custom_objects=custom_objects, compile=compile)

    return _compiled_if_possible(read, what or str(path))


def from_json(
    text: str, custom_objects: dict[str, Any] | None = None, what: str = "the model"
) -> Any:
    """Returns the model of a JSON text, with fresh weights; uncompiled, with a note, if need be.

    Args:
        text: What ``model.to_json`` returned.
        custom_objects: Name -> class or function.
        what: What notes and errors call the model.

    Raises:
        TalosModelError: Keras cannot read the model.
    """

    def read(compile: bool) -> Any:
        config = json.loads(text)
        if not compile:
            config.pop("compile_config", None)
        return keras.models.model_from_json(json.dumps(config), custom_objects=custom_objects)

    return _compiled_if_possible(read, what)


def load_weights(model: Any, content: bytes) -> None:
    """Gives a model the weights of an HDF5 file, whether Keras 3 or Keras 2 has written it.

    Args:
        model: The model.
        content: What is in the file.
    """
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
                f"Keras cannot read {what}: {type(other).__name__}: {other}. Classes and functions "
                "of your own go into custom_objects."
            ) from other
        say(
            f"{what}: the model predicts, but is not compiled, because what it was compiled with "
            f"is not known here ({_first_line(error)}); pass custom_objects to have it compiled"
        )
        return model


def _first_line(error: Exception) -> str:
    return str(error).partition(". ")[0].partition("\n")[0]


def needs_objects(text: str) -> bool:
    """Returns whether a model's JSON names classes or functions that are not Keras' or Talos'.

    Classes that are registered with Keras count as well: a function that registers its class anew
    in each permutation would get the last permutation's.

    Args:
        text: What ``model.to_json`` returned.
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
