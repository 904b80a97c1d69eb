"""Which trials have the value of the best one."""

from __future__ import annotations

from paceline.study.trials.table import TrialTable
from paceline.study.trials.trial import Trial


def table(*trials: Trial) -> TrialTable:
    found = TrialTable("s")
    found.set_direction("maximize")
    for trial in trials:
        found.add(trial)
    return found


def test_other_trials_with_the_best_value_are_ties() -> None:
    equal = [Trial(number, "complete", 0.9, epochs=3) for number in range(3)]
    others = [Trial(3, "complete", 0.8), Trial(4, "pruned", 0.9), Trial(5, "failed", 0.9)]
    assert table(*equal, *others).ties == [1, 2, 4]
    assert table().ties == []


def test_trials_of_the_best_ones_own_line_are_none() -> None:
    """A copy has its source's value until it reaches a better one."""
    source = Trial(0, "complete", 0.9, epochs=3)
    copy = Trial(1, "complete", 0.9, epochs=6, continued_from=0)
    copied_again = Trial(2, "complete", 0.9, epochs=9, continued_from=1)
    stranger = Trial(3, "complete", 0.9, epochs=3)
    assert table(source, copy, copied_again, stranger).ties == [3]
