"""Trials that trained for unequal numbers of epochs, compared after equal ones."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution

from paceline.report.html.importance import importances_of
from paceline.report.html.standings import behind, standings
from paceline.study.trials.table import TrialTable
from paceline.study.trials.trial import Trial
from subjects import optuna_subject

N_EPOCHS = 8


def table_of(*curves: list[float], maximize: bool = True) -> TrialTable:
    """Makes trials of these curves; those with fewer than ``N_EPOCHS`` epochs were stopped."""
    table = TrialTable("s")
    table.set_direction("maximize" if maximize else "minimize")
    for number, curve in enumerate(curves):
        known = [value for value in curve if value == value]
        value = (max if maximize else min)(known, default=None)
        state = "complete" if len(curve) == N_EPOCHS else "pruned"
        trial = Trial(number, state, value, epochs=len(curve), history={"m": curve})
        trial.best_epoch = None if value is None else 1 + curve.index(value)
        table.add(trial)
    return table


def places(table: TrialTable) -> list[int]:
    return list(standings(table.ranked, table, "m"))


def test_trials_that_trained_to_their_end_have_their_own_values() -> None:
    table = table_of([0.1] * N_EPOCHS, [0.3] * N_EPOCHS, [0.2] * N_EPOCHS)
    assert standings(table.ranked, table, "m") == {1: 0.3, 2: 0.2, 0: 0.1}


@pytest.mark.parametrize("maximize", [True, False])
def test_longer_training_orders_only_those_that_trained_longer(maximize: bool) -> None:
    curves = [
        [0.5, 0.6, 0.7],  # the second after an epoch, overtaken by trial 3
        [0.6],  # the best after an epoch
        [0.3],
        [0.4, 0.8, 0.9],
        [0.1, 0.2, 0.9, 0.95],  # the last after an epoch; overtakes both after three
    ]
    if not maximize:
        curves = [[-value for value in curve] for curve in curves]
    table = table_of(*curves, maximize=maximize)
    # After epoch 1: 1, 0, 3, 2, 4. After epoch 3 trials 0, 3 and 4 share the places 2, 3 and 5.
    assert places(table) == [1, 3, 4, 2, 0]
    values = list(standings(table.ranked, table, "m").values())
    assert values == sorted((t.value for t in table.ranked), reverse=maximize)


def test_what_a_complete_trial_came_to_counts_at_later_epochs() -> None:
    table = table_of([0.9] * N_EPOCHS, [0.5] * 12, [0.6] * 12)
    table.by_number(0).epochs = 2  # by its callback: it is complete all the same
    table.by_number(0).history = {"m": [0.9, 0.9]}
    table.by_number(1).state = table.by_number(2).state = "running"
    assert places(table) == [0, 2, 1]


def test_trials_whose_epochs_are_not_known_are_left_out() -> None:
    table = table_of([0.5] * N_EPOCHS, [0.9], [math.nan, 0.4])
    table.by_number(1).history = {}
    assert places(table) == [0, 2]
    assert behind([table.by_number(0), table.by_number(1)], table, "m") == [0.0]


def test_how_far_a_trial_was_behind_is_told_at_its_last_epoch() -> None:
    table = table_of([0.2, 0.6, *[0.9] * (N_EPOCHS - 2)], [0.1], [0.3, 0.4], [0.8] * N_EPOCHS)
    found = behind(table.ranked, table, "m")  # of trials 0, 3, 2, 1
    assert found == pytest.approx([0.0, 0.1, 0.2, 0.1])


@given(st.lists(st.integers(1, N_EPOCHS), min_size=2, max_size=20), st.randoms())
def test_curves_that_never_cross_keep_their_order_wherever_they_are_cut(lengths, draw) -> None:
    tops = draw.sample(range(100), len(lengths))
    curves = [
        [top / 100 + epoch for epoch in range(length)]
        for top, length in zip(tops, lengths, strict=True)
    ]
    table = table_of(*curves)
    assert places(table) == sorted(range(len(tops)), key=lambda number: -tops[number])


def test_how_long_trials_trained_is_no_effect_of_a_hyperparameter() -> None:
    # Only lr matters. Trials with many units were stopped after an epoch, at a third of the value.
    draw, both = random.Random(0), dict.fromkeys(("lr", "units"), FloatDistribution(0.0, 1.0))
    drawn = [{"lr": draw.random(), "units": draw.random()} for _ in range(60)]
    ends = [(0.2 if p["units"] > 0.5 else 0.6) + 0.1 * p["lr"] for p in drawn]
    subject = optuna_subject(*((end, both, p) for end, p in zip(ends, drawn, strict=True)))
    naive = importances_of(subject).shares
    assert naive["units"] > 0.9
    for trial, params in zip(subject.trials, drawn, strict=True):
        start = 0.2 + 0.1 * params["lr"]
        stopped = params["units"] > 0.5
        trial.history = {"value": [start] if stopped else [start, start + 0.4]}
        trial.state, trial.epochs = ("pruned", 1) if stopped else ("complete", 2)
    found = importances_of(replace(subject)).shares  # a new one: places are worked out once
    assert found["lr"] > 0.9
