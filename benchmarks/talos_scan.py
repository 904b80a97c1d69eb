"""Talos scans with only the import changed: Paceline on JAX compared with Talos on TensorFlow.

    make bench-talos                       # both works, three rounds each, in .venv-compat
    make bench-talos ARGS="digits --quick" # a short form

Each scan runs in a process of its own, timed without imports; the sides take turns. Caches on disk
are empty at the beginning of each round, so that the first scan of each side has to compile. Rounds
of one commit that are run one after another (``ARGS="fashion --rounds 1"``) are counted together.

Works
    fashion: the 2018 article's scan (3 convolutions, 2 x 2 x 2 permutations) on 2,048 images.
    digits: a dense network on scikit-learn's digits, 32 permutations of 10 epochs.
    widths: the same with four widths, two dropout rates and four learning rates.
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
from importlib import metadata
from pathlib import Path
from typing import Any

import machine

SIDES = {"paceline": ("jax", "paceline.compat.talos"), "talos": ("tensorflow", "talos")}
#: Work -> how many times as fast as Talos Paceline has to be.
FLOOR = {"fashion": 1.0, "digits": 8.0, "widths": 1.0}
GOAL = {"fashion": 1.2, "digits": 20.0, "widths": 20.0}
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "talos_fashion_mnist.py"


def digits_model(x_train: Any, y_train: Any, x_val: Any, y_val: Any, params: Any) -> Any:
    """Train a model of dense, dropout and dense layers, as Talos' model functions do."""
    import keras

    model = keras.Sequential(
        [
            keras.layers.Dense(params["first_neuron"], activation="relu"),
            keras.layers.Dropout(params["dropout"]),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(params["lr"]), "sparse_categorical_crossentropy", metrics=["acc"]
    )
    history = model.fit(
        x_train,
        y_train,
        validation_data=(x_val, y_val),
        batch_size=32,
        epochs=params["epochs"],
        verbose=0,
    )
    return history, model


def digits(quick: bool) -> dict[str, Any]:
    """Return the arguments of ``Scan`` for 2 x 4 x 4 permutations."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    params = {
        "first_neuron": [32, 64],
        "dropout": [0.1, 0.2, 0.3, 0.4],
        "lr": [3e-4, 1e-3, 3e-3, 1e-2],
        "epochs": [2 if quick else 10],
    }
    return {
        "x": (x / 16).astype("float32"),
        "y": y,
        "params": params,
        "model": digits_model,
        "round_limit": 6 if quick else None,
    }


def widths(quick: bool) -> dict[str, Any]:
    """Return the arguments of ``Scan`` for 4 x 2 x 4 permutations."""
    arguments = digits(quick)
    params = {**arguments["params"], "first_neuron": [16, 32, 64, 128], "dropout": [0.1, 0.3]}
    return {**arguments, "params": params}


def fashion(quick: bool) -> dict[str, Any]:
    """Return the arguments of ``Scan`` for the example: 2,048 images, 2 epochs at batch 32."""
    spec = importlib.util.spec_from_file_location("talos_fashion_mnist", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    path = Path(os.environ.get("PACELINE_DATA", "."), "fashion_mnist.npz")
    n = 256 if quick else 2048
    x, y, x_val, y_val = example.load(path, n)
    params = {
        "dense1_neuron": [256, 512],
        "activation": ["relu", "elu"],
        "conv_dropout": [0.25, 0.4],
        "epochs": [1 if quick else 2],
        "batch_size": [32],
    }
    return {
        "x": x,
        "y": y,
        "x_val": x_val,
        "y_val": y_val,
        "params": params,
        "model": example.fashion_model,
        "round_limit": 2 if quick else None,
    }


WORKS = {"digits": digits, "widths": widths, "fashion": fashion}


def side(name: str, work: str, quick: bool, result: Path) -> None:
    """Run one scan in this process, and write its times to a file."""
    import keras

    backend, module = SIDES[name]
    if keras.backend.backend() != backend:
        raise SystemExit(f"{name} needs KERAS_BACKEND={backend}")
    scan_class = importlib.import_module(module).Scan
    arguments = WORKS[work](quick)
    keras.ops.convert_to_numpy(keras.ops.zeros(1))  # starts the device
    keras.utils.set_random_seed(0)  # imports TensorFlow if it is installed, before the clock starts
    began = time.perf_counter()
    scan = scan_class(experiment_name="scan", seed=1, disable_progress_bar=True, **arguments)
    seconds = time.perf_counter() - began
    metric = "val_acc" if "val_acc" in scan.data else "val_accuracy"
    outcome = {
        "seconds": seconds,
        "rounds": len(scan.data),
        "epochs": int(scan.data["round_epochs"].sum()),
        "best": float(scan.data[metric].max()),
        "mean": float(scan.data[metric].mean()),
        "load": os.getloadavg()[0],
        "device": machine.device() if backend == "jax" else "CPU (tensorflow)",
    }
    result.write_text(json.dumps(outcome), encoding="utf-8")


def run(name: str, work: str, quick: bool, caches: Path) -> dict[str, Any]:
    """Run a side in a process of its own."""
    environment = {
        **os.environ,
        "KERAS_BACKEND": SIDES[name][0],
        "PACELINE_CACHE_DIR": str(caches / name),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        result = Path(folder, "result.json")
        command = [sys.executable, str(Path(__file__).resolve()), work, "--side", name]
        command += ["--result", str(result), *(["--quick"] if quick else [])]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{name}, {work}: {done.stderr[-3000:]}")
        return json.loads(result.read_text(encoding="utf-8"))


def compare(
    work: str, rounds: int, quick: bool, before: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """Run both sides in turns; return the ratio of the medians, with earlier rounds included."""
    found = {name: list(before.get(name, [])) for name in SIDES}
    for number in range(len(found["talos"]), len(found["talos"]) + rounds):
        with tempfile.TemporaryDirectory(prefix="paceline-caches-") as caches:
            for name in SIDES if number % 2 == 0 else reversed(SIDES):
                found[name].append(run(name, work, quick, Path(caches)))
                last = found[name][-1]
                print(
                    f"{work}: {name} {last['seconds']:.1f} s, {last['rounds']} permutations, "
                    f"best {last['best']:.3f}, mean {last['mean']:.3f}, load {last['load']:.1f}",
                    flush=True,
                )
    ours, theirs = (statistics.median(r["seconds"] for r in found[n]) for n in SIDES)
    counts = {name: {(r["rounds"], r["epochs"]) for r in each} for name, each in found.items()}
    return {
        "runs": found,
        "seconds": {"paceline": ours, "talos": theirs},
        "ratio": theirs / ours,
        "same_work": counts["paceline"] == counts["talos"],
        "floor": FLOOR[work],
        "goal": GOAL[work],
        "quick": quick,
    }


def main() -> None:
    """Run the comparison, print and save it, and check the claims."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("works", nargs="*", help=f"{', '.join(WORKS)}; all by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="little work, one round, no claim")
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    works = arguments.works or list(WORKS)
    if unknown := set(works) - set(WORKS):
        parser.error(f"{', '.join(unknown)}: not one of {', '.join(WORKS)}")
    if arguments.side:
        side(arguments.side, works[0], arguments.quick, arguments.result)
        return
    facts: dict[str, Any] = machine.facts()
    facts["versions"] |= {name: metadata.version(name) for name in ("talos", "tensorflow")}
    print(machine.describe(facts))
    rounds = 1 if arguments.quick else arguments.rounds
    report = "talos_scan_quick" if arguments.quick else "talos_scan"
    entries: dict[str, dict[str, Any]] = {}
    for work in works:
        before = machine.gathered(report, facts).get(work, {}).get("runs", {})
        entries[work] = compare(work, rounds, arguments.quick, {} if arguments.quick else before)
        machine.gather(report, facts, entries)
    for work, entry in entries.items():
        seconds = entry["seconds"]
        print(
            f"{work}: Talos {seconds['talos']:.1f} s, Paceline {seconds['paceline']:.1f} s, "
            f"{entry['ratio']:.1f} times as fast (at least {entry['floor']}, goal {entry['goal']})"
        )
    failed = [work for work, entry in entries.items() if not entry["same_work"]]
    if failed:
        raise SystemExit(f"{', '.join(failed)}: the sides did not do the same work")
    slow = [work for work, entry in entries.items() if entry["ratio"] < entry["floor"]]
    if slow and not arguments.quick:
        raise SystemExit(f"{', '.join(slow)}: slower than is claimed")


if __name__ == "__main__":
    main()
