"""How full packs stay while a pruner empties their slots: 200 trials of the digits model.

    python benchmarks/busy.py [asha median none] [--seeds 3]

A slot is busy in an epoch when a trial trains in it. Claimed: at least 0.9 of all slot-epochs of a
search of 200 trials are busy, with pruning, in the median of the seeds. Trial-epochs are printed as
well, because a pruner that prunes nothing would keep slots busy too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine
from works import digits, digits_build

import paceline

FLOOR, TRIALS, EPOCHS = 0.9, 200, 27


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pruners", nargs="*", default=["asha", "median", "none"])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    rows, missed = [], False
    for pruner in arguments.pruners:
        runs = [search(pruner, seed) for seed in range(arguments.seeds)]
        busy = statistics.median(run["busy"] for run in runs)
        missed |= busy < FLOOR
        rows.append({"pruner": pruner, "busy": busy, "runs": runs})
        share = statistics.median(run["trial_epochs"] for run in runs) / (TRIALS * EPOCHS)
        print(f"{pruner:7s} busy {busy:.3f}, {share:.0%} of the trial-epochs; {runs}", flush=True)
    machine.keep("busy", {"machine": found, "floor": FLOOR, "rows": rows})
    return 1 if missed else 0


def search(pruner: str, seed: int) -> dict[str, Any]:
    """Run one search; return how busy its slots were."""
    (x, y), validation = digits()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        tuner = paceline.Tuner(
            digits_build,
            objective="val_accuracy",
            study="s",
            sampler="random",
            seed=seed,
            pruner=None if pruner == "none" else pruner,
            directory=directory,
            on_note=lambda text: None,
        )
        tuner.search(
            x,
            y,
            validation_data=validation,
            epochs=EPOCHS,
            batch_size=32,
            n_trials=TRIALS,
        )
        results = tuner.results()
        return {
            "busy": round(tuner.summary()["slots_busy"], 4),
            "trial_epochs": int(results["epochs"].sum()),
            "pruned": int((results["state"] == "pruned").sum()),
            "seconds": round(time.perf_counter() - began, 1),
        }


if __name__ == "__main__":
    sys.exit(main())
