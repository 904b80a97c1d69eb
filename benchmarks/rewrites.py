"""What each rewrite of a traced step gains on this CPU: milliseconds per trial-step.

    python benchmarks/rewrites.py [digits] [mnist] [fashion] [--name NAME]

Each model's training step as traced, with all rewrites, and with all but one; the step as a
search runs it: all cores at once, a lane each.

"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import machine
import numpy as np
from works import WORKS

import paceline
from paceline.builder import Builder
from paceline.data import ArrayData
from paceline.plan import SequentialProgram, StackedProgram, base
from paceline.plan import sequential as sequential_plan
from paceline.plan import stacked as stacked_plan
from paceline.plan.base import Workload
from paceline.program import trace
from paceline.program.group import Role
from paceline.rewrites import CPU_RULES, rewrite

HERE = Path(__file__).resolve().parent
#: Work, slots of a lane, steps of an epoch here, epochs timed.
CASES = {
    "digits": ("digits16", 8, 40, 20),
    "mnist": ("mnist", 1, 100, 5),
    "fashion": ("fashion", 1, 10, 3),
}


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--name", default="rewrites", help="of the file in results/")
    arguments = parser.parse_args()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    lanes = len(os.sched_getaffinity(0))
    rows: list[dict[str, Any]] = []
    for case in arguments.cases:
        bench = Bench(*CASES[case])
        for title, without in variants():
            figure = bench.run(without, lanes)
            rows.append({"model": case, "variant": title, "lanes": lanes, **figure})
            print(
                f"{case:8s} {title:34s} compile {figure['compile_seconds']:5.1f} s"
                f"   {figure['ms_per_trial_step']:8.3f} ms per trial-step",
                flush=True,
            )
    path = HERE / "results" / f"{arguments.name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"machine": found, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(f"written: {os.path.relpath(path)}")
    return 0


def variants() -> list[tuple[str, tuple[str, ...]]]:
    """Names, and the primitives left as they were traced."""
    some = [(f"all but {name}", (name,)) for name in CPU_RULES]
    return [("as traced", tuple(CPU_RULES)), ("all rewrites", ()), *some]


class Bench:
    """One model's training step."""

    def __init__(self, work: str, slots: int, steps: int, epochs: int) -> None:
        (x, y), _ = WORKS[work].data()
        self.size, self.slots, self.epochs = WORKS[work].batch_size, slots, epochs
        n = steps * self.size
        self.steps = steps
        self.data = ArrayData((np.asarray(x)[:n], np.asarray(y)[:n]), n)
        batch = self.data.batch_shapes(self.size)
        model = Builder(WORKS[work].build())(paceline.HyperParameters(), 0)
        self.state = trace.build_state(model, batch)
        self.step = trace.trace_train(model, self.state, batch)

    def run(self, without: tuple[str, ...], lanes: int) -> dict[str, float]:
        """Compile one variant and time it on every core at once."""
        changed: Any = base
        changed.rewrite = lambda closed, platform: rewrite(closed, platform, without)
        plans: tuple[Any, ...] = (stacked_plan, sequential_plan)
        for module in plans:
            module.key_of = lambda *parts: None  # nothing from disk, nothing kept
        jax.config.update("jax_enable_compilation_cache", False)
        work = Workload(self.data, None, self.size, self.size)
        parts: Any = (Role(self.step, None), None, trace.shapes_only(self.state), work)
        began = time.perf_counter()
        if self.step.canonical.convolves:
            program: Any = SequentialProgram(*parts)
        else:
            program = StackedProgram(*parts, self.slots)
        program.roles()
        compiled = time.perf_counter() - began
        data = self.data.on_device()
        order = np.tile(np.arange(self.data.n, dtype=np.int32), (self.slots, 1))
        lifted = program.lay([[]] * self.slots)

        def lane(epochs: int) -> None:
            *state, metrics = program.place([self.state] * self.slots)
            for _ in range(epochs):
                state, logs = program.train([*state, metrics], lifted, data, order)
                jax.block_until_ready((state, logs))

        def together(epochs: int) -> float:
            threads = [threading.Thread(target=lane, args=(epochs,)) for _ in range(lanes)]
            began = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return time.perf_counter() - began

        together(1)
        seconds = min(together(self.epochs) for _ in range(3))
        trial_steps = self.epochs * self.steps * self.slots * lanes
        return {
            "compile_seconds": round(compiled, 2),
            "ms_per_trial_step": round(1e3 * seconds / trial_steps, 4),
        }


if __name__ == "__main__":
    sys.exit(main())
