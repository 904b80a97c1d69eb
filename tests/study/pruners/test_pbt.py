"""Population based training: its settings, who is copied where, and the values of copies."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import PBT
from paceline.errors import UsageError
from paceline.search_space import HyperParameters
from paceline.study.pruners.exploration import explored
from paceline.study.pruners.pbt import Perturbation, PopulationPruner
from paceline.study.pruners.pruners import check_pruner, pruner_text
from paceline.study.trials.trial import Trial
from study.pruners.parameters import PARAMETERS, parameter


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("pbt", PBT()),
        ("pbt:4", PBT(perturbation_interval=4)),
        ("pbt:4:0.5", PBT(perturbation_interval=4, quantile_fraction=0.5)),
        (
            "pbt:perturbation_interval=2,quantile_fraction=0.1,resample_probability=0.5,perturbation_factors=0.5/2,burn_in_period=6,hparams=lr+a%2Fb%2Cc%2B",
            PBT(2, 0.1, 0.5, (0.5, 2.0), 6, ["lr", "a/b,c+"]),
        ),
        ("pbt:perturbation_interval=4,explore=gp", PBT(perturbation_interval=4, explore="gp")),
    ],
)
def test_settings_as_text(text, meant) -> None:
    read = check_pruner(text)
    assert read == meant
    assert check_pruner(pruner_text(read)) == meant


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"perturbation_interval": 0},
            "perturbation_interval must be an integer of at least 1, got 0",
        ),
        (
            {"perturbation_interval": True},
            "perturbation_interval must be an integer of at least 1, got True",
        ),
        ({"quantile_fraction": 0.6}, "at most 0.5, got 0.6"),
        ({"quantile_fraction": math.nan}, "at most 0.5, got nan"),
        ({"resample_probability": 1.1}, "resample_probability must be from 0 to 1, got 1.1"),
        ({"perturbation_factors": (1.2, 0.8)}, "one above 1, got (1.2, 0.8)"),
        ({"perturbation_factors": 2}, "one above 1, got 2"),
        ({"burn_in_period": -1}, "burn_in_period must be an integer of at least 0, got -1"),
        ({"hparams": "lr"}, "names of hyperparameters, got 'lr'"),
        ({"hparams": []}, "names of hyperparameters, got []"),
        ({"explore": "bayes"}, "explore must be 'random' or 'gp', got 'bayes'"),
    ],
)
def test_settings_that_are_none(given, said) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        PBT(**given)


@pytest.mark.parametrize(
    "text", ["pbt:x", "pbt:1:2:3", "pbt:steps=3", "pbt:perturbation_interval=1e3"]
)
def test_texts_that_are_no_settings(text) -> None:
    with pytest.raises(UsageError, match="pruner|PBT"):
        check_pruner(text)


def waiting(losses: dict[int, float], **settings: Any) -> PopulationPruner:
    pruner = PopulationPruner(PBT(perturbation_interval=3, **settings), "minimize")
    for number, loss in losses.items():
        assert pruner.judge(Trial(number), 2, 9, loss) == "go"
        assert pruner.judge(Trial(number), 3, 9, loss) == "pause"
    return pruner


def test_the_worst_are_replaced_by_the_best() -> None:
    losses = {n: float(abs(n - 5)) for n in range(12)}
    pruner = waiting(losses)
    found = pruner.perturb(seed=0)
    # The worst three: 11 and 0, 10 before 1? Of equal losses the earlier trial is the better one.
    assert [each.replaced for each in found] == [0, 10, 11]
    assert {each.source for each in found} <= {4, 5, 6}
    assert all(each.epoch == 3 for each in found)
    assert pruner.given_up() == [0, 10, 11]
    assert pruner.promoted() == [n for n in range(12) if n not in (0, 10, 11)]
    assert not pruner.waits
    assert pruner.promoted() == pruner.given_up() == []


def test_a_failed_member_is_replaced_too() -> None:
    pruner = waiting({0: 1.0, 1: 2.0, 2: 3.0})
    pruner.end_trial(Trial(3, "failed"))
    pruner.end_trial(Trial(4, "complete"))
    assert [each.replaced for each in pruner.perturb(seed=0)] == [2, 3]
    assert pruner.perturb(seed=0) == []


def test_one_of_two_is_replaced_and_one_alone_stays() -> None:
    assert waiting({0: 1.0, 1: 0.5}).perturb(seed=3) == [Perturbation(1, 0, 3)]
    assert waiting({0: 1.0}).perturb(seed=3) == []


def test_draws_depend_on_the_seed_and_not_on_the_order() -> None:
    losses = {n: float(n) for n in range(16)}
    backwards = dict(sorted(losses.items(), reverse=True))
    drawn = [waiting(losses, quantile_fraction=0.5).perturb(seed) for seed in range(8)]
    assert drawn == [waiting(backwards, quantile_fraction=0.5).perturb(seed) for seed in range(8)]
    assert len({tuple(each.source for each in found) for found in drawn}) == 8


def test_its_state_is_all_that_it_knows() -> None:
    pruner = waiting({0: 1.0, 1: 2.0, 2: 3.0})
    pruner.end_trial(Trial(3, "failed"))
    again = PopulationPruner(pruner.settings, "minimize")
    again.load_state(pruner.state())
    assert again.perturb(seed=1) == pruner.perturb(seed=1)


# -- values of copies ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PARAMETERS)
@given(
    share=st.integers(0, 10**6),
    seed=st.integers(0, 2**31),
    resample=st.sampled_from([0.0, 0.5]),
)
@settings(max_examples=60, deadline=None)
def test_bounds_steps_and_scales_hold(name, share, seed, resample) -> None:
    known = PARAMETERS[name]
    values = known.values(every=True)
    value = values[share % len(values)]
    found = explored(known, value, PBT(resample_probability=resample), seed, 7, 3)
    assert known.check(found) == found
    assert type(found) is type(value)
    if resample == 0 and isinstance(value, float) and name in ("log", "numbers"):
        assert found != value or found in (values[0], values[-1])


def test_a_factor_is_a_factor() -> None:
    known = PARAMETERS["log"]
    found = {explored(known, 1e-3, PBT(resample_probability=0.0), seed, 0) for seed in range(64)}
    assert found == {0.8e-3, 1.2e-3}


def test_a_grid_is_walked_by_a_step_at_least() -> None:
    ints = {
        explored(PARAMETERS["int with a step"], 64, PBT(resample_probability=0.0), s)
        for s in range(64)
    }
    assert ints == {32, 96}
    numbers = {
        explored(PARAMETERS["numbers"], 4, PBT(resample_probability=0.0), s) for s in range(64)
    }
    assert numbers == {2, 8}


def test_names_stay_unless_they_are_drawn_anew() -> None:
    known = PARAMETERS["names"]
    assert {explored(known, "relu", PBT(resample_probability=0.0), seed) for seed in range(64)} == {
        "relu"
    }
    assert {explored(known, "relu", PBT(resample_probability=1.0), seed) for seed in range(64)} == {
        "relu",
        "tanh",
        "elu",
    }


def test_zero_is_left() -> None:
    known = parameter("Float", 0.0, 0.5)
    found = [explored(known, 0.0, PBT(resample_probability=0.0), seed) for seed in range(16)]
    assert len(set(found)) == 16


def test_the_share_that_is_drawn_anew() -> None:
    known = PARAMETERS["float"]
    found = [explored(known, 1.0, PBT(resample_probability=0.25), seed) for seed in range(4000)]
    anew = sum(value not in (0.8, 1.2) for value in found)
    assert 0.25 * 4000 - 110 < anew < 0.25 * 4000 + 110  # four standard deviations


def test_hyperparameters_whose_names_end_alike_move_apart() -> None:
    hp = HyperParameters()
    for name in ("conv_dropout", "dense_dropout"):
        hp.Float(name, 0.1, 0.9)
    never = PBT(resample_probability=0.0)
    moves = {
        tuple(explored(p, 0.5, never, 0, member, 4, 0) > 0.5 for p in hp.parameters.values())
        for member in range(64)
    }
    assert len(moves) == 4
