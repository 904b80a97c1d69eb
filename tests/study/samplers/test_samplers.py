import importlib.util
from collections import Counter

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from paceline.errors import MissingExtraError, SamplerError, UsageError
from paceline.search_space import GridWalk, HyperParameters
from paceline.study.proposer import TriedConfigurations
from paceline.study.samplers.samplers import note_on_state, resolve_sampler
from paceline.study.samplers.sobol import Sobol
from paceline.study.samplers.values import check_seed, trial_seed, value_at


@pytest.mark.parametrize("sampler", ["tpo", "", None, 3, optuna.samplers.TPESampler])
def test_an_unknown_sampler_lists_the_known(sampler):
    with pytest.raises(
        SamplerError,
        match="must be one of random, qmc, tpe, cmaes, gp, grid, nsga2, nsga3, auto or",
    ):
        resolve_sampler(sampler, 0)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_samplers_that_end_optunas_own_loop_are_refused():
    for sampler in (
        optuna.samplers.GridSampler({"a": [1]}),
        optuna.samplers.BruteForceSampler(),
    ):
        with pytest.raises(SamplerError, match='Use sampler="grid"'):
            resolve_sampler(sampler, 0)


def test_gp_without_torch_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'pip install "paceline\[gp\]"'):
        resolve_sampler("gp", 0)


def test_adaptive_samplers_are_known_as_such():
    adaptive = {name: resolve_sampler(name, 0).adaptive for name in ("random", "qmc", "tpe")}
    assert adaptive == {"random": False, "qmc": False, "tpe": True}
    assert resolve_sampler(optuna.samplers.NSGAIISampler(seed=0), 0).adaptive
    assert not resolve_sampler(optuna.samplers.RandomSampler(seed=0), 0).adaptive


@pytest.mark.parametrize("seed", [-1, 1.5, "0", None, True])
def test_a_seed_is_a_whole_number_from_zero(seed):
    with pytest.raises(UsageError, match="integer of at least 0"):
        check_seed(seed)


def test_seeds_of_trials_have_31_bits_and_differ():
    assert check_seed(np.int64(7)) == 7
    seeds = {trial_seed(seed, number) for seed in range(5) for number in range(200)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert trial_seed(3, 4) == trial_seed(3, 4)


DISTRIBUTIONS = [
    CategoricalDistribution(("a", "b", "c")),
    IntDistribution(-3, 3),
    IntDistribution(1, 10, step=3),
    IntDistribution(1, 1000, log=True),
    IntDistribution(5, 5),
    FloatDistribution(-1.0, 1.0),
    FloatDistribution(1e-5, 1e-1, log=True),
    FloatDistribution(0.1, 0.5, step=0.1),
]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
@given(share=st.floats(0, 1, exclude_max=True))
def test_every_share_of_a_range_is_a_value_of_it(distribution, share):
    stored = value_at(distribution, share)
    assert distribution.to_external_repr(distribution.to_internal_repr(stored)) == stored
    optuna.trial.create_trial(
        state=optuna.trial.TrialState.RUNNING,
        params={"a": stored},
        distributions={"a": distribution},
    )


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_a_range_is_covered_to_its_ends(distribution):
    values = {value_at(distribution, share) for share in np.linspace(0, 1, 5000, endpoint=False)}
    if isinstance(distribution, CategoricalDistribution):
        assert values == set(distribution.choices)
        return
    assert min(values) == pytest.approx(distribution.low)
    assert max(values) == pytest.approx(distribution.high, rel=5e-3)
    if isinstance(distribution, IntDistribution) and not distribution.log:
        assert values == set(range(distribution.low, distribution.high + 1, distribution.step))


def points(seed: int, numbers: range, sampler: Sobol | None = None):
    sampler = sampler or Sobol(seed)
    found = []
    for number in numbers:
        hp = HyperParameters(chooser=sampler.chooser(number))
        kind = hp.Choice("kind", ["a", "b"])
        hp.Int("units", 1, 8)
        hp.Float("rate", 0.0, 1.0)
        if kind == "b":
            with hp.conditional_scope("kind", ["b"]):
                hp.Int("more", 1, 2)
        found.append(hp.hparams)
    return found


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sobol_points_are_even_in_every_coordinate_and_pair(seed):
    found = points(seed, range(64))
    assert Counter(hparams["kind"] for hparams in found) == {"a": 32, "b": 32}
    assert set(Counter(hparams["units"] for hparams in found).values()) == {8}
    assert Counter(int(64 * hparams["rate"]) for hparams in found) == dict.fromkeys(range(64), 1)
    pairs = Counter((hparams["kind"], hparams["units"]) for hparams in found)
    assert set(pairs.values()) == {4}


def test_sobol_points_hang_on_seed_and_number_alone():
    assert points(1, range(20))[12:] == points(1, range(12, 20))
    assert points(1, range(20)) != points(2, range(20))


def test_sobol_keeps_the_coordinates_of_an_earlier_session():
    first = Sobol(1)
    found = points(1, range(20), first)
    later = Sobol(1)
    later.learn_names(["kind", "units", "rate", "more[kind=b]"])
    assert points(1, range(10, 20), later) == found[10:]


def test_sobol_has_room_for_many_parameters():
    sampler = Sobol(0)
    hp = HyperParameters(chooser=sampler.chooser(3))
    for index in range(40):
        hp.Float(f"rate{index}", 0.0, 1.0)
    assert len(set(hp.hparams.values())) == 40
    again = HyperParameters(chooser=sampler.chooser(3))
    for index in reversed(range(40)):
        again.Float(f"rate{index}", 0.0, 1.0)
    assert again.hparams == hp.hparams


def test_configurations_tried_are_recognised_without_a_build():
    def build(hp):
        if hp.Choice("kind", ["a", "b"]) == "a":
            hp.Int("units", 1, 3)

    tried, grid, shown = TriedConfigurations(), GridWalk(), []
    assert not tried.leads_to_known(grid.chooser())
    while not grid.done:
        choose = grid.chooser()
        if not tried.leads_to_known(choose):
            met = []

            def note(parameter, choose=choose, met=met):
                met.append((parameter, choose(parameter)))
                return met[-1][1]

            hp = HyperParameters(chooser=note)
            build(hp)
            shown.append(hp.hparams)
            tried.add_path(met)
            assert tried.leads_to_known(grid.chooser())
        grid.advance()
    assert len(shown) == 4

    again = GridWalk()
    while not again.done:  # advances over all of them without a single build
        assert tried.leads_to_known(again.chooser())
        again.advance()


def test_a_build_that_asks_for_nothing_is_one_configuration():
    tried = TriedConfigurations()
    tried.add_path([])
    assert tried.leads_to_known(lambda parameter: pytest.fail("nothing to choose"))


@pytest.mark.parametrize("name", ["CmaEsSampler", "QMCSampler", "PartialFixedSampler"])
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_sampler_object_whose_state_is_not_stored_says_so(name):
    given = {"PartialFixedSampler": ({"a": 1}, optuna.samplers.TPESampler())}.get(name, ())
    sampler = getattr(optuna.samplers, name)(*given)
    said = note_on_state(sampler)
    assert said is not None
    assert said.startswith(f"sampler: {name} restarts from the study's trials")
    ours = {"CmaEsSampler": "cmaes", "QMCSampler": "qmc"}.get(name)
    assert said.endswith(f'Use sampler="{ours}" to continue exactly' if ours else "is not stored")


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "qmc", optuna.samplers.TPESampler()])
def test_samplers_that_go_by_the_trials_say_nothing(sampler):
    assert note_on_state(sampler) is None
