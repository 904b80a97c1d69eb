"""Why functions of a user must run one at a time, as far as their code and their objects show."""

from __future__ import annotations

import ast
import collections
import collections.abc
import dis
import os
import random
import time
from typing import Any

import keras
import numpy as np

from paceline.compat.interception.sharing.gates import (
    READERS,
    TRAINS,
    Gates,
    SharedParts,
    gates_of,
)
from paceline.pack.callbacks.changes import (
    CONTAINERS,
    changed,
    changed_arguments,
    changed_by_objects,
    rebound,
    source,
    trackers,
    written,
)
from paceline.pack.callbacks.reachable import (
    MISSING,
    ReachableObjects,
)

#: Functions of ``time`` and ``datetime`` that read the clock.
_CLOCKS = frozenset(
    "time time_ns perf_counter perf_counter_ns monotonic monotonic_ns process_time now utcnow "
    "today default_timer".split()
)
_CLOCK_MODULES = frozenset({"time", "datetime", "timeit"})
#: Objects of libraries that every use changes.
_DRAWN_FROM = (
    random.Random,
    np.random.Generator,
    np.random.RandomState,
    keras.random.SeedGenerator,
    collections.abc.Iterator,
)
#: What a tuner and an oracle tell of other trials.
_RESULTS = frozenset("get_best_trials get_best_models get_best_hyperparameters".split())
_DECLARES = frozenset("Int Float Choice Boolean Fixed".split())


def why_one_at_a_time(found: ReachableObjects) -> str | None:
    """Returns why the functions must run one at a time; None if nothing shows that they must.

    What they change outside of themselves is the matter of ``why_in_order``, and what they ask of
    earlier ones that of ``depends_on_earlier``.
    """
    for label, value in found.keras.items():
        if isinstance(value, (keras.callbacks.Callback, keras.optimizers.Optimizer)):
            return f"they share the {type(value).__name__} {label!r}, which is made outside of them"
    for label, value in found.others.items():
        if isinstance(value, _DRAWN_FROM):
            return f"they share {label!r}, a {type(value).__name__}, which every use changes"
    for user in found.functions:
        tracker = next(trackers(user), None)
        if tracker is not None:
            return f"{user.name} uses {tracker}, which can log one run at a time"
    for cls in found.classes:
        what = changed_by_objects(cls)
        if what is not None:
            return f"objects of {cls.__name__} change {what!r}, which their class holds"
    return None


def why_in_order(found: ReachableObjects) -> tuple[str | None, Gates | None]:
    """Returns why functions must touch something in order, and the lines that touch it.

    No reason: nothing shows that they must. No lines: they are not known. What functions change is
    read from their source; a function without source is only asked for the names that it binds.
    """
    why: str | None = None
    shared, known = SharedParts(), True
    for user in found.functions:
        bound = list(rebound(user))
        shared.rebound.update(bound)
        names = list(map(repr, bound))
        for what in changed(user):
            names.append(what)
            known = shared.add(user, what) and known
        paths = list(written(user))
        shared.paths.update(paths)
        if why is None and names:
            why = f"{user.name} changes {names[0]}, which is made outside of it"
        elif why is None and paths:
            why = f"{user.name} writes {paths[0]!r}, a path that is the same each time"
    return why, gates_of(found, shared) if why is not None and known else None


def depends_on_earlier(found: ReachableObjects) -> str | None:
    """Returns why a function must know how those before it have ended; None if nothing shows it.

    It asks for their results; or it declares hyperparameters after it has trained, which the next
    function's values are to be drawn for.
    """
    for user in found.functions:
        for node in source(user):
            calls = [
                (call.func.attr, call)
                for call in ast.walk(node)
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
            ]
            ends = [(c.end_lineno or 0, c.end_col_offset or 0) for n, c in calls if n in TRAINS]
            for name, call in calls:
                if name in _RESULTS:
                    return f"{user.name} reads the results of others by {name}"
                late = any(end <= (call.lineno, call.col_offset) for end in ends)
                if late and name in _DECLARES:
                    return f"{user.name} declares a hyperparameter after it has trained"
    return None


def needs_a_first_look(found: ReachableObjects) -> bool:
    """Whether what the first function has changed at its end decides if others may run at once.

    This is so for layers that are made outside: training changes some, and leaves others as they
    are. It is also so for lists and the like if a function may change what it is given, or has no
    source to read.
    """
    if any(isinstance(v, (keras.layers.Layer, keras.Variable)) for v in found.keras.values()):
        return True
    shared = found.instances or any(isinstance(read(), CONTAINERS) for read in found.names.values())
    if not shared:
        return False
    unread = any(not source(user) for user in found.functions if not _is_generated(user.function))
    # What the first function itself is given is its own.
    return unread or any(next(changed_arguments(user), None) for user in found.functions[1:])


def _is_generated(function: Any) -> bool:
    """Whether ``dataclass`` or ``NamedTuple`` has written a function, which changes no argument."""
    within_dataclass = function.__code__.co_qualname.startswith("__create_fn__.")
    return within_dataclass or str(function.__globals__.get("__name__")).startswith("namedtuple_")


def clock_reader(found: ReachableObjects) -> str | None:
    """Returns the name of a function that reads the clock; None if none does."""
    for user in found.functions:
        for code in user.codes():
            named: Any = MISSING
            for step in dis.get_instructions(code):
                if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
                    named = user.value(step.argval)
                    module = getattr(named, "__module__", None)
                    if step.argval in _CLOCKS and callable(named) and module in _CLOCK_MODULES:
                        return user.name
                elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval in _CLOCKS:
                    module = getattr(named, "__module__", getattr(named, "__name__", None))
                    if module in _CLOCK_MODULES:
                        return user.name
    return None


def is_named_by_clock(path: str) -> bool:
    """Whether a path holds the present time, as ``datetime.now()`` and ``time.time()`` give it."""
    times = time.time(), time.time() - 60  # a minute may have ended since
    clocks = [read(each) for each in times for read in (time.localtime, time.gmtime)]
    stamps = [time.strftime(f"%H{sign}%M", clock) for sign in ("", *"-_:.") for clock in clocks]
    stamps += [str(int(each))[:8] for each in times]
    return any(stamp in os.path.relpath(path) for stamp in stamps)


def reads_files(found: ReachableObjects) -> bool:
    """Whether functions may read what a callback of theirs wrote, as far as names show it."""
    names = {name for user in found.functions for name in user.outer_names()}
    return not READERS.isdisjoint(found.attributes | names)


def _texts(constant: Any) -> collections.abc.Iterator[str]:
    """Yields the texts in a constant: a list of three and more of them is a tuple in the code."""
    if isinstance(constant, str):
        yield constant
    elif isinstance(constant, (tuple, frozenset)):
        for each in constant:
            yield from _texts(each)


def constant_paths(found: ReachableObjects) -> set[str]:
    """Returns all texts in the functions' code, and in names, as absolute paths."""
    texts = {
        text
        for user in found.functions
        for code in user.codes()
        for constant in code.co_consts
        for text in _texts(constant)
    }
    values = [read() for read in found.names.values()]
    texts |= {str(value) for value in values if isinstance(value, (str, os.PathLike))}
    return {os.path.abspath(text) for text in texts if text and "\n" not in text}
