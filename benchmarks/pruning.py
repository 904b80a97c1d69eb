"""What ASHA saves and what it costs: the same searches with and without it.

    python benchmarks/pruning.py [digits] [fashion] [--seeds 10] [--first 0] [--floors]

For each seed, 64 random trials of 27 epochs run to their end, then the same trials with
pruner="asha". Printed: the share of the full search's trial-epochs that ASHA trains, the gap
between the two best values (full - ASHA), and the seconds of both. Claimed: at most a third of the
trial-epochs, and a median gap of at most 0.005. Seeds of an earlier run of the same commit and
versions count as well, because ten seeds of Fashion-MNIST take long.
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
import numpy as np
from works import WORKS, data_file, digits, digits_build

import paceline

TRIALS, EPOCHS = 64, 27
SHARE, GAP = 1 / 3, 0.005


def fashion() -> Any:
    """Return 10,000 images uint8[28, 28] to train on, and 2,000 others to validate."""
    with np.load(data_file("fashion_mnist.npz")) as file:
        x, y = file["x_train"][:12000], file["y_train"][:12000]
    return (x[:10000], y[:10000]), (x[10000:], y[10000:])


CASES = {
    "digits": ("digits dense 64-64-10, batch 32", lambda: digits_build, digits, 32),
    "fashion": (
        "Fashion-MNIST, 10,000 images, dense 784-128-10, batch 128",
        WORKS["mnist"].build,
        fashion,
        128,
    ),
}


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--name", default="pruning", help="of the file in results/")
    parser.add_argument("--floors", action="store_true", help="exit 1 where a claim is missed")
    arguments = parser.parse_args()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    entries: dict[str, Any] = {}
    for case in arguments.cases:
        title, build, data, batch_size = CASES[case]
        print(f"\n{title}, {TRIALS} trials of up to {EPOCHS} epochs", flush=True)
        pairs = data()
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            full = search(build(), pairs, batch_size, seed, None)
            asha = search(build(), pairs, batch_size, seed, "asha")
            row = {
                "case": case,
                "share": asha["trial_epochs"] / full["trial_epochs"],
                "gap": full["best"] - asha["best"],
                "full": full,
                "asha": asha,
                "load": round(os.getloadavg()[0], 1),
            }
            print(
                f"  seed {seed}: trial-epochs {asha['trial_epochs']} of {full['trial_epochs']} "
                f"({row['share']:.0%}), best {asha['best']:.4f} against {full['best']:.4f}, "
                f"{asha['seconds']:.1f} s against {full['seconds']:.1f} s (load {row['load']})",
                flush=True,
            )
            entries = machine.gather(arguments.name, found, {f"{case}, seed {seed}": row})
    return verdict(list(entries.values()), strict=arguments.floors)


def verdict(rows: list[dict[str, Any]], *, strict: bool) -> int:
    """Print the results of each case; return 1 if ``strict`` and a claim is missed."""
    missed = False
    for case in CASES:
        found = [row for row in rows if row["case"] == case]
        if not found:
            continue
        gap = statistics.median(row["gap"] for row in found)
        share = max(row["share"] for row in found)
        missed |= gap > GAP or share > SHARE
        print(
            f"{case}, {len(found)} seeds: share at most {share:.0%} (claimed {SHARE:.0%}), "
            f"median gap {gap:.4f} (claimed {GAP})"
        )
    return 1 if strict and missed else 0


def search(build: Any, pairs: Any, batch_size: int, seed: int, pruner: Any) -> dict[str, Any]:
    """Run one search; return its trial-epochs, best value and seconds."""
    (x, y), validation = pairs
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        tuner = paceline.Tuner(
            build,
            objective="val_accuracy",
            study="s",
            sampler="random",
            seed=seed,
            pruner=pruner,
            directory=directory,
            on_note=lambda text: None,
        )
        began = time.perf_counter()
        tuner.search(
            x,
            y,
            validation_data=validation,
            epochs=EPOCHS,
            batch_size=batch_size,
            n_trials=TRIALS,
        )
        seconds = time.perf_counter() - began
        results = tuner.results()
        return {
            "trial_epochs": int(results["epochs"].sum()),
            "best": float(results["value"][results["state"] == "complete"].max()),
            "seconds": round(seconds, 3),
        }


if __name__ == "__main__":
    sys.exit(main())
