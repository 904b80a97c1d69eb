"""ASHA's ladder: who goes on, who waits, who has lost."""

from __future__ import annotations

import random

import pytest

import paceline
from paceline.errors import UsageError
from paceline.study.pruners.asha import ASHA, RungLadder


def test_rungs_are_absolute_epochs_below_the_last() -> None:
    assert ASHA().rungs(27) == [1, 3, 9]
    assert ASHA(min_epochs=2, reduction_factor=4).rungs(33) == [2, 8, 32]
    assert paceline.ASHA is ASHA


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_epochs": 0}, "min_epochs must be an integer of at least 1, got 0"),
        ({"min_epochs": 1.5}, "min_epochs must be an integer of at least 1, got 1.5"),
        ({"reduction_factor": 1}, "reduction_factor must be an integer of at least 2, got 1"),
        ({"reduction_factor": True}, "reduction_factor must be an integer of at least 2, got True"),
    ],
)
def test_settings_that_cannot_work(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ASHA(**arguments)  # pyright: ignore[reportArgumentType]


def test_a_first_rung_beyond_the_epochs() -> None:
    with pytest.raises(UsageError, match="first rung is at 5 epochs .* trials have only 5"):
        ASHA(min_epochs=5).check(5)
    assert ASHA(min_epochs=5).rungs(5) == []


@pytest.mark.parametrize(
    ("settings", "epochs", "freq", "first", "missed"),
    [
        (ASHA(), 12, 2, 0, 1),
        (ASHA(2, 3), 12, 2, 0, None),
        (ASHA(2, 3), None, 2, 0, None),
        (ASHA(3, 3), None, 2, 0, 3),
        (ASHA(1, 2), 8, [1, 2, 4, 8], 0, None),
        (ASHA(1, 2), 8, [1, 4, 8], 0, 2),
        (ASHA(), 12, 1, 0, None),
        (ASHA(2, 3), 12, 2, 1, 3),
        (ASHA(), 12, 2, 1, None),
        (ASHA(), None, 2, 1, None),
        (ASHA(1, 2), None, 2, 1, 3),
        (ASHA(), None, [4, 6], 3, None),
        (ASHA(), None, [4, 7], 3, 6),
    ],
)
def test_each_rung_must_be_validated(settings, epochs, freq, first, missed) -> None:
    if missed is None:
        settings.check_validated(epochs, freq, first)
        return
    with pytest.raises(UsageError, match=f"after epoch {missed}, which validation_freq"):
        settings.check_validated(epochs, freq, first)


def test_one_in_three_goes_on_and_a_paused_one_comes_back() -> None:
    ladder = RungLadder(ASHA(), n_trials=9)
    assert ladder.reach(0, 1, 27, 0.5) == "pause"
    assert ladder.reach(1, 1, 27, 0.9) == "pause"
    assert ladder.promoted() == []
    assert ladder.reach(2, 1, 27, 0.7) == "pause"  # the third: now the best of three may go on
    assert ladder.promoted() == [0]
    assert ladder.promoted() == []
    assert ladder.reach(0, 2, 27, 0.4) == "go"  # no rung
    assert ladder.reach(0, 3, 27, 0.4) == "pause"
    for number, loss in ((3, 0.1), (4, 0.2)):
        verdict = ladder.reach(number, 1, 27, loss)
    assert verdict == "pause"  # five of them: one place, and 3 is in it
    assert ladder.reach(5, 1, 27, 0.8) == "pause"  # six: two places: 3 has gone on, 4 may
    assert ladder.promoted() == [4]


def test_the_best_goes_on_at_once() -> None:
    ladder = RungLadder(ASHA(), n_trials=9)
    for number in range(2):
        ladder.reach(number, 1, 27, 0.5)
    assert ladder.reach(2, 1, 27, 0.1) == "go"


def test_where_time_ends_the_search_the_best_trial_of_a_rung_goes_on_at_once() -> None:
    """Others may not reach the rung in time."""
    ladder = RungLadder(ASHA(), None, by_time=True)
    assert ladder.reach(0, 1, 12, 0.5) == "go"
    assert ladder.reach(1, 1, 12, 0.6) == "pause"
    assert ladder.reach(2, 1, 12, 0.4) == "go"
    assert ladder.promoted() == []


def test_the_leader_is_the_best_paused_trial_of_any_rung() -> None:
    ladder = RungLadder(ASHA(), None)
    for number, epoch, loss in ((0, 1, 0.4), (1, 3, 0.3), (2, 1, 0.2), (3, 9, 0.5)):
        assert ladder.reach(number, epoch, 27, loss) == "pause"
    assert [ladder.leader() for _ in range(5)] == [2, 1, 0, 3, None]
    assert ladder.last() == []  # none waits any more


def test_of_twelve_epochs_a_trial_trains_a_fifth_on_average() -> None:
    # 1, then 2 of every third, then 6 of every ninth, then 3 of every 27th
    assert ASHA().share_trained(12) == pytest.approx((1 + 2 / 3 + 6 / 9 + 3 / 27) / 12)
    assert ASHA(min_epochs=5).share_trained(4) == 1.0


def test_the_highest_rung_comes_first() -> None:
    ladder = RungLadder(ASHA(), n_trials=None)
    for number in range(3):
        ladder.reach(number, 3, 27, float(number))
    for number in range(3, 6):
        ladder.reach(number, 1, 27, float(number))
    assert ladder.promoted() == [0, 3]


def test_who_cannot_go_on_any_more_is_given_up() -> None:
    ladder = RungLadder(ASHA(), n_trials=6)  # two places at the most
    for number, loss in enumerate([0.1, 0.2, 0.3, 0.4]):
        ladder.reach(number, 1, 27, loss)
    assert ladder.given_up() == [2, 3]
    assert ladder.given_up() == []
    endless = RungLadder(ASHA(), n_trials=None)
    for number in range(9):
        endless.reach(number, 1, 27, 0.1 * number)
    assert endless.given_up() == []


def test_who_left_waits_no_more_but_holds_its_place() -> None:
    ladder = RungLadder(ASHA(), n_trials=9)
    for number in range(3):
        ladder.reach(number, 1, 27, float(number) + (number == 0) * 5)
    ladder.leave(1)
    assert ladder.promoted() == []


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_nobody_is_lost(seed: int) -> None:
    """Every trial completes, waits, or is given up; as many go on as there are places."""
    rng = random.Random(seed)
    n, epochs = rng.choice([5, 16, 27, 64]), rng.choice([4, 9, 27])
    ladder = RungLadder(ASHA(), n)
    losses = [rng.random() for _ in range(n)]
    at, running, waiting = dict.fromkeys(range(n), 0), list(range(n)), set()
    done, gone, spent = [], [], 0
    while running:
        number = running.pop(rng.randrange(min(4, len(running))))
        at[number] += 1
        spent += 1
        if at[number] == epochs:
            done.append(number)
        elif ladder.reach(number, at[number], epochs, losses[number]) == "go":
            running.insert(0, number)
        else:
            waiting.add(number)
        for other in ladder.promoted():
            waiting.remove(other)
            running.insert(0, other)
        for other in ladder.given_up():
            waiting.remove(other)
            gone.append(other)
    assert sorted([*done, *gone, *waiting]) == list(range(n))
    assert spent < n * epochs
    first = sorted(range(n), key=lambda i: losses[i])[: n // 3]
    assert all(at[i] > 1 for i in first)  # all that belong above the first rung are there
