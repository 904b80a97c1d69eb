"""Two checkouts of Paceline against each other: whole processes that take turns.

    git worktree add ../before COMMIT
    python benchmarks/commits.py --before ../before                  every work, 7 pairs
    python benchmarks/commits.py --before ../before --works digits16 --pairs 15

Each run is a fresh process of one checkout (its ``src`` and its ``benchmarks``), both with the
packages of this interpreter, with folders and caches of its own. The checkouts take turns, and
each pair begins with the other one. A work is timed as in ``search_speed.py``, cold and then warm;
``import`` is ``import paceline`` and ``help`` is ``paceline --help``, as whole processes.
With ``--first`` the seconds until the first trial has ended are kept too; both checkouts then run
this checkout's ``benchmarks``, since those of earlier ones do not look.

Prints the ratio of the medians, after / before, with its 95 % interval (bootstrap over the runs of
each checkout, 10,000 draws), and exits with 1 where an interval lies above the limit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
import numpy as np
from works import WORKS, MissingDataError

from paceline.cli.restart import with_large_pages

HERE = Path(__file__).resolve().parent
LIMIT = 1.03  # of the ratio: what a change that moves code may cost
TIME_LIMIT = 1800.0  # s, for one process
COMMANDS = {
    "import": ["-c", "import paceline"],
    "help": ["-m", "paceline", "--help"],
}
USUAL = ["digits16", "digits64", "structures", "mnist", "gru", "fashion"]


def main() -> int:
    """Runs the comparison; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", type=Path, required=True, help="a checkout")
    parser.add_argument("--after", type=Path, default=HERE.parent, help="another; default: this")
    parser.add_argument("--works", nargs="*", choices=WORKS, default=USUAL, metavar="WORK")
    parser.add_argument("--states", nargs="+", choices=("cold", "warm"), default=["cold", "warm"])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--first", action="store_true", help="until the first trial's end, too")
    parser.add_argument("--commands", type=int, default=21, help="pairs of import and --help")
    parser.add_argument("--name", default="commits", help="of the file in results/")
    arguments = parser.parse_args()
    sides = {"before": arguments.before.resolve(), "after": arguments.after.resolve()}
    found = machine.facts()
    print(machine.describe(found), flush=True)
    commits = {side: _commit(tree) for side, tree in sides.items()}
    print(f"before {commits['before']}, after {commits['after']}", flush=True)
    report: dict[str, Any] = {"machine": found, "commits": commits, "rows": {}}
    for name in COMMANDS if arguments.commands else ():
        seconds = _in_turns(sides, arguments.commands, lambda tree, name=name: _command(tree, name))
        _keep(report, name, seconds)
    for name in arguments.works:
        try:
            WORKS[name].data()
        except MissingDataError as reason:
            print(f"{name}: skipped: {reason}", flush=True)
            continue
        seconds = _in_turns(
            sides,
            arguments.pairs,
            lambda tree, name=name: _search(tree, name, arguments.states, arguments.first),
        )
        _keep(report, name, seconds)
    machine.keep(arguments.name, report)
    return 1 if any(row["interval"][0] > LIMIT for row in report["rows"].values()) else 0


def ratio_of_medians(
    before: list[float], after: list[float], draws: int = 10_000
) -> tuple[float, tuple[float, float]]:
    """After / before of the medians, and its 95 % interval by bootstrap (Efron's percentiles).

    Args:
        before: Seconds of each run.
        after: Likewise of the other checkout.
        draws: Resamples.
    """
    random = np.random.default_rng(0)

    def medians(values: list[float]) -> np.ndarray:  # f64[draws]
        return np.median(random.choice(np.array(values), (draws, len(values))), axis=1)

    low, high = np.quantile(medians(after) / medians(before), [0.025, 0.975])
    return statistics.median(after) / statistics.median(before), (float(low), float(high))


def _in_turns(sides: dict[str, Path], pairs: int, measure: Any) -> dict[str, dict[str, list]]:
    """Runs of both sides: state, then side, then seconds of each run."""
    seconds: dict[str, dict[str, list[float]]] = {}
    for number in range(pairs):
        for side in list(sides) if number % 2 == 0 else list(sides)[::-1]:
            for state, value in measure(sides[side]).items():
                seconds.setdefault(state, {"before": [], "after": []})[side].append(value)
    return seconds


def _keep(report: dict[str, Any], name: str, seconds: dict[str, dict[str, list[float]]]) -> None:
    for state, runs in seconds.items():
        ratio, interval = ratio_of_medians(runs["before"], runs["after"])
        row = {"ratio": ratio, "interval": interval, "seconds": runs, "limit": LIMIT}
        report["rows"][f"{name} {state}".strip()] = row
        print(
            f"{name:11s} {state:10s} before {statistics.median(runs['before']):7.3f} s  "
            f"after {statistics.median(runs['after']):7.3f} s  ratio {ratio:.3f}  "
            f"95 % {interval[0]:.3f} to {interval[1]:.3f}"
            f"{'   ABOVE THE LIMIT' if interval[0] > LIMIT else ''}",
            flush=True,
        )


def _environment(tree: Path, folder: Path) -> dict[str, str]:
    kept = machine.fresh_environment()
    kept |= {
        "PYTHONPATH": str(tree / "src"),
        "KERAS_BACKEND": "jax",
        "KERAS_HOME": str(folder / "keras"),
        "PACELINE_CACHE_DIR": str(folder / "paceline"),
    }
    return with_large_pages(kept) or kept  # as the command has them


def _search(tree: Path, work: str, states: list[str], first: bool) -> dict[str, float]:
    """Seconds of a search without imports, by the state of the caches: cold before warm.

    Where ``first`` is set, also those until the first trial has ended: of ``cold first``.
    """
    seconds = {}
    scripts = HERE if first else tree / "benchmarks"
    with tempfile.TemporaryDirectory(prefix="paceline-bench-cache-") as cache:
        for state in ("cold", "warm")[: 2 if "warm" in states else 1]:
            result = Path(cache) / f"{state}.json"
            words = [str(scripts / "sides.py"), "paceline", work, "1", str(result)]
            _run(tree, words, Path(cache))
            outcome = json.loads(result.read_text(encoding="utf-8"))
            if outcome["complete"] != WORKS[work].n_trials:
                raise SystemExit(f"{work}: {outcome['complete']} trials complete in {tree}")
            seconds[state] = outcome["seconds"]
            if first:
                seconds[f"{state} first"] = outcome["first"]
    return {state: value for state, value in seconds.items() if state.split()[0] in states}


def _command(tree: Path, name: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        began = time.perf_counter()
        _run(tree, COMMANDS[name], Path(folder))
        return {"": time.perf_counter() - began}


def _run(tree: Path, words: list[str], folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, *words],
        env=_environment(tree, folder),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{tree}: {' '.join(words)}: {done.stderr.strip().splitlines()[-1]}")


def _commit(tree: Path) -> str:
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
