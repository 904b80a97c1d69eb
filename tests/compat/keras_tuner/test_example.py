"""The example, and the benchmark that runs it on both sides."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline.compat.keras_tuner as ours

ROOT = Path(__file__).resolve().parents[3]


def images(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 28, 28), np.uint8), rng.integers(0, 10, n, np.uint8)


@pytest.fixture
def example(monkeypatch) -> Any:
    """The example with noise for images: 64 to train on, 10,000 to validate on."""
    spec = importlib.util.spec_from_file_location("example", ROOT / "examples/keras_tuner_mnist.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    data = images(10_064, 0), images(16, 1)
    monkeypatch.setattr(module.keras.datasets.mnist, "load_data", lambda: data)
    return module


@pytest.mark.slow
def test_the_example_runs_to_its_best_model(example, capsys):
    tuner, (x_test, y_test) = example.search(max_trials=2, epochs=1)
    assert isinstance(tuner, ours.RandomSearch)
    tuner.results_summary()
    assert capsys.readouterr().out.count("Score: 0.") == 2
    best = tuner.get_best_models()[0]  # built from the shapes that the search has left
    assert len(best.evaluate(x_test, y_test, verbose=0)) == 2
    widths = {trial.hyperparameters["units"] for trial in tuner.oracle.trials.values()}
    assert widths <= set(range(32, 513, 32))


def test_the_benchmark_changes_nothing_but_the_import(theirs, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = importlib.import_module("keras_tuner_import")
    try:
        assert benchmark.load("keras_tuner").keras_tuner is theirs
        there = Path("user_code.py").read_text().splitlines()
        assert benchmark.load("paceline").keras_tuner is ours
        here = Path("user_code.py").read_text().splitlines()
    finally:
        for name in ("keras_tuner_import", "machine"):
            sys.modules.pop(name, None)
    assert [line for line in here if line not in there] == [
        "from paceline.compat import keras_tuner  # it was: import keras_tuner"
    ]
