"""The garbage collector is calm during a search, and after it as before."""

from __future__ import annotations

import gc
import weakref

import pytest

from paceline.executor import process

pytestmark = pytest.mark.usefixtures("collector_of_a_user")


class Node:
    pass


def test_everything_is_as_before_even_after_an_error() -> None:
    before = gc.get_threshold()

    def search() -> None:
        with process.gc_calmed():
            assert gc.get_freeze_count() > 0
            raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        search()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_cycles_made_inside_are_still_collected() -> None:
    with process.gc_calmed():
        node = Node()
        node.me = node
        alive = weakref.ref(node)
        del node
        gc.collect()
        assert alive() is None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that collections are told, and what each of them takes: one second."""
    now = [0.0]
    monkeypatch.setattr(process, "_leftovers", process._LeftoverCollector(lambda: now[0]))

    def step(phase: str, _: dict[str, int]) -> None:
        now[0] += phase == "stop"

    gc.disable()  # only those that are asked for
    gc.callbacks.append(step)
    yield now
    gc.callbacks.remove(step)
    gc.enable()


def test_what_a_search_left_is_collected_before_the_next_sets_it_aside(clock: list[float]) -> None:
    with process.gc_calmed():
        node = Node()
        node.me = node
        alive = weakref.ref(node)
        del node
    with process.gc_calmed():
        assert alive() is None


@pytest.mark.slow
def test_short_searches_in_a_row_are_not_spent_on_collections(clock: list[float]) -> None:
    def collections() -> int:
        return gc.get_stats()[2]["collections"]

    def search() -> bool:
        before = collections()
        with process.gc_calmed():
            return collections() > before

    assert not search()
    clock[0] = 5.0
    assert search()
    clock[0] = 25.9  # it took until 6: the next one is due at 26
    assert not search()
    clock[0] = 26.0
    assert search()


def test_a_user_who_switched_it_off_is_left_alone() -> None:
    gc.set_threshold(0)
    with process.gc_calmed():
        assert gc.get_threshold()[0] == 0
        assert gc.get_freeze_count() == 0


def test_dropped_models_are_collected_once_they_weigh_enough() -> None:
    dropped = process.DroppedModels(limit=100)
    node = Node()
    node.me = node
    alive = weakref.ref(node)
    del node
    gc.disable()
    try:
        dropped.add(60)
        assert alive() is not None
        dropped.add(60)
        assert alive() is None
    finally:
        gc.enable()
