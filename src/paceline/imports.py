"""What is done around the import of another library's module, whoever imports it.

An import makes hundreds of thousands of objects that stay. Python's garbage collector would look
through all of them again and again, which is a seventh of the time that ``import keras`` takes.
"""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: Runs a module's code: given the module, and what its own loader does with it.
Loading = Callable[[ModuleType, Callable[[ModuleType], None]], None]


def around_import(name: str, load: Loading) -> None:
    """Calls ``load`` when a module is imported, in the place of its loader; once for each name."""
    finders = [each for each in sys.meta_path if isinstance(each, _ModuleFinder)]
    if not any(finder.name == name for finder in finders):
        sys.meta_path.insert(0, _ModuleFinder(name, load))


def import_keras_quickly() -> None:
    """Lets Python's garbage collector rest whenever Keras is imported."""

    def load(module: ModuleType, run: Callable[[ModuleType], None]) -> None:
        with uncollected():
            run(module)

    around_import("keras", load)


def imported(name: str) -> ModuleType:
    """Imports a module; Python's garbage collector rests if the module is not imported yet."""
    with nullcontext() if name in sys.modules else uncollected():
        return importlib.import_module(name)


@contextmanager
def uncollected() -> Iterator[None]:
    """A block that makes many objects that stay; Python's garbage collector rests meanwhile."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if gc.get_freeze_count() == 0:
                # Puts them among the old ones without a look; else the next look is at all of them.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


class _ModuleFinder(importlib.abc.MetaPathFinder):
    """Finds a module like the other finders, and puts ``load`` around its loader."""

    def __init__(self, name: str, load: Loading) -> None:
        self.name, self._load = name, load

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._wrap(spec.loader)
                return spec
        return None

    def _wrap(self, loader: Any) -> None:
        """Puts ``load`` around this loader, which belongs to one import."""
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the module has its own loader while it runs
            self._load(module, run)

        loader.exec_module = exec_module
