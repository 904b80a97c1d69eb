"""The front of several objectives, beside the slow way that is surely right."""

from __future__ import annotations

import itertools
import random

import optuna
import pytest

from paceline.study.front import best_of, front_of
from paceline.study.trials.table import TrialTable
from paceline.study.trials.trial import Trial


def dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def brute_force(points: list[tuple[float, ...]]) -> list[int]:
    """Every point against every other."""
    return [
        place
        for place, point in enumerate(points)
        if not any(dominates(other, point) for other in points)
    ]


@pytest.mark.parametrize("n_objectives", [1, 2, 3, 4])
@pytest.mark.parametrize("levels", [2, 4, 1000])
def test_the_front_is_that_of_brute_force(n_objectives: int, levels: int) -> None:
    """Few levels make many ties, and points that are equal."""
    draw = random.Random(10 * levels + n_objectives)
    for n in [0, 1, 2, 3, 7, 40, 90]:
        points = [
            tuple(float(draw.randrange(levels)) for _ in range(n_objectives)) for _ in range(n)
        ]
        assert front_of(points) == brute_force(points)


def test_infinite_losses_have_their_place() -> None:
    inf = float("inf")
    points = [(inf, 0.0), (0.0, inf), (inf, inf), (-inf, 1.0), (inf, 0.0)]
    assert front_of(points) == brute_force(points) == [0, 3, 4]


def test_a_whole_small_cube_leaves_its_corner() -> None:
    points = [tuple(map(float, point)) for point in itertools.product(range(4), repeat=3)]
    assert front_of(points) == [0]


@pytest.mark.parametrize("n", [1, 5, 64, 200])
def test_the_best_are_the_front_and_then_the_front_of_the_others(n: int) -> None:
    draw = random.Random(n)
    points = [(draw.random(), draw.random()) for _ in range(100)]
    left, expected = list(range(100)), []
    while left and len(expected) < n:
        front = [left[place] for place in brute_force([points[i] for i in left])]
        expected += front
        left = [place for place in left if place not in front]
    assert best_of(points, n) == sorted(expected)


@pytest.mark.parametrize(
    "directions", [("maximize", "minimize"), ("minimize", "minimize", "maximize")]
)
def test_the_table_has_the_front_that_optuna_has(directions: tuple) -> None:
    draw, table = random.Random(0), TrialTable("s")
    table.set_direction(*directions)
    study = optuna.create_study(directions=directions)
    for number in range(60):
        values = [float(draw.randrange(12)) for _ in directions]
        study.add_trial(optuna.trial.create_trial(values=values))
        table.add(Trial(number, "complete", values[0], values=values))
    table.add(Trial(60, "pruned", -99.0 if directions[0] == "minimize" else 99.0))
    found = table.front
    assert sorted(trial.number for trial in found) == sorted(t.number for t in study.best_trials)
    firsts = [trial.value for trial in found]
    assert firsts == sorted(firsts, reverse=directions[0] == "maximize")


def test_of_one_objective_the_front_is_the_best_trial_and_its_equals() -> None:
    table = TrialTable("s")
    table.set_direction("maximize")
    for number, value in enumerate([0.5, 0.75, 0.25, 0.75]):
        table.add(Trial(number, "complete", value))
    assert [trial.number for trial in table.front] == [1, 3]
    assert not table.several
