"""What a trial costs before it trains: build, trace and fingerprint, per trial after the first.

    python benchmarks/per_trial.py                exit 1 where a claim is missed (--floors)

There are two searches of the digits model. In one, trials differ in dropout and learning rate, so
that each is traced. In the other, only learning rate and seed differ, so that the trace is reused.
The figure is the time that a search of ``--trials`` takes longer than a search of eight trials,
divided by the number of trials that it has more. So it leaves out what a search does once. The
claim is about this cost alone, so the trials train on one batch. The figure with training on the
whole data, which shares the cores with building, is printed too.
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
from works import WORKS, digits_build

# Claims, ms per trial.
CLAIMS = {"dropout and learning rate": 20.0, "learning rate only": 6.0}
#: Trials of the short search: enough for everything that a longer one does once.
FIRST = 8


def main() -> int:
    """Measure both; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--name", default="per_trial", help="of the file in results/")
    parser.add_argument("--floors", action="store_true", help="exit 1 where a claim is missed")
    arguments = parser.parse_args()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    builds = {"dropout and learning rate": digits_build, "learning rate only": learning_rate_only}
    figures = {}
    for title, build in builds.items():
        seconds(build, FIRST, alone=True)  # what a process does once
        for alone in (True, False):
            first, last = seconds(build, FIRST, alone), seconds(build, arguments.trials, alone)
            parts = {
                part: 1000 * (last[part] - first[part]) / (arguments.trials - FIRST)
                for part in ("build", "trace")
            }
            figures[title if alone else f"{title}, while packs train"] = parts
            print(
                f"{title}: {sum(parts.values()):.1f} ms a trial (build {parts['build']:.1f}, trace "
                f"and fingerprint {parts['trace']:.1f}); "
                + (f"claimed: under {CLAIMS[title]:g}" if alone else "while packs train"),
                flush=True,
            )
    figures["Keras alone"] = {"build": bare(arguments.trials)}
    print(f"of it Keras' own build, alone: {figures['Keras alone']['build']:.1f} ms")
    machine.keep(arguments.name, {"machine": found, "milliseconds": figures, "claims": CLAIMS})
    missed = [title for title, claim in CLAIMS.items() if sum(figures[title].values()) >= claim]
    return 1 if arguments.floors and missed else 0


def bare(n_builds: int) -> float:
    """Return the milliseconds that Keras alone needs to build the model."""
    import paceline

    hp = paceline.HyperParameters()
    digits_build(hp)
    began = time.perf_counter()
    for _ in range(n_builds):
        digits_build(hp)
    return 1000 * (time.perf_counter() - began) / n_builds


class FixedDropout:
    """An hp whose dropout is always 0.25; it passes everything else on to the real hp."""

    def __init__(self, hp: Any) -> None:
        self.hp = hp

    def Float(self, name: str, *arguments: Any, **options: Any) -> float:  # noqa: N802
        """Declare a float, as ``hp.Float`` does; dropout is fixed."""
        return 0.25 if name == "dropout" else self.hp.Float(name, *arguments, **options)


def learning_rate_only(hp: Any) -> Any:
    """Build the digits model with a fixed dropout."""
    return digits_build(FixedDropout(hp))


def seconds(build: Any, n_trials: int, alone: bool) -> dict[str, float]:
    """Return the seconds of each part of a search of one epoch, on one batch or on all data."""
    import paceline

    work = WORKS["digits16"]
    (x, y), validation = work.data()
    if alone:
        x, y = x[: work.batch_size], y[: work.batch_size]
        validation = tuple(part[: work.batch_size] for part in validation)
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        tuner = paceline.Tuner(
            build, objective="val_accuracy", study="s", sampler="random", directory=directory
        )
        tuner.search(
            x,
            y,
            validation_data=validation,
            epochs=1,
            batch_size=work.batch_size,
            n_trials=n_trials,
            verbose=0,
        )
        return tuner.summary()["seconds"]


if __name__ == "__main__":
    sys.exit(main())
