"""What two jobs of a ``Parallel`` share: arguments, and parts of arguments."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

from paceline.pack.callbacks.reachable import is_of_user

#: Objects within objects that are followed: a pipeline in a search holds steps, these their model.
_DEEPEST = 8


def shared_objects(one: Any, other: Any) -> dict[str, Any]:
    """Returns label -> function or object that both jobs use; jobs are joblib's batches of calls.

    An estimator that each job has a clone of is not shared, but its parameters may be; methods of
    a user's class are, because they may change what is outside of them.
    """
    found: dict[str, Any] = {}
    waiting = [("job", one, other, 0)]
    while waiting:
        label, mine, others, depth = waiting.pop()
        parts, theirs = dict(_parts(mine)), dict(_parts(others))
        if mine is others:
            found[label] = mine
            if not hasattr(mine, "get_params"):
                continue
        elif type(mine) is not type(others):
            continue
        if is_of_user(type(mine)):
            found |= _methods(type(mine))
        if depth < _DEEPEST:
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


def _methods(cls: type) -> dict[str, Any]:
    return {
        f"{owner.__name__}.{name}": part
        for owner in filter(is_of_user, cls.__mro__)
        for name, part in vars(owner).items()
        if isinstance(part, types.FunctionType) and name != "__init__"
    }
