"""Imports the user's FILE.py: its ``build``, its ``data()``, and a digest that shows changes."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.errors import UsageError, missing, with_keras_3

DEFAULT_FUNCTION = "build"
#: Names in a user's file that build no model.
_NO_BUILDS = ("data", "constraints")


@dataclass(frozen=True)
class UserFile:
    """A Python file that describes a model and, perhaps, its data."""

    path: Path  # absolute
    function: str  # name of the function or HyperModel that builds the model
    digest: str  # ``sha256:`` and the hex digest of the file's bytes
    build: Callable[..., Any]  # a function of hp, or an object with a method build(hp)
    data: Callable[[], Any] | None  # None: the file has none
    constraints: Any = None  # as ``Tuner`` takes them; None: the file has none


def split_target(target: str) -> tuple[Path, str]:
    """Split ``FILE.py`` or ``FILE.py:NAME`` into the path and the name (``build`` by default).

    A colon without a Python name after it belongs to the path, as in the paths of Windows.
    """
    path, colon, name = target.rpartition(":")
    if colon and name.isidentifier():
        return Path(path), name
    return Path(target), DEFAULT_FUNCTION


def find(path: Path) -> Path:
    """Return the absolute path of an existing Python file."""
    try:
        path.stat()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file. Name the Python file with build(hp).") from None
    except OSError as error:  # the name is too long, or a folder above it cannot be read
        raise UsageError(
            f"{path}: {error.strerror}. Name the Python file with build(hp)."
        ) from None
    if path.is_dir():
        raise UsageError(f"{path} is a folder. Name the Python file with build(hp).")
    if path.suffix != ".py":
        raise UsageError(f"the model's file must end in .py, got {path}.")
    return path.resolve()


def file_digest(path: Path) -> str:
    """Return ``sha256:`` and the hex digest of a file's bytes."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def load(path: Path, function: str = DEFAULT_FUNCTION) -> UserFile:
    """Import a user's file, and find its function or HyperModel.

    The folder of the file becomes the first entry of ``sys.path``, as with ``python FILE.py``, so
    that the file can import its neighbors. ``function`` names a function of ``hp``, a HyperModel,
    or a HyperModel class that takes no arguments.
    """
    path = find(path)
    digest = file_digest(path)
    module = _import(path)
    return UserFile(
        path=path,
        function=function,
        digest=digest,
        build=_pick_build(module, path, function),
        data=_pick_data(module, path),
        constraints=getattr(module, "constraints", None),
    )


def _import(path: Path) -> ModuleType:
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # a .py file always has a spec
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and Keras' registry look modules up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        told = missing(error) if isinstance(error, ImportError) else None
        if told is not None:
            raise told from error
        raise UsageError(
            f"{path.name} could not be imported: {describe(error, path)}. To see the whole "
            f"traceback, run `python {path.name}`."
        ) from error
    except SystemExit as error:
        del sys.modules[name]
        raise UsageError(
            f"{path.name} calls sys.exit({error.code!r}) when imported. Put code of the script "
            'under `if __name__ == "__main__":`.'
        ) from error
    return module


def _module_name(path: Path) -> str:
    # A saved model names the module of its custom layers. If that name is the stem of this file,
    # anyone who imports the file can load the model. A loaded module of that name must not be
    # replaced.
    stem = path.stem
    taken = sys.modules.get(stem)
    mine = taken is not None and getattr(taken, "__file__", None) == str(path)
    if stem.isidentifier() and (taken is None or mine):
        return stem
    return "paceline_user_" + "".join(c if c.isalnum() else "_" for c in stem)


def _pick_build(module: ModuleType, path: Path, function: str) -> Any:
    found = getattr(module, function, None)
    if found is None:
        there = [name for name, value in vars(module).items() if _defined_here(value, module)]
        hint = f", only {', '.join(there)}" if there else ""
        ways = f"Write `def {function}(hp)` that returns a compiled keras.Model"
        builds = [name for name in there if name not in _NO_BUILDS]
        if builds:
            like = difflib.get_close_matches(function, builds, n=1) or builds
            ways += f", or name another function: {path.name}:{like[0]}"
        raise UsageError(f"{path.name} has no {function!r}{hint}. {ways}.")
    if inspect.isclass(found) and callable(getattr(found, "build", None)):
        return _made(found, path)
    if callable(found) or callable(getattr(found, "build", None)):
        return found
    raise UsageError(
        f"{path.name}: {function!r} must be a function of hp, got {type(found).__name__} "
        f"{found!r}. Write `def {function}(hp)` that returns a compiled keras.Model."
    )


def _made(hypermodel: type, path: Path) -> Any:
    try:
        return hypermodel()
    except (Exception, SystemExit) as error:
        name = hypermodel.__name__
        raise UsageError(
            f"{path.name}: {name}() raised {describe(error, path)}. Make the object in the file, "
            f"`model = {name}(...)`, and use {path.name}:model."
        ) from error


def _defined_here(value: object, module: ModuleType) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__


def _pick_data(module: ModuleType, path: Path) -> Callable[[], Any] | None:
    data = getattr(module, "data", None)
    if data is None or callable(data):
        return data
    raise UsageError(
        f"{path.name}: 'data' must be a function, got {type(data).__name__}. Write `def data()` "
        "that returns (x, y), (x_val, y_val)."
    )


def describe(error: BaseException, path: Path) -> str:
    """Return an error as text, with the line of the user's file that raised it, if known."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    where = f" (line {lines[-1]})" if lines else ""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return with_keras_3(f"{type(error).__name__}: {message}{where}")
