"""The lines at which a function must wait for those before it, as they touch what all change.

People write down what each trial has reached, after its fit: ``results.append(...)``, or a model
that is better than the best so far. Such functions train together. Each runs up to the first line
that touches what they share, and continues when those before it have ended. So it finds there what
it would find if one ran after the other. Every line that may touch it must be known, so names,
attributes, paths and calls such as ``getattr`` all count.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.pack.callbacks.changes import CONTAINERS, source
from paceline.pack.callbacks.reachable import (
    BEFORE,
    MISSING,
    ReachableObjects,
    UserFunction,
    is_of_user,
    is_users_module,
    parts_of,
)

#: Code -> the lines of it that touch what functions share.
Gates = Mapping[types.CodeType, frozenset[int]]
#: Methods that train.
TRAINS = frozenset("fit run_trial _build_and_fit_model".split())
#: Functions by which code reaches any name, or any attribute.
_ANY = frozenset("vars globals locals eval exec".split())
_ANY_ATTRIBUTE = frozenset("getattr setattr hasattr delattr".split())
#: Functions that read files, or ask whether they exist.
READERS = frozenset("open read_csv read_text loadtxt genfromtxt load_model load_weights".split())
_LOOKS = READERS | frozenset("exists isfile listdir glob iterdir scandir walk load loads".split())
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_FUNCTIONS = (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
#: Containers within containers that are looked at.
_DEEPEST = 4


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

    def have_one_name(self, found: ReachableObjects) -> bool:
        """Whether code reaches each of them by its name, and by no other."""
        mine: set[int] = set()
        others: set[int] = set()
        for label, read in found.names.items():
            ids = {id(each) for each in _containers(read(), 0)}
            (mine if label.partition(" of ")[0] in self.names else others).update(ids)
        for owner in {id(each): each for each in found.instances.values()}.values():
            parts = parts_of(owner)
            for name in self.attributes & parts.keys():
                if not isinstance(parts[name], (*CONTAINERS, *_PLAIN)) or _in_library(owner, name):
                    return False
            for name, part in parts.items():
                ids = {id(each) for each in _containers(part, 0)}
                (mine if name in self.attributes else others).update(ids)
        return mine.isdisjoint(others)


def _containers(value: Any, depth: int) -> Iterator[Any]:
    """The containers that a value is, or holds."""
    if not isinstance(value, (*CONTAINERS, tuple)) or depth > _DEEPEST:
        return
    yield value
    for part in list(value.values() if isinstance(value, dict) else value):
        yield from _containers(part, depth + 1)


def _in_library(owner: Any, name: str) -> bool:
    """Whether a library's base class of an object uses an attribute of this name."""
    return any(
        name in code.co_names
        for cls in type(owner).__mro__
        if not is_of_user(cls)
        for part in vars(cls).values()
        if isinstance(code := getattr(part, "__code__", None), types.CodeType)
    )


def gates_of(found: ReachableObjects, shared: SharedParts) -> Gates | None:
    """The lines that touch what is shared; None if some are not known, or come before any fit."""
    if not shared.have_one_name(found):
        return None
    gates: dict[types.CodeType, frozenset[int]] = {}
    training = _training(found)
    methods = {
        part: name
        for cls in found.classes
        for name, part in vars(cls).items()
        if isinstance(part, types.FunctionType)
    }
    for user in found.functions:
        name = methods.get(user.function, "__call__")
        if not name.startswith("__") and name not in found.attributes:
            continue  # a method that nothing calls
        lines, fits = set[int](), set[int]()
        uses = _Uses(user, shared, of_new=name in BEFORE)
        nodes = source(user)
        if not nodes and uses.may_use():
            return None
        for node in nodes:
            body = node.body if isinstance(node.body, list) else [node.body]
            for part in body:
                lines |= uses.lines(part)
                calls = [each for each in ast.walk(part) if isinstance(each, ast.Call)]
                fits |= {each.end_lineno or 0 for each in calls if _trains(each, user, training)}
        if lines and (uses.nested or not fits or min(lines) <= min(fits)):
            return None
        if lines:
            gates[user.function.__code__] = frozenset(lines)
    return gates or None


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


class _Uses:
    """The uses of shared parts in a function."""

    def __init__(self, user: UserFunction, shared: SharedParts, *, of_new: bool) -> None:
        self._user, self._shared, self._outer = user, shared, user.outer_names()
        self._names = shared.names | shared.rebound
        # The name of an object that no other function has yet.
        self._new = user.function.__code__.co_varnames[:1] if of_new else ()
        self.nested = False  # whether a function within the function uses one

    def may_use(self) -> bool:
        """Whether a function without source may use one."""
        named = {name for code in self._user.codes() for name in code.co_names} | self._outer
        return bool(self._shared.paths) or not named.isdisjoint(
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
        shared, of_file = self._shared, _LOOKS if self._shared.paths else frozenset[str]()
        if isinstance(node, ast.Name):
            value = self._user.value(node.id) if node.id in self._outer else MISSING
            if isinstance(value, (str, Path)) and str(value) in shared.paths:
                return True
            known = node.id in self._names and node.id in self._outer
            return known or node.id in _ANY or node.id in of_file
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in self._new:
                return False
            names = shared.attributes | self._names | of_file  # a global is its module's attribute
            return node.attr in names or node.attr == "__dict__"
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.strip("/")
            of_path = len(text) > 2 and any(path.endswith(text) for path in shared.paths)
            return text in shared.attributes or of_path
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return node.func.id in _ANY_ATTRIBUTE and not self._of_module(node)
        return False

    def _of_module(self, call: ast.Call) -> bool:
        """Whether ``getattr`` and the like are given a library, as in ``keras.optimizers``."""
        base: Any = call.args[0] if call.args else None
        while isinstance(base, ast.Attribute):
            base = base.value
        value = self._user.value(base.id) if isinstance(base, ast.Name) else MISSING
        return isinstance(value, types.ModuleType) and not is_users_module(value)
