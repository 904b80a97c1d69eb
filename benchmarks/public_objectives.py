"""Objectives of public users of Optuna, as they are and with one import changed: cold processes.

    python benchmarks/public_objectives.py                     # PACELINE_DATA names the data
    python benchmarks/public_objectives.py --works folds wine --trials 4
    python benchmarks/public_objectives.py --keep              # into results/, others stay
    python benchmarks/public_objectives.py --backend tensorflow --python PYTHON  # such sessions
    python benchmarks/public_objectives.py --folder optuna-examples/keras --trials 24

The scripts in ``benchmarks/objectives`` are written in our own words, after Optuna's examples for
Keras and after what public scripts do. ``original`` runs a script as it is. ``paceline`` replaces
``import optuna`` by ``from paceline.compat import optuna``, and nothing else. The time of a side is
that of its whole process: imports, data, compiling, training, scores. A script that takes more than
1.05 times the seconds of its original fails the benchmark. So does one that misses its floor in
``WORKS`` with all its trials. Keras is on JAX, or on ``--backend``; PYTHON is an interpreter with
that backend and the dependencies of Paceline and of the scripts.

``--folder`` runs scripts of others as they are: all in that folder, or ``--works``. A script has to
have a global ``study``. ``keras.datasets.mnist`` reads the file in PACELINE_DATA, because nothing
is downloaded. ``--trials`` replaces the numbers of their ``n_trials=`` on both sides, and takes out
``timeout=``, so that both sides do the same work.
"""

from __future__ import annotations

import argparse
import importlib
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
#: How many times as fast as its original a script has to be with any number of trials.
_LEAST = 1 / 1.05
#: Script -> number of trials, and how many times as fast as its original it has to be with them.
WORKS = {
    "images": (24, 1.0),
    "layers": (24, 4.0),
    "one_layer": (8, _LEAST),
    "wine": (8, _LEAST),
    "autoencoder": (8, _LEAST),
    "churn": (8, _LEAST),
    "folds": (4, _LEAST),
    "shared_callback": (6, _LEAST),
    "two_heads": (8, _LEAST),
    "windows": (8, _LEAST),
}
SIDES = ("paceline", "original")


def changed(text: str) -> str:
    """Returns a script with its import changed, and nothing else."""
    return re.sub(r"^import optuna$", "from paceline.compat import optuna", text, flags=re.M)


def summary(script: str) -> str:
    """Returns what a script says of itself in its first line."""
    first = (SCRIPTS / f"{script}.py").read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ")


def with_trials(text: str, n_trials: int) -> str:
    """Returns a script of others with this number of trials, and no limit of its time."""
    text = re.sub(r"\bn_trials=\d+", f"n_trials={n_trials}", text)
    return re.sub(r",\s*timeout=\d+", "", text)


def run_here(script: str, side: str, folder: Path, n_trials: int | None) -> dict[str, Any]:
    """Runs a script in this process and folder; returns what its study has, and how fits ran.

    ``folder`` has the script. ``n_trials`` is for scripts of others, which don't read N_TRIALS.
    """
    text = (folder / f"{script}.py").read_text(encoding="utf-8")
    if folder != SCRIPTS:
        _mnist_from_file()
        text = text if n_trials is None else with_trials(text, n_trials)
    plans: Counter[str] = Counter()
    programs: set[str] = set()
    notes: list[str] = []
    if side == "paceline":
        text = changed(text)
        _watch(plans, programs, notes)
    Path("script.py").write_text(text, encoding="utf-8")
    sys.path.insert(1, str(folder))
    study = runpy.run_path("script.py", run_name="__main__")["study"]
    states = Counter(trial.state.name for trial in study.trials)
    found = {"best": study.best_value, "states": dict(states)}
    if side == "paceline":
        found |= {"plans": dict(plans), "programs": len(programs), "notes": notes}
    return found


def _mnist_from_file() -> None:
    """Makes Keras' MNIST that of the folder PACELINE_DATA."""
    import keras

    sys.path.append(str(SCRIPTS))
    keras.datasets.mnist.load_data = importlib.import_module("mnist").load_data


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


def run(
    script: str,
    side: str,
    n_trials: int | None,
    *,
    python: str = sys.executable,
    backend: str = "jax",
    scripts: Path = SCRIPTS,
) -> dict[str, Any]:
    """Runs a side in a process of its own, with empty caches; returns its seconds and results.

    ``scripts`` is the folder of the script. ``n_trials`` is None for a script of others as it is.
    """
    with tempfile.TemporaryDirectory() as folder:
        own = {"XDG_CACHE_HOME": folder, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment = machine.fresh_environment() | own
        if side == "paceline" and backend == "jax" and scripts == SCRIPTS:
            del environment["KERAS_BACKEND"]  # Paceline chooses it
        here = Path(__file__).resolve()
        command = [python, str(here), "--side", side, "--works", script, "--folder", str(scripts)]
        if n_trials is not None:
            command += ["--trials", str(n_trials)]
            environment["N_TRIALS"] = str(n_trials)
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
    """Runs the scripts, and fails where one is slower than its original, or than its floor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--works", nargs="+", help="names of scripts, without .py")
    parser.add_argument("--trials", type=int, help="trials of each script, instead of its own")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results")
    parser.add_argument("--backend", choices=("jax", "tensorflow", "torch"), default="jax")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--folder", type=Path, default=SCRIPTS, help="scripts of others")
    parser.add_argument(
        "--busy", action="store_true", help="other work runs: compare seconds of cores"
    )
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.folder = given.folder.resolve()
    theirs = given.folder != SCRIPTS
    if given.side:
        print(json.dumps(run_here(given.works[0], given.side, given.folder, given.trials)))
        return
    known = sorted(path.stem for path in given.folder.glob("*.py")) if theirs else list(WORKS)
    if unknown := [name for name in given.works or () if name not in known]:
        parser.error(f"--works must be of {', '.join(known)}, got {', '.join(unknown)}")
    os.environ.setdefault("PACELINE_DATA", str(SCRIPTS.parents[1] / "shared" / "data"))
    machine.end_children_when_told()
    facts: dict[str, Any] = machine.facts()
    facts["versions"]["optuna-integration"] = machine.version("optuna-integration")
    name = "public_scripts" if theirs else "public_objectives"
    name += "" if given.backend == "jax" else f"_{given.backend}"
    how = {"python": given.python, "backend": given.backend, "scripts": given.folder}
    slow = []
    for script in given.works or known:
        own, floor = (None, _LEAST) if theirs else WORKS[script]
        n_trials = given.trials or own
        if n_trials != own:
            floor = _LEAST
        row: dict[str, Any] = {"n_trials": n_trials, "busy": given.busy}
        row["about"] = script if theirs else summary(script)
        row |= {side: run(script, side, n_trials, **how) for side in given.sides}
        if set(given.sides) == set(SIDES):
            seconds = "seconds_of_cores" if given.busy else "seconds"
            ratio = row["original"][seconds] / row["paceline"][seconds]
            row["ratio"] = round(ratio, 2)
            if ratio < floor:
                slow.append(f"{script}: {ratio:.2f} times as fast, {floor:.2f} wanted")
        print(json.dumps({"work": script, **row}), flush=True)
        if given.keep:
            machine.gather(name, facts, {script: row})
    if slow:
        sys.exit("\n".join(slow))


if __name__ == "__main__":
    main()
