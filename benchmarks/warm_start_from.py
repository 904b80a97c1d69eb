"""How many trials a search saves that learns from an earlier study of a related task.

    python benchmarks/warm_start_from.py [--train] [--seeds 100] [--quick] [--floors]

Five pairs of tasks: the halves of the digits in both directions, MNIST and Fashion-MNIST in both
directions, and the digits before MNIST. All 364 configurations of a small dense model (widths x
learning rates x dropout rates) are trained on each task with 8 seeds. The means of their accuracies
are kept in results/warm_start_from_table.json, and those of one training each in
warm_start_from_table_once. Then searches look them up: for every seed TPE searches the first task
with 64 trials, and the second one cold, and again having learnt from the first. Searches see what
one training gave, as users' searches do. Counted are the trials until one is within 0.5 % of the
best by the means: by one training each, the best of 364 is the luckiest. The part "by one training"
counts so all the same, and in the part "means seen" searches see the means.
Claimed: the median over the pairs of learnt trials by cold ones, of medians over seeds, is at most
0.6. `--quick` trains little and keeps nothing. The look-up is deterministic.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine
import numpy as np
import optuna
from sklearn.datasets import load_digits
from works import data_file

from paceline.study.metadata import StoredStudy
from paceline.study.samplers.earlier_studies import EarlierStudy
from paceline.study.study import Study

HERE = Path(__file__).resolve().parent
TABLE = HERE / "results" / "warm_start_from_table.json"
ONCE = TABLE.with_name("warm_start_from_table_once.json")
TRIALS, OPEN, WITHIN, GOAL = 64, 8, 0.995, 0.6
REPEATS = 8  # seeds of every configuration in the table
PAIRS = (
    ("digits 1", "digits 2"),
    ("digits 2", "digits 1"),
    ("mnist", "fashion"),
    ("fashion", "mnist"),
    ("digits 1", "mnist"),
)


Tables = dict[str, dict[str, float]]


def declare(hp: Any) -> tuple[int, float, float]:
    """Declare the space on a grid, for the look-up."""
    return (
        hp.Choice("units", [16, 32, 64, 128]),
        10 ** hp.Float("log_lr", -4.0, -1.0, step=0.25),
        hp.Float("dropout", 0.0, 0.6, step=0.1),
    )


def build(hp: Any) -> Any:
    """Build a dense model N-units-10 with dropout."""
    import keras

    units, lr, dropout = declare(hp)
    layers = [
        keras.layers.Dense(units, activation="relu"),
        keras.layers.Dropout(dropout),
        keras.layers.Dense(10, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile(
        optimizer=keras.optimizers.Adam(lr),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def data(task: str) -> tuple[tuple[Any, Any], tuple[Any, Any], int]:
    """Return training data, validation data and epochs: f32[N, F] in 0 to 1, i64[N]."""
    name, _, half = task.partition(" ")
    if name == "digits":
        digits = load_digits()
        x, y = (digits.data / 16.0).astype("float32"), digits.target
        x, y = x[int(half) - 1 :: 2], y[int(half) - 1 :: 2]
        return (x[:600], y[:600]), (x[600:], y[600:]), 12
    arrays = np.load(data_file("mnist.npz" if name == "mnist" else "fashion_mnist.npz"))
    x = (arrays["x_train"][:4000].reshape(4000, -1) / 255.0).astype("float32")
    y = arrays["y_train"][:4000].astype("int64")
    return (x[:2500], y[:2500]), (x[2500:], y[2500:]), 4


def key(hparams: dict[str, Any]) -> str:
    """Return the key of a configuration in the table."""
    return f"{hparams['units']} {hparams['log_lr']:.2f} {abs(hparams['dropout']):.1f}"


def train(task: str, quick: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Train every configuration; return validation accuracies at the best epoch.

    Returns:
        Configuration -> the mean over ``REPEATS`` seeds, and that of the first seed.
    """
    import paceline

    (x, y), validation, epochs = data(task)
    if quick:
        x, y, epochs = x[:64], y[:64], 1
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        tuner = paceline.Tuner(
            build, objective="val_accuracy", study="s", sampler="grid", directory=directory
        )
        repeats = 2 if quick else REPEATS
        tuner.search(
            x, y, validation_data=validation, epochs=epochs, batch_size=64, repeats=repeats
        )
        means, once = {}, {}
        for row in tuner.results().to_dict("records"):
            means[key(row)] = round(float(row["value"]), 5)
            first = max(members[0] for members in tuner.trial(int(row["number"])).runs)
            once[key(row)] = round(float(first), 5)
    return means, once


def search(
    table: dict[str, float], seed: int, learnt: EarlierStudy | None
) -> tuple[list[str], StoredStudy]:
    """Search by look-up, ``OPEN`` trials at once; return configurations, and the study."""
    storage = optuna.storages.InMemoryStorage()
    study = Study(
        "s", storage=storage, direction="maximize", sampler="tpe", seed=seed, n_trials=TRIALS
    )
    if learnt is not None:
        told = study.proposer.sampled.told
        assert told is not None
        told.learn([learnt])
    found: list[str] = []
    running: list[int] = []
    for _ in range(TRIALS):
        proposal = study.asker.propose(lambda hp, proposal: declare(hp))
        assert proposal is not None
        proposal, hp, _ = proposal
        study.persist({})
        running.append(study.accept(proposal, hp))
        found.append(key(hp.hparams))
        if len(running) == OPEN:
            end(study, table, running.pop(0))
    for number in running:
        end(study, table, number)
    study.close()
    return found, StoredStudy(("maximize",), {}, study.optuna_study().trials)


def end(study: Study, table: dict[str, float], number: int) -> None:
    """End a trial with its accuracy in the table."""
    value = table[key(study.trials.by_number(number).hparams)]
    study.updates.report(number, 1, {"val_accuracy": value}, value)
    study.updates.finish(number, "complete")


def needed(found: list[float], best: float) -> int:
    """Return how many trials came to within 0.5 % of the best; one more than all where none did."""
    return next((n for n, value in enumerate(found, 1) if value >= WITHIN * best), len(found) + 1)


def compare(seen: Tables, counted: Tables, seeds: int) -> dict[str, Any]:
    """Compare cold searches with those that learn, for every pair.

    Args:
        seen: Task -> configuration -> the accuracy that searches see.
        counted: Likewise, the accuracy by which trials count as good.
        seeds: Searches of each kind.
    """
    report: dict[str, Any] = {}
    for before, task in PAIRS:
        table, rows = counted[task], []
        best = max(table.values())
        for seed in range(seeds):
            _, old = search(seen[before], 1000 + seed, None)
            cold, warm = (
                [table[each] for each in search(seen[task], seed, learnt)[0]]
                for learnt in (None, EarlierStudy.of(before, old))
            )
            rows.append([needed(cold, best), needed(warm, best), max(cold), max(warm)])
        medians = np.median(np.array(rows), axis=0)
        good = sum(value >= WITHIN * best for value in table.values())
        report[f"{before} to {task}"] = row = {
            "good configurations": f"{good} of {len(table)}",
            "cold": float(medians[0]),
            "learnt": float(medians[1]),
            "ratio": round(float(medians[1] / medians[0]), 3),
            "best cold": round(float(medians[2]), 4),
            "best learnt": round(float(medians[3]), 4),
        }
        print(f"{before} to {task}: {row}", flush=True)
    report["median ratio"] = float(np.median([row["ratio"] for row in report.values()]))
    print(f"median of the ratios: {report['median ratio']}", flush=True)
    return report


def main() -> int:
    """Compare; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--train", action="store_true", help="train the table anew")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="train little, keep nothing")
    parser.add_argument("--floors", action="store_true", help="exit 1 where the claim is missed")
    arguments = parser.parse_args()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    tasks = sorted({task for pair in PAIRS for task in pair})
    if arguments.quick or arguments.train or not TABLE.is_file():
        trained = {task: train(task, arguments.quick) for task in tasks}
        means, once = ({task: pair[i] for task, pair in trained.items()} for i in range(2))
        if not arguments.quick:
            for path, tables in ((TABLE, means), (ONCE, once)):
                path.write_text(json.dumps(tables, indent=0) + "\n", encoding="utf-8")
    else:
        means, once = (json.loads(path.read_text(encoding="utf-8")) for path in (TABLE, ONCE))
    parts = {
        "one training seen": (once, means),
        "by one training": (once, once),
        "means seen": (means, means),
    }
    report: dict[str, Any] = {"machine": found, "seeds": arguments.seeds}
    for name, (seen, counted) in parts.items():
        print(name, flush=True)
        report[name] = compare(seen, counted, 2 if arguments.quick else arguments.seeds)
        if not arguments.quick:
            machine.keep("warm_start_from", report)
    missed = report["one training seen"]["median ratio"] > GOAL
    return 1 if arguments.floors and missed else 0


if __name__ == "__main__":
    sys.exit(main())
