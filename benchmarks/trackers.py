"""What a tracker costs a search: digits, 64 trials x 20 epochs, with and without.

    make bench-trackers                                  MLflow, wandb offline, TensorBoard
    python benchmarks/trackers.py [NAME ...] [--rounds 3] [--floors]

Each search is made with the compiled programs of one before it. With and without a tracker take
turns; the medians count. The seconds include the search's end, at which it waits for the tracker.
Printed too is the processor time, of which the tracker's thread takes a share from the cores that
train. Claimed: no trial trains in ``fit`` on account of a tracker.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from contextlib import chdir
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine

machine.PACKAGES = (*machine.PACKAGES, "mlflow-skinny", "wandb", "tensorboard")

TRACKERS = ("mlflow", "wandb", "tensorboard")


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trackers", nargs="*", default=list(TRACKERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--floors", action="store_true", help="exit 1 where the claim is missed")
    arguments = parser.parse_args()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    rows, missed = {}, False
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory, chdir(directory):
        # Trackers write where they are.
        os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
        os.environ["MLFLOW_TRACKING_URI"] = (Path(directory) / "mlruns").as_uri()
        search(None, "warm-up")
        for name in arguments.trackers:
            runs: dict[str, list[dict[str, Any]]] = {"without": [], "with": []}
            for number in range(arguments.rounds):
                runs["without"].append(search(None, f"{name}-without-{number}"))
                runs["with"].append(search(name, f"{name}-with-{number}"))
            rows[name] = runs
            missed |= any(run["plans"] == ["fit"] for run in runs["with"])
            print(f"{name}: {said(runs)}", flush=True)
    machine.keep("trackers", {"machine": found, "rows": rows})
    return 1 if arguments.floors and missed else 0


def search(tracker: str | None, study: str) -> dict[str, Any]:
    """Search the digits; return seconds, processor seconds and plans."""
    from works import digits, digits_build

    import paceline

    (x, y), validation = digits()
    tuner = paceline.Tuner(
        digits_build,
        objective="val_accuracy",
        study=study,
        sampler="random",
        trackers=tracker,
        directory="runs",
        on_note=lambda text: None,
    )
    began, used = time.perf_counter(), time.process_time()
    call: dict[str, Any] = {"epochs": 20, "n_trials": 64, "batch_size": 32, "verbose": 0}
    tuner.search(x, y, validation_data=validation, **call)
    return {
        "seconds": round(time.perf_counter() - began, 3),
        "processor": round(time.process_time() - used, 3),
        "plans": tuner.summary()["plans"],
    }


def said(runs: dict[str, list[dict[str, Any]]]) -> str:
    """Return the medians in words."""
    seconds, processor = (
        {way: statistics.median(run[what] for run in found) for way, found in runs.items()}
        for what in ("seconds", "processor")
    )
    return (
        f"{seconds['with']:.2f} s with, {seconds['without']:.2f} s without "
        f"({seconds['with'] / seconds['without'] - 1:+.0%}); processor {processor['with']:.2f} and "
        f"{processor['without']:.2f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
