"""What checkpoints cost, and what going on from one takes.

    python benchmarks/checkpoints.py [--seconds 300] [--works digits64 mnist]

A search that has more to do than fits into the time, with a checkpoint every minute as by default.
The search waits while its state is copied; a thread writes it, and takes processor time from the
cores that train. Claimed: both together under 3 % of the wall time. Then the same call again, which
goes on: seconds until its first epoch is reported.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine
from works import WORKS, Work

import paceline
from paceline.checkpoint import Checkpoints

CLAIM = 0.03


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--works", nargs="+", default=["digits64", "mnist"])
    parser.add_argument("--seconds", type=float, default=300.0)
    arguments = parser.parse_args()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    rows, missed = [], False
    for name in arguments.works:
        row = measure(WORKS[name], arguments.seconds)
        rows.append({"work": name, **row})
        missed |= row["share"] > CLAIM
        print(
            f"{name}: {row['wall']:.0f} s, waited {row['waited']:.2f} s, thread "
            f"{row['thread']:.2f} s of processor, {row['share']:.2%} in all; {row['written']} "
            f"written, {row['bytes'] / 1e6:.1f} MB; going on takes {row['resume']:.1f} s to the "
            "first epoch",
            flush=True,
        )
    machine.keep("checkpoints", {"machine": found, "claim": CLAIM, "rows": rows})
    return 1 if missed else 0


def measure(work: Work, limit: float) -> dict[str, Any]:
    """One search until time is up, and the beginning of the next."""
    spent = {"thread": 0.0, "written": 0, "bytes": 0}
    write = Checkpoints._write

    def timed(self: Checkpoints, snapshot: Any) -> None:
        began = time.thread_time()
        write(self, snapshot)
        spent["thread"] += time.thread_time() - began
        spent["written"] += 1
        spent["bytes"] = sum(array.nbytes for array in snapshot.arrays.values())

    Checkpoints._write = timed
    (x, y), validation = work.data()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:

        def search(seconds: float, progress: Any) -> paceline.Tuner:
            tuner = paceline.Tuner(
                work.build(),
                objective="val_accuracy",
                study="s",
                sampler="random",
                directory=directory,
                progress=progress,
            )
            tuner.search(
                x,
                y,
                validation_data=validation,
                epochs=work.epochs,
                batch_size=work.batch_size,
                n_trials=100_000,
                timeout=seconds,
            )
            return tuner

        began = time.perf_counter()
        tuner = search(limit, lambda progress: None)
        wall = time.perf_counter() - began
        row = {"wall": wall, "waited": tuner.summary()["checkpoint_seconds"], **spent}
        before: list[int] = []
        first: list[float] = []

        def watched(progress: Any) -> None:
            before.append(progress.trial_epochs)
            if progress.trial_epochs > before[0] and not first:
                first.append(time.perf_counter() - began)

        began = time.perf_counter()
        search(10.0, watched)
    Checkpoints._write = write
    row["resume"] = first[0] if first else float("nan")
    row["share"] = (row["waited"] + row["thread"] / (os.cpu_count() or 1)) / wall
    return row


if __name__ == "__main__":
    sys.exit(main())
