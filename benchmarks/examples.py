"""The examples on real data: Paceline against KerasTuner on JAX, and on TensorFlow.

    python benchmarks/examples.py --tensorflow PYTHON              the three searches, compared
    python benchmarks/examples.py --tensorflow PYTHON --floors     exit 1 where a claim is missed
    python benchmarks/examples.py --works language_lstm            KerasTuner on JAX alone

The searches have 8 trials over the models of ``examples``, and are measured as ``search_speed.py``
does it. The ratio is that to the faster one of the two KerasTuners. TensorFlow keeps no compiled
programs, so its time counts as cold and as warm. PYTHON is an interpreter with tensorflow,
keras-tuner, tensorboard and six; without it there is only KerasTuner on JAX, and floors cannot be
asserted.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import machine
import search_speed
from works import WORKS, MissingDataError

EXAMPLES = tuple(name for name, work in WORKS.items() if work.of_examples)
PEERS = ("keras_tuner", search_speed.ON_TENSORFLOW)
SIDES = ("paceline", "keras_tuner")


def main() -> int:
    """Run the benchmark; return the exit code."""
    arguments = parse()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    failed: list[str] = []
    entries: dict[str, Any] = {}
    for name in arguments.works:
        work = WORKS[name]
        print(f"\n{work.title}", flush=True)
        try:
            work.data()
        except MissingDataError as reason:
            failed.append(f"{name}: {reason}")
            continue
        runs = search_speed.measure(work, list(SIDES), ["cold", "warm"], arguments.rounds, failed)
        if arguments.tensorflow:
            there = search_speed.measure(
                work, [PEERS[1]], ["cold"], arguments.rounds, failed, arguments.tensorflow
            )
            runs[PEERS[1]] = dict.fromkeys(("cold", "warm"), there[PEERS[1]]["cold"])
        entries[name] = {"title": work.title, "runs": runs, **search_speed.compare(work, runs)}
        print(search_speed.parts_of(runs), end="")
        print("\n".join(lines_of(entries[name])), flush=True)
        machine.keep(f"examples_{name}", {"machine": found, **entries[name]})
    missed = [line for name, entry in entries.items() for line in missed_by(name, entry)]
    for line in failed + missed:
        print(line, file=sys.stderr)
    return 1 if failed or (arguments.floors and missed) else 0


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--works", nargs="+", choices=EXAMPLES, default=EXAMPLES, metavar="WORK")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each side")
    parser.add_argument("--tensorflow", metavar="PYTHON", help="an interpreter with TensorFlow")
    parser.add_argument("--floors", action="store_true", help="exit 1 where a floor is missed")
    arguments = parser.parse_args()
    if arguments.floors and not arguments.tensorflow:
        parser.error("--floors: the faster of two KerasTuners counts; give --tensorflow PYTHON")
    return arguments


def least(entry: dict[str, Any], state: str) -> float | None:
    """Return the faster KerasTuner's time divided by Paceline's; None if one did not run."""
    ratios = [entry["ratios"].get(peer, {}).get(state) for peer in PEERS]
    return None if None in ratios else min(ratios)


def lines_of(entry: dict[str, Any]) -> list[str]:
    """Return lines about a work: its ratios, with those that are promised and aimed at."""
    lines = []
    for state, floor in entry["floor"].items():
        ratios = ", ".join(
            f"{peer} {entry['ratios'][peer][state]:.2f}"
            for peer in PEERS
            if state in entry["ratios"].get(peer, {})
        )
        aims = f"of the faster: floor {floor:g}, goal {entry['goal'][state]:g}"
        lines.append(f"  {state}: time / Paceline's: {ratios} ({aims})")
    return lines


def missed_by(name: str, entry: dict[str, Any]) -> list[str]:
    """Return the floors that a work does not reach; a floor without a measurement is missed."""
    lines = []
    for state, floor in entry["floor"].items():
        ratio = least(entry, state)
        if ratio is None:
            lines.append(f"floor not judged: {name}, {state}: both KerasTuners must have run")
        elif ratio < floor:
            lines.append(f"floor missed: {name}, {state}: {ratio:.2f} times, promised {floor:g}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
