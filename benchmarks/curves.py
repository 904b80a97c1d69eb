"""Curves: what some hundred random trials of each work reach after each epoch, and what they cost.

    python benchmarks/curves.py [--works layers table] [--trials 500]

The curves lie in ``benchmarks/curves/WORK.json``; ``policies.py`` replays samplers and pruners over
them. Costs are seconds of a core, and only their ratios count: an epoch's from the time in which it
trained, a structure's compilation from a few trials that have programs of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine
from quality_works import WORKS, QualityWork

FOLDER = Path(__file__).resolve().parent / "curves"
ALONE = 12  # trials that have programs of their own


def main() -> int:
    """Record; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS), metavar="WORK")
    parser.add_argument("--trials", type=int, default=500)
    arguments = parser.parse_args()
    facts = machine.facts()
    print(machine.describe(facts), flush=True)
    FOLDER.mkdir(exist_ok=True)
    for name in arguments.works:
        found = record(WORKS[name], arguments.trials)
        found = {"machine": facts, "work": name, **found}
        path = FOLDER / f"{name}.json"
        path.write_text(json.dumps(found, separators=(",", ":")).replace("],", "],\n") + "\n")
        print(
            f"{name}: {len(found['trials'])} trials, written: {os.path.relpath(path)}", flush=True
        )
    return 0


def record(work: QualityWork, n_trials: int) -> dict[str, Any]:
    """Train random trials; return their values, curves and costs."""
    together, _ = search(work, n_trials, share_widths=True)
    alone, compile_seconds = search(work, ALONE, share_widths=False)
    return {
        # Hyperparameters, and val_accuracy after each epoch, in ten-thousandths.
        "trials": [
            [trial.hparams, [round(1e4 * value) for value in trial.history["val_accuracy"]]]
            for trial in together
        ],
        # The same trials alone: the seconds of an epoch.
        "epoch_seconds": [
            [trial.hparams, round(trial.train_seconds / trial.epochs, 4)] for trial in alone
        ],
        "compile_seconds": round(statistics.median(compile_seconds), 3),
    }


def search(
    work: QualityWork, n_trials: int, *, share_widths: bool
) -> tuple[list[Any], list[float]]:
    """Run a random search; return its complete trials and the seconds each program compiled."""
    import paceline
    from paceline.study.timeline import read_timelines

    (x, y), validation, _ = work.data()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        tuner = paceline.Tuner(
            work.build,
            objective="max:val_accuracy",
            study="s",
            sampler="random",
            seed=0,
            directory=directory,
            share_widths=share_widths,
        )
        tuner.search(
            *(x, y),
            validation_data=validation,
            epochs=work.epochs,
            batch_size=work.batch_size,
            n_trials=n_trials,
        )
        trials = [tuner.trial(number) for number in range(len(tuner.results()))]
        (timeline,) = read_timelines(Path(directory) / "s")
    programs: dict[str, float] = {}
    for step in timeline.compiled:
        seconds = programs.get(str(step.program), 0.0)
        programs[str(step.program)] = seconds + step.ended - step.began
    return [trial for trial in trials if trial.state == "complete"], list(programs.values())


if __name__ == "__main__":
    sys.exit(main())
