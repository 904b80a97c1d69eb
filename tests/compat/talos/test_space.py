"""Permutations: how dictionaries expand, and which of them are drawn."""

from __future__ import annotations

import pytest

from paceline.compat.talos import DistributeParamSpace, ParamSpace
from paceline.compat.talos.space import METHODS, sample


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ((0, 10, 5), [0, 2, 4, 6, 8]),
        ((0, 3, 6), [0, 1, 2]),  # whole numbers, each once
        ((0.0, 1.0, 4), [0.0, 0.25, 0.5, 0.75]),
        ((5, 1, 4), [2, 3, 4, 5]),
        ([3, 3.5, "a", None], [3, 3.5, "a", None]),
    ],
)
def test_values(given, values):
    assert ParamSpace({"a": given}).p["a"] == values


def test_permutations_are_handed_out_until_none_is_left():
    space = ParamSpace({"a": [1, 2], "b": ["x", "y"]})
    assert space.dimensions == len(space) == 4
    found = [space.round_parameters() for _ in range(5)]
    assert found == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
        False,
    ]
    assert space.round_counter == 4


def test_removing():
    def left(*steps):
        space = ParamSpace({"a": [1, 2, 3, True], "b": [0.1, 0.2]})
        for name, *arguments in steps:
            getattr(space, name)(*arguments)
        return [space.param_space[i] for i in space.param_index]

    assert left(("remove_is", "a", 1)) == [[a, b] for a in (2, 3, True) for b in (0.1, 0.2)]
    assert left(("remove_is_not", "a", 3)) == [[3, 0.1], [3, 0.2]]
    assert left(("remove_ge", "a", 2), ("remove_le", "b", 0.1)) == [[1, 0.2], [True, 0.2]]
    assert left(("remove_lambda", lambda p: p["b"] > 0.15 and p["a"] == 2)) == [[2, 0.2]]


@pytest.mark.parametrize("method", METHODS)
def test_methods_draw_different_permutations(method):
    for n, n_all in ((7, 20), (20, 20), (1, 1), (5, 10**9)):
        found = sample(n, n_all, method, 3)
        assert len(set(found)) == len(found) == n
        assert all(0 <= i < n_all for i in found)
    if method not in ("uniform_crypto", "quantum", "ambience"):
        assert sample(9, 1000, method, 3) == sample(9, 1000, method, 3)
    if method not in ("sobol", "halton", "korobov_matrix"):  # as in Talos, the seed is not asked
        assert sample(9, 1000, method, 3) != sample(9, 1000, method, 4)


@pytest.mark.parametrize("method", ["sobol", "halton", "korobov_matrix"])
def test_even_methods_are_even(method):
    """Each quarter of the space has its share: 16 of 64, 3 more or less."""
    found = sample(64, 10_000, method, 1)
    for quarter in range(4):
        assert abs(sum(i // 2500 == quarter for i in found) - 16) <= 3


def test_machines_share_a_space():
    parts = DistributeParamSpace({"a": list(range(10))}, round_limit=9, machines=4).param_spaces
    assert list(parts) == [0, 1, 2, 3]
    found = [part.param_space[i][0] for part in parts.values() for i in part.param_index]
    assert len(found) == len(set(found)) == 9
    again = DistributeParamSpace({"a": list(range(10))}, round_limit=9, machines=4).param_spaces
    assert parts[2].param_index == again[2].param_index


def test_a_whole_fraction_is_all():
    assert len(ParamSpace({"a": [1, 2, 3, 4]}, fraction_limit=1)) == 4
