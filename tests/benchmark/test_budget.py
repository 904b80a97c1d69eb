"""Trials and epochs for a budget of time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import paceline
import toys
from paceline.benchmark import budget
from paceline.benchmark.budget import FEW, LEAST_EPOCHS, MOST_EPOCHS, choose, plan_for_budget
from paceline.errors import UsageError
from paceline.report.forecast import Costs, Pace, predict

#: 8 trials at once, an epoch of them in half a second.
COSTS = Costs(32, ready=5.0, pace=Pace(8.0, 0.5), finish=1.0)


def whole(epochs: int) -> float:
    return 1.0


@pytest.mark.parametrize("seconds", [20.0, 100.0, 1_000.0])
@pytest.mark.parametrize("epochs", [5, 20])
def test_the_most_trials_that_end_in_time(seconds: float, epochs: int) -> None:
    plan = choose(COSTS, seconds, epochs, whole)
    assert plan.epochs == epochs
    assert predict(COSTS, plan.n_trials, epochs).total <= 0.9 * seconds
    assert predict(COSTS, plan.n_trials + 8, epochs).total > 0.9 * seconds


def test_epochs_that_nobody_gave_follow_the_budget() -> None:
    usual = choose(COSTS, 100.0, None, whole)
    assert usual.epochs == 10 and 16 <= usual.n_trials <= 256
    short = choose(COSTS, 14.0, None, whole)
    assert LEAST_EPOCHS <= short.epochs < 10
    long = choose(COSTS, 1_500.0, None, whole)
    assert 10 < long.epochs <= MOST_EPOCHS and long.n_trials >= 256
    endless = choose(COSTS, 100_000.0, None, whole)
    assert endless.epochs == MOST_EPOCHS and endless.n_trials > 10_000


def test_what_a_pruner_leaves_out_makes_room_for_trials() -> None:
    all_of_it = choose(COSTS, 300.0, 27, whole)
    pruned = choose(COSTS, 300.0, 27, lambda epochs: 0.25)
    assert pruned.n_trials > 3 * all_of_it.n_trials


def test_a_budget_for_less_than_a_trial_begins_some_all_the_same() -> None:
    plan = choose(COSTS, 8.0, 10, whole)
    assert (plan.n_trials, plan.epochs) == (FEW, 10)
    assert "one trial of 10 epochs may take longer than the 7.2 s left. So the" in plan.text


@pytest.mark.parametrize(
    ("costs", "said"),
    [(None, "0 epochs"), (replace(COSTS, programs=8.0, compile=0.1, trial_epochs=2), "2 epochs")],
)
def test_too_few_epochs_plan_nothing(costs: Costs | None, said: str) -> None:
    plan = choose(costs, 12.0, 5, whole)
    assert (plan.n_trials, plan.epochs) == (FEW, 5)
    assert f"{said} ended while the beginning of the search was measured" in plan.text
    assert choose(None, 12.0, None, whole).epochs == LEAST_EPOCHS


def test_a_population_has_two_members_and_an_exchange_at_least() -> None:
    short = choose(COSTS, 14.0, None, whole, least=6, fewest=2)
    assert short.epochs == 6 and short.n_trials >= 2
    large = choose(COSTS, 14.0, 6, whole, fewest=20)
    assert large.n_trials == 20 and "a population of 20 of 6 epochs may take" in large.text
    assert choose(None, 14.0, 6, whole, fewest=2, max_total_epochs=30).n_trials == 5


@pytest.mark.parametrize(("total", "epochs"), [(8, 8), (100_000, MOST_EPOCHS)])
def test_no_more_epochs_than_all_trials_may_train(total: int, epochs: int) -> None:
    plan = choose(COSTS, 100_000.0, None, whole, max_total_epochs=total)
    assert plan.epochs == epochs and plan.n_trials > 10_000


@pytest.mark.parametrize(("total", "epochs"), [(13, None), (60, None), (90, 12)])
def test_all_members_of_a_population_train_within_the_total(total: int, epochs: int | None) -> None:
    plan = choose(COSTS, 1_500.0, epochs, whole, least=6, fewest=2, max_total_epochs=total)
    assert plan.epochs >= 6 and plan.n_trials >= 2
    assert total - plan.epochs < plan.epochs * plan.n_trials <= total


@pytest.mark.parametrize(
    ("pruner", "epochs", "said"),
    [
        ("pbt", 8, "it is 15, and a population of 2 of 8 epochs"),
        ("pbt:7", None, "it is 15, and a population of 2 of 8 epochs"),
        (None, 16, "it is 15, and one trial of 16 epochs"),
    ],
)
def test_more_epochs_than_all_may_train_are_refused_before_anything_is_measured(
    fresh_folder, monkeypatch, pruner: str | None, epochs: int | None, said: str
) -> None:
    monkeypatch.setattr(budget, "run_pilot", None)
    with pytest.raises(UsageError, match=f"max_total_epochs: {said} trains more; raise it"):
        planned(100.0, pruner=pruner, epochs=epochs, max_total_epochs=15)


@pytest.mark.parametrize(
    ("pruner", "epochs", "tried"), [("pbt", None, 10), ("pbt:12", None, 13), ("pbt:2", 3, 3)]
)
def test_the_beginning_of_a_population_is_measured_with_an_exchange(
    fresh_folder, monkeypatch, pruner: str, epochs: int | None, tried: int
) -> None:
    asked: list[tuple[Any, ...]] = []

    def run_pilot(subject: Any, *given: Any, **_: Any) -> Costs:
        asked.append(given)
        return COSTS

    monkeypatch.setattr(budget, "run_pilot", run_pilot)
    plan = planned(14.0 if pruner == "pbt" else 100.0, pruner=pruner, epochs=epochs)
    assert asked[0][2] == tried and asked[0][5] == pruner
    assert paceline.PBT(int(pruner[4:] or 5)).perturbations(plan.epochs)


@pytest.mark.parametrize(("slots", "n_measured"), [("auto", 64), (1, 64), (100, 100)])
def test_the_beginning_is_measured_as_the_search_will_train(
    fresh_folder, monkeypatch, slots: int | str, n_measured: int
) -> None:
    made: list[dict[str, Any]] = []

    class Tuner:
        def __init__(self, build: Any, **given: Any) -> None:
            made.append(given)

        def search(self, x: Any, y: Any, **call: Any) -> None:
            made[-1] |= call

        def summary(self) -> dict[str, Any]:
            return {}

    monkeypatch.setattr("paceline.tuner.tuner.Tuner", Tuner)
    how = {
        "parallel_trials": slots,
        "plan": "looped",
        "share_widths": False,
        "mesh": 2,
        "executor": "fit",
    }
    how["constraints"] = {"params": ("<=", 50)}
    assert planned(100.0, **how).n_trials == FEW
    assert {name: made[0][name] for name in how} == how
    assert made[0]["n_trials"] == n_measured


def test_epochs_without_an_exchange_are_refused_before_anything_is_measured(
    fresh_folder, monkeypatch
) -> None:
    monkeypatch.setattr(budget, "run_pilot", None)
    with pytest.raises(UsageError, match="pbt perturbs trials every 5 epochs .* trials have 4"):
        planned(100.0, pruner="pbt", epochs=4)


@pytest.mark.slow
def test_what_latencies_take_is_measured_too(fresh_folder, monkeypatch) -> None:
    from paceline.tuner.arguments.costs import TrialCosts

    calls, measure = [], TrialCosts.measure

    def counted(*args: Any, **named: Any) -> Any:
        calls.append(args)
        return measure(*args, **named)

    monkeypatch.setattr(TrialCosts, "measure", counted)
    plan = planned(3600.0, objective=["val_accuracy", "params", "latency"])
    assert plan.n_trials > 100 and len(calls) >= 8


def planned(seconds: float, **arguments: Any) -> Any:
    given: dict[str, Any] = {
        "validation_data": toys.data(23, seed=1),
        "batch_size": 16,
        "epochs": 2,
        "pruner": None,
        "precision": None,
        "seed": 0,
    }
    return plan_for_budget(toys.dense, *toys.data(), seconds=seconds, **{**given, **arguments})


@pytest.mark.slow
def test_the_beginning_is_measured(fresh_folder) -> None:
    plan = planned(3600.0)
    assert plan.epochs == 2 and plan.n_trials > 100
    assert f"the budget holds {plan.n_trials:,} trials of 2 epochs, by 1" in plan.text
    assert not list(fresh_folder.iterdir())


def test_no_time_to_measure_is_an_error(fresh_folder) -> None:
    with pytest.raises(UsageError, match="budget: measuring has taken all of its"):
        planned(1e-3)
