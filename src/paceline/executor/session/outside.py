"""What functions of the user change outside of themselves, so that the session sees it.

What functions reach by globals, closures, classes and modules is sent with them. What has changed
when a call ends comes back: names are bound again, and objects are changed in place. What cannot
come back is named.
"""

from __future__ import annotations

import array
import builtins
import collections
import dis
import hashlib
import io
import pickle
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import cloudpickle
import keras
import numpy as np

from paceline.executor.session.user_modules import ReturningPickler
from paceline.pack.callbacks.changes import rebound
from paceline.pack.callbacks.reachable import (
    MISSING,
    UserFunction,
    is_of_user,
    is_users_module,
    reached,
)

#: What Keras calls on objects of the user's classes.
_ENTRIES = (
    "__call__",
    "build",
    "call",
    "train_step",
    "test_step",
    "update_state",
    "result",
    *(name for name in dir(keras.callbacks.Callback) if name.startswith("on_")),
)
#: Keras' objects: training changes them, and each trial has its own.
_KERAS = (keras.layers.Layer, keras.Variable, keras.optimizers.Optimizer, keras.metrics.Metric)
#: What never changes in place.
_VALUES = (bool, int, float, complex, str, bytes, types.NoneType)
#: What is told apart without a look at its content, or comes back in no other way.
_NOT_SENT = (*_VALUES, *_KERAS, types.ModuleType, types.FunctionType, type)


@dataclass(frozen=True)
class OutsideChanges:
    """What has changed, by label."""

    objects: Mapping[str, Any] = field(default_factory=dict)  # of a class: its attributes
    # A value, or none if the name is not bound any more.
    names: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()  # labels of what has changed, and cannot be sent

    def __bool__(self) -> bool:
        return bool(self.objects or self.names or self.lost)

    def sendable(self) -> OutsideChanges:
        """Those of the changes that can be pickled; the others are lost."""
        if _can_be_sent(self):
            return self
        objects = {label: each for label, each in self.objects.items() if _can_be_sent(each)}
        names = {label: each for label, each in self.names.items() if _can_be_sent(each)}
        lost = (self.objects.keys() - objects.keys()) | (self.names.keys() - names.keys())
        return OutsideChanges(objects, names, self.lost | lost)


@dataclass(frozen=True)
class OutsideState:
    """What functions reach outside of themselves, and may change."""

    # Of any kind, and the user's classes and modules.
    objects: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, tuple[Any, str]] = field(default_factory=dict)  # function, its outer name

    @classmethod
    def of(cls, roots: Mapping[str, Any], called: Iterable[str] = ()) -> OutsideState:
        """Of functions and objects of the user, by label; ``called`` are names of methods, too."""
        found = reached(roots, (*_ENTRIES, *called))
        objects: dict[str, Any] = {}
        for label, value in [
            *((label, read()) for label, read in found.names.items()),
            *found.instances.items(),
        ]:
            if value is not MISSING and not isinstance(value, _NOT_SENT):
                objects.setdefault(label, value)
        objects |= {f"class {each.__qualname__}": each for each in found.classes}
        names: dict[str, tuple[Any, str]] = {}
        seen = set[tuple[int, str]]()
        for user in found.functions:
            for name in sorted(_names_that_may_change(user)):
                if (key := (_home(user, name), name)) not in seen:
                    seen.add(key)
                    label = f"{name} of {user.function.__qualname__}" if name in names else name
                    names[label] = (user.function, name)
            for module in _modules(user):
                if module.__name__ != "__main__":  # it goes as the globals of its functions
                    objects[f"module {module.__name__}"] = module
        return cls(objects, names)

    def load_modules(self) -> None:
        """Has functions that import a module find the one that was sent, with its values."""
        for value in self.objects.values():
            if isinstance(value, types.ModuleType):
                sys.modules[value.__name__] = value


def _names_that_may_change(user: UserFunction) -> Iterator[str]:
    bound_again = set(rebound(user))
    for name in user.outer_names():
        value = user.value(name)
        if value is MISSING and hasattr(builtins, name) and name not in bound_again:
            continue
        if value is MISSING or name in bound_again or isinstance(value, _VALUES):
            yield name


def _modules(user: UserFunction) -> Iterator[types.ModuleType]:
    """Yields the user's modules that a function names, or imports itself."""
    yield from filter(is_users_module, map(user.value, user.outer_names()))
    package = user.function.__globals__.get("__package__") or ""
    for code in user.codes():
        for step in dis.get_instructions(code):
            if step.opname == "IMPORT_NAME":
                parts = step.argval.split(".")
                names = [".".join(parts[: n + 1]) for n in range(len(parts))]
                names += [f"{package}.{name}" for name in names]
                found = [sys.modules[name] for name in names if name in sys.modules]
                yield from filter(is_users_module, found)


def _home(user: UserFunction, name: str) -> int:
    """Tells apart where names of functions are bound: a cell, or a module's globals."""
    function = user.function
    free = function.__code__.co_freevars
    return id(function.__closure__[free.index(name)] if name in free else function.__globals__)


@dataclass(frozen=True)
class _SharedObject:
    """In place of the value of a name: an object that both processes have, by its label."""

    label: str


@dataclass(frozen=True)
class _Look:
    """What all objects and names were when they were looked at; None: it cannot be told."""

    objects: dict[str, bytes | None]
    names: dict[str, bytes | None]
    kept: list[Any]  # what is told apart by its address, which nothing else may get meanwhile


class OutsideWatch:
    """What one of the two processes has changed since both had the same values."""

    def __init__(self, state: OutsideState) -> None:
        self._state = state
        self._before = self._look()
        # Labels of what both have changed: each process keeps its own values.
        self.both: set[str] = set()
        self.lost: set[str] = set()  # labels of what the other process alone has changed

    def take_changes(self) -> OutsideChanges:
        """What has changed here, for the other process, which has it from now on."""
        before, self._before = self._before, self._look()
        return self._changed(before, self._before).sendable()

    def put_back(self, changes: OutsideChanges) -> None:
        """The other process does not have these changes, after all."""
        self._before.objects.update(dict.fromkeys([*changes.objects, *changes.lost], b"-"))
        self._before.names.update(dict.fromkeys([*changes.names, *changes.lost], b"-"))

    def bring_back(self, changes: OutsideChanges) -> None:
        """Gives the objects and names of this process the values that the other one reports."""
        if not changes:
            self._before = self._look()
            return
        here = self._changed(self._before, self._look())
        self.both |= here.objects.keys() & changes.objects.keys()
        self.both |= here.names.keys() & changes.names.keys()
        self.lost |= changes.lost
        merge = _Merge()
        for label, value in changes.objects.items():
            if label not in self.both and not merge.into(self._state.objects[label], value):
                self.lost.add(label)
        for label, value in changes.names.items():
            if label not in self.both:
                _bind(*self._state.names[label], tuple(map(self._own, map(merge.known, value))))
        self._before = self._look()

    def notes(self) -> Iterator[str]:
        """Yields what the user is told of changes that this process does not have."""
        if self.both:
            yield (
                f"{', '.join(sorted(self.both))} changed in this process and in the process that "
                "trains. They keep the values of this process"
            )
        if lost := self.lost - self.both:
            yield (
                f"{', '.join(sorted(lost))} changed in the process that trains, and this process "
                "can't take over the change. They keep the values of this process"
            )

    def _own(self, value: Any) -> Any:
        return self._state.objects[value.label] if isinstance(value, _SharedObject) else value

    def _look(self) -> _Look:
        digest, state = _Digests(), self._state
        objects = {label: digest(_content(value)) for label, value in state.objects.items()}
        names = {label: digest(_value(*of)) for label, of in state.names.items()}
        return _Look(objects, names, digest.kept)

    def _changed(self, before: _Look, now: _Look) -> OutsideChanges:
        """What differs between two looks."""
        objects, names, lost = dict[str, Any](), dict[str, tuple[Any, ...]](), set[str]()
        for label, value in self._state.objects.items():
            if now.objects[label] is None and before.objects[label] is not None:
                lost.add(label)
            elif now.objects[label] != before.objects[label]:
                objects[label] = _content(value)
        shared = {id(value): label for label, value in self._state.objects.items()}
        for label, place in self._state.names.items():
            if now.names[label] == before.names[label]:
                continue
            value = _value(*place)
            if id(value) in shared:
                names[label] = (_SharedObject(shared[id(value)]),)
            elif now.names[label] is None or isinstance(value, _KERAS):
                lost.add(label)
            else:
                names[label] = () if value is MISSING else (value,)
        return OutsideChanges(objects, names, frozenset(lost))


def _value(function: Any, name: str) -> Any:
    return UserFunction(function, False).value(name)


def _bind(function: Any, name: str, value: tuple[Any, ...]) -> None:
    """Binds an outer name of a function to a value, or to nothing."""
    free = function.__code__.co_freevars
    if name in free and value:
        function.__closure__[free.index(name)].cell_contents = value[0]
    elif name in free:
        del function.__closure__[free.index(name)].cell_contents
    elif value:
        function.__globals__[name] = value[0]
    else:
        function.__globals__.pop(name, None)


def _content(value: Any) -> Any:
    """What is compared and sent of an object: of a class or module, its values without code."""
    if not isinstance(value, type | types.ModuleType):
        return value
    return {
        name: part
        for name, part in vars(value).items()
        if not name.startswith(("__", "_abc_"))
        and not hasattr(type(part), "__get__")
        and not isinstance(part, types.ModuleType | types.BuiltinFunctionType)
    }


def _can_be_sent(value: Any) -> bool:
    buffers: list[pickle.PickleBuffer] = []
    try:
        ReturningPickler(io.BytesIO(), protocol=5, buffer_callback=buffers.append).dump(value)
    except Exception:  # an object may raise anything when it is pickled
        return False
    return True


class _DigestPickler(cloudpickle.Pickler):
    """Pickles what is compared and never read: code and Keras' objects are the same or others."""

    def __init__(self, kept: list[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kept = kept

    def reducer_override(self, obj: Any) -> Any:
        """See ``pickle.Pickler``."""
        if isinstance(obj, (type, types.FunctionType, types.ModuleType, *_KERAS)):
            self._kept.append(obj)
            return len, (f"{id(obj)}",)  # any function of Python's own
        return super().reducer_override(obj)


class _Digests:
    """Tells contents of objects apart: a digest, None for an object that cannot be sent."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self._known: dict[int, bytes | None] = {}

    def __call__(self, value: Any) -> bytes | None:
        if value is MISSING:
            return b""
        if id(value) not in self._known:
            self.kept.append(value)
            self._known[id(value)] = self._digest(value)
        return self._known[id(value)]

    def _digest(self, value: Any) -> bytes | None:
        buffers: list[pickle.PickleBuffer] = []
        written = io.BytesIO()
        try:
            add = buffers.append
            _DigestPickler(self.kept, written, protocol=5, buffer_callback=add).dump(value)
            found = hashlib.sha256(written.getbuffer())
            for buffer in buffers:
                found.update(buffer.raw())
        except Exception:  # an object may raise anything when it is pickled
            return None
        return found.digest()


def _same(a: Any, b: Any) -> bool:
    digest = _Digests()
    return a is b or digest(a) == digest(b) is not None


class _Merge:
    """Makes an object equal to another one, in place; returns the other one if that is impossible.

    What the user's other names refer to stays the same object, also in containers and objects.
    """

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        self._kept: list[Any] = []

    def into(self, old: Any, new: Any) -> bool:
        """Merges an object's content; returns whether the object has it now."""
        try:
            if not isinstance(old, type | types.ModuleType):
                return self(old, new) is old
            parts = _content(old)
            for name in parts.keys() - new.keys():
                delattr(old, name)
            for name, part in new.items():
                merged = self(parts.get(name), part)
                if name not in parts or merged is not parts[name]:
                    setattr(old, name, merged)
        except Exception:  # of the user's classes
            return False
        return True

    def known(self, value: Any) -> Any:
        """The object of this process that was made equal to a value; else the value."""
        return self._seen.get(id(value), value)

    def __call__(self, old: Any, new: Any) -> Any:
        if id(new) in self._seen:
            return self._seen[id(new)]
        if isinstance(old, _KERAS) and isinstance(new, _KERAS) and old.name == new.name:
            return old  # its variables are of this process' backend
        if old is new or type(old) is not type(new) or isinstance(new, (type, *_VALUES)):
            return new
        self._kept.append(new)
        if isinstance(new, tuple):
            parts = [self(*pair) for pair in zip(old, new, strict=False)]
            return old if len(old) == len(new) and all(map(_same, parts, old)) else new
        self._seen[id(new)] = old
        if not self._fill(old, new):
            self._seen[id(new)] = new
            return new
        return old

    def _fill(self, old: Any, new: Any) -> bool:
        """Gives an object the content of another one of its type; returns whether it has it."""
        if isinstance(new, types.FunctionType):
            if old.__code__ != new.__code__:
                return False
            for mine, other in zip(old.__closure__ or (), new.__closure__ or (), strict=True):
                with suppress(ValueError):  # a cell without content
                    mine.cell_contents = self(mine.cell_contents, other.cell_contents)
            return True
        if isinstance(new, np.ndarray):
            if old.shape != new.shape or old.dtype != new.dtype or not old.flags.writeable:
                return False
            old[...] = new  # a masked array takes the mask, too
            return True
        if isinstance(new, bytearray | array.array):
            cast(Any, old)[:] = new
            return True
        pandas = sys.modules.get("pandas")
        if pandas is not None and type(new) in (pandas.DataFrame, pandas.Series):
            attributes = dict(new.attrs)
            old.__init__(new)
            old.attrs = attributes
            return True
        if isinstance(new, dict):
            merged = {key: self(old.get(key), part) for key, part in new.items()}
            old.clear()
            old.update(merged)
        elif isinstance(new, list | collections.deque):
            before: list[Any] = [*cast(Any, old)]
            parts = [self(before[i] if i < len(before) else None, p) for i, p in enumerate(new)]
            old.clear()
            old.extend(parts)
        elif isinstance(new, set):
            old.clear()
            old.update(new)
        elif not _is_ours(type(new)):
            try:
                return self._by_protocol(old, new)
            except Exception:  # a lock, say, in an object that is pickled without it
                return False
        return self._attributes(old, new)

    def _by_protocol(self, old: Any, new: Any) -> bool:
        """The same for an object of a library, as it is pickled."""
        reduced: list[Any] = [of.__reduce_ex__(5) for of in (old, old, new)]
        if not all(isinstance(each, tuple) for each in reduced):
            return False  # each is known by a name
        ours, again, theirs = cast(Any, [(*each, None)[:3] for each in reduced])
        if ours[0] != theirs[0] or len(ours[1]) != len(theirs[1]):
            return False
        for mine, same, other in zip(ours[1], again[1], theirs[1], strict=True):
            # Only what is the same each time is a part of the object.
            if not _same(self(mine, other) if mine is same else other, mine):
                return False
        if theirs[2] is None:
            return True
        if hasattr(old, "__setstate__"):
            old.__setstate__(theirs[2])
            return True
        return self._attributes(old, new)

    def _attributes(self, old: Any, new: Any) -> bool:
        if hasattr(new, "__setstate__") and not any(
            "__setstate__" in vars(each) for each in type(new).__mro__ if _is_ours(each)
        ):
            old.__setstate__(new.__getstate__())  # of a library's class below the user's
            return True
        for mine, others in zip(_slots(old), _slots(new), strict=True):
            for name in mine.keys() - others.keys():
                object.__delattr__(old, name)
            for name, part in others.items():
                # Also of a class that refuses changes.
                object.__setattr__(old, name, self(mine.get(name), part))
        return True


def _is_ours(cls: type) -> bool:
    """Whether all that an object of a class holds is in its attributes: the user's, Paceline's."""
    return is_of_user(cls) or cls.__module__.partition(".")[0] == "paceline"


def _slots(value: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The attributes of an object, and those in its slots."""
    state: Any = object.__getstate__(value)
    own, slots = state if isinstance(state, tuple) else (state, None)
    return dict(own or {}), slots or {}
