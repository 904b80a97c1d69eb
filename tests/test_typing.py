"""A user's script passes mypy's strict checks: public names have complete hints."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = """\
from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import paceline


def build(hp: paceline.HyperParameters) -> Any:
    units: int = hp.Int("units", 16, 64, step=16)
    rate: float = hp.Float("lr", 1e-4, 1e-2, sampling="log")
    activation: str = hp.Choice("activation", ["relu", "tanh"])
    wide: bool = hp.Boolean("wide")
    hp.Fixed("version", 3)
    with hp.conditional_scope("wide", [True]):
        units *= 2 if wide else 1
    model = keras.Sequential([keras.layers.Dense(units, activation=activation)])
    model.compile(keras.optimizers.Adam(rate), "mse")
    return model


def show(progress: Any) -> bool:
    return True


def main() -> None:
    x, y = np.zeros((8, 2), "float32"), np.zeros(8, "float32")
    tuner = paceline.Tuner(
        build, "val_loss", study="s", pruner=paceline.ASHA(), keep_best=3, on_progress=show,
        directory=Path("runs"), on_note=print,
    )
    tuner.enqueue({"lr": 0.01})
    tuner.search(x, y, validation_split=0.5, epochs=lambda hp: 3, n_trials="+2", callbacks=[])
    trial: paceline.Trial = tuner.best_trial
    value: float | None = trial.value
    hparams: dict[str, Any] = tuner.best_hparams
    history: dict[str, list[float]] = tuner.history(trial.number)
    frame = tuner.results()
    models: list[Any] = tuner.best_models(3)
    best = tuner.best_model(rank=2)
    again = tuner.reproduce(trial.number, x, y)
    differences: dict[str, float] = again.differences
    summary: dict[str, Any] = tuner.summary()
    studies = tuner.optuna_study().trials
    result = paceline.bench(build, x, y)
    try:
        tuner.trial(3)
    except (paceline.StudyError, paceline.PacelineError) as error:
        print(error, value, hparams, history, frame.shape, models, best, differences, summary,
              studies, result)
    hp = paceline.HyperParameters(values={"lr": 0.1})
    build(hp)


if __name__ == "__main__":
    main()
"""

COMPAT = """\
from typing import Any
import paceline
from paceline.compat import keras_tuner as kt
from paceline.compat import talos


class Mine(kt.HyperModel):
    def build(self, hp: kt.HyperParameters) -> Any:
        return hp.Int("units", 1, 3)


tuner = kt.RandomSearch(Mine(), objective="val_loss", max_trials=3)
tuner.search([1], [2])
best = tuner.get_best_models()[0]
scan = talos.Scan(x=[1], y=[2], params={}, model=lambda a, b, c, d, e: (1, 2), experiment_name="x")
study = paceline.from_talos_csv("x.csv")
print(best, scan, study)
x = paceline.datasets.load("digits")
"""


FITS = """\
from __future__ import annotations

import paceline
from paceline.compat import optuna


def objective(trial: optuna.Trial) -> float:
    return trial.suggest_float("x", 0, 1)


def train(rate: float) -> float:
    return rate


study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(objective, n_trials=1)
paceline.optimize(study, objective, n_trials=1, catch=ValueError, in_flight=2)
values: list[float] = list(paceline.map(train, [1.0, 2.0], seeds=0))
with paceline.PackPoolExecutor(seed=0) as executor:
    value: float = executor.submit(train, 1.0).result()
"""


@pytest.mark.skipif(find_spec("mypy") is None, reason="there is no mypy here")
@pytest.mark.slow  # mypy reads all of NumPy and pandas: 20 seconds
@pytest.mark.parametrize("script", [SCRIPT, COMPAT, FITS])
def test_a_users_script_passes_the_strict_checks(script):
    Path("script.py").write_text(script, encoding="utf-8")
    # Keras has no hints of its own. What Paceline has within is pyright's to check.
    Path("mypy.ini").write_text("[mypy]\n[mypy-keras.*]\nignore_missing_imports = True\n")
    source = Path(__file__).resolve().parents[1] / "src"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "script.py"],
        env={"MYPYPATH": str(source), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_says_that_it_has_hints():
    assert (Path(__file__).resolve().parents[1] / "src/paceline/py.typed").is_file()
