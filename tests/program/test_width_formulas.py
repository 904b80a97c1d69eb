"""Constants of models of several widths: predicted as the rule has them, or not predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from paceline.program.canonical import Constant
from paceline.program.formulas import width_formulas
from paceline.program.formulas.constant_formulas import Steps
from paceline.program.formulas.model_structure import ModelStructure
from paceline.program.formulas.width_formulas import WidthFormulas

Rule = Callable[[int, int, float], tuple[Any, ...]]


def model(u: int, v: int, rate: float = 0.5, bound: int = 2) -> ModelStructure:
    """A bound that is no extent, two widths, and the first of them once more."""
    integers = (bound, u, v, u)
    return ModelStructure(f"{integers}", (rate,), "skeleton", integers, (2, 3), any_width=True)


def steps(*values: Any) -> Steps:
    arrays = [np.asarray(v, "int32" if isinstance(v, int) else "float32") for v in values]
    return [tuple(Constant(a, jax.ShapeDtypeStruct((), a.dtype)) for a in arrays)]


def learnt(rule: Rule, *models: tuple[Any, ...]) -> WidthFormulas:
    formulas = WidthFormulas()
    for each in models:
        add(formulas, rule, *each)
    return formulas


def add(
    formulas: WidthFormulas, rule: Rule, u: int, v: int, rate: float = 0.5, bound: int = 2
) -> None:
    formulas.add("kind", model(u, v, rate, bound), "family", steps(*rule(u, v, rate)))


def refuse(formulas: WidthFormulas, u: int, v: int) -> None:
    formulas.add("kind", model(u, v), None, [])


def predicted(formulas: WidthFormulas, *widths: Any, **others: Any) -> list[Any] | None:
    found = formulas.predict("kind", model(*widths, **others))
    return None if found is None else [constant.value.item() for constant in found[1][0]]


def fixed(u: int, v: int, rate: float) -> tuple[Any, ...]:
    return (7.0, rate)


def test_two_models_are_enough_where_nothing_but_widths_differs() -> None:
    formulas = learnt(fixed, (64, 48), (8, 16))
    assert predicted(formulas, 32, 40) == [7.0, 0.5]
    assert predicted(formulas, 64, 16) == [7.0, 0.5]


def test_one_model_shows_nothing() -> None:
    assert predicted(learnt(fixed, (64, 48)), 32, 40) is None


@pytest.mark.parametrize("widths", [(72, 40), (4, 40), (32, 56), (32, 8)])
def test_beyond_the_models_nothing_is_predicted(widths: tuple[int, int]) -> None:
    assert predicted(learnt(fixed, (64, 48), (8, 16)), *widths) is None


def test_a_whole_number_that_was_the_same_in_all_models_stays_so() -> None:
    formulas = learnt(fixed, (64, 48), (8, 16))
    assert predicted(formulas, 32, 40, bound=3) is None
    formulas = learnt(fixed, (64, 48), (8, 48))
    assert predicted(formulas, 32, 40) is None and predicted(formulas, 32, 48) is not None


def test_a_whole_number_that_is_no_extent_is_that_of_a_traced_model() -> None:
    """Keras' ReLU bounded by 6 is another operation than by 4 or 9."""
    formulas = learnt(fixed, (64, 48, 0.5, 4), (8, 16, 0.5, 4), (32, 16, 0.5, 9))
    assert predicted(formulas, 32, 40, bound=6) is None
    assert predicted(formulas, 32, 40, bound=9) is None, "of two models at least"
    assert predicted(formulas, 32, 40, bound=4) is not None


def test_widths_that_went_together_are_traced_where_they_part() -> None:
    formulas = learnt(fixed, (64, 64), (8, 8))
    assert predicted(formulas, 32, 40) is None and predicted(formulas, 32, 32) is not None
    add(formulas, fixed, 48, 16)
    assert predicted(formulas, 32, 40) is not None


def test_no_constant_is_explained_by_a_width() -> None:
    """A mean over 4 u elements: the other width, four times as large so far, would explain it."""
    formulas = learnt(
        lambda u, v, rate: (4.0 * u, 1 / (4 * u)), (16, 64), (4, 16), (8, 32), (12, 48)
    )
    assert predicted(formulas, 8, 64) is None and predicted(formulas, 12, 16) is None
    assert predicted(formulas, 8, 32) == [32.0, 1 / 32], "but of a model that was traced"


def test_numbers_beside_widths_need_as_many_traces_as_without() -> None:
    def rule(u: int, v: int, rate: float) -> tuple[Any, ...]:
        return (1.0 - rate,)

    formulas = learnt(rule, (64, 48, 0.25), (8, 16, 0.75), (16, 16, 0.5))
    assert predicted(formulas, 32, 40, 0.4) is None
    add(formulas, rule, 48, 40, 0.25)
    assert predicted(formulas, 32, 40, 0.4) == [np.float32(0.6)]
    assert predicted(formulas, 32, 40, 0.8) is None


def test_a_whole_constant_is_no_rounded_number() -> None:
    formulas = learnt(
        lambda u, v, rate: (int(8 * rate),),
        (64, 48, 8.4),
        (8, 16, 2.3),
        (16, 16, 5.3),
        (9, 17, 3.2),
    )
    assert predicted(formulas, 32, 40, 4.4) is None


def test_a_trial_between_that_rides_elsewhere_ends_all_trust() -> None:
    formulas = learnt(fixed, (64, 48), (8, 16))
    refuse(formulas, 40, 32)
    assert predicted(formulas, 32, 40) is None
    assert formulas.predict("kind", model(40, 32)) is None


def test_one_that_was_refused_first_counts_as_well() -> None:
    formulas = WidthFormulas()
    refuse(formulas, 40, 32)
    for widths in ((64, 48), (8, 16)):
        add(formulas, fixed, *widths)
    assert predicted(formulas, 32, 40) is None


def test_a_trial_beyond_that_rides_elsewhere_ends_none() -> None:
    formulas = learnt(fixed, (64, 48), (8, 16))
    refuse(formulas, 1, 32)
    assert predicted(formulas, 32, 40) is not None and predicted(formulas, 4, 40) is None


def test_a_skeleton_of_which_many_were_traced_is_given_up() -> None:
    formulas = learnt(fixed, (64, 48), (8, 16))
    for _ in range(width_formulas._MOST):
        add(formulas, fixed, 40, 32)
    assert predicted(formulas, 32, 40) is None


def test_kinds_skeletons_and_other_classes_are_apart() -> None:
    formulas = learnt(fixed, (64, 48), (8, 16))
    assert formulas.predict("another", model(32, 40)) is None
    assert formulas.predict("kind", replace(model(32, 40), skeleton="another")) is None
    formulas = WidthFormulas()
    for widths in ((64, 48), (8, 16)):
        formulas.add("kind", replace(model(*widths), any_width=False), "family", steps(7.0))
    assert predicted(formulas, 32, 40) is None
