"""What a GPU (or TPU) makes of it: one command for a machine that has one.

    python benchmarks/gpu.py                                    all parts
    python benchmarks/gpu.py scan --sides paceline              in pieces of minutes
    python benchmarks/gpu.py scan --sides keras_tuner --trials 0:4
    python benchmarks/gpu.py plans --models mnist cnn
    python benchmarks/gpu.py precision batches
    python benchmarks/gpu.py --quick                            tiny, on any device: does it work?

scan       the 8 configurations of examples/fashion_mnist_cnn.py on 60,000 + 10,000 images, 10
           epochs, batch 32: Paceline (cold and warm) and KerasTuner on JAX (cold), each in a fresh
           process
plans      plan x slots, as benchmarks/plans.py
precision  bfloat16 against float32, dense and CNN
batches    batch size, dense and CNN, on this device and on the machine's CPU

Each writes ``results/gpu_PART.json``; pieces of one commit gather there. Every part has processes
of its own, one at a time, since JAX takes most of a card's memory. Exit code 1: something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine
import search_speed
import sides
from works import WORKS, MissingDataError, Pairs, Work, example_build, find, noise

HERE = Path(__file__).resolve().parent
PARTS = ("scan", "plans", "precision", "batches")
SIDES = ("paceline", "keras_tuner")
BATCH_SIZES = (32, 64, 128, 256, 512, 1024)


def main() -> int:
    """Run the parts; return the exit code."""
    arguments = parse()
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
        codes += [scan(arguments, device)] if part == "scan" else children(part)
    return max(codes)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, on any device")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="of scan")
    parser.add_argument("--trials", metavar="FIRST:LAST", help="of scan: some of the eight")
    parser.add_argument("--models", nargs="+", metavar="MODEL", help="of plans")
    parser.add_argument("--here", choices=HERE_PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.parts = arguments.parts or list(PARTS)
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no such part; there are {', '.join(PARTS)}")
    return arguments


def look() -> str:
    """The device that JAX finds, asked in another process: this one leaves it alone."""
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
    """Run a part in a process of its own; the batches on the CPU too."""
    command = [sys.executable, __file__, *sys.argv[1:], "--here", part]
    places: list[dict[str, str]] = [{}]
    if part == "batches":
        places.append({"JAX_PLATFORMS": "cpu"})
    return [
        1 if subprocess.run(command, env={**os.environ, **place}, check=False).returncode else 0
        for place in places
    ]


def gather(part: str, found: dict[str, Any], entries: dict[str, Any]) -> dict[str, Any]:
    """Write entries beside those of the same commit and versions; return all there are."""
    path = machine.results_file(f"gpu_{part}")
    if path.is_file():
        old = json.loads(path.read_text(encoding="utf-8"))
        if all(old["machine"][key] == found[key] for key in ("commit", "versions", "cpu")):
            entries = {**old["entries"], **entries}
    machine.keep(f"gpu_{part}", {"machine": found, "entries": entries})
    return entries


# -- parts -----------------------------------------------------------------------------------------


def scan(arguments: argparse.Namespace, device: str) -> int:
    """Whole searches of both sides; prints the ratio once both have all their trials."""
    name = "scan_tiny" if arguments.quick else "scan"
    whole = find(name)
    work = find(f"{name}:{arguments.trials}") if arguments.trials else whole
    first, last = map(int, (arguments.trials or f"0:{whole.n_trials}").split(":"))
    try:
        work.data()
    except MissingDataError as reason:
        print(f"  skipped: {reason}", file=sys.stderr)
        return 1
    failed: list[str] = []
    entries: dict[str, Any] = {}
    for side in arguments.sides:
        states = ["cold", "warm"] if side == "paceline" else ["cold"]
        for state, outcomes in search_speed.measure(work, [side], states, 1, failed)[side].items():
            for outcome in outcomes:
                entry = {"side": side, "state": state, "trials": [first, last], **outcome}
                entries[f"{side} {state} {first}:{last}"] = entry
    found = {**machine.facts(), "device": device}
    entries = gather("scan_tiny" if arguments.quick else "scan", found, entries)
    ours, theirs = (total(entries, side, whole.n_trials) for side in SIDES)
    for side, seconds in zip(SIDES, (ours, theirs), strict=True):
        if seconds:
            print(f"  {whole.title}: {side} {seconds:.1f} s, cold")
    if ours and theirs:
        print(f"  KerasTuner / Paceline: {theirs / ours:.1f} times")
    return 1 if failed else 0


def total(entries: dict[str, Any], side: str, n_trials: int) -> float | None:
    """Seconds of a side's cold run, or of pieces that make up all its trials; None: not all."""
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
    """The table of plans.py."""
    import plans

    words = [*(arguments.models or ()), "--name", "gpu_plans"]
    if arguments.quick:
        words = ["digits", "cnn", "--quick", "--slots", "2", "--name", "gpu_plans_tiny"]
    return plans.main(words)


def precision_part(arguments: argparse.Namespace) -> int:
    """bfloat16 against float32."""
    rows = {}
    for name, work in cases(arguments.quick, n_images=60_000, on_cpu=False):
        for precision in ("float32", "bfloat16"):
            rows[f"{name} {precision}"] = (work, {"precision": precision})
    return measured("precision", rows, arguments.quick)


def batches_part(arguments: argparse.Namespace) -> int:
    """Batch sizes on this process's device."""
    platform = machine.device().rpartition("(")[2].rstrip(")")
    sizes = (16, 32) if arguments.quick else BATCH_SIZES
    rows = {}
    for name, work in cases(arguments.quick, n_images=20_480, on_cpu=platform == "cpu"):
        for size in sizes:
            rows[f"{name} {platform} batch {size}"] = (replace(work, batch_size=size), {})
    return measured("batches", rows, arguments.quick)


HERE_PARTS: dict[str, Callable[[argparse.Namespace], int]] = {
    "plans": plans_part,
    "precision": precision_part,
    "batches": batches_part,
}


# -- searches in this process ----------------------------------------------------------------------


class OneStructure:
    """An hp under which all trials of the Fashion CNN share a program: only dropout is drawn."""

    def __init__(self, hp: Any) -> None:
        self.hp = hp

    def Choice(self, name: str, values: list[Any]) -> Any:  # noqa: N802
        """Between the first two numbers, or the first of what would change the structure."""
        if isinstance(values[0], float):
            return self.hp.Float(name, values[0], values[1])
        return values[0]


def cases(quick: bool, n_images: int, on_cpu: bool) -> list[tuple[str, Work]]:
    """A dense and a convolutional work, sized for the device."""
    build = example_build("fashion_mnist_cnn.py")
    scan = replace(WORKS["scan"], build=lambda: lambda hp: build(OneStructure(hp)), given=None)
    if quick:
        import models

        small = models.MODELS["cnn"].build
        data = with_channel(noise())
        tiny = replace(scan, n_trials=2, epochs=1)
        return [
            ("dense", replace(tiny, build=WORKS["mnist"].build, data=noise)),
            ("cnn", replace(tiny, build=lambda: small, data=lambda: data)),
        ]
    n_cnn = min(n_images, 2048) if on_cpu else n_images
    return [
        ("dense", replace(WORKS["mnist"], n_trials=16, epochs=2, data=first_of("mnist", n_images))),
        ("cnn", replace(scan, n_trials=4 if on_cpu else 8, epochs=2, data=first_of("scan", n_cnn))),
    ]


def with_channel(pairs: Pairs) -> Pairs:
    """Images as a convolution takes them."""
    (x, y), (x_val, y_val) = pairs
    return (x[..., None], y), (x_val[..., None], y_val)


def first_of(name: str, n: int) -> Callable[[], Pairs]:
    """The first N training examples of a work, and all of its validation data."""

    def data() -> Pairs:
        (x, y), validation = WORKS[name].data()
        return (x[:n], y[:n]), validation

    return data


def measured(part: str, rows: dict[str, tuple[Work, dict[str, Any]]], quick: bool) -> int:
    """Search each row's work, print and gather what it took; 1 where one failed."""
    found = {**machine.facts(), "device": machine.device()}
    entries: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="paceline-bench-cache-") as cache:
        os.environ["PACELINE_CACHE_DIR"] = cache  # before the first search: all compile anew
        for name, (work, options) in rows.items():
            try:
                entries[name] = figures(work, options)
            except MissingDataError as reason:
                entries[name] = {"error": str(reason)}
            except Exception as error:  # the other rows are worth having
                entries[name] = {"error": f"{type(error).__name__}: {error}".partition("\n")[0]}
            print(f"  {name:28s} {_line(entries[name])}", flush=True)
    entries = {name: {"device": found["device"], **entry} for name, entry in entries.items()}
    gather(f"{part}_tiny" if quick else part, found, entries)
    return 1 if any("error" in entries[name] for name in rows) else 0


def figures(work: Work, options: dict[str, Any]) -> dict[str, Any]:
    """One search: seconds, and milliseconds of a trial's training step."""
    data = work.data()
    n = len(data[0][0])
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        search = sides.paceline_side(work, data, directory, 1, **options)
        began = time.perf_counter()
        outcome = search()
        seconds = time.perf_counter() - began
    if outcome["complete"] != work.n_trials:
        raise RuntimeError(f"{outcome['complete']} of {work.n_trials} trials complete")
    parts = outcome["summary"]["seconds"]
    trial_epochs = work.n_trials * work.epochs
    return {
        "seconds": round(seconds, 3),
        "compile_seconds": round(parts["compile"], 3),
        "ms_per_trial_step": 1e3 * parts["train"] / (trial_epochs * -(-n // work.batch_size)),
        "examples_per_second": trial_epochs * n / parts["train"],
        "n_trials": work.n_trials,
        "epochs": work.epochs,
        "batch_size": work.batch_size,
        "n_examples": n,
        "plans": outcome["summary"]["plans"],
        "best": outcome["best"],
    }


def _line(entry: dict[str, Any]) -> str:
    if "error" in entry:
        return f"FAILED: {entry['error']}"
    seconds = f"compile {entry['compile_seconds']:5.1f} s  {entry['seconds']:6.1f} s in all"
    rate = f"{entry['examples_per_second']:12,.0f} examples/s"
    return (
        f"{entry['ms_per_trial_step']:8.3f} ms per trial-step {rate}  {seconds}  "
        f"best {entry['best']:.4f}  {', '.join(entry['plans'])}"
    )


if __name__ == "__main__":
    sys.exit(main())
