"""Objectives of public users of Optuna, as they are and with one import changed: cold processes.

    python benchmarks/public_objectives.py                     # PACELINE_DATA names the data
    python benchmarks/public_objectives.py --works folds wine --trials 4
    python benchmarks/public_objectives.py --keep              # into results/, others stay

The scripts in ``benchmarks/objectives`` are written in our own words, after Optuna's examples for
Keras and after what public scripts do. ``original`` runs a script as it is, on JAX. ``paceline``
replaces ``import optuna`` by ``from paceline.compat import optuna``, and nothing else. The time of
a side is that of its whole process: imports, data, compiling, training, scores. A script that takes
more than 1.05 times the seconds of its original fails the benchmark, if it was run with all trials.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import runpy
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import machine

SCRIPTS = Path(__file__).resolve().parent / "objectives"
#: Script -> number of trials.
WORKS = {
    "images": 6,
    "layers": 12,
    "one_layer": 8,
    "wine": 8,
    "autoencoder": 8,
    "churn": 8,
    "folds": 4,
    "shared_callback": 6,
    "two_heads": 8,
    "windows": 8,
}
SIDES = ("paceline", "original")
#: Seconds of Paceline by those of the original that a script may take.
_MOST = 1.05


def changed(text: str) -> str:
    """Returns a script with its import changed, and nothing else."""
    return re.sub(r"^import optuna$", "from paceline.compat import optuna", text, flags=re.M)


def summary(script: str) -> str:
    """Returns what a script says of itself in its first line."""
    first = (SCRIPTS / f"{script}.py").read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ")


def run_here(script: str, side: str) -> dict[str, Any]:
    """Runs a script in this process and folder; returns what its study has, and how fits ran."""
    text = (SCRIPTS / f"{script}.py").read_text(encoding="utf-8")
    plans: Counter[str] = Counter()
    programs: set[str] = set()
    notes: list[str] = []
    if side == "paceline":
        text = changed(text)
        _watch(plans, programs, notes)
    Path("script.py").write_text(text, encoding="utf-8")
    sys.path.insert(1, str(SCRIPTS))
    study = runpy.run_path("script.py", run_name="__main__")["study"]
    states = Counter(trial.state.name for trial in study.trials)
    found = {"best": study.best_value, "states": dict(states)}
    if side == "paceline":
        found |= {"plans": dict(plans), "programs": len(programs), "notes": notes}
    return found


def _watch(plans: Counter[str], programs: set[str], notes: list[str]) -> None:
    """Counts how each fit trained, and keeps the notes for the user."""
    from paceline.compat.functions.summary import FitSummary
    from paceline.compat.interception import Engine

    add, say = FitSummary.add, Engine.say

    def counted(self: Any, outcome: Any, *args: Any) -> None:
        for fit in outcome.fits:
            plans[fit.plan or "none"] += 1
            programs.update(() if fit.program is None else (fit.program,))
        add(self, outcome, *args)

    def said(self: Any, text: str) -> None:
        if text not in notes:
            notes.append(text)
        say(self, text)

    setattr(FitSummary, "add", counted)  # noqa: B010 - for type checkers
    setattr(Engine, "say", said)  # noqa: B010


def run(script: str, side: str, n_trials: int) -> dict[str, Any]:
    """Runs a side in a process of its own, with empty caches; returns its seconds and results."""
    with tempfile.TemporaryDirectory() as folder:
        environment = machine.fresh_environment() | {
            "XDG_CACHE_HOME": folder,
            "KERAS_BACKEND": "jax",
            "N_TRIALS": str(n_trials),
        }
        if side == "paceline":  # chooses the backend itself
            del environment["KERAS_BACKEND"]
        here = Path(__file__).resolve()
        command = [sys.executable, str(here), "--side", side, "--works", script]
        began, cores_before = time.perf_counter(), _seconds_of_cores()
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, env=environment, cwd=folder
        )
        seconds, cores = time.perf_counter() - began, _seconds_of_cores() - cores_before
        if done.returncode:
            sys.exit(f"{script}, {side}:\n{done.stderr[-3000:]}")
    said = json.loads(done.stdout.splitlines()[-1])
    return {"seconds": round(seconds, 1), "seconds_of_cores": round(cores, 1), **said}


def _seconds_of_cores() -> float:
    """Seconds of cores that ended processes have used; they hardly change on a busy machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Runs the scripts, and fails where one is slower than its original."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--works", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--trials", type=int, help="trials of each script, instead of its own")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results")
    parser.add_argument(
        "--busy", action="store_true", help="other work runs: compare seconds of cores"
    )
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        print(json.dumps(run_here(given.works[0], given.side)))
        return
    os.environ.setdefault("PACELINE_DATA", str(SCRIPTS.parents[1] / "shared" / "data"))
    machine.end_children_when_told()
    facts: dict[str, Any] = machine.facts()
    facts["versions"]["optuna-integration"] = machine.version("optuna-integration")
    slow = []
    for script in given.works:
        n_trials = given.trials or WORKS[script]
        row: dict[str, Any] = {"n_trials": n_trials, "about": summary(script), "busy": given.busy}
        row |= {side: run(script, side, n_trials) for side in given.sides}
        if set(given.sides) == set(SIDES):
            seconds = "seconds_of_cores" if given.busy else "seconds"
            row["ratio"] = round(row["original"][seconds] / row["paceline"][seconds], 2)
            if row["paceline"][seconds] > _MOST * row["original"][seconds]:
                slow.append(f"{script}: {row['ratio']} times as fast as its original")
        print(json.dumps({"work": script, **row}), flush=True)
        if given.keep:
            machine.gather("public_objectives", facts, {script: row})
    if slow and given.trials is None:
        sys.exit("\n".join(slow))


if __name__ == "__main__":
    main()
