"""All benchmarks for a machine with a GPU or a TPU, in one command.

    python benchmarks/gpu.py                                    all parts
    python benchmarks/gpu.py scan --sides paceline              in pieces of minutes
    python benchmarks/gpu.py scan --sides keras_tuner --trials 0:4
    python benchmarks/gpu.py layers                             a search over widths and layers
    python benchmarks/gpu.py plans --models mnist cnn --slots 1 8 32
    python benchmarks/gpu.py plans --models fashion --slots 1 2 8
    python benchmarks/gpu.py precision batches
    python benchmarks/gpu.py --quick                            tiny, on any device: does it work?

scan       the 8 configurations of examples/fashion_mnist_cnn.py on 60,000 + 10,000 images, 10
           epochs, batch 32: Paceline (cold and warm) and KerasTuner on JAX (cold), each in a fresh
           process; KerasTuner takes 75 s for each trial on an H100 (--trials)
layers     24 trials of 1 to 3 layers and many widths on 12,000 images, likewise
plans      plan x slots, as benchmarks/plans.py
precision  bfloat16 against float32, dense and CNN
batches    batch size, dense and CNN, on this device and on the machine's CPU

Each part writes ``results/gpu_PART.json`` after every run, where pieces of one commit are
collected. Every part runs in processes of its own, one at a time, since JAX takes most of a card's
memory; they end with this one. The exit code is 1 if something failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import figures
import machine
import search_speed
from works import MissingDataError, Work, find

HERE = Path(__file__).resolve().parent
#: Parts that are whole searches: the names of their works.
SEARCHES = ("scan", "layers")
PARTS = (*SEARCHES, "plans", "precision", "batches")
SIDES = ("paceline", "keras_tuner")
BATCH_SIZES = (32, 64, 128, 256, 512, 1024)


def main() -> int:
    """Run the parts; return the exit code."""
    arguments = parse()
    machine.end_children_when_told()
    if arguments.here:
        return HERE_PARTS[arguments.here](arguments)
    device = look()
    if "(cpu)" in device and not arguments.quick:
        print(
            f"JAX finds no GPU or TPU, only {device}; --quick tries the command out on a CPU",
            file=sys.stderr,
        )
        return 2
    print(f"{machine.describe(machine.facts())}\n{device}", flush=True)
    codes = []
    for part in arguments.parts:
        print(f"\n{part}", flush=True)
        codes += [searches(part, arguments, device)] if part in SEARCHES else children(part)
    return max(codes)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, on any device")
    parser.add_argument(
        "--sides", nargs="+", choices=SIDES, default=list(SIDES), help="of searches"
    )
    parser.add_argument("--cold", action="store_true", help="of searches: no run with caches")
    parser.add_argument("--trials", metavar="FIRST:LAST", help="of searches: some of their trials")
    parser.add_argument("--models", nargs="+", metavar="MODEL", help="of plans")
    parser.add_argument("--slots", nargs="+", metavar="N", help="of plans")
    parser.add_argument("--here", choices=HERE_PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.parts = arguments.parts or list(PARTS)
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no such part; there are {', '.join(PARTS)}")
    for part in set(SEARCHES) & set(arguments.parts):
        try:
            searched(part, arguments)
        except ValueError as error:
            parser.error(f"--trials {arguments.trials}: {error}; give FIRST:LAST")
    return arguments


def look() -> str:
    """Return the device that JAX finds in another process, so that this one does not hold it."""
    done = subprocess.run(
        [sys.executable, "-c", "import machine; print(machine.device())"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return done.stdout.strip()


def children(part: str) -> list[int]:
    """Run a part in a process of its own; the part "batches" runs on the CPU too."""
    command = [sys.executable, __file__, *sys.argv[1:], "--here", part]
    places: list[dict[str, str]] = [{}]
    if part == "batches":  # the CPU first, because the report names the last device
        places.insert(0, {"JAX_PLATFORMS": "cpu"})
    return [
        1 if subprocess.run(command, env={**os.environ, **place}, check=False).returncode else 0
        for place in places
    ]


# -- parts -----------------------------------------------------------------------------------------


def searches(part: str, arguments: argparse.Namespace, device: str) -> int:
    """Run whole searches of both sides; print the ratio once both have all their trials."""
    whole, work = searched(part, arguments)
    first, last = map(int, (arguments.trials or f"0:{whole.n_trials}").split(":"))
    try:
        work.data()
    except MissingDataError as reason:
        print(f"  skipped: {reason}", file=sys.stderr)
        return 1
    failed: list[str] = []
    name, found = f"gpu_{whole.name}", {**machine.facts(), "device": device}

    def keep(side: str, state: str, outcome: dict[str, Any]) -> None:
        entry = {"side": side, "state": state, "trials": [first, last], **outcome}
        machine.gather(name, found, {f"{side} {state} {first}:{last}": entry})

    for side in arguments.sides:
        states = ["cold", "warm"] if side == "paceline" and not arguments.cold else ["cold"]
        search_speed.measure(work, [side], states, 1, failed, done=keep)
    entries = machine.gathered(name, found)
    ours, theirs = (total(entries, side, whole.n_trials) for side in SIDES)
    for side, seconds in zip(SIDES, (ours, theirs), strict=True):
        if seconds:
            print(f"  {whole.title}: {side} {seconds:.1f} s, cold")
    if ours and theirs:
        print(f"  KerasTuner / Paceline: {theirs / ours:.1f} times")
    return 1 if failed else 0


def searched(part: str, arguments: argparse.Namespace) -> tuple[Work, Work]:
    """Return the whole work of a part, and what of it the command line asks for.

    Raises:
        ValueError: It has no such trials.
    """
    whole = find("scan_tiny" if arguments.quick else part)
    return whole, find(f"{whole.name}:{arguments.trials}") if arguments.trials else whole


def total(entries: dict[str, Any], side: str, n_trials: int) -> float | None:
    """Return the seconds of a side's cold run, or of all its pieces; None if some are missing."""
    pieces = {
        tuple(entry["trials"]): entry["seconds"]
        for entry in entries.values()
        if (entry["side"], entry["state"]) == (side, "cold")
    }
    if (0, n_trials) in pieces:
        return pieces[0, n_trials]
    at, seconds = 0, 0.0
    for (first, last), taken in sorted(pieces.items()):
        if first == at:
            at, seconds = last, seconds + taken
    return seconds if at == n_trials else None


def plans_part(arguments: argparse.Namespace) -> int:
    """Print the table of plans.py."""
    import plans

    words = [*(arguments.models or ()), "--name", "gpu_plans"]
    if arguments.slots:
        words += ["--slots", *arguments.slots]
    if arguments.quick:
        words = ["digits", "cnn", "--quick", "--slots", "2", "--name", "gpu_plans_tiny"]
    return plans.main(words)


def precision_part(arguments: argparse.Namespace) -> int:
    """Compare bfloat16 with float32."""
    rows = {}
    for name, work in figures.cases(arguments.quick, n_images=60_000, on_cpu=False):
        for precision in ("float32", "bfloat16"):
            rows[f"{name} {precision}"] = (work, {"precision": precision})
    return figures.measured("precision", rows, arguments.quick)


def batches_part(arguments: argparse.Namespace) -> int:
    """Compare batch sizes on the device of this process."""
    platform = machine.device().rpartition("(")[2].rstrip(")")
    sizes = (16, 32) if arguments.quick else BATCH_SIZES
    rows = {}
    for name, work in figures.cases(arguments.quick, n_images=20_480, on_cpu=platform == "cpu"):
        for size in sizes:
            rows[f"{name} {platform} batch {size}"] = (replace(work, batch_size=size), {})
    return figures.measured("batches", rows, arguments.quick)


HERE_PARTS: dict[str, Callable[[argparse.Namespace], int]] = {
    "plans": plans_part,
    "precision": precision_part,
    "batches": batches_part,
}


if __name__ == "__main__":
    sys.exit(main())
