"""Resident memory while a thousand small trials go through one search: it must stay flat.

    python benchmarks/memory.py                  1,000 digits trials; exit 1 where memory grows

Measured at the first progress report after each hundredth trial, without collecting garbage first.
The claim: after trial 1,000 at most 10 % above (or below) what it was after trial 100.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine
from works import WORKS

TOLERANCE = 0.10


def main() -> int:
    """Run the search; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--first", type=int, default=100, help="trial to compare the last with")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--name", default="memory", help="of the file in results/")
    arguments = parser.parse_args()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    samples, seconds = search(arguments.trials, arguments.epochs, arguments.first)
    for trial, resident in samples.items():
        print(f"after trial {trial:5d}: {resident / 2**20:7.1f} MiB", flush=True)
    first, last = samples[min(samples)], samples[max(samples)]
    growth = last / first - 1.0
    flat = abs(growth) <= TOLERANCE
    print(
        f"{arguments.trials} trials x {arguments.epochs} epochs in {seconds:.1f} s; memory "
        f"{growth:+.1%} from trial {min(samples)} to trial {max(samples)} "
        f"({'flat' if flat else 'NOT FLAT'}: {TOLERANCE:.0%} allowed)"
    )
    report = {"machine": found, "resident_bytes": samples, "growth": growth, "seconds": seconds}
    machine.keep(arguments.name, report)
    return 0 if flat else 1


def search(n_trials: int, epochs: int, every: int) -> tuple[dict[int, int], float]:
    """Search the digits; return resident bytes by number of trials done, and the seconds."""
    import paceline

    work = WORKS["digits16"]
    (x, y), validation = work.data()
    samples: dict[int, int] = {}

    def watch(progress: Any) -> None:
        done = progress.n_complete + progress.n_failed
        if done >= every * (len(samples) + 1):
            samples[done] = resident_bytes()

    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        tuner = paceline.Tuner(
            work.build(),
            objective="val_accuracy",
            study="memory",
            sampler="random",
            directory=directory,
            progress=watch,
        )
        start = time.perf_counter()
        tuner.search(
            x,
            y,
            validation_data=validation,
            epochs=epochs,
            batch_size=work.batch_size,
            n_trials=n_trials,
        )
        samples[n_trials] = resident_bytes()
        return samples, time.perf_counter() - start


def resident_bytes() -> int:
    """Resident set of this process, now."""
    statm = Path("/proc/self/statm")
    if statm.is_file():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    # Elsewhere than on Linux: in units of 1,024 bytes.
    done = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, text=True, check=True
    )
    return int(done.stdout) * 1024


if __name__ == "__main__":
    sys.exit(main())
