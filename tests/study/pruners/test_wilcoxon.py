"""Wilcoxon's test between a trial's members and those of the best one."""

from __future__ import annotations

import warnings
from typing import Any

import optuna
import pytest

from paceline.errors import UsageError
from paceline.study.pruners.pruners import check_pruner, make_pruner, pruner_text
from paceline.study.trials.trial import Trial


def pruner(
    given: Any = "wilcoxon", *, direction: Any = "maximize", past: Any = (), **more: Any
) -> Any:
    settings = {"epochs": 9, "n_trials": 9, "n_members": 5, **more}
    return make_pruner(check_pruner(given), direction=direction, past=past, **settings)


def trial(number: int, *members: list[float], state: Any = "running") -> Trial:
    value = max(sum(epoch) / len(epoch) for epoch in members)
    return Trial(number, state, value, epochs=len(members), runs=list(members))


LOW, MID, HIGH = ([base + 0.01 * i for i in range(5)] for base in (0.1, 0.5, 0.9))


def test_a_trial_worse_in_every_fold_stops_and_a_better_one_does_not() -> None:
    made = pruner()
    made.end_trial(trial(0, MID, HIGH, state="complete"))
    assert made.judge(trial(1, LOW), 1, 9, 0.1) == "prune"
    assert made.judge(trial(2, HIGH), 1, 9, 0.9) == "go"
    # What counts is the best trial's same epoch, not its end.
    assert made.judge(trial(3, MID), 1, 9, 0.5) == "go"
    assert made.judge(trial(3, MID, MID), 2, 9, 0.5) == "prune"
    assert made.judge(trial(4, MID, MID, LOW), 3, 9, 0.1) == "go"  # it had no third epoch


def test_low_is_good_where_it_is() -> None:
    made = pruner(direction="minimize")
    made.end_trial(trial(0, LOW, state="complete"))
    assert made.judge(trial(1, HIGH), 1, 9, 0.9) == "prune"


def test_the_best_trial_is_that_of_the_best_value_earlier_sessions_included() -> None:
    made = pruner(past=[(trial(0, MID, state="complete"), [])])
    assert made.judge(trial(1, LOW), 1, 9, 0.1) == "prune"
    made.end_trial(trial(2, LOW, state="complete"))
    assert made.judge(trial(3, LOW), 1, 9, 0.1) == "prune"
    made.end_trial(trial(4, HIGH, state="pruned"))
    assert made.judge(trial(5, MID), 1, 9, 0.5) == "go"
    made.end_trial(trial(6, HIGH, state="complete"))
    assert made.judge(trial(7, MID), 1, 9, 0.5) == "prune"


def test_before_anything_is_complete_nobody_stops() -> None:
    assert pruner().judge(trial(0, LOW), 1, 9, 0.1) == "go"


def test_trials_of_a_search_without_folds_are_not_compared() -> None:
    alone = Trial(0, "complete", 0.9, epochs=1)
    other = trial(1, [0.9, 0.9, 0.9], state="complete")
    made = pruner(past=[(alone, [0.9]), (other, [0.9])])
    assert made.judge(trial(2, LOW), 1, 9, 0.1) == "go"


@pytest.mark.parametrize("given", ["wilcoxon", "wilcoxon:0.2", "object"])
def test_without_members_there_is_nothing_to_compare(given: str) -> None:
    one: Any = given
    if given == "object":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            one = optuna.pruners.WilcoxonPruner()
    with pytest.raises(UsageError, match=r"wilcoxon compares folds or repeats .*--folds"):
        pruner(one, n_members=1)


def test_too_few_members_for_the_test_are_said() -> None:
    notes: list[str] = []
    pruner(n_members=3, note=notes.append)
    assert "at least 0.125" in notes[0] and "below 0.1" in notes[0]
    pruner("wilcoxon:0.2", n_members=3, note=notes.append)
    pruner(n_members=4, note=notes.append)
    assert len(notes) == 1


def test_forms() -> None:
    assert pruner_text(check_pruner("wilcoxon:0.05")) == "wilcoxon:0.05"
    with pytest.raises(UsageError, match=r"between 0 and 1, got wilcoxon:3"):
        pruner("wilcoxon:3")
    with pytest.raises(UsageError, match=r"is not understood. Use one of .*wilcoxon\[:P\]"):
        check_pruner("wilcoxon:x")
