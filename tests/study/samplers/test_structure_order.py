"""Families at the study: which trial follows which, and that nothing else changes."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from as_optuna import optuna_study
from marks import slow_where
from paceline.search_space import Parameter, Space
from paceline.study.samplers.samplers import resolve_sampler
from paceline.study.samplers.structure_order import (
    TIMED_WAVE,
    TPE_BEGINS,
    WAVE,
    StructuralParameters,
    StructureOrder,
)
from paceline.study.samplers.values import random_chooser
from paceline.study.study import Study

N = 48


def deep(hp: Any, proposal: Any = None) -> dict[str, Any]:
    """Fifteen structures; momentum and learning rate are no part of them."""
    hp.Choice("momentum", [0.8, 0.9])
    hp.Float("lr", 1e-4, 1e-1, sampling="log")
    hp.Choice("units", [16, 32, 64])
    if hp.Int("layers", 1, 2) == 2:  # not always asked for, and no condition says so
        hp.Int("second", 8, 32, step=8)
    return dict(hp.hparams)


def small(hp: Any, proposal: Any = None) -> dict[str, Any]:
    """Thirty-six configurations of six structures."""
    hp.Choice("units", [16, 32, 64])
    hp.Choice("momentum", [0.7, 0.8, 0.9])
    hp.Boolean("bias")
    hp.Choice("rate", [0.1, 0.2])
    return dict(hp.hparams)


def program(hparams: dict[str, Any]) -> str:
    return f"{hparams['units']}-{hparams.get('bias')}-{hparams.get('second')}"


def new(name: str = "s", slots: int = 8, n_trials: int | None = N, **arguments: Any) -> Study:
    study = Study(name, **({"direction": "maximize", "n_trials": n_trials} | arguments))
    study.proposer.structure_order.fill(slots)
    return study


def go_on(study: Study, n: int, build: Any = deep, at_once: int = 4) -> list[dict[str, Any]]:
    """Asks for ``n`` trials; those before the last ``at_once`` have ended."""
    begun: list[int] = []
    for _ in range(n):
        proposal = study.asker.propose(build)
        if proposal is None:
            break
        proposal, hp, hparams = proposal
        study.persist({})
        begun.append(study.accept(proposal, hp))
        study.updates.learn_program(begun[-1], program(hparams))
        if len(begun) > at_once:
            end(study, begun[-1 - at_once])
    return [study.trials.by_number(number).hparams for number in begun]


def end(study: Study, number: int) -> None:
    hparams = study.trials.by_number(number).hparams
    value = -abs(np.log10(hparams.get("lr", 1e-3)) + 2) + hparams["units"] / 100
    study.updates.report(number, 1, {"val_accuracy": value}, value)
    study.updates.finish(number, "complete", attrs={"program": program(hparams)})


def keys(found: list[dict[str, Any]]) -> list[str]:
    return sorted(str(sorted(hparams.items())) for hparams in found)


def changes(found: list[dict[str, Any]]) -> int:
    """How often a trial is of another program than the one before."""
    return sum(program(a) != program(b) for a, b in zip(found, found[1:], strict=False))


def test_attributes_of_other_programs_do_no_harm():
    go_on(new(), 2, at_once=0)
    other = optuna_study("s")
    trial = optuna.trial.create_trial(value=1.0, user_attrs={"program": [1], "draw": "first"})
    other.add_trial(trial)
    assert len(go_on(new(), 10, at_once=0)) == 10


# Random


@pytest.mark.parametrize("seed", slow_where(range(4), bool))
def test_random_tries_the_same_configurations_in_another_order(seed):
    plain = go_on(new("plain", slots=1, seed=seed), N)
    study = new("family", seed=seed)
    family = go_on(study, N)
    assert keys(family) == keys(plain)
    assert changes(family) < 0.6 * changes(plain)
    seeds = [trial.seed for trial in new("plain", seed=seed).trials]
    assert [trial.seed for trial in study.trials] == seeds  # they follow from the numbers


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [12, 24])
def test_the_same_configurations_where_draws_repeat(seed, n):
    plain = go_on(new("plain", slots=1, seed=seed, n_trials=n), n, small)
    family = go_on(new("family", seed=seed, n_trials=n), n, small)
    assert keys(family) == keys(plain)
    assert len(set(keys(family))) == n


def test_a_small_space_is_still_tried_to_its_end():
    study = new(n_trials=100)
    found = go_on(study, 100, small)
    assert len(set(keys(found))) == len(found) == 36
    assert study.proposer.exhausted


@pytest.mark.parametrize("dies_after", [1, 17, 30])
def test_a_search_that_goes_on_after_a_crash_tries_what_was_left(dies_after):
    plain = go_on(new("plain", slots=1, seed=2), N)
    dead = new(seed=2)
    go_on(dead, dies_after)
    dead.writer.flush()  # its last four trials are never ended
    twice = new(seed=2)
    go_on(twice, 6)
    twice.writer.flush()
    study = new(seed=2)
    left = N - sum(trial.state == "complete" for trial in study.trials)
    go_on(study, left, at_once=0)
    assert keys([t.hparams for t in study.trials if t.state == "complete"]) == keys(plain)


def test_more_trials_later_are_those_of_one_longer_search():
    whole = go_on(new("whole", seed=3), N)
    first = new("parts", seed=3, n_trials=20)
    found = go_on(first, 20, at_once=0)
    first.close()
    found += go_on(new("parts", seed=3), N - 20, at_once=0)
    assert keys(found) == keys(whole)


def test_the_order_is_plain_where_nobody_knows_how_many_trials_will_run():
    plain = go_on(new("plain", slots=1), N)
    assert go_on(new("timed", n_trials=None), N) == plain


def test_a_draw_says_which_it_was():
    study = new()
    study.asker.enqueue({"units": 16})
    go_on(study, N, at_once=0)
    study.writer.flush()
    stored = optuna_study("s").trials
    assert "draw" not in stored[0].user_attrs  # it was given
    assert sorted(trial.user_attrs["draw"] for trial in stored[1:]) == list(range(N - 1))


def test_an_interrupted_draw_comes_again():
    def interrupted(hp, proposal):
        hp.Choice("momentum", [0.8, 0.9])
        raise KeyboardInterrupt("stop")

    plain = go_on(new("plain", slots=1), N)
    study = new()
    with pytest.raises(KeyboardInterrupt, match="stop"):
        study.asker.propose(interrupted)
    assert keys(go_on(study, N)) == keys(plain)


def test_a_family_goes_on_while_there_are_draws_of_it():
    study = new()
    assert not study.proposer.keeps_structure
    before = go_on(study, 12)
    for _ in range(N - 12):
        promised = study.proposer.keeps_structure
        before += go_on(study, 1)
        if promised:
            assert program(before[-1]) == program(before[-2])


def test_random_values_are_even_and_hang_on_nothing_else():
    lr = Parameter("lr", "lr", FloatDistribution(0.0, 1.0), 0.0)
    kind = Parameter("kind", "kind", CategoricalDistribution(("a", "b", "c", "d")), "a")
    n, rows = 4000, []
    for number in range(n):
        choose = random_chooser(7, number)
        rows.append((choose(lr), choose(kind)))
        assert (rows[-1][1], rows[-1][0]) == (choose(kind), choose(lr))
    rates = np.array([row[0] for row in rows])
    kinds = np.array(["abcd".index(row[1]) for row in rows])
    # Four standard deviations; the seed is fixed: no odds of a false failure.
    assert abs(rates.mean() - 0.5) < 4 * np.sqrt(1 / 12 / n)
    assert np.all(np.abs(np.bincount(kinds) - n / 4) < 4 * np.sqrt(n * 3 / 16))
    assert abs(np.corrcoef(rates, kinds)[0, 1]) < 4 / np.sqrt(n)
    assert abs(np.corrcoef(rates[1:], rates[:-1])[0, 1]) < 4 / np.sqrt(n)


# TPE


@pytest.mark.parametrize("seed", slow_where(range(3), bool))
@pytest.mark.parametrize(("n", "wave"), [(64, WAVE), (36, 4)])
def test_tpe_is_asked_in_waves_of_one_structure(seed, n, wave):
    study = new(sampler="tpe", seed=seed, n_trials=n)
    assert min(WAVE, study.asker.max_open or 0) == wave
    found = go_on(study, n)
    begun = TPE_BEGINS + 4  # four are open when the next one is asked for
    assert len(set(map(program, found[:begun]))) > 2  # TPE knows nothing yet
    waves = [found[at : at + wave] for at in range(begun, n, wave)]
    # The first trial of a wave may show that one more parameter is structural.
    assert [len(set(map(program, wave))) for wave in waves].count(1) >= len(waves) - 1
    assert len({program(wave[0]) for wave in waves}) > 1


def test_tpe_is_free_where_trials_end_one_by_one():
    plain = go_on(new("plain", slots=1, sampler="tpe"), 30, at_once=0)
    assert go_on(new("family", sampler="tpe"), 30, at_once=0) == plain


def test_tpe_begins_as_it_does_plainly():
    plain = go_on(new("plain", slots=1, sampler="tpe"), TPE_BEGINS)
    assert go_on(new("family", sampler="tpe"), TPE_BEGINS) == plain


def test_tpe_is_free_where_a_structure_has_been_tried_out():
    study = new(sampler="tpe", n_trials=100)
    found = go_on(study, 100, small)
    assert len(set(keys(found))) == len(found) == 36
    assert study.proposer.exhausted


def test_a_trial_that_was_given_leads_no_wave():
    study = new(sampler="tpe", n_trials=64)
    go_on(study, 22)
    study.asker.enqueue({"units": 16, "layers": 1})
    assert not study.proposer.keeps_structure  # what was given comes first
    go_on(study, 1)
    for number in range(18, 23):
        end(study, number)
    study.asker.enqueue({"units": 16, "layers": 1})
    go_on(study, 1)
    assert not study.proposer.keeps_structure


def test_a_trial_that_was_given_takes_no_place_in_a_wave():
    study = new(sampler="tpe", n_trials=64)
    begun = TPE_BEGINS + 4
    found = go_on(study, begun + 3)
    assert study.proposer.keeps_structure
    study.asker.enqueue({"units": 16, "layers": 1})
    found += go_on(study, 1 + WAVE - 3)
    assert {program(hparams) for hparams in found[begun + 4 :]} == {program(found[begun])}
    assert not study.proposer.keeps_structure


def timed(**arguments: Any) -> Study:
    """A study that time may end."""
    study = new(sampler="tpe", n_trials=100_000, **arguments)
    study.asker.limit_trials(100_000, by_time=True)
    return study


@pytest.mark.parametrize("at_once", [0, 4])
def test_where_time_ends_a_search_structures_come_in_short_waves(at_once: int) -> None:
    study = timed(slots=1)  # also where trials train one by one: a program is compiled for each
    found = go_on(study, 2 * TIMED_WAVE, at_once=at_once)
    waves = [found[at : at + TIMED_WAVE] for at in range(0, len(found), TIMED_WAVE)]
    assert all(len(set(map(program, wave))) == 1 for wave in waves)
    assert len({program(wave[0]) for wave in waves}) > 1
    assert len({hparams["lr"] for hparams in found}) == len(found)


def test_where_time_ends_a_search_choices_of_rates_are_free_within_a_wave() -> None:
    def build(hp: Any, proposal: Any = None) -> dict[str, Any]:
        hp.Choice("rate", [0.1, 0.01, 0.001, 0.0001, 0.2, 0.02, 0.002])
        hp.Int("units", 1, 100)
        return dict(hp.hparams)

    study = timed()
    found = go_on(study, TIMED_WAVE, build)
    assert len({hparams["units"] for hparams in found}) == 1
    assert len({hparams["rate"] for hparams in found}) == TIMED_WAVE


def test_where_trials_train_long_a_timed_wave_ends_with_its_first() -> None:
    study = timed()
    go_on(study, 1)
    assert study.proposer.keeps_structure
    assert study.proposer.structure_order.early_leader == 0
    study.proposer.structure_order.end_wave()
    assert not study.proposer.keeps_structure
    second = go_on(study, 1)
    assert study.proposer.keeps_structure  # another wave
    assert {program(hparams) for hparams in go_on(study, 2)} == {program(second[0])}


def test_a_timed_wave_ends_with_its_first_if_that_has_no_program() -> None:
    study = timed()
    go_on(study, 2 * TIMED_WAVE + 2)  # leads the third wave, which has room for two more
    assert study.proposer.keeps_structure
    study = timed(name="failing")
    go_on(study, 2 * TIMED_WAVE)
    found = study.asker.propose(deep)
    assert found is not None
    proposal, hp, _ = found
    study.persist({})
    study.updates.finish(study.accept(proposal, hp), "failed", attrs={"error": "negative size"})
    assert not study.proposer.keeps_structure
    assert study.proposer.structure_order.fixed() == {}


def test_late_in_a_timed_search_all_trials_have_the_structure_of_the_best() -> None:
    study = timed()
    order = study.proposer.structure_order
    found = go_on(study, TIMED_WAVE + 2)  # in the middle of a wave of another structure
    assert program(found[0]) != program(found[-1])
    order.keep(0)
    assert not study.proposer.keeps_structure  # nothing waits for trials to come
    kept = go_on(study, 2 * WAVE)
    assert {program(hparams) for hparams in kept} == {program(found[0])}
    assert len({hparams["lr"] for hparams in found + kept}) == len(found + kept)
    order.keep(TIMED_WAVE)  # which has become the best
    assert {program(hparams) for hparams in go_on(study, WAVE)} == {program(found[-1])}
    order.renumber(TIMED_WAVE, 1000)
    assert {program(hparams) for hparams in go_on(study, 2)} == {program(found[-1])}


def test_late_in_a_timed_search_values_in_which_trials_of_the_program_differ_are_free() -> None:
    study = timed()
    found = go_on(study, 2 * TIMED_WAVE)
    study.asker.enqueue({**found[0], "momentum": 1.7 - found[0]["momentum"], "lr": 0.05})
    go_on(study, 1)
    study.proposer.structure_order.keep(0)
    assert {hparams["momentum"] for hparams in go_on(study, 2 * WAVE)} == {0.8, 0.9}


@pytest.mark.parametrize("case", ["trains long", "no program", "not timed", "random"])
def test_structures_stay_free_where_keeping_one_saves_little(case: str) -> None:
    def begun(name: str) -> Study:
        study = new(name, sampler="random" if case == "random" else "tpe")
        study.asker.limit_trials(N, by_time=case != "not timed")
        go_on(study, 1)
        if case == "trains long":
            study.proposer.structure_order.end_wave()
        return study

    plain, study = begun("plain"), begun("kept")
    study.proposer.structure_order.keep(99 if case == "no program" else 0)
    assert go_on(study, 6) == go_on(plain, 6)


def test_a_timed_search_that_goes_on_knows_that_its_trials_train_long() -> None:
    study = timed()
    go_on(study, 1)
    study.proposer.structure_order.end_wave()
    state = study.proposer.structure_order.state()
    past: list[Any] = []
    again = StructureOrder(resolve_sampler("tpe", 0), 0, study.metadata.space, past, state)
    assert again.state()["trains_long"] is True
    del state["trains_long"]  # of an earlier version
    again = StructureOrder(resolve_sampler("tpe", 0), 0, study.metadata.space, past, state)
    assert again.state()["trains_long"] is False


def test_a_timed_search_without_structures_asks_freely() -> None:
    def numbers(hp: Any, proposal: Any = None) -> dict[str, Any]:
        hp.Float("lr", 1e-4, 1e-1, sampling="log")
        return {"units": 1, **hp.hparams}

    study = timed()
    go_on(study, 2, numbers)
    assert not study.proposer.keeps_structure


def test_a_timed_wave_fixes_nothing_where_it_would_fix_every_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def finite(hp: Any, proposal: Any = None) -> dict[str, Any]:
        hp.Choice("units", [16, 32, 64, 128])
        hp.Int("second", 1, 30)
        return dict(hp.hparams)

    study, asked = timed(), list[Any]()
    ask = study.proposer.ask
    monkeypatch.setattr(study.proposer, "ask", lambda *args: asked.append(args) or ask(*args))
    found = [go_on(study, 1, finite)[0]]
    for _ in range(7):
        promised = study.proposer.keeps_structure
        found += go_on(study, 1, finite)
        assert not promised or program(found[-1]) == program(found[-2])
    assert len(asked) < 12  # few proposals repeat a configuration


def test_a_timed_search_that_goes_on_keeps_its_wave() -> None:
    whole = go_on(timed(name="whole"), 2 * TIMED_WAVE)
    study = timed(name="parts")
    go_on(study, TIMED_WAVE + 1)
    state = study.proposer.state()
    assert state["structure_order"]["leader"] == TIMED_WAVE
    assert state["structure_order"]["asked"] == 1
    assert go_on(study, TIMED_WAVE - 1) == whole[TIMED_WAVE + 1 :]


def test_a_resumed_search_knows_the_programs_of_trials_that_failed_at_once() -> None:
    """They are stored without a program, and had shown which values do not decide it."""
    values = [{"units": 16, "kind": kind, "lr": lr} for kind, lr in (("a", 0.1), ("b", 0.2))]
    parameters = [
        Parameter("lr", "lr", FloatDistribution(0.0, 1.0), 0.0),
        Parameter("units", "units", CategoricalDistribution((16, 32)), 16),
        Parameter("kind", "kind", CategoricalDistribution(("a", "b")), "a"),
    ]
    space = Space({parameter.storage_name: parameter for parameter in parameters})

    def order(past: Any, resumed: Any = None) -> StructureOrder:
        made = StructureOrder(resolve_sampler("tpe", 0), 0, space, past, resumed)
        made.by_time = True
        made.expect(8, None)
        return made

    whole, past = order([]), []
    for number, each in enumerate([*values, values[0] | {"lr": 0.3}]):
        whole.begin_trial(number, each, None, given=number < 2)
        whole.learn_program(number, "p")
        distributions = {name: space.parameters[name].distribution for name in each}
        trial = {"params": each, "distributions": distributions}
        state = [optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.FAIL][number % 2]
        if number == 2:
            state = optuna.trial.TrialState.RUNNING
        else:
            whole.end_trial(number, state)
        attrs = {"program_id": "p"} if number == 0 else {}
        value = 1.0 if number == 0 else None
        past.append(optuna.trial.create_trial(state=state, value=value, user_attrs=attrs, **trial))
        past[-1].number = number
    assert whole.fixed() == order(past, whole.state()).fixed() == {"units": 16}


# Others


@pytest.mark.parametrize(
    "sampler",
    ["qmc", "grid", lambda: optuna.samplers.TPESampler(seed=0)],
    ids=["qmc", "grid", "users"],
)
def test_other_samplers_keep_their_own_order(sampler):
    def found(name, slots):
        made = sampler if isinstance(sampler, str) else sampler()
        return go_on(new(name, slots=slots, sampler=made), 30)

    assert found("family", 8) == found("plain", 1)


# Which parameters are structural


def learnt(trials, program, continuous=("lr",)) -> StructuralParameters:
    structure = StructuralParameters()
    for values in trials:
        structure.learn(
            program(values), values, [name for name in values if name not in continuous]
        )
    return structure


def some(n, seed=0):
    rng = random.Random(seed)
    return [
        {
            "momentum": rng.choice([0.8, 0.9]),
            "units": rng.choice([16, 32, 64]),
            "batch": rng.choice([32, 64]),
            "lr": rng.random(),
            "patience": rng.randrange(100),
        }
        for _ in range(n)
    ]


def by_units_and_batch(values):
    return f"{values['units']}-{values['batch']}"


def test_nothing_is_structural_while_all_trials_share_a_program():
    structure = learnt(some(20), lambda values: "one")
    assert structure.names == () and structure.n_programs == 1
    assert structure.of(some(1)[0]) == {}


def test_what_tells_programs_apart_is_structural_and_nothing_else():
    for seed in range(20):
        structure = learnt(some(40, seed), by_units_and_batch)
        assert set(structure.names) == {"units", "batch"}
        assert structure.n_programs == 6


def test_a_continuous_number_is_not_taken_for_structural():
    trials = [{"lr": number / 10} for number in range(5)]
    assert learnt(trials, lambda values: str(values["lr"])).names == ()


def test_a_wrong_guess_does_not_last():
    structure = StructuralParameters()
    structure.learn("a", {"momentum": 0.8, "units": 16}, ["momentum", "units"])
    structure.learn("b", {"momentum": 0.9, "units": 32}, ["momentum", "units"])
    assert structure.names == ("momentum",)  # both tell the two apart: the first is guessed
    structure.learn("b", {"momentum": 0.8, "units": 32}, ["momentum", "units"])
    assert structure.names == ("units",)


def test_a_parameter_that_matters_for_some_values_only_is_left_out():
    # A dropout of rate 0 is none: another program, of which "units" knows nothing.
    trials = [
        {"dropout": dropout, "units": units}
        for dropout, units in itertools.product([0.0, 0.1, 0.2], [8, 16])
    ]
    structure = learnt(trials, lambda values: f"{values['units']}-{values['dropout'] > 0}")
    assert structure.names == ("units",)


def test_a_parameter_that_is_not_there_is_no_part_of_a_structure():
    trials = [{"layers": 1}, {"layers": 2, "second": 8}, {"layers": 2, "second": 16}]
    structure = learnt(trials, str)
    assert structure.of(trials[0]) == {name: 1 for name in structure.names if name == "layers"}
    assert structure.of(trials[2])["second"] == 16


def test_what_may_decide_a_program() -> None:
    found = StructuralParameters()
    first = {"units": 16, "kind": "a", "lr": 0.1, "rate": 0.5}
    found.learn("p", first, ["units", "kind", "rate"])
    assert found.suspects(first, "p") == {"units": 16, "kind": "a"}
    found.learn("p", {**first, "units": 32}, ["units", "kind", "rate"])
    assert found.suspects(first, "p") == {"kind": "a"}
    assert found.suspects(first, "q") == {"units": 16, "kind": "a"}  # of another band, perhaps
    assert found.suspects(first, None) == {"units": 16, "kind": "a"}


def test_a_timed_search_that_resumes_knows_of_its_wave_before_it_proposes() -> None:
    """The launcher asks this before it proposes a trial. With "no", trials end before the next."""
    study = timed()
    go_on(study, 2)
    facts = study.state()
    study.close()
    again = Study("s", direction="maximize", sampler="tpe", n_trials=1000, resumed=facts)
    again.asker.limit_trials(1000, by_time=True)
    again.proposer.structure_order.fill(study.proposer.structure_order.slots)
    assert again.resumed
    assert study.proposer.keeps_structure
    assert again.proposer.keeps_structure
    assert again.proposer.structure_order.wave == study.proposer.structure_order.wave


def test_a_timed_wave_ends_where_its_free_values_are_used_up() -> None:
    def build(hp: Any, proposal: Any = None) -> dict[str, Any]:
        hp.Choice("rate", [0.1, 0.01])
        hp.Int("units", 1, 100)
        return dict(hp.hparams)

    study, found = timed(), list[dict[str, Any]]()
    for _ in range(8):
        promised = study.proposer.keeps_structure
        found += go_on(study, 1, build)
        assert promised == (len(found) % 2 == 0)
    kept = [found[at]["units"] == found[at + 1]["units"] for at in range(0, 8, 2)]
    assert sum(kept) >= 3  # TPE may propose a rate three times that was tried
