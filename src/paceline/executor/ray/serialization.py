"""What is sent to the machines once: the user's code and data, checked before it is sent.

Code goes by value, so that a machine need not have the user's file. It may hold little: data that a
function captures would be sent with every copy of it. Arrays of the search itself go by reference,
once to each machine. Nothing of this is ever written to a study's folder.
"""

from __future__ import annotations

import inspect
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ray import cloudpickle as untyped_cloudpickle  # pyright: ignore[reportMissingImports]

from paceline.errors import UsageError
from paceline.executor.remote.host import JobFactory

#: Of the wire alone: what it makes is sent, and never stored.
cloudpickle: Any = untyped_cloudpickle
#: Bytes of code that is sent, with what it captures.
MOST = 10_000_000


@dataclass(frozen=True)
class SerializedJobFactory:
    """A job factory as it is sent."""

    code: bytes  # the user's functions, pickled
    rest: Any  # all else; its arrays are shared by all processes of a machine


def pack(job_factory: JobFactory) -> SerializedJobFactory:
    """Makes a job factory ready to be sent.

    Raises UsageError if something in it cannot be sent, or is too large; the message names it.
    """
    code, rest = job_factory.apart()
    with _by_value(code):
        try:
            pickled = cloudpickle.dumps(code)
        except Exception as error:  # an object may raise anything when it is pickled
            raise UsageError(_why_not(code, error)) from error
        if len(pickled) > MOST:
            raise UsageError(_too_large(code, len(pickled)))
        try:
            cloudpickle.dumps(rest, protocol=5, buffer_callback=lambda buffer: None)
        except Exception as error:
            raise UsageError(
                f"x: data of this kind cannot be sent to other machines ({type(error).__name__}: "
                f"{error}). Pass arrays, or a function of hp that opens the data set on the "
                "worker: x=lambda hp: open_data()."
            ) from error
    return SerializedJobFactory(pickled, rest)


def unpack(packed: SerializedJobFactory) -> JobFactory:
    """The job factory, on the machine that it was sent to."""
    code = cloudpickle.loads(packed.code)
    return packed.rest.together(code)


def _functions(code: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The user's functions in what is sent, each with the name of its argument."""
    for name, value in code.items():
        given = getattr(value, "function", value)
        for each in given if isinstance(given, (list, tuple)) else [given]:
            yield name, each


@contextmanager
def _by_value(code: dict[str, Any]) -> Iterator[None]:
    """A block in which the user's own modules are sent with their functions."""
    modules = {module.__name__: module for module in _own_modules(code)}
    for module in modules.values():
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules.values():
            cloudpickle.unregister_pickle_by_value(module)


def _own_modules(code: dict[str, Any]) -> list[ModuleType]:
    """The modules of the user's functions, and those beside them."""
    folders, found = set(), []
    for _, function in _functions(code):
        owner = function if hasattr(function, "__qualname__") else type(function)
        module = sys.modules.get(getattr(owner, "__module__", "") or "")
        file = getattr(module, "__file__", None)
        if module is None or module.__name__ == "__main__" or _is_installed(file):
            continue
        found.append(module)
        if file:
            folders.add(Path(file).resolve().parent)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not file or module.__name__ == "__main__" or _is_installed(file):
            continue
        if Path(file).resolve().parent in folders:
            found.append(module)
    return found


def _is_installed(file: str | None) -> bool:
    """Whether a module belongs to Python, or to an installed package, Paceline among them."""
    if file is None:
        return True
    path = Path(file).resolve()
    folders = [*sysconfig.get_paths().values(), *site.getsitepackages()]
    folders.append(str(Path(__file__).resolve().parents[2]))
    return any(path.is_relative_to(Path(folder).resolve()) for folder in folders)


def _captured(function: Any) -> dict[str, Any]:
    """What a function captures: name -> value, of globals, of cells, and of the functions there."""
    found: dict[str, Any] = {}
    waiting, seen = [function], set()
    while waiting:
        each = waiting.pop()
        each = getattr(each, "__func__", each)
        if not inspect.isfunction(each):
            call = vars(type(each)).get("build", vars(type(each)).get("__call__"))
            if isinstance(each, (ModuleType, type)) or not inspect.isfunction(call):
                continue
            kind = type(each).__name__
            found |= {f"{kind}.{name}": value for name, value in vars(each).items()}
            each = call
        if id(each) in seen:
            continue
        seen.add(id(each))
        closed = inspect.getclosurevars(each)
        for name, value in {**closed.globals, **closed.nonlocals}.items():
            if isinstance(value, ModuleType):
                continue
            found.setdefault(name, value)
            waiting.append(value)
    return found


def _size(value: Any) -> int:
    try:
        return len(cloudpickle.dumps(value))
    except Exception:
        return 0


def _why_not(code: dict[str, Any], error: Exception) -> str:
    for argument, function in _functions(code):
        for name, value in _captured(function).items():
            if inspect.isfunction(value):
                continue
            try:
                cloudpickle.dumps(value)
            except Exception as found:
                return (
                    f"{argument}: the function uses {name!r}, of type {type(value).__name__}, "
                    f"which cannot be sent to other machines ({found}). Create it inside the "
                    "function, or leave it out."
                )
    return (
        f"{', '.join(code)} cannot be sent to other machines ({type(error).__name__}: {error}). "
        "Leave out locks, open files and connections, which belong to this process."
    )


def _too_large(code: dict[str, Any], size: int) -> str:
    largest = max(
        (
            (_size(value), argument, name)
            for argument, function in _functions(code)
            for name, value in _captured(function).items()
        ),
        default=(0, next(iter(code), "build"), ""),
    )
    what = f", most of it {largest[2]!r} ({largest[0] / 1e6:.0f} MB)" if largest[2] else ""
    return (
        f"{largest[1]}: the function captures {size / 1e6:.0f} MB{what}, but at most "
        f"{MOST / 1e6:.0f} MB are sent to each worker. Pass data to search(x, y), which sends "
        "them once to each machine, or load them inside the function."
    )
