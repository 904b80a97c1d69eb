"""What checkpoints cost, and how long it takes to continue from one.

    python benchmarks/checkpoints.py [--seconds 300] [--works digits64 mnist]

The first part runs a search that has more to do than fits into the time, with a checkpoint every
minute, which is the default. The search waits while its state is copied. A thread writes the copy
and takes processor time from the cores that train. Claimed: both together take under 3 % of the
wall time. The second part repeats the call, which continues the search, and measures the seconds
until its first epoch is reported. The third part kills a process between two checkpoints and starts
another one that continues. It measures the seconds from the start of that process, imports
included, to its first epoch, and counts the epochs that were lost.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine
from works import WORKS, Work

import paceline
from paceline.tuner.checkpoint.files import CheckpointManager

CLAIM = 0.03


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--works", nargs="+", default=["digits64", "mnist"])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--killed-after", type=float, default=90.0, help="seconds")
    parser.add_argument("--child", nargs=2, metavar=("WORK", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        return told(*arguments.child)
    found = machine.facts()
    print(machine.describe(found), flush=True)
    rows, missed = [], False
    for name in arguments.works:
        row = measure(WORKS[name], arguments.seconds) | killed(name, arguments.killed_after)
        rows.append({"work": name, **row})
        missed |= row["share"] > CLAIM
        print(
            f"{name}: {row['wall']:.0f} s, waited {row['waited']:.2f} s, thread "
            f"{row['thread']:.2f} s of processor, {row['share']:.2%} in all; {row['written']} "
            f"written, {row['bytes'] / 1e6:.1f} MB; going on takes {row['resume']:.1f} s to the "
            f"first epoch, after a kill {row['resume_after_kill']:.1f} s in a new process, with "
            f"{row['trained'] - row['kept']:,} of {row['trained']:,} trial-epochs lost",
            flush=True,
        )
    machine.keep("checkpoints", {"machine": found, "claim": CLAIM, "rows": rows})
    return 1 if missed else 0


def measure(work: Work, limit: float) -> dict[str, Any]:
    """Run one search until time is up, and the beginning of the next one."""
    spent = {"thread": 0.0, "written": 0, "bytes": 0}
    write = CheckpointManager._write

    def timed(self: CheckpointManager, snapshot: Any) -> None:
        began = time.thread_time()
        write(self, snapshot)
        spent["thread"] += time.thread_time() - began
        spent["written"] += 1
        spent["bytes"] = sum(array.nbytes for array in snapshot.arrays.values())

    CheckpointManager._write = timed
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        began = time.perf_counter()
        tuner = search_on(work, directory, lambda progress: None, limit)
        wall = time.perf_counter() - began
        row = {"wall": wall, "waited": tuner.summary()["checkpoint_seconds"], **spent}
        before: list[int] = []
        first: list[float] = []

        def watched(progress: Any) -> None:
            before.append(progress.trial_epochs)
            if progress.trial_epochs > before[0] and not first:
                first.append(time.perf_counter() - began)

        began = time.perf_counter()
        search_on(work, directory, watched, 10.0)
    CheckpointManager._write = write
    row["resume"] = first[0] if first else float("nan")
    row["share"] = (row["waited"] + row["thread"] / (os.cpu_count() or 1)) / wall
    return row


def search_on(work: Work, directory: str, progress: Any, seconds: float) -> paceline.Tuner:
    """Begin a search, or continue one, until time is up."""
    (x, y), validation = work.data()
    tuner = paceline.Tuner(
        work.build(),
        objective="val_accuracy",
        study="s",
        sampler="random",
        directory=directory,
        on_progress=progress,
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


def told(name: str, directory: str) -> int:
    """Run a search that prints its trial-epochs, in a process that is to be killed."""
    search_on(
        WORKS[name], directory, lambda now: print(now.trial_epochs, flush=True), seconds=3600.0
    )
    return 0


def killed(name: str, seconds: float) -> dict[str, Any]:
    """Kill a search after ``seconds``, and continue it in a new process."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        command = [sys.executable, __file__, "--child", name, directory]

        def run() -> subprocess.Popen[str]:
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        trained, began = 0, time.perf_counter()
        with run() as first:
            assert first.stdout is not None
            for line in first.stdout:
                trained = int(line)
                if time.perf_counter() - began > seconds:
                    break
            first.kill()
        kept, after, began = -1, float("nan"), time.perf_counter()
        with run() as second:
            assert second.stdout is not None
            for line in second.stdout:
                kept = int(line) if kept < 0 else kept
                if int(line) > kept:
                    after = time.perf_counter() - began
                    break
            second.kill()
    return {"trained": trained, "kept": kept, "resume_after_kill": after}


if __name__ == "__main__":
    sys.exit(main())
