"""How long a search takes: counted rounds, measured pace."""

from __future__ import annotations

import msgspec
import pytest

from paceline.report.forecast import (
    Costs,
    Pace,
    asha_share,
    pace_of,
    predict,
    programs_of,
    rounds_left,
)


def simulated(running, to_come, epochs, slots):
    """The slow way: slots, filled one by one, an epoch at a time."""
    waiting, live, rounds = [*running, *[epochs] * to_come], [], 0
    while waiting or live:
        while waiting and len(live) < slots:
            live.append(waiting.pop(0))
        live = [left - 1 for left in live if left > 1]
        rounds += 1
    return rounds


@pytest.mark.parametrize(
    ("running", "to_come", "epochs", "slots"),
    [
        ([], 64, 10, 16),
        ([], 65, 10, 16),
        ([], 3, 10, 16),
        ([10] * 16, 48, 10, 16),
        ([4] * 16, 1, 10, 16),
        ([3] * 8, 0, 10, 8),
        ([9, 5, 2], 4, 10, 3),
    ],
)
def test_rounds_are_those_of_slots_that_are_refilled(running, to_come, epochs, slots):
    assert rounds_left(running, to_come, epochs, slots) == simulated(
        running, to_come, epochs, slots
    )


def test_trials_that_wait_for_a_slot_come_after_those_in_slots() -> None:
    # Four in slots have two epochs left, two wait, two are to come: the slots are free after two
    # rounds, and the other four train for three.
    assert rounds_left([3, 3, 2, 2, 2, 2], to_come=2, epochs=3, at_once=4) == 5


def test_nothing_left_takes_nothing():
    assert rounds_left([], 0, 10, 16) == 0


def test_very_many_trials_are_counted_on_average():
    assert rounds_left([], 16_000, 10, 16) == 10_000


def test_slots_that_are_not_all_taken_are_no_faster():
    # 2.4 trials at once on average: not the 2 whole ones, but never faster than 2.4
    assert rounds_left([], 24, 10, 2.4) == 120
    assert rounds_left([], 24, 10, 1.6) == pytest.approx(150)


COSTS = Costs(32, ready=5.0, pace=Pace(16, 0.5), finish=1.0)


def test_a_prediction_is_the_sum_of_its_parts():
    found = predict(COSTS, 64, 10)
    assert (found.ready, found.rounds, found.finish, found.n_rounds) == (5.0, 20.0, 1.0, 40)
    assert found.total == 26.0


def test_fewer_trials_than_slots_take_a_whole_round_each_epoch():
    assert predict(COSTS, 3, 10).n_rounds == 10


def test_a_pruner_that_spares_epochs_spares_rounds():
    assert predict(COSTS, 64, 10, share=0.5).rounds == 10.0


def test_further_programs_are_compiled():
    costs = Costs(32, 5.0, Pace(16, 0.5), programs=4.0, compile=2.0)
    assert predict(costs, 64, 10).compiling == 6.0
    assert predict(costs, 2, 10).compiling == 2.0


def test_the_pace_is_that_of_the_last_rounds():
    assert pace_of([]) is None
    pace = pace_of([(1.0, 16), (3.0, 8)])
    assert (pace.at_once, pace.round, pace.rate) == (12, 2.0, 6.0)


@pytest.mark.parametrize(
    ("distinct", "tried", "n", "least", "most"),
    [(1, 6, 64, 1, 1), (6, 6, 64, 64, 64), (2, 6, 64, 1.9, 2.1), (4, 6, 64, 6, 9), (2, 2, 3, 3, 3)],
)
def test_programs_from_a_few_that_were_tried(distinct, tried, n, least, most):
    assert least <= programs_of(distinct, tried, n) <= most


def test_the_share_of_asha_is_that_of_its_rungs():
    # 1 epoch by all, 2 more by a third, 6 more by a ninth, 18 more by a 27th
    assert asha_share(27) == pytest.approx((1 + 2 / 3 + 6 / 9 + 18 / 27) / 27)
    assert asha_share(1) == 1.0
    assert asha_share(9, min_epochs=9) == 1.0


def test_costs_come_back_from_json():
    from dataclasses import asdict

    assert msgspec.convert(asdict(COSTS), Costs) == COSTS
