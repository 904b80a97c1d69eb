"""What functions change outside of themselves comes back, into the same objects."""

from __future__ import annotations

import collections
import io
from typing import Any

import cloudpickle  # noqa: TID251 - as the connection between the two processes
import pytest

from paceline.executor.session.outside import OutsideChanges, OutsideState, OutsideWatch
from paceline.executor.session.user_modules import ReturningPickler

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
    state, function = cloudpickle.loads(cloudpickle.dumps((state, function)))
    watch = OutsideWatch(state)
    function()
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
