"""The studies of the gallery search, and say what their best models do."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "gallery"
#: Study -> the data file or the package that it needs, and sizes of its data.
NEEDED = {
    "digits": ("", ()),
    "fashion_mnist": ("fashion_mnist.npz", (64, 32)),
    "sentences": ("fra_eng.tsv", (64, 32, 40)),
    "diamonds": ("plotnine", (128, 64)),
    "co2": ("statsmodels", (1400, 300)),
    "attention": ("fra_eng.tsv", (1000, 200)),
}


@pytest.fixture
def study(monkeypatch, request, tmp_path):
    """A study with little data, whose study folder is the test's own."""
    name = request.param
    needed, sizes = NEEDED[name]
    if "." in needed:
        path = request.getfixturevalue("data_file")(needed)
        monkeypatch.setenv("PACELINE_DATA", str(path.parent))
    elif needed:
        pytest.importorskip(needed)
    spec = importlib.util.spec_from_file_location(f"gallery_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    if sizes:
        monkeypatch.setattr(module.data, "__defaults__", sizes)
    monkeypatch.chdir(tmp_path)
    return module


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of packages that only contain data
@pytest.mark.parametrize("study", NEEDED, indirect=True)
def test_a_study_searches_and_says_what_its_best_model_does(study):
    tuner = study.search(n_trials=2, epochs=2)
    assert tuner.summary()["n_trials"]["complete"] >= 1
    outcome = study.outcome(tuner)
    assert len(outcome) >= 2
    assert all(name and text and "nan" not in text for name, text in outcome.items())
    assert {trial.plan for trial in map(tuner.trial, range(2))} <= {
        "vectorized",
        "looped",
        "sequential",
    }


@pytest.mark.parametrize("study", ["co2"], indirect=True)
def test_no_value_to_forecast_is_in_two_parts_of_the_series(study):
    import numpy as np

    weeks = study.series()
    assert not np.isnan(weeks).any()
    (x, y), (x_val, y_val), (x_test, y_test) = study.data()
    assert len(x) == len(y) and len(x_val) == len(y_val) and len(x_test) == len(y_test)
    # Each target counts from the last value of its window; AHEAD weeks lie between two parts.
    last = study.WINDOW - 1
    assert y[0, 0] == pytest.approx(weeks[last + study.AHEAD] - weeks[last])
    assert len(x) == 1400 - study.AHEAD and len(x_val) == 300 - study.AHEAD
    assert y_test[-1, 0] == pytest.approx(weeks[-1] - weeks[-1 - study.AHEAD])
