"""Compares the times that ``paceline.bench`` predicts for five searches with their real times.

    python benchmarks/prediction.py [digits] [mnist] [gru] [cnn] [asha]

Prediction and search run in a process each, without compiled programs on disk, as on a machine that
has not seen the model. Searches of an earlier run of the same commit and versions count as well.
The report also has the errors of the time left that the running search showed after a quarter and
after half of its time. The exit code is 1 if the median error is above 20 %, or one error above 40
%.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine
from works import WORKS, MissingDataError

MEDIAN, EACH = 0.20, 0.40


@dataclass(frozen=True)
class Search:
    """A search to predict and to run.

    Attributes:
        work: Name of the work whose model and data are searched.
        n_trials, epochs: Number of trials, and epochs of each.
        pruner: The pruner; None without one.
        budget: Seconds that the prediction may take.
    """

    work: str
    n_trials: int
    epochs: int
    pruner: str | None = None
    budget: float = 60.0


SEARCHES = {
    "digits": Search("digits64", 256, 30),
    "mnist": Search("mnist", 16, 6),
    "gru": Search("gru", 16, 6),
    "cnn": Search("fashion", 8, 4, budget=120.0),
    "asha": Search("digits64", 256, 81, "asha"),
}
TINY = {"digits": Search("digits16", 8, 3)}


def main(words: Sequence[str] | None = None) -> int:
    """Predict and measure; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("searches", nargs="*", help=f"of {', '.join(SEARCHES)}")
    parser.add_argument("--quick", action="store_true", help="tiny: only to see that it works")
    parser.add_argument("--here", choices=tuple(PARTS), help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    searches = TINY if arguments.quick else SEARCHES
    names = arguments.searches or list(searches)
    unknown = set(names) - set(searches)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no such search; there are {list(searches)}")
    if arguments.here:
        print(json.dumps(PARTS[arguments.here](searches[names[0]])))
        return 0
    found = {**machine.facts(), "device": machine.device()}
    print(f"{machine.describe(found)}\n{found['device']}\n", flush=True)
    entries: dict[str, Any] = {}
    for name in names:
        try:
            WORKS[searches[name].work].data()
        except MissingDataError as reason:
            print(f"{name}: skipped: {reason}", file=sys.stderr)
            continue
        entry = row(name, searches[name], ["--quick"] if arguments.quick else [])
        print(line(entry), flush=True)
        entries = machine.gather("prediction", found, {name: entry})
    return 0 if arguments.quick else verdict(list(entries.values()))


def row(name: str, search: Search, options: Sequence[str]) -> dict[str, Any]:
    """Predict and measure one search, in a process each."""
    predicted = child(name, "predict", options)
    measured = child(name, "measure", options)
    return {
        "search": name,
        "n_trials": search.n_trials,
        "epochs": search.epochs,
        "pruner": search.pruner,
        "predicted": predicted,
        **measured,
        "error": predicted["total"] / measured["seconds"] - 1,
    }


def verdict(rows: Sequence[dict[str, Any]]) -> int:
    """Print the errors; return 1 if they are above what is promised."""
    errors = [abs(each["error"]) for each in rows]
    median, largest = statistics.median(errors), max(errors)
    print(f"\nerror: median {median:.0%} (at most {MEDIAN:.0%}), largest {largest:.0%}")
    return 0 if median <= MEDIAN and largest <= EACH else 1


def line(found: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    predicted, seconds = found["predicted"], found["seconds"]
    said = ", ".join(f"{at}: {error:+.0%}" for at, error in found["said"].items())
    return (
        f"{found['search']:8s} {found['n_trials']:4d} x {found['epochs']:3d}  predicted "
        f"{predicted['total']:7.1f} s (ready {predicted['ready']:.1f}, rounds "
        f"{predicted['rounds']:.1f})  measured {seconds:7.1f} s  error {found['error']:+.0%}  "
        f"time-left line off by {said}"
    )


def child(name: str, part: str, options: Sequence[str]) -> dict[str, Any]:
    """Run a part in a process of its own, with caches of its own."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), name, "--here", part, *options],
            env={**os.environ, "PACELINE_CACHE_DIR": folder},
            cwd=folder,
            check=False,
            stdout=subprocess.PIPE,
            text=True,
        )
    if done.returncode != 0:
        raise SystemExit(f"{name}: {part} failed")
    return json.loads(done.stdout.splitlines()[-1])


def predict(search: Search) -> dict[str, Any]:
    """Return what ``paceline.bench`` predicts."""
    import paceline

    work = WORKS[search.work]
    (x, y), validation = work.data()
    found = paceline.bench(
        work.build(),
        x,
        y,
        validation_data=validation,
        batch_sizes=[work.batch_size],
        parallel_trials=[1],
        measure_for=search.budget,
        predict_trials=search.n_trials,
        predict_epochs=search.epochs,
        predict_pruner=search.pruner,
    )
    for text in found.outlook:
        print(text, file=sys.stderr)
    value = found.to_json()
    return {**value["prediction"][0], "costs": value["runs"][0]["costs"]}


def measure(search: Search) -> dict[str, Any]:
    """Run the search; return its seconds, and the errors of the time left that it showed."""
    import paceline

    work = WORKS[search.work]
    (x, y), validation = work.data()
    said: list[tuple[float, float]] = []

    def hear(progress: Any) -> None:
        if progress.seconds_left is not None and progress.phase != "done":
            said.append((time.perf_counter() - began, progress.seconds_left))

    tuner = paceline.Tuner(
        work.build(),
        study="measured",
        sampler="random",
        pruner=search.pruner,
        on_progress=hear,
        on_note=lambda text: None,
    )
    began = time.perf_counter()
    tuner.search(
        x,
        y,
        validation_data=validation,
        epochs=search.epochs,
        batch_size=work.batch_size,
        n_trials=search.n_trials,
    )
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "said": errors_of(said, seconds), "parts": tuner.summary()}


def errors_of(said: Sequence[tuple[float, float]], seconds: float) -> dict[str, float]:
    """Return the errors of the total time that the time left implies, at a quarter and a half."""
    found = {}
    for name, share in (("quarter", 0.25), ("half", 0.5)):
        later = [(at, left) for at, left in said if at >= share * seconds]
        if later:
            at, left = later[0]
            found[name] = (at + left) / seconds - 1
    return found


PARTS: dict[str, Callable[[Search], dict[str, Any]]] = {"predict": predict, "measure": measure}


if __name__ == "__main__":
    sys.exit(main())
