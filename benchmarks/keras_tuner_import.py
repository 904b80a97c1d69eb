"""A KerasTuner search with its own import and with Paceline's, both with Keras on JAX.

    python benchmarks/keras_tuner_import.py              3 rounds; exit 1 under 2.5 times
    python benchmarks/keras_tuner_import.py --images 12000 --name keras_tuner_import_12000
    python benchmarks/keras_tuner_import.py --quick      fewer images, one round, no claim

The search is that of ``examples/keras_tuner_mnist.py``: MNIST, 50,000 images in batches of 32, a
dense network of 32 to 512 units, one of three learning rates, every trial trained twice. KerasTuner
runs the same file with its own import put back. A seed gives both sides the same trials.

Every run is a fresh process with its own folders; imports and loading of data are not counted.
The sides take turns; the median of the rounds counts. Cold: there is no compiled program on disk.
Warm: the same search once more, with the programs that the cold one left on disk, for both sides.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine

EXAMPLE = machine.ROOT / "examples" / "keras_tuner_mnist.py"
OURS, THEIRS = "from paceline.compat import keras_tuner", "import keras_tuner"
SIDES = ("paceline", "keras_tuner")
STATES = ("cold", "warm")
#: The claimed ratio for a whole cold search.
FLOOR = 2.5
TIME_LIMIT = 1800.0  # s, for one run of one side


def main() -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="little data, one cold round")
    parser.add_argument("--images", type=int, default=50000, help="to train on")
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true", help="leave the warm searches out")
    parser.add_argument("--name", default="keras_tuner_import", help="of the file in results/")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    n = 10000 + (4000 if arguments.quick else arguments.images)  # 10,000 to validate on
    if arguments.side:
        print(json.dumps(one(arguments.side, n, arguments.trials, arguments.epochs)))
        return 0
    rounds = 1 if arguments.quick else arguments.rounds
    found = machine.facts()
    print(machine.describe(found))
    print(f"MNIST, {n - 10000} images, {arguments.trials} trials x 2, {arguments.epochs} epochs")
    states = STATES[:1] if arguments.quick or arguments.cold else STATES
    runs = measure(arguments, rounds, states)
    report: dict[str, Any] = {"machine": found, "n_images": n, "runs": runs}
    ratios = {}
    for state in states:
        medians = {s: statistics.median(r["seconds"] for r in runs[s][state]) for s in SIDES}
        ratios[state] = medians["keras_tuner"] / medians["paceline"]
        print(
            f"{state}: paceline {medians['paceline']:.2f} s, keras_tuner "
            f"{medians['keras_tuner']:.2f} s: {ratios[state]:.2f} times"
        )
    report["ratios"] = ratios
    same = len({json.dumps(r["tried"]) for s in SIDES for t in states for r in runs[s][t]}) == 1
    print("both sides have tried the same configurations" if same else "the trials differ")
    machine.keep(arguments.name, report)
    if not same:
        return 1
    if not arguments.quick and ratios["cold"] < FLOOR:
        print(f"floor missed: {ratios['cold']:.2f} is under {FLOOR} times", file=sys.stderr)
        return 1
    return 0


def measure(
    arguments: argparse.Namespace, rounds: int, states: tuple[str, ...]
) -> dict[str, dict[str, list[Any]]]:
    """Run all sides; return side -> state of the caches -> one result for each round."""
    runs: dict[str, dict[str, list[Any]]] = {s: {t: [] for t in states} for s in SIDES}
    for number in range(rounds):
        for side in SIDES if number % 2 else SIDES[::-1]:
            with tempfile.TemporaryDirectory(prefix="paceline-bench-cache-") as cache:
                for state in states:
                    outcome = run(side, arguments, Path(cache))
                    runs[side][state].append(outcome)
                    print(
                        f"  {side:12s} {state:5s} {outcome['seconds']:7.2f} s  best "
                        f"{outcome['best']:.4f}  {outcome['device']}",
                        flush=True,
                    )
    return runs


def run(side: str, arguments: argparse.Namespace, cache: Path) -> dict[str, Any]:
    """Run one side in a fresh process and an empty folder."""
    kept = machine.fresh_environment()
    environment = {
        **kept,
        "KERAS_BACKEND": "jax",
        "KERAS_HOME": str(cache / "keras"),
        "JAX_COMPILATION_CACHE_DIR": str(cache / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "PACELINE_CACHE_DIR": str(cache / "paceline"),
    }
    command = [sys.executable, str(Path(__file__).resolve()), "--side", side]
    command += ["--trials", str(arguments.trials), "--epochs", str(arguments.epochs)]
    command += ["--images", str(arguments.images)]
    command += ["--quick"] if arguments.quick else []
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        done = subprocess.run(
            command,
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def one(side: str, n: int, trials: int, epochs: int) -> dict[str, Any]:
    """Run one search, in this process and this folder."""
    import jax
    import keras
    import numpy as np
    from works import data_file

    with np.load(data_file("mnist.npz")) as file:
        train = file["x_train"], file["y_train"]
        data = (train[0][:n], train[1][:n]), (file["x_test"], file["y_test"])
    keras.datasets.mnist.load_data = lambda: data  # the file on this machine, without a download
    example = load(side)
    jax.devices()
    began = time.perf_counter()
    tuner, _ = example.search(max_trials=trials, epochs=epochs, verbose=0)
    best = tuner.oracle.get_best_trials()[0]
    seconds = time.perf_counter() - began
    complete = [t for t in tuner.oracle.trials.values() if t.status == "COMPLETED"]
    if len(complete) != trials:
        raise SystemExit(f"{len(complete)} of {trials} trials are complete")
    return {
        "seconds": seconds,
        "best": float(best.score),
        "scores": [float(trial.score) for trial in complete],
        "tried": [dict(trial.hyperparameters.values) for trial in complete],
        "device": machine.device(),
        "load": os.getloadavg()[0],
    }


def load(side: str) -> Any:
    """Return the example as a module; for the side of KerasTuner, with its own import."""
    text = EXAMPLE.read_text(encoding="utf-8")
    if text.count(OURS) != 1:
        raise SystemExit(f"{EXAMPLE.name} imports otherwise than this benchmark expects")
    path = Path("user_code.py")
    path.write_text(text.replace(OURS, THEIRS) if side == "keras_tuner" else text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("user_code", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main())
