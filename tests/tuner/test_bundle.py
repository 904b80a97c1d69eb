"""Models that are taken away: the best few, a bundle, and the hints that are printed on the way."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import paceline
import toys
from paceline.cli.app import main
from paceline.tuner.arguments.provenance import _git

MODEL = """\
import keras
import numpy as np


class Doubled(keras.layers.Layer):
    def call(self, x):
        return 2 * x


def build(hp):
    layers = [keras.Input((4,)), Doubled(), keras.layers.Dense(3, activation="softmax")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-1)),
                  "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def data():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 4)).astype("float32"), rng.integers(0, 3, 40)
    return (x[:30], y[:30]), (x[30:], y[30:])
"""


@pytest.fixture(scope="module")
def searched(tmp_path_factory) -> paceline.Tuner:
    tuner = paceline.Tuner(
        toys.dense,
        study="s",
        sampler="random",
        keep_best=2,
        directory=tmp_path_factory.mktemp("home") / "runs",
        on_note=lambda text: None,
    )
    call = {**toys.CALL, "epochs": 2}
    tuner.search(*toys.data(), n_trials=4, **call)
    return tuner


@pytest.fixture
def at_home(searched, monkeypatch) -> paceline.Tuner:
    """The study, seen from the folder that it is below."""
    monkeypatch.chdir(searched._config.directory.parent)
    return searched


def run(words: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        words,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, f"{words}:\n{done.stdout}{done.stderr}"
    return done.stdout


def without_keras_backend() -> dict[str, str]:
    """What a shell of a user has: no PYTHONPATH, no backend chosen."""
    ours = ("PYTHONPATH", "KERAS_BACKEND", "JAX_PLATFORMS", "XLA_FLAGS")
    return {name: value for name, value in os.environ.items() if name not in ours}


def test_the_best_models_come_in_order(searched):
    x, y = toys.data(23, seed=1)
    one, two = searched.best_models(2)
    order = searched.results().sort_values("value", ascending=False)
    for model, value in ((one, order.value.iloc[0]), (two, order.value.iloc[1])):
        assert model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"] == pytest.approx(value)
    again = searched.best_model(rank=2)
    np.testing.assert_array_equal(again.predict(x, verbose=0), two.predict(x, verbose=0))


@pytest.mark.parametrize(
    ("rank", "error", "why"),
    [
        (
            3,
            paceline.StudyError,
            r"the model of rank 3 \(trial \d\) is not kept, because keep_best is 2",
        ),
        (5, paceline.StudyError, "has 4 trials with a value of their own, .* for fewer,"),
        (0, paceline.UsageError, "rank"),
    ],
)
def test_a_model_that_is_not_kept_says_why(searched, rank, error, why):
    with pytest.raises(error, match=why):
        searched.best_model(rank=rank)
    if rank > 2:
        with pytest.raises(error, match=why):
            searched.best_models(rank)


def test_a_rank_that_no_trial_has_says_what_to_do(fresh_folder):
    tuner = paceline.Tuner(toys.dense, keep_best=2, on_note=lambda text: None)
    tuner.search(*toys.data(), n_trials=1, **{**toys.CALL, "epochs": 1})
    said = (
        r"has 1 trial with a value of its own, so there is no model of rank 2\. "
        r"Ask for fewer, or train more trials\."
    )
    with pytest.raises(paceline.StudyError, match=said):
        tuner.best_models(2)


def exported(*words: str) -> None:
    with pytest.raises(SystemExit, match="^0$"):
        main(["export", *words])


@pytest.mark.slow
def test_a_bundle_has_all_that_is_needed(at_home, tmp_path, capsys):
    exported("s", "--bundle", str(tmp_path / "best.zip"))
    with zipfile.ZipFile(tmp_path / "best.zip") as file:
        names = set(file.namelist())
        manifest = json.loads(file.read("manifest.json"))
        assert json.loads(file.read("hparams.json")) == at_home.best_hparams
        assert file.read("results.csv").decode().startswith("value,dropout,lr,number")
        requirements = file.read("requirements.txt").decode().split()
    wanted = {
        "model.keras",
        "hparams.json",
        "results.csv",
        "report.html",
        "predict.py",
        "requirements.txt",
    }
    assert wanted | {"manifest.json"} <= names
    assert manifest["trial"]["number"] == at_home.best_trial.number
    assert manifest["keras_backend"] == "jax" and manifest["modules"] == []
    assert manifest["seed"] == 0 and manifest["data"] is not None
    assert manifest["versions"]["keras"] == manifest["packages"]["keras"]
    assert {line.partition("==")[0] for line in requirements} == {"keras", "jax", "jaxlib", "numpy"}
    assert set(manifest["files"]) == names - {"manifest.json"}
    assert manifest["command"] == shlex.join(sys.orig_argv)[:2000]
    x, _ = toys.data(23, seed=1)
    np.savez(tmp_path / "x.npz", x=x)
    with zipfile.ZipFile(tmp_path / "best.zip") as file:
        file.extractall(tmp_path / "b")
    words = ["b/predict.py", "x.npz", "-o", "y.npy"]
    command = [sys.executable, *(str(tmp_path / w) if "." in w else w for w in words)]
    assert "predictions (23, 3)" in run(command, without_keras_backend())
    expected = at_home.best_model().predict(x, verbose=0)
    # The same program in another process: float32's rounding, 1e-7 measured.
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=1e-5)


@pytest.mark.slow
def test_data_of_another_shape_are_told_to_whoever_predicts(at_home, tmp_path):
    exported("s", "--bundle", str(tmp_path / "best.zip"))
    with zipfile.ZipFile(tmp_path / "best.zip") as file:
        file.extractall(tmp_path / "b")
    x, _ = toys.data(23, seed=1)
    np.savez(tmp_path / "x.npz", x=x[:, 1:])
    command = [sys.executable, str(tmp_path / "b/predict.py"), str(tmp_path / "x.npz")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=without_keras_backend()
    )
    wide = x.shape[1]
    assert f"have the shape ({wide - 1},), but the model takes ({wide},)" in done.stderr
    assert done.returncode == 1 and "Traceback" not in done.stderr


def test_a_bundle_of_another_name_is_refused(at_home, capsys):
    with pytest.raises(SystemExit, match="^2$"):
        main(["export", "s", "--bundle", "best.tar"])
    assert "--bundle must end in .zip, got best.tar" in capsys.readouterr().err


@pytest.mark.slow
def test_what_export_prints_can_be_pasted(at_home, tmp_path, capsys):
    exported("s", "-o", str(tmp_path / "it's best.keras"))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert len(lines) == 2
    code = "\n".join([*(line[2:] for line in lines), "print(model.count_params())"])
    assert run([sys.executable, "-c", code], without_keras_backend()) == "83\n"


def test_the_version_of_the_users_code_is_kept(tmp_path):
    assert _git(tmp_path) is None

    def git(*words: str) -> None:
        who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    assert _git(tmp_path) is None
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "one")
    clean = _git(tmp_path)
    assert clean is not None
    assert re.fullmatch("[0-9a-f]{40}", clean["commit"]) and clean["dirty"] is False
    (tmp_path / "a").write_text("2")
    assert _git(tmp_path) == {**clean, "dirty": True}


@pytest.mark.slow  # a virtual environment with JAX and Keras in it: minutes and 500 MB
def test_everything_that_a_search_prints_can_be_pasted(tmp_path):
    """Search, every line under "Next:", the bundle's lines in an environment of its own."""
    (tmp_path / "own model.py").write_text(MODEL)
    (tmp_path / "own_model.py").write_text(MODEL)
    environment = without_keras_backend()
    source = str(Path(paceline.__file__).resolve().parents[1])

    def shell(line: str, **more: str) -> str:
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=tmp_path,
            env=environment | more,
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
        assert done.returncode == 0, f"{line}:\n{done.stdout}{done.stderr}"
        return done.stdout

    command = f"{sys.executable} -m paceline"
    for name in ("'own model'", "own_model"):
        out = shell(f"{command} search {name}.py --trials 3 --epochs 2 --quiet", PYTHONPATH=source)
        steps = out.partition("Next:\n")[2].splitlines()
        assert len(steps) == 5
        for step in steps:
            assert shell(step.strip().rpartition("  ")[0], PYTHONPATH=source)
    out = shell(f"{command} export own_model --bundle best.zip", PYTHONPATH=source)
    np.save(tmp_path / "DATA.npy", np.zeros((5, 4), "float32"))
    for line in out.partition("in a new environment:\n")[2].splitlines():
        shell(line.strip())
    assert np.load(tmp_path / "predictions.npy").shape == (5, 3)


def test_a_bundle_has_the_values_of_all_objectives(fresh_folder: Path) -> None:
    tuner = paceline.Tuner(
        toys.dense, study="two", sampler="random", objective=["val_loss", "params"], on_note=print
    )
    tuner.search(*toys.data(), n_trials=2, **{**toys.CALL, "epochs": 1})
    number = tuner.pareto()[0].number
    exported("two", "--trial", str(number), "--bundle", "two.zip")
    with zipfile.ZipFile("two.zip") as bundle:
        header = bundle.read("results.csv").decode().splitlines()[0]
        manifest = json.loads(bundle.read("manifest.json"))
    assert header.startswith("val_loss,params,")
    assert set(manifest["trial"]["values"]) == {"val_loss", "params"}


TABLE = """\
import keras


def build(hp):
    layers = [keras.layers.Dense(4), keras.layers.Dense(2, activation="softmax")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-1)),
                  "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
"""


@pytest.mark.slow
def test_a_model_of_a_table_takes_tables_wherever_it_is(fresh_folder: Path, capsys) -> None:
    Path("m.py").write_text(TABLE)
    rows = [f"{i % 7},{'red' if i % 3 else 'blue'},{i % 2 == 0},{'ab'[i % 2]}" for i in range(40)]
    Path("t.csv").write_text("\n".join(["size,color,member,kind", *rows]))
    run_main("search m.py --data t.csv --target kind --trials 1 --epochs 1 --quiet")
    capsys.readouterr()
    run_main("export m -o best.keras --bundle best.zip")
    assert "best.encoding.json: the columns and categories" in capsys.readouterr().out
    with zipfile.ZipFile("best.zip") as file:
        file.extractall("best")
    beside = json.loads(Path("best.encoding.json").read_text())
    assert beside == json.loads(Path("best/encoding.json").read_text())
    assert beside["features"][1] == {"name": "color", "categories": ["blue", "red"]}

    new = ["color,size,member", "blue,3,true", "green,4,False"]
    Path("new.csv").write_text("\n".join(new))
    done = subprocess.run(
        [sys.executable, "best/predict.py", "new.csv"],
        capture_output=True, text=True, check=True, timeout=300,
        env={**os.environ, "KERAS_BACKEND": "jax"},
    )  # fmt: skip
    assert "column 'color': ignored the new category 'green'" in done.stderr
    model: Any = keras.models.load_model("best/model.keras")
    x = np.array([[3, 1, 0, 0, 1], [4, 0, 0, 1, 0]], "float32")
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(np.load("predictions.npy"), expected, rtol=1e-5, atol=1e-6)
    for text, why in (("size\n1\n", "holds no column 'color'"), ("size,color\n,red\n", "row 1")):
        Path("bad.csv").write_text(text)
        failed = subprocess.run(
            [sys.executable, "best/predict.py", "bad.csv"],
            capture_output=True, text=True, check=False, timeout=300,
            env={**os.environ, "KERAS_BACKEND": "jax"},
        )  # fmt: skip
        assert failed.returncode == 1 and why in failed.stderr


def run_main(words: str) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(words.split())
