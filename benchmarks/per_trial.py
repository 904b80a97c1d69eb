"""What a trial costs before it trains: build, trace and fingerprint, per trial after the first.

    python benchmarks/per_trial.py                exit 1 where a claim is missed (--floors)

Two searches of the digits model: one where every trial differs in dropout and learning rate (each
is traced), one where only learning rate and seed differ (the trace is reused). A search of four
trials pays for what comes first; the figure is how much more a search of ``--trials`` takes,
divided by how many more trials it has.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine
from works import WORKS, digits_build

HERE = Path(__file__).resolve().parent
# Claims, ms per trial.
CLAIMS = {"dropout and learning rate": 20.0, "learning rate only": 6.0}


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
        first, last = seconds(build, 4), seconds(build, arguments.trials)
        parts = {
            part: 1000 * (last[part] - first[part]) / (arguments.trials - 4)
            for part in ("build", "trace")
        }
        figures[title] = parts
        total = sum(parts.values())
        print(
            f"{title}: {total:.1f} ms a trial (build {parts['build']:.1f}, trace and fingerprint "
            f"{parts['trace']:.1f}); claimed: under {CLAIMS[title]:g}",
            flush=True,
        )
    path = HERE / "results" / f"{arguments.name}.json"
    path.parent.mkdir(exist_ok=True)
    report = {"machine": found, "milliseconds": figures, "claims": CLAIMS}
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"written: {os.path.relpath(path)}")
    missed = [t for t, parts in figures.items() if sum(parts.values()) >= CLAIMS[t]]
    return 1 if arguments.floors and missed else 0


class FixedDropout:
    """An hp whose dropout is always 0.25; everything else is the real one's."""

    def __init__(self, hp: Any) -> None:
        self.hp = hp

    def Float(self, name: str, *arguments: Any, **options: Any) -> float:  # noqa: N802
        """As hp has it."""
        return 0.25 if name == "dropout" else self.hp.Float(name, *arguments, **options)


def learning_rate_only(hp: Any) -> Any:
    """Build the digits model with a fixed dropout."""
    return digits_build(FixedDropout(hp))


def seconds(build: Any, n_trials: int) -> dict[str, float]:
    """Seconds by part of one search of one epoch."""
    import paceline

    work = WORKS["digits16"]
    (x, y), validation = work.data()
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
        )
        return tuner.summary()["seconds"]


if __name__ == "__main__":
    sys.exit(main())
