"""The user's own modules, whose code is sent as it is in the session, with the values it has."""

from __future__ import annotations

import io
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cloudpickle

from paceline.pack.callbacks.reachable import is_users_module

#: Of the thread that pickles by value: what cloudpickle is told counts for all threads.
_pickling = threading.RLock()


@contextmanager
def sent_by_value() -> Iterator[None]:
    """A block in which functions and classes of the user's modules are pickled by value.

    Otherwise the other process would import a module from its file. Its globals would then have
    their first values, and whatever the module does at its import would be done again. One thread
    at a time is in such a block.
    """
    with _pickling:
        modules, before = [], cloudpickle.list_registry_pickle_by_value()  # of the user's
        try:
            for name, module in list(sys.modules.items()):
                users = name == getattr(module, "__name__", None) != "__main__"
                if users and name not in before and is_users_module(module):
                    cloudpickle.register_pickle_by_value(module)
                    modules.append(module)
            yield
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


#: cloudpickle (3.0 to 3.1, and back to 1.2) numbers classes that it pickles by value. Unpickling a
#: number that is known changes the class that is known by it. These are the two tables. There is no
#: public way to say which class is meant. None: this release of cloudpickle has no such tables.
_NUMBERS: Any = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", None)
_CLASSES: Any = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", None)


def why_no_classes() -> str | None:
    """Why the user's classes cannot be sent; None: they can."""
    if _NUMBERS is None or _CLASSES is None:
        return "this release of cloudpickle is not supported; install cloudpickle 3.1"
    return None


def send_classes_anew() -> None:
    """Makes the next message hold the user's classes as they are now; in ``sent_by_value``.

    Under its old number, the process would keep a class with the globals of the last message.
    """
    _NUMBERS.clear()  # classes that come back are known by number


@dataclass(frozen=True)
class _NewModule:
    """Is unpickled as a module that holds nothing yet but what says where it is from."""

    name: str
    origin: dict[str, Any]

    def __reduce__(self) -> Any:
        return _new_module, (self.name, self.origin)


class _GlobalsOf:
    """Is unpickled as the globals of a module."""

    def __init__(self, module: _NewModule) -> None:
        self._module = module

    def __reduce__(self) -> Any:
        return vars, (self._module,)


class SendingPickler(cloudpickle.Pickler):
    """Pickles what the session sends: a module of the user has its functions' globals there, too.

    cloudpickle alone gives functions globals of their own: what a function binds again would not
    change what others read as an attribute of the module.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules: dict[str, _NewModule] = {}

    def reducer_override(self, obj: Any) -> Any:
        """See ``pickle.Pickler``."""
        if isinstance(obj, types.ModuleType) and _is_sent(obj):
            values = {name: part for name, part in vars(obj).items() if name != "__builtins__"}
            return _same, (self._new(obj),), values, None, None, _with
        if isinstance(obj, types.FunctionType):
            module = sys.modules.get(obj.__module__ or "")
            if module is not None and _is_sent(module) and vars(module) is obj.__globals__:
                self.globals_ref.setdefault(id(obj.__globals__), _GlobalsOf(self._new(module)))
        return super().reducer_override(obj)

    def _new(self, module: types.ModuleType) -> _NewModule:
        name = module.__name__
        if name not in self._modules:
            # What decides where a relative import looks.
            known = ("__package__", "__path__", "__file__")
            origin = {each: vars(module)[each] for each in known if each in vars(module)}
            self._modules[name] = _NewModule(name, origin)
        return self._modules[name]


def _is_sent(module: types.ModuleType) -> bool:
    name = module.__name__
    return name != "__main__" and sys.modules.get(name) is module and is_users_module(module)


def _new_module(name: str, origin: dict[str, Any]) -> types.ModuleType:
    return _with(types.ModuleType(name), origin)


def _same(module: Any) -> Any:
    return module


def _with(module: Any, values: dict[str, Any]) -> Any:
    vars(module).update(values)
    return module


class ReturningPickler(cloudpickle.Pickler):
    """Pickles what goes back to the session: classes that came from there are named by number."""

    def reducer_override(self, obj: Any) -> Any:
        """See ``pickle.Pickler``."""
        if isinstance(obj, type) and (number := _NUMBERS.get(obj)) is not None:
            return _class_of_number, (number,)
        return super().reducer_override(obj)


def returned(value: Any) -> bytes:
    """A value pickled for a process that has the user's classes in it, and keeps its own."""
    written = io.BytesIO()
    ReturningPickler(written, protocol=5).dump(value)
    return written.getvalue()


def _class_of_number(number: str) -> Any:
    return _CLASSES[number]
