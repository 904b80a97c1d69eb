"""The lines at which a function must wait for those before it, as they touch what all change.

People write down what each trial has reached, after its fit: ``results.append(...)``, or a model
that is better than the best so far. Such functions train together. Each runs up to the first line
that touches what they share, and continues when those before it have ended. So it finds there what
it would find if one ran after the other.

Every line that may touch it must be known. So all that the functions reach is followed. Only names
and attributes in the source of the user's functions may lead to what they change. An object whose
attribute they change must be used by its attributes alone. Where that does not hold, or too much is
reached to tell, there are no gates.
"""

from __future__ import annotations

import ast
import dis
import gc
import importlib.util
import os
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np

from paceline.compat.interception.sharing.shared_state import PLAIN
from paceline.pack.callbacks.changes import CONTAINERS, HARMLESS, source, trackers
from paceline.pack.callbacks.reachable import (
    BEFORE,
    MISSING,
    ReachableObjects,
    UserFunction,
    is_of_user,
    is_users_file,
    is_users_module,
    parts_of,
)

#: Code -> the lines of it that touch what functions share.
Gates = Mapping[types.CodeType, frozenset[int]]
#: Methods that train.
TRAINS = frozenset("fit run_trial _build_and_fit_model".split())
#: By these code reaches any name or attribute, also without the name of a function.
_ANY = frozenset(
    "vars globals locals eval exec settrace getmembers attrgetter import_module __import__ modules "
    "__dict__ __globals__ __closure__ __getattribute__ f_globals f_locals".split()
)
_ANY_ATTRIBUTE = frozenset("getattr setattr hasattr delattr".split())
#: Packages whose threads and processes run code that has no gates.
_APART = frozenset(
    "threading _thread concurrent multiprocessing joblib subprocess asyncio signal".split()
)
#: Functions that read files.
READERS = frozenset("open read_csv read_text loadtxt genfromtxt load_model load_weights".split())
#: Beginnings of the names of functions that read files, or ask for them.
_LOOKS = re.compile(
    "open|read|load|exists|is_?(file|dir|link|mount)|l?stat$|get(size|.time$)|list_?dir|i?r?glob|"
    "iterdir|scandir|f?walk$|genfromtxt|from_?file|memmap|imread|connect|.*File$|system$|chdir"
)
#: What holds no state of its own, or is never met by two names.
_STATELESS = (tuple, frozenset, type, types.FunctionType, types.ModuleType)
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType, types.BuiltinFunctionType)
_FUNCTIONS = (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
#: What ``fit`` calls methods of.
_OF_FITS = (keras.callbacks.Callback, keras.layers.Layer, keras.utils.PyDataset)
#: Objects that are looked at, at most.
_MOST = 20000


@dataclass
class SharedParts:
    """What functions change outside of themselves."""

    rebound: set[str] = field(default_factory=set)  # globals and closures
    names: set[str] = field(default_factory=set)  # of containers, globals and closures
    attributes: set[str] = field(default_factory=set)  # of objects that all functions are given
    paths: set[str] = field(default_factory=set)

    def add(self, user: UserFunction, what: str) -> bool:
        """Adds what ``changed`` has found; False if its uses cannot be found."""
        base, *attributes = what.strip("'").split(".")
        if not what.endswith("'") or "__class__" in attributes:
            return False
        if base in user.outer_names():
            self.names.add(base)
            return isinstance(user.value(base), CONTAINERS)
        self.attributes.update(attributes[:1])
        return bool(attributes)

    def is_within(self, text: str) -> bool:
        """Whether a text is one of the paths, the end of one, or a folder of one."""
        end = text.strip("/ ")
        if len(end) > 2 and any(path.endswith(end) for path in self.paths):
            return True
        above = os.path.join(os.path.abspath(text), "") if end.strip(".~") else "\n"
        return any(os.path.join(os.path.abspath(path), "").startswith(above) for path in self.paths)


@dataclass
class _Reach:
    """All that code reaches from some objects, but for the values of some names."""

    names: set[str]
    attributes: set[str]  # names of attributes that are used
    owners: Mapping[int, Any]  # objects that are not entered, by id
    seen: dict[int, Any] = field(default_factory=dict)
    functions: dict[Any, None] = field(default_factory=dict)  # the user's

    def follow(self, roots: Iterable[Any]) -> bool:
        """Follows all from these; False if there is too much."""
        waiting = list(roots)
        while waiting and len(self.seen) < _MOST:
            value = waiting.pop()
            if isinstance(value, (*PLAIN, *_DESCRIPTORS)) or value is MISSING:
                continue
            if id(value) not in self.seen:
                self.seen[id(value)] = value
                waiting += [] if id(value) in self.owners else self._parts(value)
        return not waiting

    def _parts(self, value: Any) -> list[Any]:
        if isinstance(value, types.FunctionType):
            if not is_users_file(value.__code__.co_filename):  # a library may have wrapped a user's
                return [*(value.__closure__ or ()), value.__dict__, value.__defaults__]
            self.functions[value] = None
            user = UserFunction(value, shared_self=False)
            named = map(user.value, user.outer_names() - self.names - {"__class__"})
            named = [each for each in (*named, *user.defaults().values()) if not self._owns(each)]
            return [*named, value.__dict__]
        if isinstance(value, types.ModuleType):
            used = (self.attributes - self.names) if is_users_module(value) else set[str]()
            return [p for n, p in vars(value).items() if n in used and not self._owns(p)]
        if isinstance(value, type):
            return [*vars(value).values(), *value.__bases__] if is_of_user(value) else []
        if type(value).__module__.partition(".")[0] in HARMLESS:
            return []
        if isinstance(value, np.ndarray):
            return list(value.flat) if value.dtype.hasobject else []
        parts = [part for part in gc.get_referents(value) if part is not type(value)]
        return parts + _class_parts(value)

    def _owns(self, value: Any) -> bool:
        return id(value) in self.owners


def _class_parts(value: Any) -> list[Any]:
    """What the user's classes of an object hold, methods included."""
    return [part for cls in type(value).__mro__ if is_of_user(cls) for part in vars(cls).values()]


def _reach(found: ReachableObjects, shared: SharedParts) -> _Reach | None:
    """All that the functions reach; None if that leads to what they change by another way."""
    names, attributes = shared.names | shared.rebound, shared.attributes
    owners = {id(v): v for v in found.instances.values() if attributes & _attributes(v)}
    mine, others = (_Reach(names, found.attributes, owners) for _ in range(2))
    roots: list[Any] = [user.function for user in found.functions]
    roots += [value for key, value in found.instances.items() if id(value) not in owners]
    own: list[Any] = []
    other_ids = set(owners)  # of what nothing but a name may lead to
    for owner in owners.values():
        parts, classes = parts_of(owner), type(owner).__mro__
        values = [p[n] for p in (parts, *map(vars, classes)) for n in attributes & p.keys()]
        allowed = [v for v in values if isinstance(v, PLAIN)]
        allowed += [parts[n] for n in attributes & parts.keys() if isinstance(parts[n], CONTAINERS)]
        if len(allowed) < len(values) or _in_library(owner, attributes, found.attributes):
            return None
        own += allowed
        roots += [part for name, part in parts.items() if name not in attributes]
        roots += _class_parts(owner)
        rest = {k: v for k, v in getattr(owner, "__dict__", {}).items() if k not in parts}
        other_ids.update(map(id, rest.values()))
    if (attributes and not owners) or not others.follow(roots):
        return None
    for function in others.functions:
        user = UserFunction(function, shared_self=False)
        own += map(user.value, user.outer_names() & names)
    if not mine.follow(own):
        return None
    if any(is_of_user(type(v)) and attributes & _attributes(v) for v in others.seen.values()):
        return None  # an owner that is met by another way, or that was not found before
    met = {key for key, value in mine.seen.items() if not isinstance(value, _STATELESS)}
    return None if met & (others.seen.keys() | other_ids) else others


def _attributes(value: Any) -> set[str]:
    """The attributes that an object has, or that the user's methods of it name."""
    found: set[str] = set(getattr(value, "__dict__", ()))
    for part in _class_parts(value):
        if isinstance(part, types.FunctionType):
            codes = UserFunction(part, shared_self=True).codes()
            found.update(name for code in codes for name in code.co_names)
    return found.union(*(vars(cls) for cls in type(value).__mro__))


def _in_library(owner: Any, names: set[str], used: set[str]) -> bool:
    """Whether a library's base class of an object may use one of its attributes of these names."""
    return any(
        not names.isdisjoint(code.co_names)
        or (method in used and not (_ANY | _ANY_ATTRIBUTE).isdisjoint(code.co_names))
        for cls in type(owner).__mro__
        if not is_of_user(cls)
        for method, part in vars(cls).items()
        if isinstance(code := getattr(part, "__code__", None), types.CodeType)
    )


def gates_of(found: ReachableObjects, shared: SharedParts) -> Gates | None:
    """The lines that touch what is shared; None if some are not known, or come before any fit."""
    reach = None if found.keras else _reach(found, shared)
    if reach is None:
        return None
    labels = {label for label, read in found.names.items() if id(read()) in reach.owners}
    if any("argument " in label for label in labels):
        return None  # no name in the code shows it
    known = {user.function: user for user in found.functions if not user.shared_self}
    known |= {user.function: user for user in found.functions if user.shared_self}
    extra = {f: UserFunction(f, shared_self=True) for f in reach.functions if f not in known}
    gates: dict[types.CodeType, frozenset[int]] = {}
    training, idle = _training(found), _idle(found, reach)
    for user in (known | extra).values():
        if user.function in idle:
            continue
        uses = _Uses(user, shared, reach.owners, {label.partition(" of ")[0] for label in labels})
        nodes, lines, fits = source(user), set[int](), set[int]()
        if uses.leads_away() or (not nodes and uses.may_use()) or _within_fit(user, training):
            return None
        for node in nodes:
            for part in node.body if isinstance(node.body, list) else [node.body]:
                lines |= uses.lines(part)
                calls = [each for each in ast.walk(part) if isinstance(each, ast.Call)]
                fits |= {each.end_lineno or 0 for each in calls if _trains(each, user, training)}
        if lines and (uses.nested or not fits or min(lines) <= min(fits)):
            return None
        if lines:
            gates[user.function.__code__] = frozenset(lines)
    return gates or None


def _idle(found: ReachableObjects, reach: _Reach) -> set[Any]:
    """Methods of owners that nothing calls, as no library is given their class or their object."""
    called = {user.function for user in found.functions if user.shared_self}
    return {
        part
        for owner in reach.owners.values()
        if all(map(is_of_user, type(owner).__mro__[:-1]))
        for cls in type(owner).__mro__[:-1]
        if id(cls) not in reach.seen
        for name, part in vars(cls).items()
        if isinstance(part, types.FunctionType)
        and part not in called
        and not (name.startswith("__") or name in found.attributes)
    }


def _training(found: ReachableObjects) -> set[Any]:
    """The user's functions that train, or call one that does."""
    training: set[Any] = set()
    n = -1
    while n < len(training):
        n = len(training)
        for user in found.functions:
            nodes = [each for node in source(user) for each in ast.walk(node)]
            if any(isinstance(e, ast.Call) and _trains(e, user, training) for e in nodes):
                training.add(user.function)
    return training


def _trains(call: ast.Call, user: UserFunction, training: set[Any]) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        value = user.value(function.id) if function.id in user.outer_names() else MISSING
        return isinstance(value, types.FunctionType) and value in training
    names = TRAINS | {each.__name__ for each in training}
    return isinstance(function, ast.Attribute) and function.attr in names


def _within_fit(user: UserFunction, training: set[Any]) -> bool:
    """Whether ``fit`` may call a function that trains, as far as this one shows: it has no gates.

    This one is a callback's, say, or it holds or hands on one that trains.
    """
    names = TRAINS | {each.__name__ for each in training}
    within = [(node, each) for node in source(user) for each in ast.walk(node)]
    called = {id(each.func) for _, each in within if isinstance(each, ast.Call)}
    handed = [each for _, each in within if id(each) not in called]
    attributes = {each.attr for each in handed if isinstance(each, ast.Attribute)}
    values = [user.value(each.id) for each in handed if isinstance(each, ast.Name)]
    inner = [each for node, each in within if isinstance(each, _FUNCTIONS) and each is not node]
    calls = [e for node in inner for e in ast.walk(node) if isinstance(e, ast.Call)]
    name = user.function.__name__
    hook = any(hasattr(kind, name) for kind in _OF_FITS) and not name.startswith("__")
    return (
        (hook and user.function in training)
        or not attributes.isdisjoint(names)
        or any(isinstance(v, types.FunctionType) and v in training for v in values)
        or any(_trains(each, user, training) for each in calls)
    )


class _Uses:
    """The uses of shared parts in a function.

    ``owners`` are the objects of which functions change attributes, by id, and ``named`` the names
    of them.
    """

    def __init__(
        self, user: UserFunction, shared: SharedParts, owners: Mapping[int, Any], named: set[str]
    ) -> None:
        self._user, self._shared, self._outer = user, shared, user.outer_names()
        self._names = shared.names | shared.rebound
        first, new = user.function.__code__.co_varnames[:1], user.function.__name__ in BEFORE
        # The name of an object that no other function has yet.
        self._new = first if new else ()
        self._owners = owners
        self._owned = {*named, *(first if owners and user.shared_self and not new else ())}
        # Names of which an attribute is taken, or that are called: nothing else is done with them.
        nodes = [each for node in source(user) for each in ast.walk(node)]
        self._taken = {id(each.value) for each in nodes if isinstance(each, ast.Attribute)}
        self._taken |= {id(each.func) for each in nodes if isinstance(each, ast.Call)}
        self.nested = False  # whether a function within the function uses one

    def leads_away(self) -> bool:
        """Whether the function begins threads, or imports a module that is not followed."""
        steps = [s for code in self._user.codes() for s in dis.get_instructions(code)]
        imports = {step.argval for step in steps if step.opname == "IMPORT_NAME"}
        apart = next(trackers(self._user, _APART), None) is not None
        return apart or not all(map(_is_library, imports))

    def may_use(self) -> bool:
        """Whether a function without source may use one."""
        named = {name for code in self._user.codes() for name in code.co_names} | self._outer
        return bool(self._shared.paths or self._owners) or not named.isdisjoint(
            self._names | self._shared.attributes | _ANY | _ANY_ATTRIBUTE
        )

    def lines(self, node: Any) -> set[int]:
        """The lines of a node that use one."""
        if isinstance(node, (*_FUNCTIONS, *_COMPREHENSIONS)):  # they have code of their own
            if not any(map(self._is_use, ast.walk(node))):
                return set()
            self.nested = self.nested or isinstance(node, _FUNCTIONS)
            return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        found: set[int] = set()
        if self._is_use(node):
            found.update(range(node.lineno, node.end_lineno + 1))
        return found.union(*map(self.lines, ast.iter_child_nodes(node)))

    def _is_use(self, node: Any) -> bool:
        shared = self._shared
        if isinstance(node, ast.Name):
            value = self._user.value(node.id) if node.id in self._outer else MISSING
            if isinstance(value, (str, Path)) and shared.is_within(str(value)):
                return True
            owned = node.id in self._owned or id(value) in self._owners
            known = node.id in self._names and node.id in self._outer
            return known or self._is_any(node.id) or (owned and id(node) not in self._taken)
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in self._new:
                return False
            # A global is its module's attribute.
            return node.attr in shared.attributes | self._names or self._is_any(node.attr)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value in shared.attributes or shared.is_within(node.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return node.func.id in _ANY_ATTRIBUTE and not self._of_module(node)
        return False

    def _is_any(self, name: str) -> bool:
        return name in _ANY or bool(self._shared.paths and _LOOKS.match(name))

    def _of_module(self, call: ast.Call) -> bool:
        """Whether ``getattr`` and the like are given a library, as in ``keras.optimizers``."""
        base: Any = call.args[0] if call.args else None
        while isinstance(base, ast.Attribute):
            base = base.value
        value = self._user.value(base.id) if isinstance(base, ast.Name) else MISSING
        return isinstance(value, types.ModuleType) and not is_users_module(value)


def _is_library(name: str) -> bool:
    """Whether a module of this name is a library's."""
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):  # such as ``__main__``, or a relative import
        return False
    origin = spec and spec.origin
    return bool(origin) and (origin in ("built-in", "frozen") or not is_users_file(origin))
