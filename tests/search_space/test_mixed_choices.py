"""Choices of several types, None among them: each comes back as it was written."""

from __future__ import annotations

import json
import random
from typing import Any

import optuna
import pytest

from paceline.errors import SpaceError
from paceline.search_space import GridWalk, HyperParameters, Parameter, Space

MIXED: list[list[Any]] = [
    [None, 0.2, 0.5],
    [1, 1.0],
    [True, "auto"],
    [0, False, 0.0, "0", None, "None"],
    ["adam", None, True, 3, 1.5],
    [1, 1.0, True, "1", "1.0", "true"],
    [2, 2.5],
    [None],
]


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def parameter_of(values: list[Any]) -> Parameter:
    hp = HyperParameters()
    hp.Choice("a", values)
    (found,) = hp.parameters.values()
    return found


@pytest.mark.parametrize("values", MIXED)
def test_each_value_goes_to_the_storage_and_back(values: list[Any]) -> None:
    parameter = parameter_of(values)
    again = Parameter.from_json(json.loads(json.dumps(parameter.to_json())))
    assert again == parameter
    assert all(map(same, parameter.values(), values))
    for value in values:
        stored = parameter.to_storage(value)
        number = parameter.distribution.to_internal_repr(stored)  # what SQLite and a journal keep
        assert same(again.from_storage(parameter.distribution.to_external_repr(number)), value)
        assert same(parameter.check(value), value)
        assert same(HyperParameters({"a": value}).Choice("a", values), value)


def test_only_values_that_optuna_takes_for_one_are_stored_as_texts() -> None:
    assert parameter_of([None, 0.2]).storage_name == "a"
    typed = parameter_of([1, 1.0, None])
    assert typed.storage_name == "a[typed]"
    assert typed.distribution == optuna.distributions.CategoricalDistribution(("1", "1.0", "null"))


@pytest.mark.parametrize("values", MIXED)
def test_declarations_tell_the_types_apart(values: list[Any]) -> None:
    hp = HyperParameters()
    assert same(hp.Choice("a", values), values[0])
    assert same(HyperParameters().Choice("a", values, default=values[-1]), values[-1]) or (
        values[-1] is None  # which stands for no default
    )
    (declared,) = hp.space
    assert all(map(same, declared.values, values))
    copied = hp.copy()
    assert same(copied.get("a"), values[0])
    assert copied.space == hp.space
    for value in values:
        assert same(declared.prob_to_value(declared.value_to_prob(value)), value)


def test_a_value_of_another_type_is_another_choice() -> None:
    hp = HyperParameters()
    hp.Choice("a", [1, 2])
    with pytest.raises(SpaceError, match="declared twice"):
        hp.Choice("a", [1.0, 2.0])
    space = Space()
    space.learn(hp.parameters)
    other = HyperParameters()
    other.Choice("a", [1, 2, 1.0])
    space.learn(other.parameters)  # it has a name of its own
    assert list(space.parameters) == ["a", "a[typed]"]


def test_what_is_written_as_text_is_found() -> None:
    parameter = parameter_of([True, None, 0.5, "auto"])
    for text, value in {"True": True, "true": True, "None": None, "null": None, "0.5": 0.5}.items():
        assert same(parameter.check(text), value)
    assert same(parameter_of([None, "None"]).check("None"), "None")
    assert same(parameter_of([1.5, "x"]).check(1.5 + 1e-12), 1.5)
    with pytest.raises(SpaceError, match="the value '64' is not one of 32, 64"):
        parameter_of([32, 64]).check("64")
    with pytest.raises(SpaceError, match="the value None is not one of 1, 'a'"):
        parameter_of([1, "a"]).check(None)


@pytest.mark.parametrize(("given", "active"), [(1, "one"), (1.0, "float"), (None, "none")])
def test_conditions_tell_the_types_apart(given: Any, active: str) -> None:
    def build(hp: HyperParameters) -> None:
        hp.Choice("a", [1, 1.0, None])
        hp.Int("one", 2, 3, parent_name="a", parent_values=[1])
        hp.Int("float", 2, 3, parent_name="a", parent_values=[1.0])
        hp.Int("none", 2, 3, parent_name="a", parent_values=[None])

    hp = HyperParameters({"a": given})
    build(hp)
    assert set(hp.hparams) == {"a", active}
    assert set(hp.copy().values) == {"a", active}


def test_a_condition_without_values_is_an_error_still() -> None:
    hp = HyperParameters()
    hp.Choice("a", [None, 1])
    with pytest.raises(SpaceError, match="parent_values must be .*, got None. Pass"):
        hp.Int("b", 1, 2, parent_name="a")


@pytest.mark.parametrize("values", MIXED)
def test_a_grid_and_a_random_draw_have_each_value(values: list[Any]) -> None:
    grid, seen, more = GridWalk(), [], True
    while more:
        seen.append(HyperParameters(chooser=grid.chooser()).Choice("a", values))
        more = grid.advance()
    assert len(seen) == len(values)
    assert all(map(same, seen, values))
    rng = random.Random(0)
    hp = HyperParameters()
    hp.Choice("a", values)
    (declared,) = hp.space
    drawn = {(type(v), v) for v in (declared.random_sample(rng.randrange(999)) for _ in range(200))}
    assert drawn == {(type(v), v) for v in values}
