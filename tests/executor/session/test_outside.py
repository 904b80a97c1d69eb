"""What functions change outside of themselves comes back, into the same objects."""

from __future__ import annotations

import collections
import copy
import dataclasses
import importlib
import io
import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle  # noqa: TID251 - as the connection between the two processes
import keras
import numpy as np
import pandas as pd
import pytest

from paceline.executor.session.outside import OutsideChanges, OutsideState, OutsideWatch
from paceline.executor.session.user_modules import (
    ReturningPickler,
    SendingPickler,
    sent_by_value,
)

COUNT = 0
SEEN: list[Any] = []


class Best:
    """An object that a function changes."""

    def __init__(self) -> None:
        self.value, self.steps = 0.0, [1]

    def better(self, value: float) -> None:
        self.value = value
        self.steps.append(2)


def elsewhere(state: OutsideState, function: Any) -> OutsideChanges:
    """What has changed in another process after the function was called there."""
    sent = io.BytesIO()
    SendingPickler(sent, protocol=5).dump((state, function))
    state, function = cloudpickle.loads(sent.getvalue())
    here = dict(sys.modules)
    state.load_modules()
    watch = OutsideWatch(state)
    function()
    sys.modules.update(here)
    written = io.BytesIO()
    ReturningPickler(written, protocol=5).dump(watch.take_changes())
    return cloudpickle.loads(written.getvalue())


def test_containers_objects_and_names_are_as_they_are_there() -> None:
    seen, table, last = [0], {"a": {"b": 1}}, collections.deque([1], maxlen=2)
    best, names, total = Best(), {"x"}, 5
    inner, steps = table["a"], best.steps

    def function() -> None:
        nonlocal total
        seen.append(len(seen))
        table["a"]["b"] = 2
        table["c"] = [3]
        last.extend([2, 3])
        best.better(0.5)
        names.add("y")
        total += 1

    state = OutsideState.of({"function": function})
    watch = OutsideWatch(state)
    watch.bring_back(elsewhere(state, function))
    assert not watch.both
    assert seen == [0, 1] and table == {"a": {"b": 2}, "c": [3]} and table["a"] is inner
    assert last == collections.deque([2, 3], maxlen=2) and names == {"x", "y"} and total == 6
    assert best.value == 0.5 and best.steps == [1, 2] and best.steps is steps


def test_what_has_not_changed_is_not_sent() -> None:
    table, best = {"a": 1}, Best()

    def function() -> float:
        return table["a"] + best.value

    state = OutsideState.of({"function": function})
    changes = elsewhere(state, function)
    assert not changes.objects and not changes.names


def test_globals_of_a_module_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__", "count": 0, "seen": []}
    code = "def function():\n    global count\n    count += 1\n    seen.append(count)\n"
    exec(compile(code, "/home/user/script.py", "exec"), namespace)
    function, seen = namespace["function"], namespace["seen"]
    state = OutsideState.of({"function": function})
    watch = OutsideWatch(state)
    watch.bring_back(elsewhere(state, function))
    assert not watch.both
    assert namespace["count"] == 1 and namespace["seen"] is seen and seen == [1]


def test_what_has_changed_here_as_well_stays_and_is_named() -> None:
    seen, other = [0], [0]

    def function() -> None:
        seen.append(1)
        other.append(1)

    state = OutsideState.of({"function": function})
    watch = OutsideWatch(state)
    changes = elsewhere(state, function)
    seen.append(7)
    watch.bring_back(changes)
    assert watch.both == {"seen"}
    assert seen == [0, 7] and other == [0, 1]


class Count:
    """A class whose attributes functions change."""

    total = 0
    seen: ClassVar[list[int]] = []


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    """A part of it changes though it is frozen."""

    seen: list[int]
    best: float = 0.0


@dataclasses.dataclass
class Node:
    """An object in an object."""

    value: float
    below: Any = None


class Log(list[int]):
    """A list that has attributes of its own."""

    last = 0


def there_and_back(function: Any) -> OutsideWatch:
    """The watch of this process after a function was called in another one."""
    state = OutsideState.of({"function": function})
    watch = OutsideWatch(state)
    watch.bring_back(elsewhere(state, function))
    assert not watch.both
    return watch


#: What functions change, and how.
OBJECTS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "array": (lambda: np.zeros(5), lambda it: it.__setitem__(2, 7.0)),
    "large array": (lambda: np.zeros(200_000), lambda it: it.__setitem__(2, 7.0)),
    "array of objects": (lambda: np.array([None, {}]), lambda it: it.__setitem__(0, [1])),
    "masked array": (lambda: np.ma.zeros(3), lambda it: it.__setitem__(1, np.ma.masked)),
    "frame": (
        lambda: pd.DataFrame({"a": [1]}),
        lambda it: [it.loc.__setitem__(len(it), [n]) for n in range(3)],
    ),
    "column": (lambda: pd.DataFrame({"a": [1]}), lambda it: it.__setitem__("b", [2])),
    "series": (lambda: pd.Series([1.0, 2.0]), lambda it: it.__setitem__(1, 5.0)),
    "array in a dict": (lambda: {}, lambda it: it.update(a=np.full(200_000, 3.0))),
    "defaultdict": (lambda: collections.defaultdict(list), lambda it: it["a"].append(1)),
    "counter": (lambda: collections.Counter("ab"), lambda it: it.update("bc")),
    "set": (lambda: {1}, lambda it: it.add(2)),
    "list in a tuple": (lambda: ([1], 2.5, "a"), lambda it: it[0].append(2)),
    "list with attributes": (lambda: Log([1]), lambda it: [it.append(2), setattr(it, "last", 2)]),
    "bytes": (lambda: bytearray(b"ab"), lambda it: it.extend(b"c")),
    "generator": (lambda: np.random.default_rng(0), lambda it: it.random(3)),
    "random": (lambda: random.Random(0), lambda it: it.random()),
    "slots": (lambda: Slots([1]), lambda it: it.seen.append(2)),
    "frozen": (lambda: Slots([1]), lambda it: object.__setattr__(it, "best", 0.5)),
    "nested": (lambda: Node(1.0, Node(2.0)), lambda it: setattr(it.below, "below", Node(3.0))),
    "deleted": (lambda: Node(1.0), lambda it: delattr(it, "below")),
    "bytes of an iterator": (lambda: iter([1, 2, 3]), next),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_of_each_kind_change_in_place(kind: str) -> None:
    create, change = OBJECTS[kind]
    given, expected = create(), create()
    if kind == "frame":
        assert given["a"].sum() == 1  # a column that pandas may keep
    change(expected)

    def function() -> None:
        change(given)

    watch = there_and_back(function)
    assert not watch.lost
    assert text_of(given) == text_of(expected)
    if kind == "frame":
        assert given["a"].tolist() == expected["a"].tolist() == [1, 0, 1, 2]


def text_of(value: Any) -> str:
    """What tells objects of one kind apart."""
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, random.Random):
        return str(value.getstate())
    if isinstance(value, Iterator):
        return str(list(value))
    own = vars(value) if isinstance(value, Node | Log) else ""
    return f"{value} {own}"


def test_names_that_are_bound_again() -> None:
    last, config, history, count, model = None, {"x": 1}, [0], Node(0.0), None
    seen, shown, gone = [0], None, 1
    unbound: Any
    first = config

    def function() -> None:
        nonlocal last, config, history, count, unbound, model, shown, gone
        for n in range(3):
            last, config, history = {"lr": n}, {"x": n}, [*history, n]
            count = Node(n)
            unbound = (n, "a")
            model = np.full(200_000, float(n))
            shown = seen
            seen.append(n)
        del gone

    watch = there_and_back(function)
    assert not watch.lost
    assert (last, config, history, count) == ({"lr": 2}, {"x": 2}, [0, 0, 1, 2], Node(2))
    assert unbound == (2, "a") and model is not None and model[-1] == 2.0
    assert first == {"x": 1} and shown is seen and seen == [0, 0, 1, 2]
    with pytest.raises(NameError, match="gone"):
        assert gone


def test_attributes_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Count, "total", 0)
    monkeypatch.setattr(Count, "seen", [])
    monkeypatch.setattr(Count, "old", 1, raising=False)

    def function() -> None:
        Count.total += 1
        Count.seen.append(3)
        Count.new = "set"  # pyright: ignore[reportAttributeAccessIssue]
        del Count.old

    # In one process there is one class, which cannot stand for that of another one.
    state = OutsideState.of({"function": function})
    watch = OutsideWatch(state)
    function()
    changes = copy.deepcopy(watch.take_changes())
    seen = Count.seen = []
    Count.total, Count.old = 0, 1  # pyright: ignore[reportAttributeAccessIssue]
    del Count.new  # pyright: ignore[reportAttributeAccessIssue]
    watch = OutsideWatch(OutsideState.of({"function": function}))
    watch.bring_back(changes)
    assert not watch.lost and not watch.both
    assert (Count.total, Count.seen, vars(Count)["new"]) == (1, [3], "set")
    assert Count.seen is seen and not hasattr(Count, "old")
    del Count.new  # pyright: ignore[reportAttributeAccessIssue]
    Count.old = 1  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
def test_globals_of_another_module_of_the_user(
    inside: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whether the function names the module, or imports it itself."""
    (tmp_path / "others_state.py").write_text(
        "count, rate, config = 0, 1, {'x': 1}\n"
        "def bump():\n    global count\n    count += 1\n    return count + rate\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("others_state")
    config, found = module.config, []
    module.count = 5  # since its import

    def named() -> None:
        module.rate = 10
        module.count += 100
        found.append(module.bump())
        module.count += 1000
        module.config["y"] = module.count
        module.unbound = 3

    def imports() -> None:
        import others_state  # pyright: ignore[reportMissingImports]

        others_state.rate = 10
        others_state.count += 100
        found.append(others_state.bump())
        others_state.count += 1000
        others_state.config["y"] = others_state.count
        others_state.unbound = 3

    with sent_by_value():
        watch = there_and_back(imports if inside else named)
    assert sys.modules["others_state"] is module
    assert not watch.lost
    assert found == [116] and (module.count, module.rate, module.unbound) == (1106, 10, 3)
    assert module.config == {"x": 1, "y": 1106} and module.config is config
    del sys.modules["others_state"]


@pytest.fixture
def module_of_user(monkeypatch, tmp_path: Path) -> Any:
    (tmp_path / "sent_models.py").write_text("UNITS = 1\ndef build(hp):\n    return UNITS\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("sent_models")
    del sys.modules["sent_models"]


def test_of_two_threads_that_send_one_waits_for_the_other(module_of_user: Any) -> None:
    """Where the first ended, the second pickled by name, and raised at its end."""
    sent: list[bytes] = []
    begun, there = threading.Event(), []

    def second() -> None:
        begun.set()
        with sent_by_value():
            there.append(first_left)
            sent.append(cloudpickle.dumps(module_of_user.build))

    first_left = False
    with sent_by_value():
        thread = threading.Thread(target=second)
        thread.start()
        assert begun.wait(20)
        with sent_by_value():  # of a model within a call
            pass
        sent.append(cloudpickle.dumps(module_of_user.build))
        first_left = True
    thread.join(20)
    assert there == [True]
    assert [b"UNITS" in each for each in sent] == [True, True]
    assert "sent_models" not in cloudpickle.list_registry_pickle_by_value()


def test_a_module_that_the_user_sends_by_value_stays_so(module_of_user: Any) -> None:
    cloudpickle.register_pickle_by_value(module_of_user)
    try:
        with sent_by_value():
            pass
        assert "sent_models" in cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(module_of_user)


def test_what_cannot_come_back_is_named() -> None:
    numbers, files, model = itertools.count(), {"a": 1}, None
    fine = [0]

    def function() -> None:
        nonlocal model
        next(numbers)
        files["b"] = threading.Lock()
        model = keras.Sequential()
        fine.append(1)

    watch = there_and_back(function)
    assert watch.lost == {"numbers", "files", "model"}
    assert files == {"a": 1} and model is None and fine == [0, 1]
    (text,) = watch.notes()
    assert "files, model, numbers changed in the process that trains" in text


def test_functions_and_their_cells() -> None:
    def adder(n: int) -> Callable[[int], int]:
        return lambda x: x + n

    hooks = {"f": adder(1)}

    def function() -> None:
        hooks["f"] = adder(5)
        hooks["g"] = lambda x: x * 2

    assert not there_and_back(function).lost
    assert hooks["f"](1) == 6 and hooks["g"](2) == 4
