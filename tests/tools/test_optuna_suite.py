"""The count of Optuna's own tests of ``Study``: what passes there and not here is named."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import optuna
from optuna import create_study
from optuna.study import Study
from optuna.study._multi_objective import _dominates

def test_on_both():
    study = create_study()
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    assert isinstance(study, Study) and len(study.trials) == 2

def test_on_neither():
    assert False

def test_only_there():
    assert type(optuna.create_study()) is Study
"""


@pytest.mark.slow
def test_tests_that_pass_there_are_counted_here(fresh_folder, monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    suite = importlib.import_module("optuna_suite")
    folder = Path("tests", "study_tests")
    folder.mkdir(parents=True)
    (folder / "test_toy.py").write_text(TESTS)
    assert suite.main(str(fresh_folder)) == 0
    assert "| test_toy.py | 2 | 1 | test_only_there |" in capsys.readouterr().out
    assert suite.main("no_such_checkout") == 2
