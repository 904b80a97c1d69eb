"""The backend that Keras runs on, and whose choice it is. Keras' own keras.json is only read."""

from __future__ import annotations

import os
import sys
from typing import Any

#: What Keras 3.10 and later write into a missing keras.json at their first import, whatever
#: KERAS_BACKEND says and whatever is installed.
_WRITTEN_BY_KERAS = {
    "floatx": "float32",
    "epsilon": 1e-07,
    "backend": "tensorflow",
    "image_data_format": "channels_last",
}


def select_jax() -> None:
    """Makes Keras run on JAX in this process, unless somebody has chosen a backend.

    Keras reads KERAS_BACKEND, or else its keras.json, once, when it is imported.
    """
    chosen = "keras" in sys.modules or os.environ.get("KERAS_BACKEND") or chosen_in_file()
    if not chosen:
        os.environ["KERAS_BACKEND"] = "jax"


def chosen_in_file() -> tuple[str, dict[str, Any]] | None:
    """The path and content of a keras.json that a user has written.

    None if the file is missing or as Keras writes it, or names no installed backend.
    """
    import json
    from importlib.util import find_spec

    path = _path()
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if found == _WRITTEN_BY_KERAS or find_spec(found["backend"]) is None:
            return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ImportError):
        return None  # no file, no JSON, no object, or a name that is not a module's
    return path, found


def _path() -> str:
    """Where Keras looks for its file."""
    folder = os.environ.get("KERAS_HOME")
    if folder is None:
        home = os.path.expanduser("~")
        folder = os.path.join(home if os.access(home, os.W_OK) else "/tmp", ".keras")
    return os.path.expanduser(os.path.join(folder, "keras.json"))


def reason(backend: str) -> str:
    """Why Keras runs on ``backend``, to follow "because"."""
    if os.environ.get("KERAS_BACKEND") == backend:
        return f"KERAS_BACKEND={backend} is set"
    path, content = chosen_in_file() or ("", {})
    if content.get("backend") == backend:
        keys = sorted(content.keys() | _WRITTEN_BY_KERAS.keys())
        names = [f'"{key}"' for key in keys if content.get(key) != _WRITTEN_BY_KERAS.get(key)]
        return (
            f"{path} names it and differs from the file that Keras writes by itself, "
            f"in {', '.join(names)}"
        )
    how = " (`import tensorflow` imports it)" if backend == "tensorflow" else ""
    return f"keras was imported before paceline{how}"
