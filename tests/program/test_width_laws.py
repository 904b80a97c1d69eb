"""Constants of models of several widths: predicted as the rule has them, or not predicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from paceline.program.canonical import Constant
from paceline.program.constant_laws import Steps
from paceline.program.model_structure import ModelStructure
from paceline.program.width_laws import WidthLaws

#: The places of whole numbers in a model: a rank, a width, another width, and the first once more.
Rule = Callable[[int, int, float], tuple[Any, ...]]


def model(u: int, v: int, rate: float = 0.5, rank: int = 2) -> ModelStructure:
    return ModelStructure(f"{u} {v}", (rate,), "skeleton", (rank, u, v, u))


def steps(*values: Any) -> Steps:
    arrays = [np.asarray(v, "int32" if isinstance(v, int) else "float32") for v in values]
    return [tuple(Constant(a, jax.ShapeDtypeStruct((), a.dtype)) for a in arrays)]


def learnt(rule: Rule, *models: tuple[Any, ...], group: Any = "family") -> WidthLaws:
    laws = WidthLaws()
    for each in models:
        u, v, rate = (*each, 0.5)[:3]
        laws.add("kind", model(u, v, rate), group, steps(*rule(u, v, rate)))
    return laws


def predicted(laws: WidthLaws, *widths: Any, **others: Any) -> list[Any] | None:
    found = laws.predict("kind", model(*widths, **others))
    return None if found is None else [constant.value.item() for constant in found[1][0]]


def extents(u: int, v: int, rate: float) -> tuple[Any, ...]:
    return u, v, 1.0 / u, 7.0


def test_two_models_show_how_extents_follow_from_widths() -> None:
    laws = learnt(extents, (64, 48), (8, 16))
    assert predicted(laws, 32, 40) == [32, 40, np.float32(1 / 32), 7.0]
    assert predicted(laws, 64, 16) == [64, 16, np.float32(1 / 64), 7.0]


def test_one_model_shows_nothing() -> None:
    assert predicted(learnt(extents, (64, 48)), 32, 40) is None


@pytest.mark.parametrize("widths", [(72, 40), (4, 40), (32, 56), (32, 8)])
def test_beyond_the_models_nothing_is_predicted(widths: tuple[int, int]) -> None:
    assert predicted(learnt(extents, (64, 48), (8, 16)), *widths) is None


def test_a_whole_number_that_was_the_same_in_all_models_stays_so() -> None:
    laws = learnt(extents, (64, 48), (8, 16))
    assert predicted(laws, 32, 40, rank=3) is None
    laws = learnt(extents, (64, 48), (8, 48))
    assert predicted(laws, 32, 40) is None and predicted(laws, 32, 48) is not None


def test_widths_that_went_together_are_not_told_apart() -> None:
    laws = learnt(extents, (64, 64), (8, 8))
    assert predicted(laws, 32, 40) is None
    assert predicted(laws, 32, 32) is not None
    laws.add("kind", model(48, 16), "family", steps(*extents(48, 16, 0.5)))
    assert predicted(laws, 32, 40) == [32, 40, np.float32(1 / 32), 7.0]


def test_a_number_without_a_law_is_not_predicted() -> None:
    laws = learnt(lambda u, v, rate: (u, float(u) ** 3), (64, 48), (8, 16))
    assert predicted(laws, 32, 40) is None
    assert predicted(laws, 8, 16) == [8, 512.0], "but for a model that was traced"


def test_an_extent_is_no_rounded_number() -> None:
    """floor(1.5 u) is explained by no formula, although 0.5 u is 4 where it is rounded down."""
    laws = learnt(lambda u, v, rate: (int(u**0.5),), (64, 48), (10, 16))
    assert predicted(laws, 32, 40) is None


def test_two_explanations_that_part_are_none() -> None:
    """8 is the square root of 64 and the other width; of 16 it was 4 and the other width."""
    laws = learnt(lambda u, v, rate: (v,), (64, 8), (16, 4))
    assert predicted(laws, 25, 6) is None
    assert predicted(laws, 36, 6) == [6]


def test_numbers_beside_widths_need_as_many_traces_as_without() -> None:
    def rule(u: int, v: int, rate: float) -> tuple[Any, ...]:
        return u, 1.0 - rate

    laws = learnt(rule, (64, 48, 0.25), (8, 16, 0.75), (16, 16, 0.5))
    assert predicted(laws, 32, 40, 0.4) is None
    laws.add("kind", model(48, 40, 0.25), "family", steps(*rule(48, 40, 0.25)))
    assert predicted(laws, 32, 40, 0.4) == [32, np.float32(0.6)]
    assert predicted(laws, 32, 40, 0.8) is None


def test_a_trial_between_that_rides_elsewhere_ends_all_trust() -> None:
    laws = learnt(extents, (64, 48), (8, 16))
    laws.exclude("kind", model(40, 32))
    assert predicted(laws, 32, 40) is None
    assert laws.predict("kind", model(40, 32)) == (None, [])


def test_a_trial_beyond_that_rides_elsewhere_ends_none() -> None:
    laws = learnt(extents, (64, 48), (8, 16))
    laws.exclude("kind", model(1, 32))
    assert predicted(laws, 32, 40) is not None and predicted(laws, 4, 40) is None


def test_kinds_and_skeletons_are_apart() -> None:
    laws = learnt(extents, (64, 48), (8, 16))
    assert laws.predict("another", model(32, 40)) is None
    other = ModelStructure("", (0.5,), "another", (2, 32, 40, 32))
    assert laws.predict("kind", other) is None
    laws.exclude("kind", other)
    assert laws.predict("kind", other) is None
