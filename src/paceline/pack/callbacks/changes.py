"""What a user's function changes outside of itself: names, parts of objects, trackers' runs, files.

Names and trackers are read from its code; the rest from its source, and where that cannot be read
nothing is found.
"""

from __future__ import annotations

import ast
import collections
import dis
import functools
import linecache
import os
import re
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from paceline.pack.callbacks.reachable import MISSING, UserFunction, is_of_user, is_users_module

#: Methods of lists, dicts, sets, deques and arrays that change them.
_MUTATORS = frozenset(
    "append appendleft extend extendleft insert remove pop popleft popitem clear sort reverse "
    "update setdefault add discard fill put resize itemset assign write writelines".split()
)
#: Functions and methods that write a file, and those of ``os`` and ``shutil`` that take one away.
_WRITERS = frozenset(
    "save save_weights save_model save_img savez savez_compressed savetxt savefig export to_csv "
    "to_json to_pickle to_parquet to_excel to_hdf write_text write_bytes tofile".split()
)
_PATH_ARGUMENTS = frozenset({"file", "filename", "filepath", "fname", "path", "path_or_buf"})
#: Attributes that functions set of the models that they are given.
_OF_MODELS = frozenset("trainable stop_training learning_rate".split())
_REMOVERS = frozenset("remove unlink rmtree removedirs rename replace move".split())
#: Packages for logging and progress: a function that uses their objects reads nothing from them.
HARMLESS = frozenset({"alive_progress", "logging", "rich", "tqdm"})
#: Packages with one present run for the whole process, which ``init`` begins and ``finish`` ends.
TRACKERS = frozenset({"clearml", "comet_ml", "mlflow", "neptune", "wandb"})
CONTAINERS = (list, dict, set, collections.deque)


def trackers(user: UserFunction, packages: frozenset[str] = TRACKERS) -> Iterator[str]:
    """Yields those of some packages that the function names or imports.

    Of the trackers of experiments, the present run is one for the whole process.
    """
    for name in user.outer_names():
        value = user.value(name)
        module = getattr(
            value, "__name__" if isinstance(value, types.ModuleType) else "__module__", 0
        )
        package = str(module).partition(".")[0]
        if package in packages:
            yield package
    for code in user.codes():
        for step in dis.get_instructions(code):
            if step.opname == "IMPORT_NAME" and step.argval.partition(".")[0] in packages:
                yield step.argval.partition(".")[0]


def rebound(user: UserFunction) -> Iterator[str]:
    """Yields the names outside that the function binds again."""
    outer = set(user.function.__code__.co_freevars)
    for code in user.codes():
        for step in dis.get_instructions(code):
            free = step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in outer
            if free or step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                yield step.argval


def changed(user: UserFunction) -> Iterator[str]:
    """Yields what is outside and has a part that the function changes."""
    outer, defaults = user.outer_names(), user.defaults()
    itself = user.function.__code__.co_varnames[:1] if user.shared_self else ()
    for node in _nodes(user):
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            base, attributes = _base(node)
            if isinstance(node.ctx, ast.Load) or base is None:
                continue
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            base, attributes = _base(node.func.value)
            if node.func.attr not in _MUTATORS or base is None:
                continue
            if not attributes and _has_method(user, base, node.func.attr):
                continue  # a method of the user's: its own code is looked at
            if base in itself and not attributes:
                continue
        else:
            continue
        if base in itself:
            yield repr(".".join((base, *attributes)))
        elif attributes[:1] == ["__class__"] or (base in outer and _may_change(user.value(base))):
            yield repr(".".join((base, *attributes[:2])) if base not in outer else base)
        elif isinstance(defaults.get(base), CONTAINERS):
            yield f"{base!r}, a default value"


#: What ``written_attributes`` has found. A class that a function defines may hold its model.
_written: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()


def written_attributes(cls: type) -> tuple[str, ...]:
    """The attributes of objects of a class of which the user's methods change a part."""
    if cls in _written:
        return _written[cls]
    methods = [
        UserFunction(method, shared_self=True)
        for one in cls.__mro__
        if is_of_user(one)
        for method in vars(one).values()
        if isinstance(method, types.FunctionType)
    ]
    found = [what.strip("'").split(".") for method in methods for what in changed(method)]
    _written[cls] = tuple(dict.fromkeys(parts[1] for parts in found if len(parts) > 1))
    return _written[cls]


def changed_by_objects(cls: type) -> str | None:
    """The container in a class that its methods change a part of, and none of them replaces."""
    found = written_attributes(cls)
    names = [name for name in found if isinstance(vars(cls).get(name), CONTAINERS)]
    if not names:
        return None
    own = [method for method in vars(cls).values() if isinstance(method, types.FunctionType)]
    codes = [code for method in own for code in UserFunction(method, shared_self=True).codes()]
    steps = [step for code in codes for step in dis.get_instructions(code)]
    replaced = {step.argval for step in steps if step.opname == "STORE_ATTR"}
    return next((name for name in names if name not in replaced), None)


def changed_arguments(user: UserFunction) -> Iterator[str]:
    """Yields the arguments that the function changes a part of."""
    code = user.function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    for node in _nodes(user):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            # ``add`` is how a function of layers writes to a model.
            changes = node.func.attr in _MUTATORS - {"add"}
            base = _base(node.func.value)[0] if changes else None
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            of_model = isinstance(node, ast.Attribute) and node.attr in _OF_MODELS
            base = None if isinstance(node.ctx, ast.Load) or of_model else _base(node)[0]
        else:
            continue
        if base in names and base not in ("self", "cls"):
            yield str(base)


def _base(node: ast.expr) -> tuple[str | None, list[str]]:
    """The name at the beginning of ``name.attribute[key]``, and its attributes."""
    attributes: list[str] = []
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        if isinstance(node, ast.Attribute):
            attributes.insert(0, node.attr)
        node = node.value
    return (node.id if isinstance(node, ast.Name) else None), attributes


def _may_change(value: Any) -> bool:
    """Whether a change of a part of this value is a change of what functions share."""
    if isinstance(value, keras.layers.Layer):
        return False  # ``base.trainable = False`` each time: the first function shows what changes
    if value is MISSING or isinstance(value, types.ModuleType):
        return is_users_module(value)
    if isinstance(value, type):
        return is_of_user(value)
    return type(value).__module__.partition(".")[0] not in HARMLESS


def _has_method(user: UserFunction, name: str, method: str) -> bool:
    value = user.value(name)
    if value is MISSING or not is_of_user(type(value)):
        return isinstance(value, (type, types.ModuleType))  # a function of them, no method
    return is_of_user(type(value)) and any(
        method in vars(cls) for cls in type(value).__mro__ if is_of_user(cls)
    )


# -- files -----------------------------------------------------------------------------------------


def written(user: UserFunction) -> Iterator[str]:
    """Yields the paths that the function writes to and that are no different the next time."""
    for node in _nodes(user):
        if not isinstance(node, ast.Call):
            continue
        function: Any = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        named = [each.value for each in node.keywords if each.arg in _PATH_ARGUMENTS]
        if name == "open":
            own = isinstance(function, ast.Attribute)  # Path(...).open("w")
            rest = [*node.args[0 if own else 1 :], *(each.value for each in node.keywords)]
            modes = [str(each.value) for each in rest if isinstance(each, ast.Constant)]
            if any(re.fullmatch("[rbt]*[wax+][rwaxbt+]*", mode) for mode in modes):
                yield from _paths(user, [function.value] if own else [*node.args[:1], *named])
        elif name in _WRITERS:
            own = name in ("write_text", "write_bytes") and isinstance(function, ast.Attribute)
            yield from _paths(user, [function.value] if own else [*node.args[:2], *named])
        elif name in _REMOVERS and _base(function)[0] in ("os", "shutil", "rmtree"):
            yield from _paths(user, node.args[:1])


def _paths(user: UserFunction, given: list[Any]) -> Iterator[str]:
    local = {
        target.id: node.value
        for node in _nodes(user)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in given:
        path = _constant(user, node, local)
        if path:
            yield path


def _constant(user: UserFunction, node: Any, local: dict[str, Any], depth: int = 0) -> str | None:
    """The text that an expression is each time; None if it is another, or no text."""
    if depth > 4:
        return None
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        if node.id in local:
            return _constant(user, local[node.id], local, depth + 1)
        value = user.value(node.id) if node.id in user.outer_names() else None
        return str(value) if isinstance(value, (str, Path)) else None
    if isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif isinstance(node, ast.Call) and getattr(
        node.func, "id", getattr(node.func, "attr", "")
    ) in ("Path", "join", "str"):
        parts = node.args
    else:
        return None
    texts = [_constant(user, part, local, depth + 1) for part in parts]
    known = [text for text in texts if text is not None]
    return os.path.join(*known) if known and len(known) == len(texts) else None


# -- source ----------------------------------------------------------------------------------------


def _nodes(user: UserFunction) -> Iterator[ast.AST]:
    """Yields the nodes of the function's source; none if there is no source."""
    for node in source(user):
        body = node.body if isinstance(node.body, list) else [node.body]
        for part in body:
            yield from ast.walk(part)


def source(user: UserFunction) -> list[Any]:
    """The definition of the function; several where lambdas stand in one line."""
    code = user.function.__code__
    lines = tuple(linecache.getlines(code.co_filename, user.function.__globals__))
    return _definitions(lines).get((code.co_name, code.co_firstlineno), [])


@functools.lru_cache(maxsize=16)
def _definitions(lines: tuple[str, ...]) -> dict[tuple[str, int], list[Any]]:
    """The definitions of functions in a file, by name and first line."""
    found: dict[tuple[str, int], list[Any]] = {}
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):  # a notebook's cell with magic, for one
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            found.setdefault(("<lambda>", node.lineno), []).append(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found.setdefault((node.name, first), []).append(node)
    return found
