"""Configurations that a search tries first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import optuna
import pandas as pd
import pytest

import paceline
import toys
from marks import slow_where
from paceline.errors import SpaceError, UsageError
from paceline.report.tables import results_frame
from paceline.study.trials.trial import Trial
from paceline.tuner.arguments.initial_configurations import read_configurations, read_file
from stopping import hears_signals, stopped_after, trials_of  # noqa: F401 - a fixture

X, Y = toys.data()
CALL: dict[str, Any] = {**toys.CALL, "epochs": 1}


def build(hp: Any) -> keras.Model:
    """A depth, and as many widths."""
    layers = [keras.Input((toys.FEATURES,))]
    for n in range(hp.Int("depth", 1, 2)):
        layers.append(keras.layers.Dense(hp.Int(f"units_{n}", 4, 8)))
    layers.append(keras.layers.Dense(toys.CLASSES, activation=hp.Choice("value", ["softmax"])))
    return toys.compiled(keras.Sequential(layers), hp.Float("lr", 1e-3, 1e-1))


def hparams(tuner: paceline.Tuner, number: int) -> dict[str, Any]:
    return tuner.trial(number).hparams


@pytest.mark.slow
def test_a_list_is_tried_in_its_order_and_what_it_leaves_out_is_drawn(make) -> None:
    plain = make(study="plain")
    plain.search(X, Y, n_trials=1, **CALL)
    tuner = make()
    tuner.enqueue([{"lr": 0.05, "dropout": 0.2}, {"lr": 0.07}])
    tuner.search(X, Y, n_trials=3, **CALL)
    assert hparams(tuner, 0) == {"lr": 0.05, "dropout": 0.2}
    assert hparams(tuner, 1)["lr"] == 0.07
    assert 0.1 <= hparams(tuner, 1)["dropout"] <= 0.5
    assert hparams(tuner, 2)["lr"] not in (0.05, 0.07)
    assert len(tuner.results()) == 3


@pytest.mark.slow
def test_results_of_one_study_are_the_start_of_another(make) -> None:
    """Missing cells, whole numbers beside them, and a hyperparameter with a column's name."""
    one = make(build, study="one", seed=1)
    one.enqueue([{"depth": 1}, {"depth": 2}])
    one.search(X, Y, n_trials=4, **CALL)
    frame = one.results()
    assert frame["units_1"].isna().any() and "hp.value" in frame.columns
    two = make(build, study="two")
    two.enqueue(frame.sort_values("value", ascending=False).head(3))
    two.search(X, Y, n_trials=3, **CALL)
    best = sorted(frame["number"], key=lambda n: -one.trial(n).value)[:3]
    order = frame.sort_values("value", ascending=False)["number"].head(3).tolist()
    assert set(best) == set(order)
    assert [hparams(two, n) for n in range(3)] == [hparams(one, n) for n in order]


def objectives_table() -> pd.DataFrame:
    """What ``results`` makes of a trial with two objectives and a hyperparameter called as one."""
    hparams = {"params": 0.1, "value_std": 3, "params_x": 4, "lr": 0.2}
    trial = Trial(0, "complete", 0.9, hparams, values=[0.9, 610.0])
    return results_frame([trial], ["val_accuracy", "params"])


def test_columns_of_objectives_are_no_hyperparameters() -> None:
    frame = objectives_table()
    assert {"val_accuracy", "params", "hp.params", "value_std"} <= set(frame.columns)
    expected = [{"params": 0.1, "value_std": 3, "params_x": 4, "lr": 0.2}]
    assert read_configurations(frame) == expected
    assert read_configurations(frame.sort_values("params").head(1)) == expected
    assert read_configurations(frame[["params", "hp.params", "lr"]]) == [{"params": 0.1, "lr": 0.2}]
    assert read_configurations(frame.assign(units=5)) == [{**expected[0], "units": 5}]


def test_a_table_read_from_a_file_has_each_value_of_its_own_hyperparameter(fresh_folder) -> None:
    """No cost goes where a hyperparameter has its name, and of one name only one is taken."""
    objectives_table().drop(columns="params_x").to_csv("results.csv", index=False)
    found = read_configurations(pd.read_csv("results.csv"))
    assert found == [{"val_accuracy": 0.9, "params": 0.1, "lr": 0.2}]


def test_the_worker_of_a_trial_is_no_hyperparameter() -> None:
    frame = pd.DataFrame({"number": [0], "state": ["complete"], "worker": ["host-1"], "lr": [0.2]})
    assert read_configurations(frame) == [{"lr": 0.2}]


def test_a_table_of_optuna_is_read_too() -> None:
    study = optuna.create_study()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study.optimize(lambda trial: trial.suggest_float("lr", 0, 1), n_trials=2)
    found = read_configurations(study.trials_dataframe())
    assert found == [trial.params for trial in study.trials]


def test_a_frame_of_the_users_own_has_no_other_columns() -> None:
    frame = pd.DataFrame({"lr": [0.1, None], "seed": pd.array([1, 2], dtype="Int64")})
    assert read_configurations(frame) == [{"lr": 0.1, "seed": 1}, {"seed": 2}]


@pytest.mark.parametrize(
    "given", [{}, [], [{}], [{"lr": 0.1}, {}], ["lr"], "lr", pd.DataFrame({"lr": [None]})]
)
def test_what_names_nothing_is_an_error_at_once(make, given) -> None:
    with pytest.raises(SpaceError, match="enqueue: a configuration .*(must be|empty)"):
        make().enqueue(given)


# -- defaults --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampler", slow_where(["random", "tpe", "qmc"], lambda name: name != "tpe")
)
def test_the_defaults_come_first_and_once(make, sampler: str) -> None:
    call = {**CALL, "enqueue_defaults": True}
    tuner = make(sampler=sampler)
    tuner.enqueue({"lr": 0.05, "dropout": 0.2})
    tuner.search(X, Y, n_trials=3, **call)
    assert hparams(tuner, 0) == {"lr": 1e-3, "dropout": 0.1}
    assert hparams(tuner, 1) == {"lr": 0.05, "dropout": 0.2}
    again = make(sampler=sampler)
    again.search(X, Y, n_trials="+2", **call)
    assert sum(hparams(again, n) == {"lr": 1e-3, "dropout": 0.1} for n in range(5)) == 1


def test_defaults_of_a_grid_are_not_tried_twice(make) -> None:
    def small(hp: Any) -> keras.Model:
        layers = [keras.Input((6,)), keras.layers.Dense(3, activation="softmax")]
        return toys.compiled(keras.Sequential(layers), hp.Choice("lr", [0.1, 0.01], default=0.01))

    tuner = make(small, sampler="grid")
    tuner.search(X, Y, enqueue_defaults=True, **CALL)
    assert [hparams(tuner, n) for n in range(2)] == [{"lr": 0.01}, {"lr": 0.1}]
    assert len(tuner.results()) == 2


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ({"lr": 0.1}, [{"lr": 0.1}]),
        ([{"lr": 0.1}, {"units": 8}], [{"lr": 0.1}, {"units": 8}]),
        ({"number": 3, "value": 0.5, "hparams": {"lr": 0.1}}, [{"lr": 0.1}]),
        ([{"number": 3, "hparams": {"lr": 0.1}}], [{"lr": 0.1}]),
    ],
)
def test_a_file_holds_one_configuration_or_several(fresh_folder, held, expected) -> None:
    Path("best.json").write_text(json.dumps(held))
    assert read_file(Path("best.json")) == expected


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "3", "[[1]]", "null", '"lr"', "{}", "\0"])
def test_a_file_that_holds_none_says_so(fresh_folder, text: str) -> None:
    Path("best.json").write_text(text)
    with pytest.raises(UsageError, match=r"--enqueue best\.json.*(not JSON|a configuration)"):
        read_file(Path("best.json"))


def test_a_file_that_is_not_there_says_so(fresh_folder) -> None:
    with pytest.raises(UsageError, match="--enqueue gone.json: No such file"):
        read_file(Path("gone.json"))
    with pytest.raises(UsageError, match="--enqueue .: Is a directory"):
        read_file(Path())


def test_a_study_knows_which_trials_were_given(make, monkeypatch) -> None:
    """By the tuner, as defaults and by Optuna; after an interruption too, and in the report."""
    starts = [{"lr": 0.05, "dropout": 0.2}, {"lr": 0.07}]
    tuner = make()
    tuner.enqueue(starts)
    with monkeypatch.context() as patch:
        stopped_after(patch, 1)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            tuner.search(X, Y, n_trials=6, enqueue_defaults=True, **CALL | {"epochs": 3})
    tuner.optuna_study().enqueue_trial({"lr": 0.03, "dropout": 0.4})
    again = make()
    again.enqueue(starts)  # as its script does
    again.search(X, Y, n_trials=6, enqueue_defaults=True, **CALL | {"epochs": 3})
    trials = trials_of(again)
    begun = [trial for trial in trials if trial.state == "complete"]
    rates = [trial.hparams["lr"] for trial in begun if trial.enqueued]
    assert sorted(rates) == [0.001, 0.03, 0.05, 0.07]
    assert len(begun) == 6
    page = Path(again.report()).read_text(encoding="utf-8")
    assert '<h2 id="starts">Initial configurations</h2>' in page and " of 6</td>" in page


def test_a_study_without_initial_configurations_says_nothing_of_them(make) -> None:
    tuner = make()
    tuner.search(X, Y, n_trials=2, **CALL)
    assert not tuner.trial(0).enqueued
    assert 'id="starts"' not in Path(tuner.report()).read_text(encoding="utf-8")
