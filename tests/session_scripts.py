"""Scripts of users, run in sessions of processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

#: What each script begins with: a session in which Keras is imported before Paceline.
BEGIN = f"""
import json, os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import keras
import numpy as np
import paceline

rng = np.random.default_rng(0)
Y = rng.integers(0, 3, 60)
X = rng.normal(size=(60, 6)).astype("float32")
X[np.arange(60), Y] += 2.0
CALL = dict(validation_data=(X[40:], Y[40:]), epochs=2, batch_size=10)


def head(hp, *layers, loss="sparse_categorical_crossentropy"):
    model = keras.Sequential(
        [keras.Input((6,)), *layers, keras.layers.Dense(3, activation="softmax")]
    )
    model.compile(keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-1)), loss, metrics=["accuracy"])
    return model


def found(tuner, **more):
    trials = tuner.results()
    table = {{
        "plans": trials["plan"].tolist(),
        "states": trials["state"].tolist(),
        "histories": [tuner.history(n) for n in trials["number"]],
        "backend": keras.backend.backend(),
    }}
    print("FOUND" + json.dumps(table | more))
"""


def environment(backend: str, **more: str) -> dict[str, str]:
    """Of a session on a backend of Keras, with one CPU device."""
    found = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", **more}
    found.pop("JAX_NUM_CPU_DEVICES", None)
    return found


def run_script(code: str, backend: str, *, expected: int = 0, **more: str) -> dict[str, Any]:
    """Runs a user's script; returns what ``found`` has printed, and "stdout" and "stderr"."""
    path = Path(f"script_{backend}.py")
    path.write_text(BEGIN + code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(path)],
        env=environment(backend, **more),
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == expected, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    table = json.loads(lines[-1].removeprefix("FOUND")) if lines else {}
    return {**table, "stdout": done.stdout, "stderr": done.stderr}
