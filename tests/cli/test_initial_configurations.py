"""Configurations to try first, given on the command line and carried into searches that train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import toys

SEARCH = "search model.py --trials 4 --epochs 1 --sampler random --quiet --study".split()


@pytest.mark.slow
def test_the_best_of_one_study_and_the_defaults_are_the_start_of_another(
    paceline, user_modules
) -> None:
    """``best --json > best.json``, and then ``--enqueue best.json``."""
    Path("model.py").write_text(toys.MODEL_FILE, encoding="utf-8")
    assert paceline(*SEARCH, "one", "--seed", "1").code == 0
    best = paceline("best", "one", "--json")
    Path("best.json").write_text(best.out, encoding="utf-8")
    done = paceline(*SEARCH, "two", "--enqueue", "best.json", "--enqueue-defaults")
    assert done.code == 0, done.err
    trials = paceline("trials", "two", "--sort", "number", "--json").json
    defaults = {"lr": 1e-3, "dropout": 0.1}
    assert [trial["hparams"] for trial in trials[:2]] == [defaults, best.json["hparams"]]
    assert [trial["state"] for trial in trials] == ["complete"] * 4
    assert all(trial["hparams"] not in (defaults, best.json["hparams"]) for trial in trials[2:])
    assert paceline("report", "two", "-o", "two.html").code == 0
    assert Path("two.html").read_text(encoding="utf-8").count(" of 4</td>") == 2


def test_a_list_of_initial_configurations_is_searched_in_its_order(paceline, user_modules) -> None:
    """What it leaves out is drawn, and a name that build does not know trains nothing."""
    Path("model.py").write_text(toys.MODEL_FILE, encoding="utf-8")
    given = [{"lr": 0.05, "dropout": 0.2}, {"lr": 0.07}]
    Path("best.json").write_text(json.dumps(given), encoding="utf-8")
    assert paceline(*SEARCH, "s", "--enqueue", "best.json").code == 0
    trials = paceline("trials", "s", "--sort", "number", "--json").json
    assert trials[0]["hparams"] == given[0]
    assert trials[1]["hparams"]["lr"] == 0.07
    assert 0.1 <= trials[1]["hparams"]["dropout"] <= 0.5
    Path("best.json").write_text('{"momentum": 0.9}', encoding="utf-8")
    done = paceline(*SEARCH, "wrong", "--enqueue", "best.json")
    assert done.code == 2 and "build does not declare the hyperparameter 'momentum'" in done.err
    assert not [trial for trial in paceline("trials", "wrong", "--json").json if trial["epochs"]]
