"""What the functions of a user reach outside themselves: globals, closures, defaults, objects."""

from __future__ import annotations

import dis
import functools
import inspect
import site
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import keras

#: Elements of a container that are looked at, and containers within containers.
_MOST, _DEEPEST = 100, 4
#: Objects that are looked at in all: a look must not take longer than a fit.
_MOST_IN_ALL = 5000
#: Methods that run before an object is shared.
_BEFORE = frozenset({"__init__", "__new__", "__post_init__", "__init_subclass__", "__setstate__"})
#: Where the code of libraries lies, Paceline's own included.
_LIBRARIES: tuple[str, ...] = tuple(
    {
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *([site.getusersitepackages()] if site.ENABLE_USER_SITE else []),
        str(Path(__file__).parents[2]),
    }
)
MISSING: Any = object()  # the value of a name that is bound to nothing


@dataclass(frozen=True)
class UserFunction:
    """A function that the user wrote."""

    function: Any  # types.FunctionType, which a type checker would take for a method
    shared_self: bool  # whether it is a method that is called on an object made outside

    @property
    def name(self) -> str:
        """The function's name as notes write it."""
        return f"{self.function.__qualname__.rpartition('<locals>.')[2]}()"

    def codes(self) -> Iterator[types.CodeType]:
        """Yields the function's code, and that of functions within it."""
        waiting: list[types.CodeType] = [self.function.__code__]
        while waiting:
            code = waiting.pop()
            yield code
            waiting += [each for each in code.co_consts if isinstance(each, types.CodeType)]

    def outer_names(self) -> set[str]:
        """Returns the names in the function that are bound outside of it."""
        found = set(self.function.__code__.co_freevars)
        for code in self.codes():
            found |= {step.argval for step in dis.get_instructions(code) if step.opname in _GLOBALS}
        return found

    def defaults(self) -> dict[str, Any]:
        """Returns the default values of arguments, which all calls share."""
        code, given = self.function.__code__, self.function.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount][-len(given) :] if given else ()
        return {**dict(zip(names, given, strict=True)), **(self.function.__kwdefaults__ or {})}

    def value(self, name: str) -> Any:
        """Returns the present value of an outer name; MISSING if it has none."""
        code = self.function.__code__
        if name in code.co_freevars:
            try:
                return self.function.__closure__[code.co_freevars.index(name)].cell_contents
            except ValueError:  # not bound yet
                return MISSING
        return self.function.__globals__.get(name, MISSING)


_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})


@dataclass
class ReachableObjects:
    """What functions of a user reach."""

    # The user's functions: those given, and those they use, as far as names show.
    functions: list[UserFunction] = field(default_factory=list)
    # Label -> function that reads the present value: globals, closures, defaults, and objects that
    # were given.
    names: dict[str, Callable[[], Any]] = field(default_factory=dict)
    classes: list[type] = field(default_factory=list)  # the user's
    # Objects of the user's classes, by label.
    instances: dict[str, Any] = field(default_factory=dict)
    # Keras' layers, models, variables, optimizers and callbacks, by label.
    keras: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)  # objects of libraries, by label
    attributes: set[str] = field(default_factory=set)  # names of attributes that the functions use


def reached(roots: Mapping[str, Any], entries: Iterable[str] = ("__call__",)) -> ReachableObjects:
    """Follows names from the user's functions and objects to all that they reach.

    ``roots``: label -> function, or object that functions are given. ``entries``: names of methods
    of the roots that are called.
    """
    return _ObjectWalk(roots, entries).found


class _ObjectWalk:
    """Goes from object to object; each is looked at once. Arguments as those of ``reached``."""

    def __init__(self, roots: Mapping[str, Any], entries: Iterable[str]) -> None:
        self.found = ReachableObjects(attributes=set(entries))
        self._seen: set[tuple[int, bool]] = set()
        self._kept: list[Any] = []  # so that no id is used twice
        self._waiting = deque((label, value, 0) for label, value in roots.items())
        for label, value in roots.items():
            if not _is_code(value):
                self.found.names[label] = functools.partial(_itself, value)
        n_functions = -1
        while self._waiting or n_functions < len(self.found.functions):
            n_functions = len(self.found.functions)
            while self._waiting and len(self._seen) < _MOST_IN_ALL:
                self._visit(*self._waiting.popleft())
            self._waiting.clear()
            self._methods()

    def _visit(self, label: str, value: Any, depth: int) -> None:
        if isinstance(value, functools.partial):
            parts = {f"{label} argument {i}": each for i, each in enumerate(value.args)}
            parts |= value.keywords
            for name, part in parts.items():
                if not _is_code(part):
                    self.found.names.setdefault(name, functools.partial(_itself, part))
            self._wait({label: value.func, **parts}, depth)
        elif isinstance(value, types.MethodType):
            self._function(value.__func__, shared_self=not isinstance(value.__self__, type))
            if is_of_user(type(value.__self__)) or isinstance(value.__self__, _KERAS):
                self._wait({label.rpartition(".")[0] or label: value.__self__}, depth)
        elif isinstance(value, types.FunctionType):
            self._function(value, shared_self=False)
        elif isinstance(value, (staticmethod, classmethod)):
            self._function(value.__func__, shared_self=isinstance(value, classmethod))
        elif isinstance(value, property):
            self._wait({label: value.fget}, depth)
        elif isinstance(value, _CACHED):
            self._wait({label: value.__wrapped__}, depth)
        elif not self._once(value, False) or depth > _DEEPEST:
            return
        elif isinstance(value, type):
            if is_of_user(value):
                self._class(value, depth)
                self._wait({base.__name__: base for base in value.__bases__}, depth)
        elif isinstance(value, Mapping):
            few = islice(value.items(), _MOST)
            self._wait({f"{label}[{key!r}]": part for key, part in few}, depth + 1)
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            few = islice(value, _MOST)
            self._wait({f"{label}[{i}]": part for i, part in enumerate(few)}, depth + 1)
        else:
            self._object(label, value, depth)

    def _class(self, cls: type, depth: int) -> None:
        self.found.classes.append(cls)
        for name, part in vars(cls).items():
            self._wait({f"{cls.__name__}.{name}": part}, depth + 1)
            if not _is_code(part) and not name.startswith("__"):
                read = functools.partial(getattr, cls, name, MISSING)
                self.found.names.setdefault(f"{cls.__name__}.{name}", read)

    def _object(self, label: str, value: Any, depth: int) -> None:
        found, own = self.found, is_of_user(type(value))
        if isinstance(value, _KERAS):
            found.keras[_new(label, found.keras)] = value
        elif not own:
            found.others[_new(label, found.others)] = value
        if not own:
            return
        found.instances[_new(label, found.instances)] = value
        parts = parts_of(value)
        self._wait({f"{label}.{name}": part for name, part in parts.items()}, depth + 1)

    def _methods(self) -> None:
        """Waits for the methods of objects whose names the functions use."""
        for value in list(self.found.instances.values()):
            for cls in filter(is_of_user, type(value).__mro__):
                for name, part in vars(cls).items():
                    used = name in self.found.attributes or name.startswith("__")
                    function = part.fget if isinstance(part, property) else part
                    if used and name not in _BEFORE and isinstance(function, types.FunctionType):
                        self._function(function, shared_self=True)

    def _function(self, function: Any, *, shared_self: bool) -> None:
        if not isinstance(function, types.FunctionType) or not _is_users_code(function.__code__):
            return
        if not self._once(function, shared_self):
            return
        user = UserFunction(function, shared_self)
        self.found.functions.append(user)
        for name in user.outer_names():
            value = user.value(name)
            if value is MISSING and hasattr(sys.modules["builtins"], name):
                continue
            if not _is_code(value) and not isinstance(value, types.ModuleType):
                self._name(name, function, functools.partial(user.value, name))
            self._wait({name: value}, 0)
        for name, value in user.defaults().items():
            self._name(name, function, functools.partial(_itself, value))
            self._wait({name: value}, 0)
        for code in user.codes():
            self._attributes(user, code)

    def _attributes(self, user: UserFunction, code: types.CodeType) -> None:
        """Notes names of attributes; those of the user's own modules are names like any other."""
        module: types.ModuleType | None = None
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"):
                self.found.attributes.add(step.argval)
                if module is not None:
                    value = getattr(module, step.argval, MISSING)
                    if not _is_code(value) and not isinstance(value, types.ModuleType):
                        read = functools.partial(getattr, module, step.argval, MISSING)
                        self._name(f"{module.__name__}.{step.argval}", user.function, read)
                    self._wait({step.argval: value}, 0)
            module = None
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
                value = user.value(step.argval)
                module = value if is_users_module(value) else None

    def _name(self, name: str, function: Any, read: Callable[[], Any]) -> None:
        label = name if name not in self.found.names else f"{name} of {function.__qualname__}"
        self.found.names.setdefault(label, read)

    def _wait(self, parts: Mapping[str, Any], depth: int) -> None:
        self._waiting.extend((label, value, depth) for label, value in parts.items())

    def _once(self, value: Any, shared_self: bool) -> bool:
        key = (id(value), shared_self)
        if value is None or isinstance(value, _PLAIN) or key in self._seen:
            return False
        self._seen.add(key)
        self._kept.append(value)
        return True


#: Keras' objects that training changes. Metrics start over in every epoch.
_KERAS = (keras.layers.Layer, keras.Variable, keras.optimizers.Optimizer, keras.callbacks.Callback)
#: The type of functions under ``functools.lru_cache``.
_CACHED = type(functools.lru_cache(len))
_PLAIN = (bool, int, float, complex, str, bytes, types.ModuleType, types.BuiltinFunctionType)


def is_of_user(cls: type) -> bool:
    """Whether a class is one that the user wrote."""
    if cls.__module__ == "builtins":
        return False
    module = sys.modules.get(cls.__module__)
    # A class without its module came from another process, which sends the user's classes alone.
    return module is None or is_users_module(module)


def parts_of(instance: Any) -> dict[str, Any]:
    """Returns the attributes of an object of the user's class that the user's code has set.

    Those that a library's base class has set, such as the oracle of a tuner, are its own affair.
    """
    found = dict(getattr(instance, "__dict__", {}))
    classes = [cls for cls in type(instance).__mro__ if cls is not object]
    if all(map(is_of_user, classes)):
        return found
    stored = {
        step.argval
        for cls in filter(is_of_user, classes)
        for part in vars(cls).values()
        if isinstance(part, types.FunctionType)
        for code in UserFunction(part, True).codes()
        for step in dis.get_instructions(code)
        if step.opname == "STORE_ATTR"
    }
    return {name: part for name, part in found.items() if name in stored}


def is_users_module(module: Any) -> bool:
    """Whether a value is a module that the user wrote."""
    if not isinstance(module, types.ModuleType):
        return False
    file = getattr(module, "__file__", None)
    if file is None:  # a notebook, a module that is built in, or a package of folders
        return module.__name__ == "__main__"
    return not _in_library(str(file))


def is_users_file(path: str) -> bool:
    """Whether the code of a file, or of a notebook's cell, is the user's."""
    return not _in_library(path) and not path.startswith("<frozen")


def _is_users_code(code: types.CodeType) -> bool:
    return is_users_file(code.co_filename)


def _in_library(path: str) -> bool:
    # The names are those of folders that a virtual environment shares with another Python.
    return path.startswith(_LIBRARIES) or "site-packages" in path or "dist-packages" in path


def _is_code(value: Any) -> bool:
    kinds = (type, functools.partial, property, staticmethod, classmethod)
    return inspect.isroutine(value) or isinstance(value, kinds)


def _new(label: str, labels: Mapping[str, Any]) -> str:
    return f"{label} ({len(labels)})" if label in labels else label


def _itself(value: Any) -> Any:
    return value
