"""Scripts after those of public users of Optuna, which ``benchmarks/public_objectives.py`` runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

HELPERS = {"mnist", "keras_pruning"}


@pytest.fixture
def objectives(benchmark_module: Any) -> Any:
    return benchmark_module("public_objectives")


def test_all_scripts_are_run_and_say_in_a_line_what_they_do(objectives: Any) -> None:
    names = {path.stem for path in objectives.SCRIPTS.glob("*.py")} - HELPERS
    assert names == set(objectives.WORKS)
    for name in names:
        assert objectives.summary(name).endswith("."), name


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("import optuna", "from paceline.compat import optuna"),
        ("from optuna.samplers import TPESampler", "from optuna.samplers import TPESampler"),
        ("    import optuna", "    import optuna"),
    ],
)
def test_only_the_import_changes(objectives: Any, line: str, becomes: str) -> None:
    assert objectives.changed(f"{line}\nx = 1\n") == f"{becomes}\nx = 1\n"


def test_all_results_are_of_scripts_that_are_there_and_none_is_slower(objectives: Any) -> None:
    kept = json.loads(
        (objectives.SCRIPTS.parent / "results" / "public_objectives.json").read_text()
    )["entries"]
    assert set(kept) == set(objectives.WORKS)
    for name, row in kept.items():
        assert row["about"] == objectives.summary(name)
        assert sum(row["paceline"]["states"].values()) == row["n_trials"]
        assert row["ratio"] > 1 / 1.05, name


def test_scripts_of_others_get_a_number_of_trials_and_no_limit_of_time(objectives: Any) -> None:
    text = "study.optimize(objective, n_trials=100, timeout=600)"
    assert objectives.with_trials(text, 8) == "study.optimize(objective, n_trials=8)"


@pytest.mark.slow
def test_a_script_trains_in_packs(objectives: Any) -> None:
    found = objectives.run("wine", "paceline", 3)
    assert found["plans"] == {"vectorized": 3} and found["programs"] == 1
    assert found["states"] == {"COMPLETE": 3} and found["notes"] == []
