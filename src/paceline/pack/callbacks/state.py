"""The state of callbacks in a checkpoint: plain values as JSON, arrays as arrays.

Of Keras' objects, such as a metric or a second model, the values of the variables are stored, for
those that ``on_train_begin`` makes again. Attributes of other types (a lock, an open file, an
object of the user's) cannot be stored. They start over with ``on_train_begin``, and the user is
told their names. So does an attribute that a callback makes only later: a checkpoint may change
attributes that are there, but add none.

Paths are neither stored nor restored. They follow from the callback as the user made it and from
the folder in which the study is now, which may have been moved. A file must not decide where a
callback writes, or what it removes. A list or dict that holds a path starts over, and so does a
text that looks like a path. If it has changed while training, the user is told its name.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import keras
import numpy as np

from paceline.program import keras_private
from paceline.program.initial_weights import all_variables

#: Functions that Keras' callbacks hold; by name, since a file must not be able to name any other.
_FUNCTIONS = {"less": keras.ops.less, "greater": keras.ops.greater}
#: Attribute of a callback: names of those that hold paths of its trial's (``per_trial.py``).
PATHS_OF_TRIAL = "_paceline_paths"
#: Attribute of a CSVLogger: the file that keeps how long its log was before the trial, and of what
#: trial; see ``TrialPaths.first_length``.
FIRST_LENGTH = "_paceline_first_length"
#: Attributes that belong to one run of a callback.
_OF_THE_RUN = frozenset({"_model", "model", "params", PATHS_OF_TRIAL, FIRST_LENGTH})
#: Such attributes of Keras' own classes: files that are opened again, and the epoch's.
_OF_KERAS = frozenset({"csv_file", "writer", keras_private.WRITERS}) | keras_private.OF_THE_EPOCH
#: Attributes that Keras' own callbacks make of their arguments. They are not restored: the
#: ``min_delta`` of ReduceLROnPlateau has another sign in Keras 3.10 than in 3.15.
_COMPARES = "monitor_op"
_OF_ARGUMENTS = frozenset({"min_delta", _COMPARES})
#: Attributes in which Keras' callbacks hold where they write, or whom they tell.
_PLACES = frozenset({"filepath", "filename", "log_dir", "directory", "root", "path"})
_PLACES |= keras_private.LOG_FOLDERS
#: A text that may name a file: a path, or a name with an ending.
_FILE = re.compile(r".*[/\\].*|\S*\.[A-Za-z]\w{0,9}|\.\.", re.DOTALL)


_PLAIN = keras.callbacks.Callback
#: Values that two attributes may have in common, and change for both.
_MUTABLE = (list, dict, np.ndarray)
#: Keras' objects with variables.
_WITH_VARIABLES = (keras.Variable, keras.Layer, keras.Metric, keras.optimizers.Optimizer)


def attributes_of(callbacks: Sequence[Any]) -> list[dict[str, Any]]:
    """Each callback's attributes, as ``callback_state`` compares them with later ones.

    Name -> a path or text itself; of Keras' objects, how many variables they have.
    """
    return [
        {
            key: str(value) if isinstance(value, (str, Path)) else len(_variables(callback, value))
            for key, value in vars(callback).items()
            if key not in _left_out(callback)
        }
        for callback in callbacks
    ]


def callback_state(
    callbacks: Sequence[Any],
    name: str,
    arrays: dict[str, np.ndarray],
    begun_with: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The attributes of one trial's callbacks, for a checkpoint.

    Arrays among them go into ``arrays``, under names that begin with ``name``. ``begun_with`` is
    what ``attributes_of`` returned when training had begun; other attributes are not stored.

    Returns JSON values for each callback: its class, its attributes, the variables of attributes
    that are Keras' objects, and references to repeated objects. Also the names of attributes that
    cannot be stored, and the bytes that a CSVLogger has written.
    """
    found, seen = [], {}
    for at, callback in enumerate(callbacks):
        attributes, variables, same, lost = {}, {}, {}, []
        for key, value in vars(callback).items():
            if key in _left_out(callback):
                continue
            if _is_place(callback, key, value):
                if begun_with[at].get(key) != str(value):
                    lost.append(key)
                continue
            if key not in begun_with[at]:
                lost.append(key)
                continue
            if _is_of_keras(value):
                own = _variables(callback, value)
                if len(own) != begun_with[at][key]:
                    lost.append(key)
                elif own:
                    values = [np.array(keras.ops.convert_to_numpy(v)) for v in own]
                    variables[key] = _encode(values, f"{name}.{at}.{key}", arrays)
                continue
            try:
                attributes[key] = _encode(value, f"{name}.{at}.{key}", arrays)
            except _CannotBeStored:
                if _has_state(value):
                    lost.append(key)
            else:
                first = seen.setdefault(id(value), [at, key]) if isinstance(value, _MUTABLE) else []
                if first and first != [at, key]:
                    same[key] = first
        facts = {"class": type(callback).__name__, "attributes": attributes, "lost": lost}
        facts |= {"variables": variables, "same": same}
        if isinstance(callback, keras.callbacks.CSVLogger):
            cast(Any, callback.csv_file).flush()
            facts["length"] = os.path.getsize(callback.filename)
        found.append(facts)
    return found


@dataclass(frozen=True, eq=False)
class CallbackState:
    """The state of one trial's callbacks, read from a checkpoint."""

    facts: dict[str, Any]  # with the list that ``callback_state`` returned under "callbacks"
    arrays: dict[str, np.ndarray]  # that it added, by name

    def of(self, callbacks: Sequence[Any]) -> list[tuple[Any, Mapping[str, Any]]]:
        """Each callback with its stored facts; callbacks of another class are left out."""
        pairs = zip(callbacks, self.facts["callbacks"], strict=False)
        return [(each, facts) for each, facts in pairs if facts["class"] == type(each).__name__]


@contextlib.contextmanager
def resumed(callbacks: Sequence[Any], kept: CallbackState) -> Iterator[None]:
    """A block in which training begins for callbacks that continue: after it they are as kept.

    Attributes that are not there by then are not made, and paths stay as they are. So do those that
    Keras' own callbacks make of their arguments.
    """
    pairs = kept.of(callbacks)
    for callback, facts in pairs:
        if isinstance(callback, keras.callbacks.CSVLogger):
            with contextlib.suppress(OSError):  # a file that has gone is started over
                if os.path.getsize(callback.filename) > facts["length"]:
                    os.truncate(callback.filename, facts["length"])
            callback.append = True
    yield
    for callback, facts in pairs:
        _restore(callback, facts, kept.arrays)
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.append_header = os.path.getsize(callback.filename) == 0
    for callback, facts in pairs:
        for key, (at, other) in facts.get("same", {}).items():
            value = vars(callbacks[at]).get(other) if at < len(callbacks) else None
            if isinstance(value, _MUTABLE) and _may_become(callback, key, value):
                setattr(callback, key, value)


def _restore(callback: Any, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Gives a callback back what a checkpoint holds of its attributes."""
    kerass_own = getattr(keras.callbacks, type(callback).__name__, None) is type(callback)
    for key, stored in facts["attributes"].items():
        if kerass_own and key in _OF_ARGUMENTS:
            continue
        with contextlib.suppress(_CannotBeStored):
            value = _decode(stored, arrays)
            if _may_become(callback, key, value):
                setattr(callback, key, value)
    if isinstance(callback, keras.callbacks.ModelCheckpoint) and facts["attributes"].get(_COMPARES):
        keras_private.choose_comparison(callback)  # it may save before its first epoch ends
    for key, stored in facts.get("variables", {}).items():
        own, values = _variables(callback, vars(callback).get(key)), _decode(stored, arrays)
        if [tuple(v.shape) for v in own] == [np.shape(value) for value in values]:
            for variable, value in zip(own, values, strict=True):
                variable.assign(value)


def _may_become(callback: Any, key: str, value: Any) -> bool:
    """Whether a checkpoint may give an attribute of a callback that value."""
    if key in _left_out(callback) or key not in vars(callback):
        return False
    now = vars(callback)[key]
    return not (_is_place(callback, key, now) or _is_place(callback, key, value))


def _left_out(callback: Any) -> frozenset[str]:
    """The attributes of a callback that belong to one run."""
    bases = type(callback).__mro__
    own = any(b.__module__.startswith(keras_private.OWN) and b is not _PLAIN for b in bases)
    return _OF_THE_RUN | _OF_KERAS if own else _OF_THE_RUN


def release(callbacks: Sequence[Any]) -> None:
    """Closes the files of Keras' own callbacks whose ``on_train_end`` will not be called."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger):
            file = getattr(callback, "csv_file", None)  # Keras 3.10 sets it in on_train_begin only
            if file is not None:
                file.close()
        if isinstance(callback, keras.callbacks.TensorBoard):
            for writer in vars(callback).get(keras_private.WRITERS, {}).values():
                writer.close()


def _is_place(callback: Any, key: str, value: Any) -> bool:
    """Whether an attribute of a callback says where it writes."""
    if key in vars(callback).get(PATHS_OF_TRIAL, ()):
        return True
    if type(callback) is keras.callbacks.History:  # it writes nothing, and logs may be "val/auc"
        return False
    return (isinstance(value, str) and key in _PLACES) or _holds_path(value)


def _holds_path(value: Any) -> bool:
    """Whether a value is a path or the name of a file, or a list, tuple or dict that holds one."""
    if isinstance(value, (list, tuple)):
        return any(map(_holds_path, value))
    if isinstance(value, dict):
        return any(_holds_path(part) for pair in value.items() for part in pair)
    return isinstance(value, Path) or (isinstance(value, str) and bool(_FILE.fullmatch(value)))


class _CannotBeStored(Exception):
    pass


def _encode(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """A value as JSON; arrays go into ``arrays`` under ``name``.

    Raises _CannotBeStored where the value has another type.
    """
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        arrays[name] = np.asarray(value)
        return {"scalar": name}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufcV" and not value.dtype.names:
        arrays[name] = np.array(value)
        return {"array": name}
    if isinstance(value, jax.Array):
        arrays[name] = np.array(value)
        return {"jax": name}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        items = [_encode(item, f"{name}.{at}", arrays) for at, item in enumerate(value)]
        return {type(value).__name__: items}
    if isinstance(value, dict) and type(value) is dict:
        pairs = enumerate(value.items())
        return {
            "dict": [
                [_encode(key, f"{name}.{at}k", arrays), _encode(item, f"{name}.{at}v", arrays)]
                for at, (key, item) in pairs
            ]
        }
    for known, function in _FUNCTIONS.items():
        if value is function:
            return {"function": known}
    raise _CannotBeStored


_KINDS: dict[str, Callable[[Any, Mapping[str, np.ndarray]], Any]] = {
    "scalar": lambda v, arrays: arrays[v][()],
    "array": lambda v, arrays: np.array(arrays[v]),
    "jax": lambda v, arrays: jnp.asarray(arrays[v]),
    "list": lambda v, arrays: [_decode(item, arrays) for item in v],
    "tuple": lambda v, arrays: tuple(_decode(item, arrays) for item in v),
    "dict": lambda v, arrays: {_decode(k, arrays): _decode(i, arrays) for k, i in v},
    "function": lambda v, _: _FUNCTIONS[v],
}


def _decode(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The value that ``_encode`` was given; raises _CannotBeStored for an unknown kind."""
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind not in _KINDS:
        raise _CannotBeStored
    return _KINDS[kind](held, arrays)


def _is_of_keras(value: Any) -> bool:
    """Whether a value is an object of Keras' with variables, or a list of them."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    return bool(parts) and all(isinstance(part, _WITH_VARIABLES) for part in parts)


def _variables(callback: Any, value: Any) -> list[Any]:
    """The variables in an attribute of a callback; those of its model are not part of the state of
    its own.
    """
    if not _is_of_keras(value):
        return []
    parts = value if isinstance(value, (list, tuple)) else [value]
    own = [[part] if isinstance(part, keras.Variable) else part.variables for part in parts]
    found = [variable for each in own for variable in each]
    model = callback.model
    if model is None:
        return found
    known = {id(variable) for variable in all_variables(model)}
    return [variable for variable in found if id(variable) not in known]


def _has_state(value: Any) -> bool:
    """Whether a value that cannot be stored may have changed while training."""
    if inspect.isroutine(value) or isinstance(value, (type, type(os), functools.partial)):
        return False
    if type(value).__module__.startswith(keras_private.OWN):  # a loss, a schedule
        return not callable(value)
    return not callable(value) or bool(getattr(value, "__dict__", True))
