"""What a report says in sentences, and when it keeps silent."""

from __future__ import annotations

import random
import re
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from optuna._transform import _SearchSpaceTransform
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

from paceline.report.html import verdict as verdict_module
from paceline.report.html.importance import Importances, importances_of
from paceline.report.html.verdict import Verdict, verdict_of
from paceline.study.trials.trial import Trial
from subjects import cut_short, optuna_subject, subject_of


def verdict(*args, **options) -> Verdict:
    subject = subject_of(*args, **options)
    return verdict_of(subject, importances_of(subject))


def test_the_best_trial_comes_first() -> None:
    subject = subject_of(40)
    best = subject.ranked[0]
    (text,) = verdict_of(subject, importances_of(subject)).best
    assert text == (
        f"Trial {best.number} has the highest val_accuracy: {best.value:.4f}, in epoch 10 of 10."
    )


def test_a_study_without_a_value_says_what_it_has() -> None:
    assert verdict(0).best == ["The study has no trials yet."]
    found = verdict(0, failed=2)
    assert found.best == ["The study has 2 trials, none of them validated for an epoch."]
    assert any("2 of 2 trials failed" in text for text in found.following)


def test_few_trials_show_nothing_of_how_sure_it_is() -> None:
    assert "we can't tell how certain" in verdict(3).sure[0]
    assert "This is a guess: 3 trials are few for 3" in verdict(3).mattered[-1]


def test_what_mattered_is_what_the_values_depend_on() -> None:
    found = verdict(60)
    assert found.mattered[0].startswith("The hyperparameters that mattered most: lr (")
    assert len(found.mattered) == 1


@pytest.mark.parametrize(
    ("optimum", "said"),
    [
        (
            1e-1,
            "upper end of its range (0.0001 to 0.1): try a wider one, such as max_value=0.3.",
        ),
        (
            1e-4,
            "lower end of its range (0.0001 to 0.1): try a wider one, such as min_value=3e-05.",
        ),
    ],
)
def test_the_best_at_an_edge_of_a_range_ask_for_a_wider_one(optimum, said) -> None:
    found = [text for text in verdict(100, optimum=optimum).following if text.startswith("lr: ")]
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize(
    ("distribution", "n", "at_edge", "within", "said"),
    [
        # Of whole numbers from 1 to 16 a third are 1, of floats a tenth lie in the outer tenth.
        (IntDistribution(1, 16, log=True), 4, 1, 5, False),
        (IntDistribution(1, 16, log=True), 5, 1, 5, True),
        (FloatDistribution(1, 16, log=True), 4, 1.0, 5.0, True),
        # 2 of 11 values lie in the outer tenth.
        (IntDistribution(0, 10), 3, 9, 5, False),
        (IntDistribution(0, 10), 4, 9, 5, True),
        (FloatDistribution(0, 10), 3, 9.5, 5.0, True),
    ],
    ids=str,
)
def test_what_chance_does_to_the_edge_of_a_range_is_not_said(
    distribution: BaseDistribution, n: int, at_edge: float, within: float, said: bool
) -> None:
    values = [at_edge] * n + [within] * (50 - n)
    trials = [(-float(i), {"u": distribution}, {"u": value}) for i, value in enumerate(values)]
    found = verdict_of(optuna_subject(*trials), Importances({}, None))
    assert any("end of its range" in text for text in found.following) is said


@pytest.mark.parametrize(
    "distribution",
    [
        IntDistribution(1, 4, log=True),
        IntDistribution(1, 64, log=True),
        IntDistribution(16, 1024, log=True),
        IntDistribution(0, 1),
        IntDistribution(1, 12),
        IntDistribution(0, 20),
        IntDistribution(8, 256, step=8),
        FloatDistribution(0.0, 1.0, step=0.1),
        FloatDistribution(0.2, 3.2, step=0.3),
        FloatDistribution(0.0, 1.0),
        FloatDistribution(1e-4, 1e-1, log=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("low", [True, False], ids=["low", "high"])
def test_the_share_of_an_edge_is_that_of_optunas_draws(distribution, low: bool) -> None:
    draws = _SearchSpaceTransform({"u": distribution})
    ((first, last),) = draws.bounds
    n = 5_000
    even = first + (last - first) * (np.arange(n) + 0.5) / n
    values = [draws.untransform(np.array([each]))["u"] for each in even]
    places = [verdict_module._place(distribution, value) for value in values]
    at_edge = sum(verdict_module._at_edge(place, low) for place in places if place is not None)
    assert verdict_module._share_of_edge(distribution, low) == pytest.approx(at_edge / n, abs=1e-3)


def test_the_best_within_a_range_ask_for_nothing() -> None:
    found = verdict(100, optimum=10**-2.5).following
    assert not [text for text in found if "range" in text]


def test_trials_that_still_improve_ask_for_more_epochs() -> None:
    assert any("continue_best=5, epochs=20" in text for text in verdict(20).following)


def test_a_study_without_repeats_does_not_know_chance() -> None:
    assert any("Use repeats=3 to find out" in text for text in verdict(20).following)


def test_the_spread_of_members_is_what_a_lead_is_measured_by() -> None:
    subject = subject_of(20)
    for trial in subject.trials:
        assert trial.value is not None
        trial.runs = [[trial.value + 0.05, trial.value - 0.05]] * trial.epochs
    found = verdict_of(subject, importances_of(subject))
    assert "a mean of" in found.best[0]
    assert "over 2 runs" in found.best[0]
    assert "have a standard deviation of 0.0500, and" in found.sure[1]
    assert not any("repeats=3" in text for text in found.following)


def test_values_that_are_all_alike_matter_nothing() -> None:
    subject = subject_of(20)
    for trial in subject.trials:
        trial.value = 0.5
    frozen = list(subject.frozen)
    for trial in frozen:
        trial.value = 0.5
    found = importances_of(subject)
    assert found.shares == {}
    assert "hardly differ" in str(found.caution)


def conditional(n: int, *always: str):
    """A study in which the momentum, which every second trial has, alone decides."""
    draw, trials = random.Random(0), []
    for number in range(n):
        params: dict[str, Any] = {name: draw.random() for name in always}
        own = "momentum" if number % 2 else "decay"
        params[own] = draw.random()
        value = params.get("momentum", 0.5) + 1e-3 * draw.random()
        trials.append((value, dict.fromkeys(params, FloatDistribution(0.0, 1.0)), params))
    return optuna_subject(*trials)


def test_what_only_some_trials_have_is_named_and_nothing_else_mattered() -> None:
    subject = conditional(60, "noise")
    found = verdict_of(subject, importances_of(subject))
    assert found.mattered == [
        "There is no estimate for decay, momentum, which only some trials have."
    ]


def test_trials_with_nothing_in_common_have_no_estimate() -> None:
    found = importances_of(conditional(60))
    assert found.shares == {}
    assert found.caution == (
        "There is no estimate: no hyperparameter appears in all trials with the same range."
    )


def test_a_range_that_changed_is_named_as_the_reason() -> None:
    trials = []
    for number in range(40):
        distributions = {"lr": FloatDistribution(0, 1), "units": FloatDistribution(0, 1 + number)}
        trials.append((number / 40, distributions, {"lr": number / 40, "units": 0.5}))
    found = importances_of(optuna_subject(*trials))
    assert found.shares == {"lr": 1.0}
    assert found.caution == ("There is no estimate for units, whose range differs between trials.")


def test_many_that_only_some_trials_have_are_counted() -> None:
    trials = []
    for number in range(200):
        params: dict[str, Any] = {"lr": number / 200, f"units{number % 9}": 0.5}
        distributions = dict.fromkeys(params, FloatDistribution(0.0, 1.0))
        trials.append((number / 200, distributions, params))
    caution = importances_of(optuna_subject(*trials)).caution
    assert caution is not None
    assert "for units0, units1, units2, units3, units4 and 4 more, which only some" in caution


def with_epochs(n: int, long: set[int]):
    """A study in which the trials of these ranks have trained three times as long."""
    subject = subject_of(n)
    for rank, trial in enumerate(subject.ranked):
        trial.epochs = 27 if rank in long else 9
    return subject


def test_a_lead_that_may_come_from_more_epochs_is_said() -> None:
    subject = with_epochs(40, set(range(5)))
    said = [text for text in verdict_of(subject, importances_of(subject)).sure if "longer" in text]
    assert said == [
        "The best 5 trials trained 27 epochs, the others 9 (medians), so part of their lead may be "
        "that they trained longer."
    ]


@pytest.mark.parametrize(
    "long", [set(), {0, 30, 31, 32}, set(range(40))], ids=["alike", "some", "all"]
)
def test_epochs_that_explain_no_lead_are_not_said(long: set[int]) -> None:
    subject = with_epochs(40, long)
    assert "longer" not in " ".join(verdict_of(subject, importances_of(subject)).sure)


@pytest.mark.parametrize(
    ("state", "what"), [("pruned", "it was stopped early"), ("paused", "it is unfinished")]
)
def test_a_best_trial_that_is_not_complete_is_beside_the_best_complete_one(state, what) -> None:
    subject = subject_of(20)
    first = max(subject.trials, key=lambda trial: trial.value)
    first.value = 0.98
    subject.trials.add(Trial(20, state, 0.980001, epochs=3, best_epoch=2))
    found = verdict_of(subject, importances_of(subject))
    assert (
        found.best[0]
        == f"Trial 20 has the highest {subject.objective}: 0.9800, in epoch 2 of 3; {what}."
    )
    assert found.sure[0] == (
        f"It trained for 3 epochs and reached 0.980001. The best complete trial, {first.number}, "
        f"reached 0.98 after {first.epochs}."
    )


def test_a_trial_that_was_stopped_and_was_not_better_is_not_named() -> None:
    subject = subject_of(20)
    subject.trials.add(Trial(20, "pruned", 0.01, epochs=3, best_epoch=2))
    found = verdict_of(subject, importances_of(subject))
    assert "Trial 20 " not in " ".join(found.best + found.sure)


def test_without_a_complete_trial_there_is_a_best_one() -> None:
    subject = subject_of(0)
    subject.trials.set_direction("maximize")
    subject.trials.add(Trial(0, "running", 0.8, epochs=3, best_epoch=2))
    found = verdict_of(subject, importances_of(subject))
    assert "it is unfinished" in found.best[0]
    assert found.sure == ["With only 1 trial we can't tell how certain that is."]


# -- trials that were stopped early, or are unfinished --------------------------------------------


def test_trials_that_were_stopped_count() -> None:
    # After 2 of 10 epochs each had three quarters of its last value: less than any complete one.
    whole, subject = subject_of(60), cut_short(subject_of(60), 2, but=3)
    found = verdict_of(subject, importances_of(subject))
    assert found.sure[0] == (
        "57 of the 60 trials were stopped early or are unfinished. They count with their best "
        "epochs."
    )
    assert "we can't tell how certain" not in " ".join(found.sure)
    said = "the median trial was (.*) behind after the same number of epochs"
    (behind,) = re.findall(said, found.sure[1])
    best, values = whole.ranked[0], [trial.value or 0.0 for trial in whole.trials]
    # Of the distance at the end the trials had three quarters then.
    assert float(behind) == pytest.approx(0.75 * (best.value - statistics.median(values)), rel=0.05)
    assert found.mattered[0].startswith("The hyperparameters that mattered most: lr (")


def test_a_lead_that_comes_from_more_epochs_stands_not_alone() -> None:
    subject = cut_short(subject_of(20), 1, but=1)
    found = " ".join(verdict_of(subject, importances_of(subject)).sure)
    assert "No other trial is close" not in found
    assert "complete trials trained" not in found


def test_stopped_trials_without_epochs_have_a_verdict() -> None:
    subject = cut_short(subject_of(12), 2, but=0)
    for trial in subject.trials:
        trial.history, trial.best_epoch, trial.epochs = {}, None, 0
    found = importances_of(subject)
    assert found.caution == "There is no estimate: the study has no trials to compare."
    assert "the median trial reached the same value." in verdict_of(subject, found).sure[-1]


def test_edges_are_those_of_the_best_after_as_many_epochs() -> None:
    # The best learning rates are the largest, and these trials were stopped early.
    subject = subject_of(100, optimum=1e-1)
    subject.trials.by_number(subject.ranked[-1].number).value = 0.99
    for trial in subject.ranked[1:50]:
        curve = trial.history[subject.objective][:1]
        trial.history, trial.state, trial.epochs = {subject.objective: curve}, "pruned", 1
        trial.value, trial.best_epoch = curve[0], 1
    subject = replace(subject)
    found = verdict_of(subject, importances_of(subject)).following
    assert any(text.startswith("lr: ") and "max_value=0.3" in text for text in found)


# -- many trials on the same validation data -------------------------------------------------------


def test_the_best_of_many_is_said_to_flatter_its_model() -> None:
    subject = subject_of(20)
    best = subject.ranked[0]
    curve = best.history[subject.objective]
    curve[6], curve[7], curve[8] = 0.962, 0.97, 0.966
    best.value, best.best_epoch = 0.97, 8
    found = verdict_of(subject, importances_of(subject))
    assert found.sure[-2:] == [
        f"The value of trial {best.number} is the best of all epochs of 20 trials on the same "
        "validation data. Expect a worse value on new data.",
        "One epoch earlier and one epoch later it was 0.0060 worse on average.",
    ]
    assert any("test data that the search has not seen" in text for text in found.following)


@pytest.mark.parametrize("at", [1, 10])
def test_an_epoch_without_one_before_and_after_shows_no_luck(at: int) -> None:
    subject = subject_of(20)
    subject.ranked[0].best_epoch = at
    found = verdict_of(subject, importances_of(subject)).sure
    assert "Expect a worse value on new data" in found[-1]


def test_few_trials_are_no_choice_among_many() -> None:
    found = verdict(9)
    assert "new data" not in " ".join(found.sure)
    assert "test data" not in " ".join(found.following)


# -- trials that continue or copy others -----------------------------------------------------------


def population(*members: tuple[float, int | None]):
    """A study whose complete trials have these values, some of them as copies of an earlier one."""
    subject = subject_of(len(members))
    for trial, (value, source) in zip(subject.trials, members, strict=True):
        trial.value, trial.continued_from = value, source
        trial.continued_at = None if source is None else 5
    return subject


def sure(*members: tuple[float, int | None]) -> str:
    subject = population(*members)
    return " ".join(verdict_of(subject, importances_of(subject)).sure)


def test_trials_of_one_line_count_once() -> None:
    # Trial 0 and its copies lie within 0.002; the other lines are far behind, and one another near.
    copies = [(0.949 - 0.0001 * i, 0) for i in range(5)]
    others = [(0.6 - 0.01 * i, None) for i in range(5)]
    said = sure((0.95, None), *copies, *others)
    assert said.startswith("The 11 trials form 6 lines of descent")
    assert "No other trial is close: the second trial is 0.3500 of val_accuracy behind" in said
    assert "follow within" not in said
    assert "Train it again with other seeds before you trust it." in said


def test_few_lines_show_nothing_however_many_copies_there_are() -> None:
    said = sure((0.9, None), (0.8, None), *((0.9 + 0.001 * i, i % 2) for i in range(1, 8)))
    assert "9 trials form 2 lines of descent" in said
    assert said.endswith("With only 2 lines we can't tell how certain that is.")


def test_a_best_trial_that_is_a_copy_is_tried_again_by_its_schedule() -> None:
    others = [(0.6 - 0.01 * i, None) for i in range(5)]
    said = sure((0.9, None), (0.95, 0), *others)
    assert "Train by its schedule with other seeds (tuner.schedule(), paceline.ReplaySch" in said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            [0.95, 0.95, 0.95, 0.9, 0.8, 0.7],
            "2 more trials reached the same value; the next 4 trials "
            "follow within 0.1500 of val_accuracy; the median trial is 0.0250 behind.",
        ),
        (
            [0.95] * 8,
            "7 more trials reached the same value; the median trial reached the same value.",
        ),
        (
            [0.95, 0.95 - 1e-7, 0.95 - 5e-7, 0.95 - 6e-7, 0.95 - 7e-7, 0.9],
            "The next 4 trials follow within 7e-07 of val_accuracy, the second by 1e-07; the "
            "median trial is 5.5e-07 behind.",
        ),
    ],
)
def test_a_lead_is_no_zero_and_a_tie_is_called_one(values, said) -> None:
    assert said in sure(*((value, None) for value in values))


def test_a_trial_that_stands_alone_is_followed_by_none() -> None:
    said = sure((0.95, None), *((0.6 - 0.01 * i, None) for i in range(8)))
    assert "No other trial is close" in said
    assert "follow within" not in said
    assert "lines" not in said


def test_a_population_shows_no_importances_and_asks_for_no_repeats() -> None:
    subject = population((0.9, None), *((0.8 - 0.01 * i, 0 if i == 3 else None) for i in range(30)))
    importances = importances_of(subject)
    assert importances.shares == {}
    found = verdict_of(subject, importances)
    assert "copies of others whose hyperparameters changed" in found.mattered[0]
    assert len(found.mattered) == 1
    said = " ".join(found.following)
    assert "repeats=3" not in said  # refused under pbt
    assert "continue_best" not in said
    assert "Search again with another seed" in said
