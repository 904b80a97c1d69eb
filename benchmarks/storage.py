"""What a storage costs a search: journal, SQLite and PostgreSQL, compared with one in memory.

    python benchmarks/storage.py [--trials 1000] [--epochs 10] [--kinds journal sqlite postgresql]

The same search of the digits runs once for each storage, in one process, with programs compiled
before. The search waits for a storage when it begins and when it ends. In between, a thread writes
batches and takes processor time from the cores that train. Claimed: both together take under 5 % of
the wall time, without the time of samplers. PostgreSQL is a server that this benchmark starts on
loopback, with its default syncs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

import machine
import optuna
from works import WORKS

import paceline
import servers

CLAIM = 0.05
KINDS = ("journal", "sqlite", "postgresql")


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    arguments = parser.parse_args()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    print(machine.device(), flush=True)
    rows, missed = [], False
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        search(optuna.storages.InMemoryStorage(), Path(folder) / "warm", 64, arguments.epochs)
        for kind in ("memory", *arguments.kinds):
            server = servers.PostgreSQL(synced=True) if kind == "postgresql" else None
            try:
                storage = opened(kind, Path(folder), server)
                row = search(storage, Path(folder) / kind, arguments.trials, arguments.epochs)
            finally:
                if server is not None:
                    server.remove()
            rows.append({"storage": kind, **row})
            missed |= kind != "memory" and row["share"] > CLAIM
            print(
                f"{kind:10s}  {row['wall']:7.1f} s  samplers {row['sampler']:6.2f} s  "
                f"waited {row['waited']:6.2f} s  thread {row['thread']:6.2f} s of processor  "
                f"{row['share']:6.2%} in all",
                flush=True,
            )
    machine.keep("storage", {"machine": found, "claim": CLAIM, "rows": rows})
    return 1 if missed else 0


def opened(kind: str, folder: Path, server: servers.PostgreSQL | None) -> Any:
    """Return the storage of one kind, as ``Tuner`` takes it."""
    if server is not None:
        server.start()
        return server.database()
    return {
        "memory": optuna.storages.InMemoryStorage(),
        "journal": f"journal:{folder}/s.log",
        "sqlite": f"sqlite:///{folder}/s.db",
    }[kind]


def search(storage: Any, directory: Path, n_trials: int, epochs: int) -> dict[str, float]:
    """Run one search; return the parts of its time, in seconds."""
    work = WORKS["digits64"]
    (x, y), validation = work.data()
    tuner = paceline.Tuner(
        work.build(),
        objective="val_accuracy",
        study="s",
        storage=storage,
        sampler="random",
        directory=directory,
        on_progress=lambda progress: None,
        on_note=lambda text: None,
    )
    began = time.perf_counter()
    tuner.search(
        x,
        y,
        validation_data=validation,
        epochs=epochs,
        batch_size=work.batch_size,
        n_trials=n_trials,
    )
    wall = time.perf_counter() - began
    assert len(tuner.results()) == n_trials
    seconds = tuner.summary()["seconds"]
    thread = tuner.summary()["writer_seconds"]
    spent = seconds["storage"] + thread / (os.cpu_count() or 1)
    return {
        "wall": wall,
        "sampler": seconds["sampler"],
        "waited": seconds["storage"],
        "thread": thread,
        "share": spent / (wall - seconds["sampler"]),
    }


if __name__ == "__main__":
    sys.exit(main())
