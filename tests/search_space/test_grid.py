"""The grid shows every configuration once, and ends."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.search_space import GridWalk, HyperParameters

Build = Callable[[HyperParameters], Any]


def walk(build: Build, grid: GridWalk | None = None, limit: int = 5000) -> list[dict[str, Any]]:
    """All configurations in the order shown; JSON between any two of them changes nothing."""
    grid = grid or GridWalk()
    shown = []
    while True:
        grid = GridWalk.from_json(json.loads(json.dumps(grid.to_json())))
        hp = HyperParameters(chooser=grid.chooser())
        build(hp)
        shown.append(hp.hparams)
        assert len(shown) <= limit
        if not grid.advance():
            assert grid.done
            assert not grid.advance()
            return shown


def distinct(shown: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {tuple(sorted(hparams.items())) for hparams in shown}


def test_a_flat_space_in_order() -> None:
    def build(hp: HyperParameters) -> None:
        hp.Int("a", 1, 2)
        hp.Boolean("b")
        hp.Choice("c", ["x", "y"])

    shown = walk(build)
    assert [tuple(h.values()) for h in shown] == list(
        itertools.product([1, 2], [False, True], ["x", "y"])
    )


def test_the_fashion_grid_has_its_eight_configurations() -> None:
    def build(hp: HyperParameters) -> None:
        hp.Choice("dense1_neuron", [256, 512])
        hp.Choice("activation", ["relu", "elu"])
        hp.Choice("conv_dropout", [0.25, 0.4])

    shown = walk(build)
    assert len(shown) == len(distinct(shown)) == 8
    assert shown[0] == {"dense1_neuron": 256, "activation": "relu", "conv_dropout": 0.25}


def test_conditional_scopes_are_walked_as_a_tree() -> None:
    def build(hp: HyperParameters) -> None:
        hp.Choice("type", ["mlp", "cnn", "none"])
        with hp.conditional_scope("type", ["mlp"]):
            hp.Int("units", 1, 3)
        with hp.conditional_scope("type", ["cnn"]):
            hp.Boolean("pool")
            with hp.conditional_scope("pool", [True]):
                hp.Int("size", 2, 3)
        hp.Choice("last", [1, 2])

    shown = walk(build)
    branches = 3 + (1 + 2) + 1
    assert len(shown) == len(distinct(shown)) == branches * 2


def test_plain_python_conditions_and_loops_are_walked_too() -> None:
    def build(hp: HyperParameters) -> None:
        for layer in range(hp.Int("layers", 1, 3)):
            hp.Choice(f"units_{layer}", [8, 16])
        if hp.Boolean("dropout"):
            hp.Float("rate", 0, 0.5, step=0.25)

    shown = walk(build)
    assert len(shown) == len(distinct(shown)) == (2 + 4 + 8) * (1 + 3)


def test_a_float_without_step_has_ten_values() -> None:
    assert len(walk(lambda hp: hp.Float("lr", 1e-4, 1e-2, sampling="log"))) == 10


def test_every_walks_all_of_a_log_int() -> None:
    def build(hp: HyperParameters) -> None:
        hp.Int("n", 1, 100, sampling="log")

    assert len(walk(build)) == 10
    assert [h["n"] for h in walk(build, GridWalk(every=True))] == list(range(1, 101))


def test_a_space_of_nothing_has_one_configuration() -> None:
    assert walk(lambda hp: hp.Fixed("k", 1)) == [{"k": 1}]


def test_a_name_asked_twice_turns_once() -> None:
    def build(hp: HyperParameters) -> None:
        assert hp.Int("a", 1, 2) == hp.Int("a", 1, 2)
        hp.Boolean("b")

    assert len(walk(build)) == 4


def test_given_values_are_not_walked() -> None:
    grid, shown = GridWalk(), []
    while True:
        hp = HyperParameters(values={"a": 2}, chooser=grid.chooser())
        shown.append((hp.Int("a", 1, 3), hp.Boolean("b")))
        if not grid.advance():
            break
    assert shown == [(2, False), (2, True)]


def test_a_build_that_raises_is_left_behind() -> None:
    shown = []

    def build(hp: HyperParameters) -> None:
        a = hp.Int("a", 1, 3)
        if a == 2:
            raise ValueError("no such model")
        shown.append((a, hp.Boolean("b")))

    grid = GridWalk()
    more = True
    while more:
        hp = HyperParameters(chooser=grid.chooser())
        with contextlib.suppress(ValueError):
            build(hp)
        more = grid.advance()
    assert shown == [(1, False), (1, True), (3, False), (3, True)]


def test_a_parameter_the_build_stops_asking_for_does_not_hold_up_the_rest() -> None:
    runs = itertools.count()

    def build(hp: HyperParameters) -> None:
        hp.Choice("a", [1, 2])
        if next(runs) == 0:  # a build that hangs on more than hp
            hp.Choice("once", [1, 2])

    shown = walk(build)
    assert {h["a"] for h in shown} == {1, 2}
    assert len(shown) == 3


# A random space: each name has a number of values, and may hang on one value of an earlier name.
@st.composite
def spaces(draw: st.DrawFn) -> list[tuple[int, int | None, int]]:
    entries: list[tuple[int, int | None, int]] = []
    for position in range(draw(st.integers(0, 5))):
        parent = draw(st.none() | st.integers(0, position - 1)) if position else None
        parent_value = draw(st.integers(0, entries[parent][0] - 1)) if parent is not None else 0
        entries.append((draw(st.integers(1, 3)), parent, parent_value))
    return entries


@given(spaces(), st.booleans())
def test_any_conditional_space_is_walked_completely_and_once(
    space: list[tuple[int, int | None, int]], with_scopes: bool
) -> None:
    def build(hp: HyperParameters) -> None:
        for position, (count, parent, parent_value) in enumerate(space):
            name = f"p{position}"
            if parent is None:
                hp.Int(name, 0, count - 1)
            elif with_scopes:
                hp.Int(name, 0, count - 1, parent_name=f"p{parent}", parent_values=[parent_value])
            elif f"p{parent}" in hp and hp.get(f"p{parent}") == parent_value:
                hp.Int(name, 0, count - 1)

    # The slow way: all combinations, the inactive ones struck out.
    expected = set()
    for combination in itertools.product(*(range(count) for count, _, _ in space)):
        hparams: dict[str, int] = {}
        for position, (_, parent, parent_value) in enumerate(space):
            if parent is None or hparams.get(f"p{parent}") == parent_value:
                hparams[f"p{position}"] = combination[position]
        expected.add(tuple(sorted(hparams.items())))
    shown = walk(build)
    assert len(shown) == len(expected)
    assert distinct(shown) == expected


def test_advance_before_any_build_is_the_end() -> None:
    assert GridWalk().advance() is False


@pytest.mark.parametrize("every", [False, True])
def test_the_position_is_json(every: bool) -> None:
    grid = GridWalk(every=every)
    hp = HyperParameters(chooser=grid.chooser())
    hp.Int("a", 1, 3)
    grid.advance()
    again = GridWalk.from_json(json.loads(json.dumps(grid.to_json())))
    assert HyperParameters(chooser=again.chooser()).Int("a", 1, 3) == 2
