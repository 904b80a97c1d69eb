"""What 5 folds cost: cross-validating each trial against validating it on one of the folds.

    python benchmarks/folds.py [--folds 5] [--rounds 5] [--floors]

All searches are of the digits model (dense 64-64-10, batch 32), in this process. "One fold" trains
on the examples of the first fold and is validated on the rest: the same model, hyperparameters
drawn the same way, a fifth of the training. Cold: caches are empty; warm: compiled programs are on
disk.

Claimed: 5 folds cost under 2.5 times one fold, in the median of the rounds, for one configuration
and for a small search. In the large search one fold fills all slots already, so its ratio is that
of the amount of training; it is shown, and nothing is claimed about it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from typing import Any, NamedTuple

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import machine
import numpy as np
from works import digits, digits_build

import paceline
from paceline.data.folds import make_folds

BATCH, LIMIT = 32, 2.5


class Case(NamedTuple):
    """A search to time.

    Attributes:
        n_trials, epochs, sampler: Size and sampler of the search.
        claimed: Whether the ratio is promised.
    """

    n_trials: int
    epochs: int
    sampler: str
    claimed: bool


CASES = {
    "configuration": Case(1, 10, "random", True),
    "search": Case(16, 10, "tpe", True),
    "large": Case(64, 20, "random", False),
}


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default="folds", help="of the file in results/")
    parser.add_argument("--floors", action="store_true", help="exit 1 where the claim is missed")
    arguments = parser.parse_args()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    report: dict[str, Any] = {"machine": found, "folds": arguments.folds, "cases": {}}
    missed = False
    for name in arguments.cases:
        case = CASES[name]
        print(
            f"\ndigits dense 64-64-10, batch {BATCH}, {case.n_trials} trials x {case.epochs} "
            f"epochs, sampler {case.sampler}: seconds of the whole search",
            flush=True,
        )
        rows = measured(case, arguments.folds, arguments.rounds)
        ratios = {
            state: statistics.median(row[state]["folds"] / row[state]["one"] for row in rows)
            for state in rows[0]
        }
        missed |= case.claimed and max(ratios.values()) >= LIMIT
        texts = ", ".join(f"{state} {ratio:.2f} times" for state, ratio in ratios.items())
        claim = f"claimed: under {LIMIT}" if case.claimed else "nothing claimed"
        print(f"  median: {texts} one fold ({claim})", flush=True)
        report["cases"][name] = {**case._asdict(), "ratios": ratios, "rounds": rows}
    machine.keep(arguments.name, report)
    return 1 if arguments.floors and missed else 0


def measured(case: Case, k: int, rounds: int) -> list[dict[str, dict[str, float]]]:
    """Return cold and warm seconds of each round."""
    (x, y), (x_val, y_val) = digits()
    x, y = np.concatenate([x, x_val]), np.concatenate([y, y_val])
    (first, *_), _ = make_folds(y, len(y), k, 0)
    one = {"x": x[first.train], "y": y[first.train]}
    one["validation_data"] = (x[first.validation], y[first.validation])
    calls: dict[str, Any] = {"one": one, "folds": {"x": x, "y": y, "folds": k}}
    rows = []
    for number in range(rounds + 1):
        with tempfile.TemporaryDirectory(prefix="paceline-bench-") as cache:
            row = {
                state: {
                    what: seconds(case, call, f"{cache}/{what}") for what, call in calls.items()
                }
                for state in ("cold", "warm")
            }
        if number == 0:
            continue  # the first round only warms the process up
        rows.append(row)
        texts = [
            f"{state} {found['folds']:.2f} against {found['one']:.2f}"
            for state, found in row.items()
        ]
        print(f"  round {number}: {', '.join(texts)}", flush=True)
    return rows


def seconds(case: Case, call: dict[str, Any], cache: str) -> float:
    """Return the seconds of one search."""
    os.environ["PACELINE_CACHE_DIR"] = cache
    jax.config.update("jax_compilation_cache_dir", None)  # Paceline sets it from the variable
    jax.clear_caches()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        tuner = paceline.Tuner(
            digits_build,
            objective="val_accuracy",
            study="s",
            sampler=case.sampler,
            directory=directory,
            on_note=lambda text: None,
        )
        began = time.perf_counter()
        tuner.search(**call, epochs=case.epochs, batch_size=BATCH, n_trials=case.n_trials)
        taken = time.perf_counter() - began
        assert set(tuner.results()["state"]) == {"complete"}
        return round(taken, 3)


if __name__ == "__main__":
    sys.exit(main())
