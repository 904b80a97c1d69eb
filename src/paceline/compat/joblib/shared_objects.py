"""The arguments, and parts of arguments, that two jobs of a ``Parallel`` share."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.pack.callbacks.reachable import is_of_user

#: How deep objects within objects are searched: a pipeline in a search holds steps with models.
_DEEPEST = 8
#: The depth of arguments: a job holds calls, and a call its arguments.
_ARGUMENT = 4


def shared_objects(one: Any, other: Any) -> dict[str, Any]:
    """Returns label -> function or object that both jobs use; jobs are joblib's batches of calls.

    If each job has its own clone of an estimator, the estimator is not shared, but its parameters
    may be. An estimator that is a parameter is cloned before it is fitted: this is a rule of
    scikit-learn. An estimator that both jobs get may change, so its attributes are shared. Methods
    of a user's class count as functions, because they may change other objects.
    """
    found: dict[str, Any] = {}
    waiting = [("job", one, other, 0)]
    while waiting:
        label, mine, others, depth = waiting.pop()
        if is_of_user(type(mine)):
            found |= _methods(type(mine))
        if mine is others and not _holds_estimators(mine):
            found[label] = mine
        elif type(mine) is type(others) and depth < _DEEPEST:
            parts, theirs = dict(_parts(mine)), dict(_parts(others))
            if mine is others and depth <= _ARGUMENT and hasattr(mine, "get_params"):
                found[label] = _Attributes(mine)
            both = parts.keys() & theirs.keys()
            waiting += [(name, parts[name], theirs[name], depth + 1) for name in sorted(both)]
    return {label: value for label, value in found.items() if not isinstance(value, _PLAIN)}


def array_bytes(job: Any) -> int:
    """Returns the bytes of the arrays and tables among a job's arguments."""
    sizes: dict[int, int] = {}
    for _, args, kwargs in getattr(job, "items", ()):
        for value in (*args, *kwargs.values()):
            array = value.to_numpy() if hasattr(value, "to_numpy") else value  # of pandas
            sizes[id(value)] = int(getattr(array, "nbytes", 0))
    return sum(sizes.values())


_PLAIN = (bool, int, float, complex, str, bytes, type(None), types.ModuleType)


class _Attributes(Mapping[str, int]):
    """The identities of the objects that are an estimator's attributes now.

    Parts of these objects are searched separately: estimators among them are cloned before they
    change.
    """

    def __init__(self, estimator: Any) -> None:
        self._values = vars(estimator)

    def __getitem__(self, name: str) -> int:
        return id(self._values[name])

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Name -> part of a job, an estimator, a container, or an object of a user's class."""
    if isinstance(value, dict):
        yield from ((str(key), part) for key, part in value.items())
    elif isinstance(value, (list, tuple)):
        for i, part in enumerate(value):
            yield getattr(part, "__name__", f"argument {i}"), part
    elif isinstance(value, functools.partial):
        yield from {"function": value.func, **value.keywords}.items()
        yield "arguments", value.args
    elif isinstance(getattr(value, "items", None), list):  # a job: (function, args, kwargs)
        yield "calls", value.items
    elif isinstance(getattr(value, "function", None), types.FunctionType):  # sklearn's delayed
        yield value.function.__name__, value.function
    elif hasattr(value, "get_params") or is_of_user(type(value)):
        yield from getattr(value, "__dict__", {}).items()


def _holds_estimators(value: Any, depth: int = 0) -> bool:
    """Whether a value is an estimator, or a container with one."""
    if isinstance(value, (dict, list, tuple)) and depth < _DEEPEST:
        parts = value.values() if isinstance(value, dict) else value
        return any(_holds_estimators(part, depth + 1) for part in parts)
    return hasattr(value, "get_params")


def _methods(cls: type) -> dict[str, Any]:
    return {
        f"{owner.__name__}.{name}": part
        for owner in filter(is_of_user, cls.__mro__)
        for name, part in vars(owner).items()
        if isinstance(part, types.FunctionType) and name != "__init__"
    }
