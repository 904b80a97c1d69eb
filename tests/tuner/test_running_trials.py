"""Who is under way, and what is left."""

from __future__ import annotations

from paceline.study.trials.trial import INTERRUPTED, Trial
from paceline.tuner.search.running_trials import UnfinishedTrials


def test_trials_that_a_dead_process_left_are_tried_again() -> None:
    past = [
        Trial(0, "complete"),
        Trial(1, "failed", error="too large"),
        Trial(2, "failed", error=INTERRUPTED),
        Trial(3, "running"),
    ]
    roster = UnfinishedTrials(past)
    assert roster.n_counted == 2
    assert roster.ended == {"complete": 1, "failed": 1}


def test_paused_trials_count_and_come_back() -> None:
    roster = UnfinishedTrials([])
    roster.begin(0, 9)
    roster.begin(1, 9)
    roster.running[0].epoch = 1
    assert roster.healthy
    roster.pause(0)
    assert not roster.healthy
    assert roster.n_counted == 2
    roster.unpause(0)
    assert roster.running[0].epoch == 1
    roster.count_end("pruned")
    assert roster.forget(0)
    assert roster.n_counted == 2 and list(roster.running) == [1]


def test_epochs_left() -> None:
    roster = UnfinishedTrials([])
    for number in range(3):
        roster.begin(number, 9)
        roster.running[number].epoch = 2
    roster.trial_epochs = 6
    assert roster.epochs_left() == [7, 7, 7]
    assert roster.to_come(5) == (2, 9)
    roster.count_end("pruned")
    roster.forget(0)  # from now on as many as the others took so far
    assert roster.epochs_left() == [7, 7]
    assert roster.to_come(5) == (2, 2)
