"""The count of KerasTuner's own tests: what passes there and not here is named."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import tensorflow as tf
from tensorflow import keras
import keras_tuner
from keras_tuner.engine import tuner_utils
from keras_tuner.tuners import bayesian as bayesian_module

def test_on_both():
    assert tf.keras is keras
    assert bayesian_module.BayesianOptimizationOracle is not None
    assert tuner_utils.get_best_step(0.5, keras_tuner.Objective("a", "min")) == 0

def test_on_neither():
    assert False

def test_only_there():
    assert keras_tuner.Oracle.__module__.startswith("keras_tuner.")
"""


@pytest.mark.slow
def test_tests_that_pass_there_are_counted_here(fresh_folder, monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    suite = importlib.import_module("keras_tuner_suite")
    Path("tuners").mkdir()
    Path("tuners", "toy_test.py").write_text(TESTS)
    monkeypatch.setenv(suite.FOLDER, str(fresh_folder))
    assert suite.main([]) == 0
    assert "| tuners_toy_test.py | 2 | 1 | test_only_there |" in capsys.readouterr().out
    assert suite.main(["nothing_of_this_name"]) == 0
