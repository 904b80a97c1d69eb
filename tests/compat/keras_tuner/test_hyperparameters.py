"""``HyperParameters`` outside a tuner, and hyperparameters made by hand: as KerasTuner's."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import paceline.compat.keras_tuner as ours
from compat.keras_tuner import spaces


def kinds(kt: Any) -> Any:
    return kt.engine.hyperparameters


def test_the_first_declaration_of_a_name_stands(kt):
    hp = kt.HyperParameters()
    hp.Fixed("lr", 0.02)
    assert hp.Float("lr", 1e-4, 1e-2, sampling="log") == 0.02
    assert hp.Choice("units", [4, 8]) == 4
    assert hp.Int("units", 100, 200) == 4
    assert len(hp.space) == 2


def test_values_are_taken_as_they_are_given(kt):
    hp = kt.HyperParameters()
    hp.values.update({"units": 1000, "act": "gelu"})
    assert hp.Int("units", 1, 5) == 1000
    assert hp.Choice("act", ["relu", "elu"]) == "gelu"
    assert hp.copy().values == {"units": 1000, "act": "gelu"}


def test_a_config_comes_back(kt):
    hp = kt.HyperParameters()
    spaces.every_kind(hp)
    again = kt.HyperParameters.from_config(hp.get_config())
    assert (again.values, len(again.space)) == (hp.values, len(hp.space))
    assert type(again) is type(hp.copy()) is kt.HyperParameters
    config = kinds(kt).serialize(hp.space[0])
    assert repr(kinds(kt).deserialize(config)) == repr(hp.space[0])


def test_each_kind_has_a_class_of_its_own(kt):
    """Scripts look at ``type(p).__name__``, and compare classes."""
    names, made = ["Int", "Float", "Choice", "Boolean", "Fixed"], kinds(kt)
    hp = kt.HyperParameters()
    hp.Int("a", 1, 9)
    hp.Float("b", 0.0, 1.0)
    hp.Choice("c", ["x", "y"])
    hp.Boolean("d")
    hp.Fixed("e", 3)
    merged = kt.HyperParameters()
    merged.merge(made.deserialize(made.serialize(p)) for p in hp.space)
    oracle = kt.oracles.RandomSearchOracle("val_loss", max_trials=1, hyperparameters=hp)
    for each in (hp, hp.copy(), merged, oracle.get_space(), copy.deepcopy(hp)):
        assert [type(p).__name__ for p in each.space] == names
        assert [type(p) for p in each.space] == [getattr(made, name) for name in names]
        assert [isinstance(p, made.Choice) for p in each.space] == [n == "Choice" for n in names]
        assert all(isinstance(p, made.HyperParameter) for p in each.space)


@pytest.mark.parametrize("values", [[1, "b"], [1, 2.0], [None, 0.2], [None], [True, "auto"]])
def test_choices_are_of_one_type_and_none_is_no_choice(kt, values):
    made = kinds(kt).Choice("a", ["x"]).get_config() | {"values": values, "default": None}
    for declare in (
        lambda: kt.HyperParameters().Choice("a", values),
        lambda: kinds(kt).Choice("a", values),
        lambda: kt.HyperParameters.from_config(
            {"space": [{"class_name": "Choice", "config": made}], "values": {}}
        ),
    ):
        with pytest.raises(TypeError, match=r"only one type|can contain only|Unsupported"):
            declare()


@pytest.mark.parametrize(
    "declare",
    [
        lambda hp: hp.Int("a", 5, 1),
        lambda hp: hp.Float("a", 0, 1, sampling="cubic"),
        lambda hp: hp.Choice("a", []),
        lambda hp: hp.Choice("a", ["x"], ordered=True),
        lambda hp: hp.Boolean("a", default=None),
        lambda hp: hp.Fixed("a", None),
        lambda hp: hp.Int("a", 1, 2, parent_name="b", parent_values=[1]),
    ],
)
def test_what_cannot_be_is_a_value_error(kt, declare):
    with pytest.raises(ValueError, match=r"a|min_value|sampling|values|default|not defined"):
        declare(kt.HyperParameters())


def test_choices_of_several_types_are_a_type_error(kt):
    with pytest.raises(TypeError, match="can contain only"):
        kt.HyperParameters().Choice("a", [1, "b"])
    with pytest.raises(TypeError, match="an contain only"):
        kt.HyperParameters().Choice("a", [{"b": 1}])


def test_the_same_texts_draws_and_values(theirs):
    there, here = theirs.HyperParameters(), ours.HyperParameters()
    spaces.every_kind(there)
    spaces.every_kind(here)
    for yours, mine in zip(there.space, here.space, strict=True):
        assert repr(mine).replace("step: '10.0'", "step: '10'") == repr(yours)
        assert mine.random_sample(7) == pytest.approx(yours.random_sample(7))
        value = yours.prob_to_value(0.3) if mine.kind != "Fixed" else 7
        assert mine.value_to_prob(value) == pytest.approx(yours.value_to_prob(value))
    assert list(kinds(ours).Boolean("b").values) == list(kinds(theirs).Boolean("b").values)
    for name, config in (("Int", (1, 9)), ("Choice", ([1, 2],)), ("Boolean", ())):
        mine = getattr(kinds(ours), name)("h", *config)
        assert repr(getattr(kinds(ours), name).from_config(mine.get_config())) == repr(mine)
        assert isinstance(mine, getattr(kinds(ours), name))


def guarded(hp: Any) -> None:
    """KerasTuner's documented pattern: what a scope holds is declared only where it is used."""
    kind = hp.Choice("kind", ["a", "b", "c"])
    with hp.conditional_scope("kind", ["b"]):
        if kind == "b":
            hp.Int("units", 1, 9)
            depth = hp.Choice("depth", [1, 2])
            with hp.conditional_scope("depth", [2]):
                if depth == 2:
                    hp.Float("rate", 0, 1)
    with hp.conditional_scope("kind", ["c"]):
        if kind == "c":
            hp.Boolean("flag")


@pytest.mark.filterwarnings("ignore::DeprecationWarning:keras_tuner")
def test_scopes_that_hold_nothing_yet_are_explored(theirs, tmp_path):
    found = []
    for side in (theirs, ours):
        folder = tmp_path / side.__name__
        oracle = side.oracles.RandomSearchOracle("val_loss", max_trials=12, seed=3)
        oracle.verbose = 0
        tuner = side.engine.base_tuner.BaseTuner(oracle, guarded, directory=folder)
        names = [hp.name for hp in tuner.oracle.get_space().space]
        values = [oracle.create_trial(f"t{i}").hyperparameters.values for i in range(12)]
        found.append((names, values))
    assert found[0][0] == found[1][0] == ["kind", "units", "depth", "flag", "rate"]
    assert found[0][1] == found[1][1]


def test_messages_are_keras_tuner_s_own(theirs):
    hp = ours.HyperParameters()
    spaces.conditional(hp)
    proto = hp.to_proto()
    assert proto == theirs.HyperParameters.from_config(hp.get_config()).to_proto()
    assert ours.HyperParameters.from_proto(proto).values == hp.values
    trial = ours.engine.trial.Trial(hp, trial_id="3", status="COMPLETED")
    trial.metrics.register("score", "max")
    trial.metrics.update("score", 2.0, step=1)
    again = ours.engine.trial.Trial.from_proto(trial.to_proto())
    assert (again.trial_id, again.status) == ("3", "COMPLETED")
    assert again.hyperparameters.values == hp.values
    assert again.metrics.get_config() == trial.metrics.get_config()
    parent = ours.engine.conditions.Parent("kind", ["mlp"])
    assert ours.engine.conditions.Condition.from_proto(parent.to_proto()) == parent
    utils = ours.engine.hyperparameters.hp_utils
    assert utils.sampling_from_proto(utils.sampling_to_proto("reverse_log")) == "reverse_log"
