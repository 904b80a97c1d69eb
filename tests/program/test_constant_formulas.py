"""What is predicted is right or is not predicted: constants against the rule that made them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.program.canonical import Constant
from paceline.program.formulas.constant_formulas import ConstantPredictor, GroupFormulas

AVAL = jax.ShapeDtypeStruct((), np.dtype("float32"))


def constants(*values: float) -> list[tuple[Constant, ...]]:
    """Those of one step."""
    return [tuple(Constant(np.asarray(v, "float32"), AVAL) for v in values)]


def values(steps: list[tuple[Constant, ...]] | None) -> list[float] | None:
    return None if steps is None else [float(c.value) for c in steps[0]]


def learn(
    rule: Callable[..., Sequence[float]], trials: Sequence[tuple[float, ...]]
) -> GroupFormulas:
    learned = GroupFormulas("group")
    for numbers in trials:
        learned.add(numbers, constants(*rule(*numbers)))
    return learned


RATES = [(0.1,), (0.5,), (0.3,), (0.2,)]


def keep(rate: float) -> tuple[float, ...]:
    return 1 - rate, 1 / (1 - rate), 7.0


def test_between_traced_values_constants_follow() -> None:
    learned = learn(keep, RATES)
    expected = [float(np.float32(v)) for v in keep(0.4)]
    assert values(learned.predict((0.4,))) == expected


def test_too_few_traces_predict_nothing() -> None:
    assert learn(keep, RATES[:3]).predict((0.4,)) is None
    assert learn(keep, [*RATES[:3], RATES[0]]).predict((0.4,)) is None


def test_a_traced_trial_predicts_its_equal_at_once() -> None:
    learned = learn(keep, RATES[:1])
    assert values(learned.predict((0.1,))) == [float(np.float32(v)) for v in keep(0.1)]


@pytest.mark.parametrize("rate", [0.05, 0.6, 0.0, float("nan"), float("inf"), -0.3])
def test_outside_traced_values_nothing_is_predicted(rate: float) -> None:
    assert learn(keep, RATES).predict((rate,)) is None


def test_a_whole_number_is_traced_itself() -> None:
    # Keras' ReLU has another operation at max_value 6, ``x ** 2.0`` may become a product.
    learned = learn(lambda v: (v,), [(5.5,), (6.5,), (6.2,), (5.9,)])
    assert learned.predict((6.0,)) is None
    assert values(learned.predict((6.25,))) == [6.25]


def test_what_moves_outside_later_is_traced_and_then_known() -> None:
    learned = learn(keep, RATES)
    learned.add((0.9,), constants(*keep(0.9)))
    assert learned.predict((0.75,)) is not None


def test_an_unknown_formula_is_unpredictable() -> None:
    learned = learn(lambda v: (v**3,), RATES)
    assert learned.unpredictable
    assert learned.predict((0.4,)) is None
    assert values(learned.predict((0.1,))) == [float(np.float32(0.1**3))]


def test_a_formula_that_fails_later_is_unpredictable() -> None:
    def rule(v: float) -> tuple[float, ...]:
        return (min(v, 0.6),)

    learned = learn(rule, RATES)
    assert learned.predict((0.4,)) is not None
    learned.add((0.8,), constants(*rule(0.8)))
    assert learned.unpredictable


def test_numbers_that_went_together_are_traced_where_they_part() -> None:
    together = [(v, v) for (v,) in RATES]
    learned = learn(lambda a, b: (1 - a,), together)
    assert learned.predict((0.4, 0.4)) is not None
    assert learned.predict((0.4, 0.45)) is None
    learned.add((0.15, 0.35), constants(0.85))
    assert values(learned.predict((0.4, 0.45))) == [float(np.float32(0.6))]


def test_choices_are_predicted_in_combinations_that_were_traced() -> None:
    def rule(momentum: float, smoothing: float, rate: float) -> tuple[float, ...]:
        return momentum, 3 * smoothing, rate  # 3 * 0.1 and 3 * 0.2 look like other choices

    trials = [(0.3, 0.1, 0.5), (0.6, 0.2, 0.1), (0.3, 0.1, 0.2), (0.6, 0.2, 0.3)]
    learned = learn(rule, trials)
    assert learned.predict((0.3, 0.2, 0.4)) is None
    assert values(learned.predict((0.6, 0.2, 0.4))) == [
        float(np.float32(v)) for v in (0.6, 0.6, 0.4)
    ]


def test_two_numbers_in_one_constant_are_unpredictable() -> None:
    assert learn(lambda a, b: (a * b,), [(v, v + 0.1) for (v,) in RATES]).unpredictable


def test_arrays_are_never_explained() -> None:
    learned = GroupFormulas("group")
    aval = jax.ShapeDtypeStruct((2,), np.dtype("float32"))
    for (rate,) in RATES:
        learned.add((rate,), [(Constant(np.full(2, rate, "float32"), aval),)])
    assert learned.unpredictable


def test_another_group_between_traced_values_is_unpredictable() -> None:
    learned = learn(keep, RATES)
    learned.exclude((0.7,))
    assert not learned.unpredictable
    learned.add((0.9,), constants(*keep(0.9)))
    assert learned.unpredictable


#: Rules as a step may follow them: bounds, steps, thresholds, and what else Keras might do.
RULES: dict[str, Callable[[float, float], tuple[Any, ...]]] = {
    "plain": lambda a, b: (a, 1 - b, 1 / (1 - a)),
    "clipped": lambda a, b: (min(max(a, 0.3), 0.7), b),
    "threshold": lambda a, b: (a if a < 0.5 else 1 - a, b),
    "product": lambda a, b: (a * b,),
    "default": lambda a, b: (a or 1e-7, b or 0.5),
    "sum": lambda a, b: (a + b, a),
}
numbers = st.one_of(st.floats(0.0, 0.99), st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.5, 0.75]))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@settings(max_examples=40)
@given(trials=st.lists(st.tuples(numbers, numbers), min_size=5, max_size=25))
def test_a_prediction_is_right(rule: Callable[..., Any], trials: list[tuple[float, float]]) -> None:
    learned = GroupFormulas("group")
    for trial in trials:
        predicted = learned.predict(trial)
        if predicted is None:
            learned.add(trial, constants(*rule(*trial)))
        else:
            assert values(predicted) == [float(np.float32(v)) for v in rule(*trial)]


def test_the_library_keeps_groups_apart() -> None:
    library = ConstantPredictor()
    for rate in (0.0, 0.1, 0.5, 0.3, 0.2):
        group = "dropped" if rate == 0 else "kept"
        library.add("structure", group, (rate,), constants(*(keep(rate) if rate else ())))
    found = library.predict("structure", (0.4,))
    assert found is not None and found[0] == "kept"
    assert library.predict("structure", (0.0,)) == ("dropped", constants())
    assert library.predict("structure", (0.05,)) is None
    assert library.predict("other", (0.4,)) is None


def test_the_library_forgets_structures_that_do_not_come_again() -> None:
    library = ConstantPredictor()
    for n in range(1000):
        library.add(n, "group", (0.1,), constants(0.1))
    assert library.predict(0, (0.1,)) is None
    assert library.predict(999, (0.1,)) is not None
