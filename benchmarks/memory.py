"""Memory and open files while thousands of small trials go through one search: both stay flat.

    python benchmarks/memory.py          3,000 digits trials; exit 1 where memory or files grow

Memory and files are counted at the first progress report after each 300th trial, without collecting
garbage first. The claim: after trial 3,000 resident memory and the number of open files are at most
10 % above (or below) what they were after trial 300. A difference of two files is ignored, since
some are open for a moment. The size of the study on disk is shown as well; a test bounds it.
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
    parser.add_argument("--trials", type=int, default=3000)
    parser.add_argument("--first", type=int, default=300, help="trial to compare the last with")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--name", default="memory", help="of the file in results/")
    arguments = parser.parse_args()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    samples, seconds = search(arguments.trials, arguments.epochs, arguments.first)
    for trial, sample in samples.items():
        print(
            f"after trial {trial:5d}: {sample['resident_bytes'] / 2**20:7.1f} MiB, "
            f"{sample['open_files']:3d} files open, {sample['disk_bytes'] / 2**10:7.1f} KiB on "
            f"disk, journal {sample['journal_bytes'] / 2**10:9.1f} KiB",
            flush=True,
        )
    first, last = samples[min(samples)], samples[max(samples)]
    growth = {name: last[name] / max(1, first[name]) - 1.0 for name in first}
    bounded = ("resident_bytes", "open_files")
    more = abs(last["open_files"] - first["open_files"])
    flat = abs(growth["resident_bytes"]) <= TOLERANCE
    flat = flat and more <= max(2, TOLERANCE * first["open_files"])
    changes = ", ".join(f"{name.replace('_', ' ')} {growth[name]:+.1%}" for name in bounded)
    print(
        f"{arguments.trials} trials x {arguments.epochs} epochs in {seconds:.1f} s; {changes} "
        f"from trial {min(samples)} to trial {max(samples)} "
        f"({'flat' if flat else 'NOT FLAT'}: {TOLERANCE:.0%} allowed)"
    )
    report = {"machine": found, "samples": samples, "growth": growth, "seconds": seconds}
    machine.keep(arguments.name, report)
    return 0 if flat else 1


def search(n_trials: int, epochs: int, every: int) -> tuple[dict[int, dict[str, int]], float]:
    """Search the digits; return the use for each number of trials done, and the seconds."""
    import paceline

    work = WORKS["digits16"]
    (x, y), validation = work.data()
    samples: dict[int, dict[str, int]] = {}

    def watch(progress: Any) -> None:
        done = progress.n_complete + progress.n_failed
        if done >= every * (len(samples) + 1):
            samples[done] = used(Path(directory))

    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        tuner = paceline.Tuner(
            work.build(),
            objective="val_accuracy",
            study="memory",
            sampler="random",
            directory=directory,
            on_progress=watch,
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
        samples[n_trials] = used(Path(directory))
        return samples, time.perf_counter() - start


def used(directory: Path) -> dict[str, int]:
    """Return the memory, the open files, and the bytes of the study on disk."""
    sizes = {"journal_bytes": 0, "disk_bytes": 0}
    for path in directory.rglob("*"):
        try:
            size = path.stat().st_size if path.is_file() else 0
        except OSError:  # a checkpoint that was moved meanwhile
            continue
        sizes["journal_bytes" if path.suffix == ".log" else "disk_bytes"] += size
    return {"resident_bytes": resident_bytes(), "open_files": open_files(), **sizes}


def open_files() -> int:
    """Return the number of open files and sockets of this process; 1 if unknown."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 1


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes."""
    statm = Path("/proc/self/statm")
    if statm.is_file():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    # On systems other than Linux, ps gives it in units of 1,024 bytes.
    done = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, text=True, check=True
    )
    return int(done.stdout) * 1024


if __name__ == "__main__":
    sys.exit(main())
