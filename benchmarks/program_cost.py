"""What a structure costs before it trains: processor seconds to build, trace and compile it, alone.

    python benchmarks/program_cost.py            the 24 structures of the work "layers"
    python benchmarks/program_cost.py --trials 4 the first of them

Every structure is compiled as a search with ``share_widths=False`` compiles it: the training step
in its loop, the last, smaller batch, and the validation step, with the effort that the planner
chooses. Nothing trains meanwhile, and no program comes from disk, so what the process spends is
what the structure costs. The floor is 1.5 processor seconds of compiling on average.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine
import steps
from works import find

from paceline.data.arrays import prepare
from paceline.executor.base import Job, SearchData
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import search_process
from paceline.executor.sharing.grouping import TrialGrouper
from paceline.executor.training.planner import Planner
from paceline.search_space import HyperParameters

FLOOR, GOAL = 1.5, 1.1
PARTS = ("build", "trace", "compile")


def main() -> int:
    """Measure; return 1 where the floor is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, help="so many structures (default: all)")
    parser.add_argument("--name", default="program_cost", help="of the file in results/")
    arguments = parser.parse_args()
    found = {**machine.facts(), "device": machine.device()}
    print(machine.describe(found), flush=True)
    steps.always_compile()
    with search_process(None):
        rows = measured(arguments.trials)
    means = {part: statistics.mean(row[part] for row in rows) for part in PARTS}
    walls = {part: statistics.mean(row[f"{part}_wall"] for row in rows) for part in PARTS}
    for part in PARTS:
        print(f"{part:8s} {means[part]:5.2f} processor seconds, {walls[part]:5.2f} s on the clock")
    report = {"machine": found, "rows": rows, "means": means, "walls": walls}
    machine.keep(arguments.name, {**report, "floor": FLOOR, "goal": GOAL})
    if means["compile"] > FLOOR:
        print(f"floor missed: {means['compile']:.2f} is over {FLOOR}", file=sys.stderr)
        return 1
    return 0


def measured(n: int | None) -> list[dict[str, float]]:
    """Build, trace and compile each structure; return what each took."""
    work = find("layers")
    (x, y), validation = work.data()
    grouper = TrialGrouper(SearchData(prepare(x, y), prepare(*validation)))
    planner, builder = Planner(), ModelBuilder(work.build())
    trials = (work.given or list)()[: n or work.n_trials]
    rows, seen = [], set()
    for number, hparams in enumerate(trials):
        row: dict[str, float] = {}
        with Clock(row, "build"):
            model = builder(HyperParameters(values=hparams), number)
        job = Job(number, number, work.epochs, work.batch_size, model, lambda: None)
        with Clock(row, "trace"):
            group = grouper.add(job)
        if group.name in seen:
            raise RuntimeError(f"trial {number} shares its program; the work has one for each")
        seen.add(group.name)
        with Clock(row, "compile"):
            # Its share of the trials to come, as ``Demand.of_program`` has it.
            planner.compile(group, 1, -(-(len(trials) - number) // len(grouper.groups)))
            assert group.program is not None
            group.program.roles()
        rows.append(row)
        print(
            f"  {number:2d} {group.name}  "
            + "  ".join(f"{part} {row[part]:.2f} s" for part in PARTS),
            flush=True,
        )
    return rows


class Clock:
    """Puts the processor's and the clock's seconds of a block into a row."""

    def __init__(self, row: dict[str, float], part: str) -> None:
        self._row, self._part = row, part

    def __enter__(self) -> None:
        self._began = time.process_time(), time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._row[self._part] = time.process_time() - self._began[0]
        self._row[f"{self._part}_wall"] = time.perf_counter() - self._began[1]


if __name__ == "__main__":
    sys.exit(main())
