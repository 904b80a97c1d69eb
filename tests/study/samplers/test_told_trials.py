"""The trials that TPE sees: all of few, the best and newest of many; Optuna's TPE is the truth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState

from paceline.study.samplers import told_trials
from paceline.study.samplers.in_memory_study import SampledTrials
from paceline.study.samplers.samplers import resolve_sampler
from paceline.study.samplers.told_trials import ToldTrials
from paceline.study.samplers.tpe import Tpe
from paceline.study.trials import trial_codec

SPACE = {
    "lr": FloatDistribution(1e-4, 1e-1, log=True),
    "units": IntDistribution(8, 64, step=8),
    "kind": CategoricalDistribution(("a", "b", "c")),
}


def trials(n: int, seed: int = 0) -> list[FrozenTrial]:
    """Complete and pruned trials in turn, some with equal losses."""
    rng, made = random.Random(seed), []
    for number in range(n):
        pruned = number % 5 == 3
        made.append(
            create_trial(
                state=OptunaState.PRUNED if pruned else OptunaState.COMPLETE,
                value=None if pruned else rng.randrange(40) / 10,
                params={
                    "lr": 10 ** rng.uniform(-4, -1),
                    "units": rng.randrange(8, 72, 8),
                    "kind": rng.choice("abc"),
                },
                distributions=dict(SPACE),
                intermediate_values={1: 1.0, 2: 0.5} if pruned and number % 2 else {1: 0.7},
            )
        )
        made[-1].number = number
    return made


def sampled(past: Sequence[FrozenTrial], told: ToldTrials) -> SampledTrials:
    return SampledTrials(learns=False, past=past, signs=(1,), told=told)


def asked(study: SampledTrials, sampler: optuna.samplers.BaseSampler) -> dict[str, Any]:
    trial = study.ask(sampler)
    return {name: study.suggest(trial, name, kind) for name, kind in SPACE.items()}


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def by_optuna(past: list[FrozenTrial], n: int, seeds: list[int]) -> list[dict[str, Any]]:
    """What Optuna's TPE chooses after these trials, ``n`` trials in a row that stay open."""
    study = optuna.create_study()
    for trial in past:
        study.add_trial(trial)
    found = []
    for _, seed in zip(range(n), seeds, strict=True):
        study.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
        trial = study.ask()
        suggest = {
            "lr": lambda t: t.suggest_float("lr", 1e-4, 1e-1, log=True),
            "units": lambda t: t.suggest_int("units", 8, 64, step=8),
            "kind": lambda t: t.suggest_categorical("kind", ("a", "b", "c")),
        }
        found.append({name: suggest[name](trial) for name in SPACE})
    return found


def by_us(past: list[FrozenTrial], n: int, seeds: list[int]) -> list[dict[str, Any]]:
    told = ToldTrials(0)
    study, sampler = sampled(past, told), Tpe(told)
    return [asked(study, sampler.seeded(seed)) for _, seed in zip(range(n), seeds, strict=True)]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("n", [4, 60, 300])
def test_of_few_trials_tpe_chooses_as_optunas_does(n):
    assert by_us(trials(n), 4, [3, 1, 4, 1]) == by_optuna(trials(n), 4, [3, 1, 4, 1])


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_of_many_trials_tpe_chooses_as_optunas_does_from_those_shown(monkeypatch):
    monkeypatch.setattr(told_trials, "FEW", 50)
    monkeypatch.setattr(told_trials, "BEST", 6)
    monkeypatch.setattr(told_trials, "NEWEST", 20)
    past = trials(51)
    complete = sorted((t for t in past if t.value is not None), key=lambda t: (t.value, t.number))
    shown = {t.number for t in complete[:6]} | set(range(31, 51))
    kept = [t for t in past if t.number in shown]
    assert len(kept) < 27  # one may be both
    assert by_us(past, 3, [5, 9, 2]) == by_optuna(kept, 3, [5, 9, 2])
    assert by_us(past[:50], 3, [5, 9, 2]) == by_optuna(past[:50], 3, [5, 9, 2])


def test_what_is_shown_depends_on_what_has_ended_not_on_the_order(monkeypatch):
    monkeypatch.setattr(told_trials, "FEW", 40)
    orders = [trials(90), trials(90)]
    random.Random(1).shuffle(orders[1])
    shown = []
    for order in orders:
        told = ToldTrials(0)
        for trial in order:
            told.end(trial)
        shown.append([trial.number for trial in told.ended])
    assert shown[0] == shown[1] == sorted(shown[0])


def test_asking_shows_no_more_trials_however_many_there_are():
    told = ToldTrials(0)
    for trial in trials(1000):
        told.end(trial)
    assert [trial.number for trial in told.ended] == list(range(1000))
    for trial in trials(1400)[1000:]:
        told.end(trial)
        assert len(told.ended) <= told_trials.BEST + told_trials.NEWEST <= told_trials.FEW
    assert len(told.all_ended) == 1400


def test_the_best_come_before_pruned_trials_and_those_that_violate():
    told = ToldTrials(0)
    violating = create_trial(
        state=OptunaState.PRUNED,
        params={},
        distributions={},
        system_attrs=trial_codec.constraint_attributes({"size": 2.0}),
    )
    violating.number = 90
    for trial in [*trials(20), violating]:
        told.end(trial)
    assert told.any_violates
    order = [t.number for t in sorted(told.all_ended, key=lambda trial: trial.order)]
    n_complete = sum(t.value is not None for t in trials(20))
    assert all(trials(20)[number].value is not None for number in order[:n_complete])
    assert order[-1] == 90
    # Of pruned trials those come first that trained longer: 13, 3 have two epochs; 8, 18 have one.
    assert order[n_complete:-1] == [3, 13, 8, 18]


def test_a_failed_trial_is_forgotten():
    told = ToldTrials(0)
    study = sampled((), told)
    sampler = resolve_sampler("random", 0)
    assert sampler.told is None
    trial = study.ask(None)
    assert len(told.open_ids) == 1
    study.drop(trial.number)
    assert told.open_ids == [] and list(told.all_ended) == []


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_paused_trials_are_shown_as_pruned_ones_until_they_go_on():
    """Optuna's TPE, told that the paused trials are pruned, chooses the same."""
    past, told = trials(20), ToldTrials(0)
    told.shows_paused = True
    study, sampler = sampled(past, told), Tpe(told)
    first = asked(study, sampler.seeded(1))
    study.accept(20, 20, create_trial(state=OptunaState.RUNNING))
    study.report(20, 1, 0.4)
    study.pause(20, paused=True)
    as_pruned = create_trial(
        state=OptunaState.PRUNED,
        params=first,
        distributions=dict(SPACE),
        intermediate_values={1: 0.4},
    )
    assert asked(study, sampler.seeded(7)) == by_optuna([*past, as_pruned], 1, [7])[0]

    study.pause(20, paused=False)
    assert 20 not in [trial.number for trial in told.ended]
    study.report(20, 2, 0.1)
    study.tell(20, OptunaState.COMPLETE, [0.1])
    assert [trial.value for trial in told.ended if trial.number == 20] == [0.1]


def test_without_a_time_limit_a_paused_trial_is_one_under_way():
    told = ToldTrials(0)
    study = sampled((), told)
    study.ask(None)
    study.accept(0, 0, create_trial(state=OptunaState.RUNNING))
    study.pause(0, paused=True)
    assert (told.ended, len(told.open_ids)) == ([], 1)


def test_a_trial_of_others_is_learnt_once_whatever_its_number():
    past, told = trials(4), ToldTrials(0)
    study = sampled(past, told)
    assert not any(study.learn_peer_trial(trial, (1,)) for trial in past)
    assert [trial.number for trial in told.all_ended] == [0, 1, 2, 3]

    begun = create_trial(state=OptunaState.RUNNING)
    begun.number = 9
    assert not study.learn_peer_trial(begun, (1,))
    study.renumber(9, 11)
    assert (study.is_open(9), study.is_open(11)) == (False, True)
    ended = create_trial(value=0.5)
    ended.number = 11
    assert [study.learn_peer_trial(ended, (1,)) for _ in range(2)] == [True, False]
    assert (len(told.all_ended), told.open_ids, study.is_open(11)) == (5, [], False)
