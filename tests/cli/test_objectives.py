"""Several objectives on the command line: a search, and what reads its study."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toys
from paceline.study.study import Study

FILE = toys.MODEL_FILE + "\nbuild = toys.wide\n"
META = {
    "objective": "val_accuracy",
    "direction": "maximize",
    "objectives": ["val_accuracy", "params"],
    "directions": ["maximize", "minimize"],
}
VALUES = [(0.5, 100), (0.75, 1000), (0.75, 2000), (0.25, 20), (0.375, 100)]
FRONT = [1, 0, 3]


@pytest.fixture
def study() -> str:
    """A study of five complete trials, three of them on the Pareto front, and one that failed."""
    study = Study("sizes", direction=("maximize", "minimize"), seed=3)
    study.persist(META)
    for values in [*VALUES, None]:
        proposal = study.asker.propose(
            lambda hp, proposal: hp.Float("lr", 1e-4, 1e-1, sampling="log")
        )
        assert proposal is not None
        proposal, hp, _ = proposal
        number = study.accept(proposal, hp)
        if values is None:
            study.updates.finish(number, "failed", attrs={"error": "loss is nan"})
            continue
        study.updates.report(number, 1, {"val_accuracy": values[0]}, values[0])
        attrs = {"epochs": 1, "costs": {"params": values[1]}}
        study.updates.finish(number, "complete", values=values, attrs=attrs)
    study.close()
    return "sizes"


def test_best_prints_the_front(paceline: Callable[..., Any], study: str) -> None:
    lines = paceline("best", study).out.splitlines()
    assert lines[0] == "Pareto front: 3 trials that no other one is better than"
    assert lines[1].split() == ["trial", "val_accuracy", "params"]
    assert [line.split()[:3] for line in lines[2:]] == [
        ["1", "0.7500", "1,000"],
        ["0", "0.5000", "100"],
        ["3", "0.2500", "20"],
    ]


def test_best_as_json_is_a_list(paceline: Callable[..., Any], study: str) -> None:
    front = paceline("best", study, "--json").json
    assert [trial["number"] for trial in front] == FRONT
    assert front[0]["values"] == {"val_accuracy": 0.75, "params": 1000.0}


def test_trials_have_a_column_for_each_objective(paceline: Callable[..., Any], study: str) -> None:
    done = paceline("trials", study)
    head, _, *rows = done.out.splitlines()
    assert head.split()[:4] == ["trial", "state", "val_accuracy", "params"]
    assert [row.split()[1] for row in rows if row.strip().startswith("*")][:3] == ["0", "1", "3"]
    assert "* on the Pareto front: `paceline best sizes` lists it" in done.out
    records = paceline("trials", study, "--json").json
    assert records[1]["values"] == {"val_accuracy": 0.75, "params": 1000.0}
    assert records[1]["costs"] == {"params": 1000}
    assert records[5]["values"] is None
    assert paceline("trials", study, "--csv").out.startswith("val_accuracy,params,lr,number,state")


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--sort", "params"], [3, 0, 4, 1, 2, 5]),
        (["--sort", "params", "--reverse"], [2, 1, 0, 4, 3, 5]),
        (["--sort", "val_accuracy"], [1, 2, 0, 4, 3, 5]),
        (["--top", "2"], [1, 2]),
        (["--where", "params<500 and val_accuracy>=0.375"], [0, 4]),
        (["--where", "value=0.75"], [1, 2]),
    ],
)
def test_trials_are_sorted_and_chosen_by_each_objective(
    paceline: Callable[..., Any], study: str, options: list[str], numbers: list[int]
) -> None:
    records = paceline("trials", study, "--json", *options).json
    assert [record["number"] for record in records] == numbers


def test_studies_says_how_long_the_front_is(paceline: Callable[..., Any], study: str) -> None:
    assert paceline("list").out.split("Pareto front of 3")[1].split() == [
        "-",
        "val_accuracy,",
        "params",
    ]
    (record,) = paceline("list", "--json").json
    assert (record["best"], record["pareto_front"]) == (None, FRONT)


def test_export_asks_for_a_trial_of_the_front(paceline: Callable[..., Any], study: str) -> None:
    done = paceline("export", study)
    assert done.code != 0
    assert "Choose one on the Pareto front: --trial 1 or 0 or 3" in done.err


@pytest.mark.slow
def test_a_search_from_its_beginning_to_a_file(paceline, user_modules) -> None:
    Path("model.py").write_text(FILE)
    options = ["--objective", "val_accuracy", "--objective", "min:params", "--sampler", "nsga2:4"]
    done = paceline("search", "model.py", *options, "--epochs", "1", "--trials", "5", "--json")
    assert done.code == 0, done.err
    front = done.json["pareto_front"]
    assert done.json["best"] is None
    assert done.json["objectives"] == ["val_accuracy", "params"]
    done = paceline("resume", "model", "--trials", "8", "--quiet")
    assert done.code == 0, done.err
    assert "Pareto front: " in done.out
    number = paceline("best", "model", "--json").json[0]["number"]
    assert f"export model --trial {number}" in done.out
    done = paceline("export", "model", "--trial", str(number), "-o", "one.keras")
    assert f"one.keras: the model of trial {number}, val_accuracy" in done.out
    assert Path("one.keras").is_file()
    done = paceline("export", "model", "--trial", str(number), "--bundle", "one.zip")
    assert done.code == 0, done.err
    assert front


def test_a_study_of_another_program_has_names_for_its_objectives(paceline) -> None:
    import optuna

    storage = "sqlite:///other.db"
    theirs = optuna.create_study(
        storage=storage, study_name="theirs", directions=["minimize", "minimize"]
    )
    for x in (1.0, 2.0, 3.0):
        trial = theirs.ask({"x": optuna.distributions.FloatDistribution(0, 4)})
        theirs.tell(trial, [x, 3.0 - x])
    front = paceline("best", "theirs", "--storage", storage, "--json").json
    assert front[0]["values"] == {"objective 0": 1.0, "objective 1": 2.0}
    assert json.loads(paceline("trials", "theirs", "--storage", storage, "--json").out)[2]["values"]
