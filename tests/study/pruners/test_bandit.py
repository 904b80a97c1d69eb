"""Values that a Gaussian process chooses for the copies of a population."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from marks import slow_where
from paceline.study.pruners.bandit import PerturbationGain, chosen, gains_of, is_learnt
from paceline.study.trials.trial import Trial
from study.pruners.parameters import PARAMETERS, parameter

RANGES = {name: each for name, each in PARAMETERS.items() if is_learnt(each)}
SHARE = parameter("Float", 0.0, 1.0)


def known(peak: float, n: int = 40, seed: int = 0) -> list[PerturbationGain]:
    """Legs whose gain is largest where x is ``peak``."""
    rng = np.random.default_rng(seed)
    found = []
    for at in range(n):
        x = float(rng.random())
        gain = 1.0 - (x - peak) ** 2 + 0.01 * float(rng.standard_normal())
        found.append(PerturbationGain(4 * (1 + at // 10), 2.0 - at / n, gain, {"x": x}))
    return found


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("peak", slow_where([0.2, 0.75], lambda peak: peak > 0.5))
def test_what_gains_most_is_found(peak: float) -> None:
    source = PerturbationGain(20, 1.0, 0.0, {"x": 0.5})
    values = [chosen({"x": SHARE}, known(peak), source, [], rng(seed)) for seed in range(5)]
    assert all(value is not None for value in values)
    assert abs(np.median([value["x"] for value in values if value]) - peak) < 0.1


def test_the_best_value_may_change_with_time() -> None:
    """Early intervals gain where x is large, late ones where it is small."""
    steps = []
    for epoch in (4, 8, 12, 16, 20):
        peak = 1.0 - epoch / 20
        steps += [
            PerturbationGain(epoch, 1.0, 1.0 - (x - peak) ** 2, {"x": x})
            for x in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
        ]
    late = chosen({"x": SHARE}, steps, PerturbationGain(20, 1.0, 0.0, {"x": 0.5}), [], rng())
    early = chosen({"x": SHARE}, steps, PerturbationGain(4, 1.0, 0.0, {"x": 0.5}), [], rng())
    assert late is not None and early is not None
    assert late["x"] < 0.3 and early["x"] > 0.6


def test_copies_of_one_exchange_differ() -> None:
    source, few = PerturbationGain(20, 1.0, 0.0, {"x": 0.5}), known(0.5, n=6)
    others: list[dict[str, Any]] = []
    for _ in range(3):
        value = chosen({"x": SHARE}, few, source, others, rng())
        assert value is not None
        assert all(abs(value["x"] - other["x"]) > 0.02 for other in others)
        others.append(value)


def test_the_same_is_chosen_again() -> None:
    source = PerturbationGain(20, 1.0, 0.0, {"x": 0.5})
    assert chosen({"x": SHARE}, known(0.3), source, [], rng()) == chosen(
        {"x": SHARE}, known(0.3), source, [], rng()
    )


def test_little_is_no_ground_for_a_choice() -> None:
    source = PerturbationGain(20, 1.0, 0.0, {"x": 0.5})
    assert chosen({"x": SHARE}, known(0.3, n=3), source, [], rng()) is None
    other = [PerturbationGain(4, 1.0, 0.5, {"another": 1.0})] * 8
    assert chosen({"x": SHARE}, other, source, [], rng()) is None


def test_gains_that_are_all_alike_break_nothing() -> None:
    steps = [PerturbationGain(4, 1.0, 0.0, {"x": 0.5})] * 6
    value = chosen(
        {"x": SHARE}, steps, PerturbationGain(8, 1.0, 0.0, {"x": 0.5}), [{"x": 0.5}], rng()
    )
    assert value is not None and 0.0 <= value["x"] <= 1.0


@pytest.mark.parametrize("name", RANGES)
def test_values_are_in_their_range(name: str) -> None:
    searched = RANGES[name]
    values = searched.values()
    low, high = min(values), max(values)
    draw = np.random.default_rng(1)
    for seed in range(5):
        tried = [values[int(at)] for at in draw.integers(0, len(values), 12)]
        steps = [PerturbationGain(4, 1.0, float(draw.random()), {"x": x}) for x in tried]
        source = PerturbationGain(8, 1.0, 0.0, {"x": values[0]})
        value = chosen({"x": searched}, steps, source, [], rng(seed))
        assert value is not None and low <= value["x"] <= high
        searched.to_storage(value["x"])  # raises where it is no value of the parameter
        assert type(value["x"]) is type(values[0])


def test_what_is_no_range_is_left_alone() -> None:
    assert is_learnt(SHARE) and is_learnt(RANGES["int"])
    for fixed in (parameter("Choice", [1, 2]), parameter("Boolean"), parameter("Int", 3, 3)):
        assert not is_learnt(fixed)


def test_legs_of_a_line_count_once() -> None:
    first = Trial(0, history={"loss": [4.0, 3.0, 2.5, 2.0, 1.0]}, hparams={"x": 0.1})
    copy = Trial(1, history={"loss": [4.0, 3.0, 2.5, 2.0, 0.5]}, hparams={"x": 0.2}, continued_at=4)
    short = Trial(2, history={"loss": [9.0]}, hparams={"x": 0.3})
    broken = Trial(3, history={"loss": [9.0, math.nan, 1.0, 1.0, math.inf]}, hparams={"x": 0.4})
    none = Trial(4)
    found = gains_of([first, copy, short, broken, none], "loss", 1.0, [2, 4, 5])
    assert found == [
        PerturbationGain(2, 4.0, 1.0, {"x": 0.1}),
        PerturbationGain(4, 3.0, 1.0, {"x": 0.1}),
        PerturbationGain(5, 2.0, 1.0, {"x": 0.1}),
        PerturbationGain(5, 2.0, 1.5, {"x": 0.2}),
    ]
    rising = Trial(0, history={"acc": [0.1, 0.4]}, hparams={})
    assert gains_of([rising], "acc", -1.0, [2]) == [
        PerturbationGain(2, -0.1, 0.30000000000000004, {})
    ]
    assert gains_of([rising], "acc", -1.0, [1]) == [], "nothing is known before the first epoch"
