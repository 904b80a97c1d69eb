"""Talos scans with only the import changed: Paceline on JAX compared with Talos on TensorFlow.

    make bench-talos                       # both works, three rounds each, in .venv-compat
    make bench-talos ARGS="digits --quick" # a short form
    make bench-talos ARGS="article --sides paceline --rounds 1"  # the whole scan of 2018, on JAX

Each scan runs in a process of its own, timed without imports; the sides take turns. Caches on disk
are empty at the beginning of each round, so that the first scan of each side has to compile. Rounds
of one commit that are run one after another (``ARGS="fashion --rounds 1"``) are counted together.

Works
    fashion: the 2018 article's scan (3 convolutions, 2 x 2 x 2 permutations) on 2,048 images.
    article: the same on all 70,000 images, 30 % of them for validation, 10 epochs at batch 1,024.
    published: the same as the article's notebooks had it: it trains on the validation images, too.
    article_32, published_32: both at batch 32, which the article had on its GPU.
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
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import machine
import numpy as np

SIDES = {"paceline": ("jax", "paceline.compat.talos"), "talos": ("tensorflow", "talos")}
#: Work -> how many times as fast as Talos Paceline has to be.
FLOOR = {"fashion": 1.0, "digits": 8.0, "widths": 1.0}
GOAL = {"fashion": 1.2, "digits": 20.0, "widths": 20.0}
#: What `make bench-talos` runs by default: the others take hours on a CPU.
USUAL = tuple(FLOOR)
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
    example = _example()
    x, y, x_val, y_val = example.load(_images(), 256 if quick else 2048)
    params = {**_grid(), "epochs": [1 if quick else 2], "batch_size": [32]}
    return {
        "x": x,
        "y": y,
        "x_val": x_val,
        "y_val": y_val,
        "params": params,
        "model": example.fashion_model,
        "round_limit": 2 if quick else None,
    }


def article(quick: bool, model: str = "fashion_model", batch_size: int = 1024) -> dict[str, Any]:
    """Return the arguments of the whole scan: 70,000 images, of which Talos takes 30 % away."""
    example = _example()
    x, y, x_test, y_test = example.load(_images(), 192 if quick else None)
    return {
        "x": np.concatenate([x, x_test]),
        "y": np.concatenate([y, y_test]),
        "params": {**_grid(), "epochs": [1 if quick else 10], "batch_size": [batch_size]},
        "model": getattr(example, model),
        "round_limit": 2 if quick else None,
    }


def _example() -> Any:
    spec = importlib.util.spec_from_file_location("talos_fashion_mnist", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def _images() -> Path:
    return Path(os.environ.get("PACELINE_DATA", "."), "fashion_mnist.npz")


def _grid() -> dict[str, list[Any]]:
    return {"dense1_neuron": [256, 512], "activation": ["relu", "elu"], "conv_dropout": [0.25, 0.4]}


WORKS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "digits": digits,
    "widths": widths,
    "fashion": fashion,
    "article": article,
    "published": partial(article, model="as_published"),
    "article_32": partial(article, batch_size=32),
    "published_32": partial(article, model="as_published", batch_size=32),
}


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
        "each": [float(value) for value in scan.data[metric]],
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
    work: str, rounds: int, quick: bool, sides: list[str], before: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """Run the sides in turns; return the ratio of the medians, with earlier rounds included."""
    found = {name: list(before.get(name, [])) for name in SIDES}
    done = max(len(found[name]) for name in sides)
    for number in range(done, done + rounds):
        with tempfile.TemporaryDirectory(prefix="paceline-caches-") as caches:
            for name in sides if number % 2 == 0 else sides[::-1]:
                found[name].append(run(name, work, quick, Path(caches)))
                last = found[name][-1]
                print(
                    f"{work}: {name} {last['seconds']:.1f} s, {last['rounds']} permutations, "
                    f"best {last['best']:.3f}, mean {last['mean']:.3f}, load {last['load']:.1f}",
                    flush=True,
                )
    found = {name: each for name, each in found.items() if each}
    seconds = {name: statistics.median(r["seconds"] for r in each) for name, each in found.items()}
    entry: dict[str, Any] = {"runs": found, "seconds": seconds, "quick": quick}
    if len(found) == len(SIDES):
        counts = {name: {(r["rounds"], r["epochs"]) for r in each} for name, each in found.items()}
        entry["ratio"] = seconds["talos"] / seconds["paceline"]
        entry["same_work"] = counts["paceline"] == counts["talos"]
    return entry | {"floor": FLOOR.get(work), "goal": GOAL.get(work)}


def main() -> None:
    """Run the comparison, print and save it, and check the claims."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    usual = f"{', '.join(WORKS)}; {', '.join(USUAL)} by default"
    parser.add_argument("works", nargs="*", help=usual)
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="little work, one round, no claim")
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    works = arguments.works or list(USUAL)
    if unknown := set(works) - set(WORKS):
        parser.error(f"{', '.join(unknown)}: not one of {', '.join(WORKS)}")
    if arguments.side:
        side(arguments.side, works[0], arguments.quick, arguments.result)
        return
    facts: dict[str, Any] = machine.facts()
    if "talos" in arguments.sides:
        facts["versions"] |= {name: metadata.version(name) for name in ("talos", "tensorflow")}
    print(machine.describe(facts))
    rounds = 1 if arguments.quick else arguments.rounds
    report = "talos_scan_quick" if arguments.quick else "talos_scan"
    entries: dict[str, dict[str, Any]] = {}
    for work in works:
        name = f"{report}_{work}"
        before = machine.gathered(name, facts).get(work, {}).get("runs", {})
        kept = {} if arguments.quick else before
        entries[work] = compare(work, rounds, arguments.quick, arguments.sides, kept)
        machine.gather(name, facts, {work: entries[work]})
    for work, entry in entries.items():
        took = ", ".join(f"{name} {each:.1f} s" for name, each in entry["seconds"].items())
        print(f"{work}: {took}")
    entries = {work: entry for work, entry in entries.items() if "ratio" in entry}
    for work, entry in entries.items():
        aim = f"at least {entry['floor']}, goal {entry['goal']}"
        print(f"{work}: Paceline is {entry['ratio']:.1f} times as fast ({aim})")
    failed = [work for work, entry in entries.items() if not entry["same_work"]]
    if failed:
        raise SystemExit(f"{', '.join(failed)}: the sides did not do the same work")
    slow = [work for work, entry in entries.items() if entry["ratio"] < (entry["floor"] or 0)]
    if slow and not arguments.quick:
        raise SystemExit(f"{', '.join(slow)}: slower than is claimed")


if __name__ == "__main__":
    main()
