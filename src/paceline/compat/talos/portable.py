"""Parameter values as JSON and back: tuples, NumPy's numbers, and public names of Keras.

A file may come from a stranger, so reading it must not run code. Classes and functions are looked
up by name in a few modules of Keras, and never imported. Others, such as the user's own functions,
are written as their names and stay text.
"""

from __future__ import annotations

from typing import Any, cast

import keras
import numpy as np

from paceline.compat.talos.errors import TalosDataError

#: Key of the only entry that tells a value from an ordinary dictionary.
_TAG = "__talos__"
#: Modules of Keras whose objects are built from their configuration. Layers are not among them,
#: because some layers read files.
_WITH_CONFIG = ("constraints", "initializers", "losses", "metrics", "optimizers", "regularizers")
#: Modules of Keras whose classes and functions are found by their names.
_MODULES = ("activations", "layers", *_WITH_CONFIG)
_NUMBERS = "biuf"


def encode(value: Any) -> Any:
    """Returns a value as JSON has it: dictionaries with text as keys, lists, text, numbers."""
    if isinstance(value, np.generic) and value.dtype.kind in _NUMBERS:
        return {_TAG: "number", "dtype": value.dtype.name, "value": value.item()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS:
        return {_TAG: "array", "dtype": value.dtype.name, "value": value.tolist()}
    if isinstance(value, tuple):
        return {_TAG: "tuple", "value": [encode(each) for each in value]}
    if isinstance(value, list):
        return [encode(each) for each in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and _TAG not in value:
            return {key: encode(each) for key, each in value.items()}
        pairs = [[encode(key), encode(each)] for key, each in value.items()]
        return {_TAG: "dict", "value": pairs}
    name = _keras_name(value)
    if name is not None:
        return {_TAG: "keras", "name": name}
    name, of_keras = _keras_name(type(value), _WITH_CONFIG), cast(Any, value)
    if name is not None:
        return {_TAG: "keras", "name": name, "config": encode(of_keras.get_config())}
    return getattr(value, "__name__", None) or str(value)


def decode(value: Any) -> Any:
    """Returns the value that ``encode`` was given."""
    if isinstance(value, list):
        return [decode(each) for each in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: decode(each) for key, each in value.items()}
    try:
        return _tagged(value)
    except TalosDataError:
        raise
    except Exception as error:  # whatever a crafted file makes NumPy and Keras raise
        raise TalosDataError(
            f"params: cannot read {value.get(_TAG)!r}: {type(error).__name__}: {error}."
        ) from error


def _tagged(found: dict[str, Any]) -> Any:
    kind = found[_TAG]
    if kind in ("number", "array"):
        dtype = np.dtype(str(found["dtype"]))
        if dtype.kind not in _NUMBERS:
            raise TalosDataError(f"params: the dtype must be of numbers, got {dtype}.")
        array = np.array(found["value"], dtype)
        return array if kind == "array" else array[()]
    if kind == "tuple":
        return tuple(decode(each) for each in found["value"])
    if kind == "dict":
        return {decode(key): decode(each) for key, each in found["value"]}
    if kind == "keras":
        allowed = _WITH_CONFIG if "config" in found else _MODULES
        module, _, name = str(found["name"]).partition(".")
        named = vars(getattr(keras, module)).get(name) if module in allowed else None
        if not callable(named) or name.startswith("_"):
            raise TalosDataError(f"params: Keras has no {found['name']!r}.")
        made: Any = named
        return made.from_config(decode(found["config"])) if "config" in found else made
    raise TalosDataError(f"params: the kind of a value is unknown: {kind!r}.")


def _keras_name(value: Any, modules: tuple[str, ...] = _MODULES) -> str | None:
    """The name of a class or function below ``keras``, such as "optimizers.Adam"."""
    name = getattr(value, "__name__", None)
    for module in modules:
        if isinstance(name, str) and vars(getattr(keras, module)).get(name) is value:
            return f"{module}.{name}"
    return None
