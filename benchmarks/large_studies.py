"""What reading a study of 20,000 trials costs, beside the same command on one of 20.

    python benchmarks/large_studies.py [--trials 20000] [--epochs 10] [--runs 3]

The journals are made here, line by line, as a search writes them that is slower than its storage:
one line for the beginning of a trial, for each epoch, for each attribute at its end, and for the
end. Each command runs in a process of its own, first from these lines alone, then with the
compacted file that a search leaves beside them when it ends. Claimed of the latter, above the same
command on 20 trials:
``best`` takes 1 s of processor time, ``trials`` 1.5 s, ``resume --trials +4`` 2 s and 180 MB.
``resume`` trains four trials in both studies, from a cache of compiled programs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import machine

from paceline.study.metadata import FORMAT
from paceline.study.samplers.values import trial_seed
from paceline.study.storage.compacted import WORTHWHILE
from paceline.study.storage.journal import JournalFile

#: Command -> seconds of processor time, and bytes where they are claimed.
CLAIMS: dict[str, tuple[float, float | None]] = {
    "best": (1.0, None),
    "trials": (1.5, None),
    "resume": (2.0, 180e6),
}
#: A study as its lines tell it, and as a search leaves it that has ended.
LINES, LEFT = STATES = ("from its lines", "as a search leaves it")
MODEL = """\
import keras
import numpy as np

def build(hp):
    model = keras.Sequential([
        keras.Input((8,)),
        keras.layers.Dense(hp.Int("units", 4, 64), activation="relu"),
        keras.layers.Dense(2, activation="softmax"),
    ])
    rate = hp.Float("lr", 1e-4, 1e-1, sampling="log")
    adam = keras.optimizers.Adam(rate)
    model.compile(adam, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model

def data():
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    y = (x.sum(1) > 0).astype("int32")
    return (x, y), (x[:16], y[:16])
"""
DISTRIBUTIONS = {
    "units": '{"name": "IntDistribution", "attributes": '
    '{"log": false, "step": 1, "low": 4, "high": 64}}',
    "lr": '{"name": "FloatDistribution", "attributes": '
    '{"step": null, "low": 0.0001, "high": 0.1, "log": true}}',
}
NOW = datetime(2026, 11, 1, tzinfo=UTC).isoformat(timespec="microseconds")


def records(model: Path, n_trials: int, epochs: int, sampler: str) -> Iterator[dict]:
    """Yield the records of a study of ended trials."""
    from paceline.cli.user_file import file_digest

    yield {"op_code": 0, "study_name": "s", "directions": [2]}
    space = [
        {
            "name": name,
            "storage_name": name,
            "distribution": json.loads(DISTRIBUTIONS[name]),
            "default": default,
            "mirrored": False,
        }
        for name, default in (("units", 4), ("lr", 0.0001))
    ]
    search = {"epochs": epochs, "batch_size": 16, "n_trials": n_trials, "shuffle": True}
    origin = {"file": str(model.resolve()), "function": "build", "digest": file_digest(model)}
    meta = {
        "objective": "val_accuracy",
        "direction": "maximize",
        "sampler": sampler,
        "seed": 0,
        "parallel_trials": "auto",
        "plan": "auto",
        "search": search,
        "origin": {**origin, "data": None},
        "format": FORMAT,
        "space": space,
        "session": "0123456789abcdef",
    }
    yield {"op_code": 2, "study_id": 0, "user_attr": {"paceline": meta}}
    draw = random.Random(0)
    for number in range(n_trials):
        units, rate = draw.randint(4, 64), 10 ** draw.uniform(-4, -1)
        yield {
            "op_code": 4,
            "study_id": 0,
            "datetime_start": NOW,
            "state": 0,
            "value": None,
            "values": None,
            "distributions": DISTRIBUTIONS,
            "params": {"units": units, "lr": rate},
            "user_attrs": {
                "hparams": {"units": units, "lr": rate},
                "seed": trial_seed(0, number),
                "draw": number,
            },
            "system_attrs": {"paceline:owner": "0123456789abcdef"},
            "intermediate_values": {},
        }
        history = {
            name: [draw.random() for _ in range(epochs)]
            for name in ("accuracy", "loss", "val_accuracy", "val_loss")
        }
        values = history["val_accuracy"]
        for epoch, value in enumerate(values, 1):
            yield {"op_code": 7, "trial_id": number, "step": epoch, "intermediate_value": value}
        attrs = {
            "epochs": epochs,
            "seconds": 0.25,
            "program": "a1b2c3d4",
            "plan": "vectorized",
            "best_epoch": 1 + values.index(max(values)),
            "history": history,
        }
        for name, value in attrs.items():
            yield {"op_code": 8, "trial_id": number, "user_attr": {name: value}}
        yield {
            "op_code": 6,
            "trial_id": number,
            "state": 1,
            "values": [max(values)],
            "datetime_complete": NOW,
        }


def make(folder: Path, n_trials: int, epochs: int, sampler: str = "random") -> None:
    """Write a model's file and a study ``s`` of it."""
    (folder / "runs" / "s").mkdir(parents=True)
    model = folder / "model.py"
    model.write_text(MODEL, encoding="utf-8")
    writer = "00000000-0000-4000-8000-000000000000-140000000000000"
    with (folder / "runs" / "s" / "journal.log").open("w", encoding="utf-8") as file:
        for record in records(model, n_trials, epochs, sampler):
            line = {"op_code": record.pop("op_code"), "worker_id": writer, **record}
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


RUNNER = """\
import resource, sys
from paceline.cli.app import main
try:
    main(sys.argv[1:])
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print("USED", used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, file=sys.stderr)
"""


def measure(folder: Path, words: list[str]) -> tuple[float, float]:
    """Run a command; return its processor time in seconds and its memory in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, *words],
        cwd=folder,
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    used = [line.split() for line in done.stderr.splitlines() if line.startswith("USED ")]
    if done.returncode or not used:
        raise RuntimeError(f"paceline {' '.join(words)}: {done.stderr[-2000:]}")
    return float(used[0][1]), float(used[0][2])


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--sampler", default="random")
    parser.add_argument("--commands", nargs="+", choices=CLAIMS, default=list(CLAIMS))
    arguments = parser.parse_args()
    facts = machine.facts()
    print(machine.describe(facts), flush=True)
    missed, rows, sizes = False, [], {}
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as place:
        found: dict[tuple[str, str], dict[int, list[tuple[float, float]]]] = {}
        for n_trials in (20, arguments.trials):
            folder = Path(place) / str(n_trials)
            make(folder, n_trials, arguments.epochs, arguments.sampler)
            journal = folder / "runs" / "s" / "journal.log"
            beside = JournalFile(journal).compacted
            size = sizes[n_trials] = journal.stat().st_size
            print(f"{n_trials:,} trials: a journal of {size / 1e6:.1f} MB", flush=True)
            lines = journal.read_bytes()
            end_search(folder)
            for command, state in itertools.product(arguments.commands, STATES):
                more = ["--trials", "+4", "--quiet"] if command == "resume" else []
                for _ in range(arguments.runs):
                    if state == LINES:  # as it comes without the file that a search leaves
                        journal.write_bytes(lines)
                        beside.unlink(missing_ok=True)
                    elif beside.exists() != (size >= WORTHWHILE):
                        raise RuntimeError(f"{beside.name}: {beside.exists()}, of {size:,} bytes")
                    taken = measure(folder, [command, "s", *more])
                    found.setdefault((command, state), {}).setdefault(n_trials, []).append(taken)
                if state == LINES:
                    end_search(folder)
        for (command, state), by_size in found.items():
            (s0, m0), (s1, m1) = (
                tuple(statistics.median(each) for each in zip(*by_size[n], strict=True))
                for n in (20, arguments.trials)
            )
            most_s, most_m = CLAIMS[command] if state == LEFT else (None, None)
            over = (most_s is not None and s1 - s0 > most_s) or (
                most_m is not None and m1 - m0 > most_m
            )
            missed |= over
            # Above the same command on 20 trials: of each run, and the medians' difference.
            row = {
                "command": command,
                "state": state,
                "runs": [s - s0 for s, _ in by_size[arguments.trials]],
                "seconds": s1 - s0,
                "bytes": m1 - m0,
            }
            rows.append(row)
            print(
                f"{command:6s}, {state}: {s1:5.2f} s of processor ({s1 - s0:+.2f} s"
                f"{'' if most_s is None else f', at most {most_s} s'}), "
                f"{m1 / 1e6:4.0f} MB ({(m1 - m0) / 1e6:+.0f} MB"
                f"{'' if most_m is None else f', at most {most_m / 1e6:.0f} MB'})"
                f"{'  MISSED' if over else ''}",
                flush=True,
            )
    study = {"trials": arguments.trials, "epochs": arguments.epochs, "sampler": arguments.sampler}
    study["journal_bytes"] = sizes[arguments.trials]
    machine.keep("large_studies", {"machine": facts, "study": study, "rows": rows})
    return 1 if missed else 0


def end_search(folder: Path) -> None:
    """Let a search of four trials end: its programs are in the cache, the journal is compacted."""
    measure(folder, ["resume", "s", "--trials", "+4", "--quiet"])


if __name__ == "__main__":
    sys.exit(main())
