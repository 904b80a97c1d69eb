"""Whole searches: Paceline against KerasTuner and against Optuna, both with Keras on JAX.

    python benchmarks/search_speed.py                      the table
    python benchmarks/search_speed.py --floors             the same; exit 1 where a claim is missed
    python benchmarks/search_speed.py --works digits16 --sides paceline --rounds 1

Every run is a fresh process with its own folders; imports and loading of data are not counted.
The sides take turns, so that other load on the machine affects all of them; the median of the
rounds counts.

cold   no compiled program anywhere
warm   the same search once more, with the compiled programs that the cold run left on disk: every
       side has JAX's persistent compilation cache and keeps every program, which is kind to the
       peers, who meet exactly the values (dropout rates) that they compiled for
Paceline has large pages, as its command line gives them to itself. ``GLIBC_TUNABLES=`` before the
command leaves them out, ``GLIBC_TUNABLES=glibc.malloc.hugetlb=1`` gives them to all sides.
With --tensorflow PYTHON, KerasTuner runs with Keras on TensorFlow too, in that interpreter, which
has tensorflow, keras and keras-tuner; TensorFlow keeps no programs, so warm is as cold there.

other  with --other: like warm, but other values are drawn, as when a search is really run again

A run that was stopped goes on after its last whole work, where commit, versions, processor and
arguments are the same: what is done lies in ``.cache/bench`` until all of it is there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
from works import WORKS, MissingDataError, Work

from paceline.cli.restart import with_large_pages

HERE = Path(__file__).resolve().parent
SIDES = ("paceline", "keras_tuner", "optuna")
ON_TENSORFLOW = "keras_tuner_tf"
# State of the caches, and the seed of the sampler (KerasTuner takes 0 for "none").
STATES = {"cold": 1, "warm": 1, "other": 2}
PARTS = ("build", "trace", "compile", "train", "validate", "storage", "sampler")
TIME_LIMIT = 1800.0  # s, for one run of one side
_START = 8.0  # s, for imports and data, which are not counted


def main() -> int:
    """Run the benchmark; return the exit code."""
    arguments = parse()
    machine.end_children_when_told()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    report: dict[str, Any] = {"machine": found, "works": {}, "skipped": {}, "failed": []}
    unfinished = Unfinished(arguments, found)
    print(f"{expected(arguments)}\n" if arguments.works else "", end="", flush=True)
    for work in (WORKS[name] for name in arguments.works):
        if work.name in unfinished.works:
            report["works"][work.name] = unfinished.works[work.name]
            print(f"\n{work.title}\n  measured before this command was stopped", flush=True)
            continue
        try:
            work.data()
        except MissingDataError as reason:
            report["skipped"][work.name] = str(reason)
            print(f"\n{work.title}\n  skipped: {reason}", flush=True)
            continue
        print(f"\n{work.title}", flush=True)
        states = [s for s in STATES if s != "other" or (arguments.other and not work.given)]
        rounds = arguments.rounds or work.rounds
        runs = measure(
            work, arguments.sides, states, rounds, report["failed"], arguments.tensorflow
        )
        report["works"][work.name] = {"title": work.title, "runs": runs, **compare(work, runs)}
        if not report["failed"]:
            unfinished.add(work.name, report["works"][work.name])
        print(parts_of(runs), end="", flush=True)
    print("\n" + table(report, arguments.works), flush=True)
    machine.keep(arguments.name, report)
    unfinished.remove()
    missed = missed_floors(report)
    if arguments.floors:
        for line in missed:
            print(f"floor missed: {line}", file=sys.stderr)
    return 1 if report["failed"] or (arguments.floors and missed) else 0


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--works", nargs="+", choices=WORKS, default=_usual(), metavar="WORK")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), metavar="SIDE")
    parser.add_argument("--rounds", type=int, help="runs of each side (default: the work's own)")
    parser.add_argument("--share-widths", help="Paceline's argument: auto, yes or no")
    parser.add_argument("--other", action="store_true", help="also warm runs with other values")
    parser.add_argument("--name", default="search_speed", help="of the file in results/")
    parser.add_argument("--tensorflow", metavar="PYTHON", help="an interpreter with TensorFlow")
    parser.add_argument("--floors", action="store_true", help="exit 1 where a floor is missed")
    arguments = parser.parse_args()
    if arguments.tensorflow:
        arguments.sides.append(ON_TENSORFLOW)
    if arguments.share_widths:
        os.environ["PACELINE_WIDTHS"] = arguments.share_widths  # ``sides.py`` reads it
    return arguments


class Unfinished:
    """What a run that was stopped has measured.

    Args:
        arguments: Those of the command.
        found: The facts of the machine.

    Attributes:
        works: Name -> entry of the report, of the works that are done.
    """

    def __init__(self, arguments: argparse.Namespace, found: dict[str, Any]) -> None:
        self._file = machine.ROOT / ".cache" / "bench" / f"{arguments.name}.json"
        given = {k: v for k, v in vars(arguments).items() if k not in ("works", "floors")}
        same = {key: found[key] for key in ("commit", "versions", "cpu", "cores")}
        self._of = json.loads(json.dumps({"arguments": given, **same}))
        self.works: dict[str, Any] = {}
        # A commit with "+" says nothing of which files differ from it.
        if self._file.is_file() and not found["commit"].endswith("+"):
            stored = json.loads(self._file.read_text(encoding="utf-8"))
            self.works = stored["works"] if stored["of"] == self._of else {}

    def add(self, name: str, entry: dict[str, Any]) -> None:
        """Keep a work that is done."""
        self.works[name] = entry
        self._file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"of": self._of, "works": self.works})
        self._file.write_text(text, encoding="utf-8")

    def remove(self) -> None:
        """Forget them: the report has them all."""
        self._file.unlink(missing_ok=True)


def expected(arguments: argparse.Namespace) -> str:
    """Say how long the runs took when they were kept last."""
    file = machine.ROOT / "benchmarks" / "results" / f"{arguments.name}.json"
    works = json.loads(file.read_text(encoding="utf-8"))["works"] if file.is_file() else {}
    seconds, known = 0.0, 0
    for name in arguments.works:
        sides = works.get(name, {}).get("runs", {})
        known += bool(sides)
        rounds = arguments.rounds or WORKS[name].rounds
        for states in (sides.get(side, {}) for side in arguments.sides):
            seconds += sum(
                rounds * statistics.mean(run["seconds"] + _START for run in runs)
                for runs in states.values()
                if runs
            )
    if not known:
        return "These searches were not measured before, so how long they take is not known."
    minutes = f"These searches take about {seconds / 60:.0f} minutes"
    left = len(arguments.works) - known
    return f"{minutes}, and {left} were not measured before." if left else f"{minutes}."


def _usual() -> list[str]:
    return [name for name, work in WORKS.items() if not work.for_a_card and not work.of_examples]


def measure(
    work: Work,
    sides: list[str],
    states: list[str],
    rounds: int,
    failed: list[str],
    tensorflow: str | None = None,
    done: Callable[[str, str, dict[str, Any]], None] = lambda side, state, outcome: None,
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Run all sides on a work; return side -> state of the caches -> one result for each round.

    ``done`` is told of each result at once.
    """
    runs: dict[str, dict[str, list]] = {side: {state: [] for state in states} for side in sides}
    for number in range(rounds):
        # Each round starts with another side.
        for side in sides[number % len(sides) :] + sides[: number % len(sides)]:
            with tempfile.TemporaryDirectory(prefix="paceline-bench-cache-") as cache:
                for state in states:
                    outcome = run(side, work, STATES[state], Path(cache), tensorflow)
                    where = f"{work.name}, {side}, {state}"
                    if "error" not in outcome and outcome["complete"] != work.n_trials:
                        outcome["error"] = (
                            f"{outcome['complete']} of {work.n_trials} trials complete"
                        )
                    if "error" in outcome:
                        failed.append(f"{where}: {outcome['error']}")
                        print(f"  FAILED {where}: {outcome['error']}", flush=True)
                        break
                    runs[side][state].append(outcome)
                    print(
                        f"  {side:14s} {state:5s} {outcome['seconds']:7.2f} s  best "
                        f"{outcome['best']:.4f}  cpu {outcome['cpu_seconds']:.1f} s  "
                        f"{outcome['peak_bytes'] / 2**20:.0f} MiB  "
                        f"programs compiled {outcome['cache_misses']}, "
                        f"from disk {outcome['cache_hits']}  "
                        f"{outcome['device']}  load {outcome['load']:.1f}",
                        flush=True,
                    )
                    done(side, state, outcome)
    return runs


def run(
    side: str, work: Work, seed: int, cache: Path, tensorflow: str | None = None
) -> dict[str, Any]:
    """Run one side on one work in a fresh process; return ``{"error": ...}`` if it fails."""
    environment = machine.fresh_environment() | {
        "KERAS_BACKEND": "jax",
        "KERAS_HOME": str(cache / "keras"),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PACELINE_CACHE_DIR": str(cache / "paceline"),
    }
    if side == "paceline":
        environment = with_large_pages(environment) or environment  # as the command line does
    else:  # Paceline keeps its programs by itself
        environment |= {
            "JAX_COMPILATION_CACHE_DIR": str(cache / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    result = cache / "result.json"
    result.unlink(missing_ok=True)
    python = sys.executable
    if side == ON_TENSORFLOW and tensorflow is not None:
        python, environment["KERAS_BACKEND"] = tensorflow, "tensorflow"
    command = [python, str(HERE / "sides.py"), side, work.name, str(seed), str(result)]
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=cache,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {TIME_LIMIT:.0f} s"}
    if done.returncode != 0 or not result.is_file():
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"error": f"exit code {done.returncode}: {last}"}
    return json.loads(result.read_text(encoding="utf-8"))


def compare(work: Work, runs: dict[str, dict[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Return medians, trial-epochs per second and ratios of one work."""
    seconds = {
        side: {s: statistics.median(r["seconds"] for r in rs) for s, rs in states.items() if rs}
        for side, states in runs.items()
    }
    ours = seconds.get("paceline", {})
    return {
        "seconds": seconds,
        "trial_epochs_per_second": {
            side: {s: work.n_trials * work.epochs / t for s, t in states.items()}
            for side, states in seconds.items()
        },
        "ratios": {
            side: {s: t / ours[s] for s, t in states.items() if s in ours}
            for side, states in seconds.items()
            if side != "paceline" and ours
        },
        "floor": dict(zip(("cold", "warm"), work.floor, strict=True)),
        "goal": dict(zip(("cold", "warm"), work.goal, strict=True)) if work.goal else {},
    }


def parts_of(runs: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Return the parts of Paceline's time, one line each for cold and warm."""
    lines = []
    for state, outcomes in runs.get("paceline", {}).items():
        if outcomes:
            parts = {
                p: statistics.median(o["summary"]["seconds"].get(p, 0.0) for o in outcomes)
                for p in PARTS
            }
            shown = "  ".join(f"{part} {value:.2f}" for part, value in parts.items())
            programs = outcomes[-1]["summary"].get("programs", {})
            counts = ", ".join(f"{n} {what}" for what, n in programs.items())
            plans = outcomes[-1]["summary"].get("plans", "")
            lines.append(f"  paceline, {state}: {shown} s  (programs: {counts}; plans: {plans})\n")
    return "".join(lines)


def table(report: dict[str, Any], names: list[str]) -> str:
    """Return a Markdown table of how many times faster Paceline is, with the claims."""
    head = (
        "| work | | Paceline | KerasTuner | Optuna + Keras | trial-epochs/s | KerasTuner / Paceline"
    )
    lines = [head + " | Optuna / Paceline | floor | goal |", "|" + " --- |" * 10]
    for name in names:
        entry = report["works"].get(name)
        if entry is None:
            lines.append(f"| {WORKS[name].title} | skipped |" + " |" * 8)
            continue
        for state in next(iter(entry["runs"].values())):
            cells = [entry["title"] if state == "cold" else "", state]
            cells += [_cell(entry["seconds"], side, state, "{:.1f} s") for side in SIDES]
            cells.append(_cell(entry["trial_epochs_per_second"], "paceline", state, "{:.3g}"))
            cells += [_cell(entry["ratios"], side, state, "{:.1f}") for side in SIDES[1:]]
            for claim in (entry["floor"], entry["goal"]):
                cells.append(f"{claim[state]:g}" if state in claim else "")
            lines.append("| " + " | ".join(cells) + " |")
    if any(ON_TENSORFLOW in entry["ratios"] for entry in report["works"].values()):
        lines += ["", "KerasTuner on TensorFlow / Paceline:"]
        for name, entry in report["works"].items():
            times = ", ".join(
                f"{state} {_cell(entry['seconds'], ON_TENSORFLOW, state, '{:.1f} s')}, "
                f"{_cell(entry['ratios'], ON_TENSORFLOW, state, '{:.2f}')} times"
                for state in entry["seconds"].get(ON_TENSORFLOW, {})
            )
            lines.append(f"- {name}: {times}")
    return "\n".join(lines)


def _cell(values: dict[str, dict[str, float]], side: str, state: str, form: str) -> str:
    value = values.get(side, {}).get(state)
    return "" if value is None else form.format(value)


def missed_floors(report: dict[str, Any]) -> list[str]:
    """Return the works in which KerasTuner's time divided by Paceline's is below its floor."""
    lines = []
    for name, entry in report["works"].items():
        for state, ratio in entry["ratios"].get("keras_tuner", {}).items():
            if ratio < entry["floor"].get(state, 0.0):
                lines.append(
                    f"{name}, {state}: {ratio:.1f} times, promised {entry['floor'][state]}"
                )
    return lines


if __name__ == "__main__":
    sys.exit(main())
