import itertools

import optuna
import pytest

from as_optuna import optuna_study
from marks import slow_where
from paceline.errors import SamplerError, SpaceError
from paceline.search_space import GridWalk, HyperParameters
from paceline.study.proposer import BuildFailed
from paceline.study.study import Study
from study.builds import build, small_build

SMALL = [
    {"kind": "a", "units": 1},
    {"kind": "a", "units": 2},
    {"kind": "a", "units": 3},
    {"kind": "a", "units": 4},
    {"kind": "b", "flag": False},
    {"kind": "b", "flag": True},
]


def new(name="s", **arguments) -> Study:
    return Study(name, **({"direction": "maximize"} | arguments))


def key(hparams):
    return sorted(hparams.items())


def configurations(build):
    grid, found = GridWalk(), []
    while not grid.done:
        hp = HyperParameters(chooser=grid.chooser())
        build(hp)
        found.append(hp.hparams)
        grid.advance()
    return found


# Determinism


@pytest.mark.parametrize("sampler", ["random", "qmc", "tpe", "grid"])
@pytest.mark.parametrize("open_", slow_where([1, 4], lambda n: n == 1))
def test_a_seed_gives_the_same_trials_again(sampler, open_, run_trials):
    first = new("first", sampler=sampler, seed=5)
    second = new("second", sampler=sampler, seed=5)
    other = new("other", sampler=sampler, seed=6)
    found = [run_trials(study, 24, open_=open_) for study in (first, second, other)]
    assert found[0] == found[1]
    assert (found[0] == found[2]) == (sampler == "grid")
    assert [trial.seed for trial in first.trials] == [trial.seed for trial in second.trials]
    assert [trial.hparams for trial in first.trials] == found[0]


@pytest.mark.parametrize("sampler", ["random", "qmc", "tpe"])
def test_a_study_that_was_closed_goes_on_as_if_it_had_not_been(sampler, run_trials):
    whole = run_trials(new("whole", sampler=sampler, seed=1), 30)
    parts = []
    for _ in range(3):
        study = new("parts", sampler=sampler, seed=1)
        parts += run_trials(study, 10)
        study.close()
    assert parts == whole
    assert [trial.seed for trial in new("parts").trials] == [
        trial.seed for trial in new("whole").trials
    ]


def test_users_random_state_is_left_alone(run_trials, random_state_kept):
    for sampler in ("random", "tpe", "qmc", "grid"):
        run_trials(new(sampler, sampler=sampler), 15)


def test_optunas_log_and_verbosity_are_left_alone(run_trials, capfd):
    before = optuna.logging.get_verbosity()
    for sampler in ("random", "tpe", "grid"):
        run_trials(new(sampler, sampler=sampler), 15)
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")


def test_tpe_learns(run_trials):
    def narrow(hp, proposal=None):
        hp.Float("lr", 0.0, 100.0)
        return dict(hp.hparams)

    best = {
        sampler: [
            max(
                -h["lr"]
                for h in run_trials(new(f"{sampler}{seed}", sampler=sampler, seed=seed), 40, narrow)
            )
            for seed in range(3)
        ]
        for sampler in ("random", "tpe")
    }
    # The value is -lr. The best of 40 at random is below -1 two times in three; TPE comes within
    # 0.1 of 0. Seeds are fixed: no odds of a false failure.
    assert sorted(best["tpe"])[1] > sorted(best["random"])[1]


# Values and conditions


@pytest.mark.parametrize("sampler", ["random", "qmc", "tpe", "grid"])
def test_values_are_real_and_stored_ones_are_optunas(sampler, run_trials):
    study = new(sampler=sampler)
    found = run_trials(study, 20)
    for hparams, stored in zip(found, optuna_study("s").trials, strict=True):
        assert stored.user_attrs["hparams"] == hparams
        conv = hparams["kind"] == "conv"
        assert set(hparams) == {"lr", "momentum", "kind", "units"} | (
            {"filters"} if conv else set()
        )
        reversed_ = stored.params["momentum[reversed]"]
        assert reversed_ == pytest.approx(1.0 - hparams["momentum"])
        assert stored.params["units"] == hparams["units"]
        assert hparams["units"] in range(8, 65, 8)
        assert stored.params.get("filters[kind=conv]") == hparams.get("filters")


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize(
    "base",
    [
        optuna.samplers.TPESampler(seed=0),
        optuna.samplers.TPESampler(seed=0, n_startup_trials=0),
        optuna.samplers.RandomSampler(seed=0),
        optuna.samplers.CmaEsSampler(seed=0),
    ],
    ids=lambda base: type(base).__name__,
)
def test_what_a_users_sampler_fixes_stays_fixed_to_the_end_of_the_space(base, run_trials):
    def build(hp, proposal=None):
        hp.Int("units", 1, 4)
        hp.Choice("kind", ["a", "b", "c"])
        hp.Float("rate", 0.0, 1.0, step=0.25)
        hp.Float("momentum", 0.0, 0.5, step=0.25)
        return dict(hp.hparams)

    sampler = optuna.samplers.PartialFixedSampler({"units": 2, "rate": 0.25}, base)
    study = new(sampler=sampler)
    found = run_trials(study, 12, build)
    assert {(hparams["units"], hparams["rate"]) for hparams in found} == {(2, 0.25)}
    others = {(hparams["kind"], hparams["momentum"]) for hparams in found}
    assert others == {(kind, at) for kind in "abc" for at in (0.0, 0.25, 0.5)}
    assert len(found) == 9
    assert study.proposer.exhausted


@pytest.mark.parametrize(
    ("theirs", "build"),
    [
        (
            lambda trial: trial.suggest_categorical("act", ["relu", "tanh"]),
            lambda hp, proposal: hp.Choice("act", ["tanh", "relu"]),
        ),
        (lambda trial: trial.suggest_int("act", 1, 9), lambda hp, proposal: hp.Float("act", 1, 9)),
        (
            lambda trial: trial.suggest_float("act", 1, 9),
            lambda hp, proposal: hp.Float("act", 1, 9, sampling="log"),
        ),
    ],
)
def test_a_parameter_that_earlier_trials_have_otherwise_is_named(theirs, build):
    storage = optuna.storages.InMemoryStorage()
    before = optuna.create_study(study_name="s", storage=storage, direction="maximize")
    before.optimize(lambda trial: float(theirs(trial) is None), n_trials=12)
    study = new(sampler="tpe", storage=storage)
    (one,) = before.trials[0].distributions.values()
    with pytest.raises(SamplerError, match='hyperparameter "act": .*or rename it') as caught:
        study.asker.propose(build)
    hp = HyperParameters()
    build(hp, None)
    assert str(one) in str(caught.value)
    assert str(hp.parameters["act"].distribution) in str(caught.value)


# Grid


def test_grid_shows_every_configuration_in_order_and_ends(run_trials):
    study = new(sampler="grid", n_trials=100)
    assert run_trials(study, 100, small_build) == SMALL == configurations(small_build)
    assert study.proposer.exhausted
    assert study.asker.propose(small_build) is None
    assert study.asker.max_open is None


def test_grid_goes_on_where_it_was(run_trials):
    assert run_trials(new(sampler="grid"), 2, small_build) == SMALL[:2]
    again = new(sampler="grid")
    assert run_trials(again, 100, small_build) == SMALL[2:]
    assert run_trials(new(sampler="grid"), 100, small_build) == []


def test_grid_walks_ten_values_of_a_float(run_trials):
    def floats(hp, proposal=None):
        hp.Float("rate", 0.0, 0.9)
        hp.Choice("flag", [False, True])
        return dict(hp.hparams)

    found = run_trials(new(sampler="grid"), 100, floats)
    assert [h["rate"] for h in found[::2]] == pytest.approx([i / 10 for i in range(10)])
    assert len(found) == 20


# Duplicates


@pytest.mark.parametrize("sampler", ["random", "qmc", "tpe", "grid"])
@pytest.mark.parametrize("open_", [1, 3])
def test_no_configuration_comes_twice_and_all_come(sampler, open_, run_trials):
    study = new(sampler=sampler, seed=3)
    found = run_trials(study, 100, small_build, open_=open_)
    assert sorted(map(key, found)) == sorted(map(key, SMALL))
    assert study.proposer.exhausted
    assert [trial.number for trial in study.trials] == list(range(6))


def test_a_finite_space_with_a_log_scale_is_tried_to_its_end(run_trials):
    def log(hp, proposal=None):
        hp.Int("units", 1, 60, sampling="log")
        return dict(hp.hparams)

    found = run_trials(new(), 100, log, epochs=1)
    assert sorted(h["units"] for h in found) == list(range(1, 61))


def test_duplicates_are_mostly_recognised_without_a_build(run_trials):
    builds = []

    def counted(hp, proposal):
        builds.append(proposal.attempt)
        return small_build(hp)

    study = new(seed=1)
    run_trials(study, 100, counted)
    assert len(builds) == len(SMALL)  # not one build for a configuration already built here


def test_rejected_drafts_leave_no_trace_in_the_storage(run_trials):
    study = new(seed=1)
    run_trials(study, 100, small_build)
    assert [trial.state.name for trial in optuna_study("s").trials] == ["COMPLETE"] * 6


def test_the_same_values_of_other_types_are_other_configurations():
    study = new()
    proposal = study.proposer.ask(0)
    hp = HyperParameters(chooser=proposal.choose)
    hp.Choice("on", [True])
    study.accept(proposal, hp)
    assert study.proposer.tried.seen({"on": True})
    assert not study.proposer.tried.seen({"on": 1}) and not study.proposer.tried.seen({"on": 1.0})


def test_a_space_without_hyperparameters_has_one_configuration(run_trials):
    study = new()
    assert run_trials(study, 5, lambda hp, proposal: {}) == [{}]
    assert study.proposer.exhausted


# Builds that fail


def test_a_build_that_fails_is_a_draft_to_be_recorded(run_trials):
    def fragile(hp, proposal):
        if hp.Choice("kind", ["a", "b"]) == "a":
            raise ValueError("no a today")
        hp.Int("units", 1, 3)
        return dict(hp.hparams)

    study = new(sampler="grid")
    with pytest.raises(BuildFailed, match="ValueError: no a today") as caught:
        study.asker.propose(fragile)
    failed = caught.value
    assert isinstance(failed.cause, ValueError)
    number = study.accept(failed.proposal, failed.hp)
    study.updates.finish(number, "failed", attrs={"error": str(failed.cause)})
    assert (study.trials.by_number(0).state, study.trials.by_number(0).hparams) == (
        "failed",
        {"kind": "a"},
    )

    found = run_trials(study, 10, fragile)
    assert [h["units"] for h in found] == [1, 2, 3]
    assert study.proposer.exhausted
    stored = optuna_study("s").trials[0]
    assert stored.state.name == "FAIL"
    assert stored.user_attrs["error"] == "no a today"

    # Going on later does not fail again for what has failed before.
    assert run_trials(new(sampler="grid"), 10, fragile) == []


@pytest.mark.parametrize("sampler", ["random", "tpe", "qmc"])
def test_a_failed_prefix_does_not_hide_what_may_follow_it(sampler, run_trials):
    failures = itertools.count()

    def flaky(hp, proposal):
        hp.Choice("kind", ["a"])
        if next(failures) == 0:
            raise RuntimeError("out of memory")
        hp.Int("units", 1, 3)
        return dict(hp.hparams)

    study = new(sampler=sampler)
    with pytest.raises(BuildFailed, match="out of memory") as caught:
        study.asker.propose(flaky)
    study.accept(caught.value.proposal, caught.value.hp)
    study.updates.finish(0, "failed")
    assert len(run_trials(study, 10, flaky)) == 3


def test_a_build_that_always_fails_in_one_way_exhausts_the_space():
    def broken(hp, proposal):
        raise RuntimeError("typo")

    study = new()
    with pytest.raises(BuildFailed, match="typo") as caught:
        study.asker.propose(broken)
    study.accept(caught.value.proposal, caught.value.hp)
    study.updates.finish(0, "failed")
    assert study.asker.propose(broken) is None
    assert study.proposer.exhausted


def test_a_space_error_is_wrong_for_every_configuration():
    study = new()
    with pytest.raises(SpaceError, match="Swap them"):
        study.asker.propose(lambda hp, proposal: hp.Int("units", 5, 1))
    assert study.asker.propose(small_build) is not None


def test_other_bounds_under_one_name_are_refused(run_trials):
    study = new()
    run_trials(study, 1, lambda hp, proposal: {"a": hp.Choice("a", [1, 2])})
    with pytest.raises(SpaceError, match="its bounds changed"):
        study.asker.propose(lambda hp, proposal: hp.Choice("a", [1, 2, 3]))
    later = new()
    with pytest.raises(SpaceError, match="its bounds changed"):
        later.asker.propose(lambda hp, proposal: hp.Choice("a", [2, 1]))


def test_an_interrupted_proposal_is_dropped_by_the_next(run_trials):
    def interrupted(hp, proposal):
        hp.Choice("kind", ["a", "b"])
        raise KeyboardInterrupt("stop")

    study = new(sampler="grid")
    with pytest.raises(KeyboardInterrupt, match="stop"):
        study.asker.propose(interrupted)
    proposal, _, _ = study.asker.propose(small_build)
    assert run_trials(study, 100, small_build) == SMALL
    with pytest.raises(RuntimeError, match="proposal of trial 0 is not the last"):
        study.proposer.reject(proposal)


# Enqueued configurations


def test_enqueued_configurations_come_first_and_the_sampler_fills_in(run_trials):
    study = new(sampler="tpe")
    study.asker.enqueue({"kind": "conv", "units": 16})
    study.asker.enqueue({"lr": 0.01, "momentum": 0.5, "kind": "dense", "units": 64})
    first, second, third = run_trials(study, 3)
    assert (first["kind"], first["units"]) == ("conv", 16)
    assert 1e-4 <= first["lr"] <= 1e-1 and 1 <= first["filters"] <= 64
    assert second == {"lr": 0.01, "momentum": 0.5, "kind": "dense", "units": 64}
    assert third not in (first, second)


@pytest.mark.parametrize("sampler", ["grid", "qmc"])
def test_enqueueing_goes_with_every_sampler(sampler, run_trials):
    study = new(sampler=sampler)
    study.asker.enqueue({"kind": "b", "flag": True})
    found = run_trials(study, 100, small_build)
    assert found[0] == SMALL[5]
    assert sorted(map(key, found)) == sorted(map(key, SMALL))


def test_an_enqueued_configuration_that_was_tried_is_skipped_with_a_note(run_trials):
    notes = []
    study = new(note=notes.append)
    run_trials(study, 1, small_build)
    study.asker.enqueue(study.trials.by_number(0).hparams)
    found = run_trials(study, 1, small_build)
    assert found[0] != study.trials.by_number(0).hparams
    assert len(notes) == 1 and "which was already tried" in notes[0]


def test_a_partly_given_configuration_varies_the_rest(run_trials):
    notes = []
    study = new(note=notes.append)
    for _ in range(5):
        study.asker.enqueue({"kind": "a"})
    found = run_trials(study, 4, small_build)
    assert sorted(map(key, found)) == sorted(map(key, SMALL[:4]))
    run_trials(study, 1, small_build)
    assert len(notes) == 1 and "skipped" in notes[0]


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({}, "hparams is empty"),
        ({"units": [1]}, r"'units' must be .* got \[1\]"),
        ({3: 1}, "3 must be .* got 1"),
    ],
)
def test_what_cannot_be_enqueued_is_refused_at_once(values, match):
    with pytest.raises(SpaceError, match=match):
        new().asker.enqueue(values)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"kind": "a", "unitz": 1}, "the hyperparameter 'unitz'. .* it declares kind, units"),
        ({"kind": "a", "units": 5}, '"units": the value 5'),
        ({"kind": "c"}, "\"kind\": the value 'c'"),
    ],
)
def test_what_build_does_not_know_is_refused_when_it_runs(values, match, run_trials):
    study = new()
    study.asker.enqueue(values)
    with pytest.raises(SpaceError, match=match):
        study.asker.propose(small_build)
    assert len(run_trials(study, 2, small_build)) == 2  # and is out of the way then


# Samplers of the user's


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: optuna.samplers.NSGAIISampler(population_size=4, seed=0),
        lambda: optuna.samplers.TPESampler(seed=0, group=True, multivariate=True),
        lambda: optuna.samplers.QMCSampler(seed=0, scramble=True),
        lambda: optuna.samplers.PartialFixedSampler(
            {"kind": "conv"}, optuna.samplers.RandomSampler(seed=0)
        ),
        lambda: optuna.samplers.CmaEsSampler(seed=0),
    ],
    ids=["nsga2", "tpe", "qmc", "partial", "cmaes"],
)
def test_an_optuna_sampler_object_is_asked_and_told(make, run_trials):
    sampler = make()
    if isinstance(sampler, optuna.samplers.CmaEsSampler):
        pytest.importorskip("cmaes")
    found = [run_trials(new(name, sampler=make()), 20) for name in ("s", "t")]
    assert found[0] == found[1]
    assert len({str(hparams) for hparams in found[0]}) == 20
    if isinstance(sampler, optuna.samplers.PartialFixedSampler):
        assert {h["kind"] for h in found[0]} == {"conv"}
    # What a sampler keeps for itself (CMA-ES: pickles) is not stored, but for NSGA's generations.
    kept = [trial.system_attrs for trial in optuna_study("s").trials]
    if isinstance(sampler, optuna.samplers.NSGAIISampler):
        assert all(type(value) is int for attrs in kept for value in attrs.values())
        assert {len(attrs) for attrs in kept} == {1}
    else:
        assert not any(kept)


def test_gp_is_asked_where_torch_is_installed(run_trials):
    pytest.importorskip("torch")
    found = [run_trials(new(name, sampler="gp", seed=1), 15) for name in ("s", "t")]
    assert found[0] == found[1]
    assert new(sampler="gp").asker.max_open == 4


def test_a_sampler_that_fails_is_blamed():
    class Broken(optuna.samplers.RandomSampler):
        def sample_independent(self, *_):
            raise ZeroDivisionError("division by zero")

    study = new(sampler=Broken(seed=0))
    with pytest.raises(SamplerError, match="Broken failed: ZeroDivisionError: division by zero"):
        study.asker.propose(build)


def test_how_many_trials_may_be_open(run_trials):
    assert new(sampler="tpe").asker.max_open == 4
    assert new(sampler="tpe", n_trials=16).asker.max_open == 4
    assert new(sampler="tpe", n_trials=100).asker.max_open == 12
    assert new(sampler="random", n_trials=100).asker.max_open is None
    assert new(sampler=optuna.samplers.NSGAIISampler(seed=0), n_trials=80).asker.max_open == 10
