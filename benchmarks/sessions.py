"""A search in a session on TensorFlow, beside KerasTuner in such a session: whole processes, cold.

Each side is a user's script in a process of its own, imports included: ``from tensorflow import
keras``, then a random search over digits. Asserted: Paceline is ``FLOOR`` times as fast.

    python benchmarks/sessions.py --tensorflow PYTHON [--keras-tuner-trials 64]

PYTHON is an interpreter that has Paceline's dependencies, tensorflow, keras-tuner, tensorboard and
six. With fewer trials for KerasTuner than for Paceline, its time is scaled, and nothing is
asserted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine

#: How many times as fast as KerasTuner on TensorFlow a search must be.
FLOOR = 15.0

BUILD = """
import sys
from tensorflow import keras


def build(hp):
    hidden = keras.layers.Dense(64, activation="relu")
    dropout = keras.layers.Dropout(hp.Float("dropout", 0.1, 0.5))
    output = keras.layers.Dense(10, activation="softmax")
    model = keras.Sequential([keras.Input((64,)), hidden, dropout, output])
    adam = keras.optimizers.Adam(hp.Float("lr", 1e-4, 1e-2, sampling="log"))
    model.compile(adam, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


n_trials, epochs = map(int, sys.argv[1:])
"""
DATA = """
from sklearn.datasets import load_digits

digits = load_digits()
x, y = (digits.data / 16).astype("float32"), digits.target
data = dict(validation_data=(x[1437:], y[1437:]), epochs=epochs)
x, y = x[:1437], y[:1437]
"""
SIDES = {
    "paceline": f"""{BUILD}
import paceline
{DATA}
tuner = paceline.Tuner(build, "val_accuracy", study="digits", sampler="random")
tuner.search(x, y, **data, n_trials=n_trials)
assert "fit" not in set(tuner.results()["plan"])
print(keras.backend.backend(), tuner.best_trial.value)
""",
    "keras_tuner": f"""{BUILD}
import keras_tuner as kt
{DATA}
tuner = kt.RandomSearch(build, "val_accuracy", max_trials=n_trials, seed=0)
tuner.search(x, y, **data, verbose=0)
print(keras.backend.backend(), tuner.oracle.get_best_trials(1)[0].score)
""",
}


def seconds(python: str, side: str, n_trials: int, epochs: int) -> tuple[float, str]:
    """Return the seconds of a side's whole process, with empty caches, and what it printed last."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.py")
        script.write_text(SIDES[side], encoding="utf-8")
        environment = {
            **os.environ,
            "KERAS_HOME": str(Path(folder, "keras")),
            "PACELINE_CACHE_DIR": str(Path(folder, "cache")),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": str(machine.ROOT / "src"),
        }
        for name in ("KERAS_BACKEND", "JAX_COMPILATION_CACHE_DIR"):
            environment.pop(name, None)
        began = time.perf_counter()
        done = subprocess.run(
            [python, str(script), str(n_trials), str(epochs)],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        took = time.perf_counter() - began
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("tensorflow "), last
    return took, last


def main() -> None:
    """Measure both sides in turn, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensorflow", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--keras-tuner-trials", type=int)
    given = parser.parse_args()
    theirs = given.keras_tuner_trials or given.trials
    ours, last = seconds(given.tensorflow, "paceline", given.trials, given.epochs)
    print(f"Paceline: {given.trials} x {given.epochs}, {ours:.1f} s ({last})", flush=True)
    other, last = seconds(given.tensorflow, "keras_tuner", theirs, given.epochs)
    print(f"KerasTuner: {theirs} x {given.epochs}, {other:.1f} s ({last})")
    ratio = other * given.trials / theirs / ours
    scaled = "" if theirs == given.trials else ", KerasTuner's time scaled"
    print(f"{ratio:.1f} times as fast{scaled}")
    if scaled:
        return
    digits = {
        "paceline": {"seconds": round(ours, 1)},
        "original": {"seconds": round(other, 1)},
        "n_trials": given.trials,
        "epochs": given.epochs,
        "times": round(ratio, 1),
    }
    machine.keep("sessions", {"machine": machine.facts(), "works": {"digits": digits}})
    assert ratio >= FLOOR, f"{ratio:.1f} times as fast, {FLOOR} were asked for"


if __name__ == "__main__":
    main()
