"""What each rewrite of a traced step gains on this CPU: milliseconds per trial-step.

    python benchmarks/rewrites.py [digits] [mnist] [fashion] [translation] [--name NAME]

The training step of each model is timed without rewrites, with all rewrites, and with all but one,
in turns. The step runs as in a search: all cores at once, with a thread each.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import machine
import numpy as np
import steps
from works import WORKS

from paceline.pack.plan import base
from paceline.program.rewrites import CPU_CHAINS, CPU_RULES, rewrite

#: How often each variant is measured; the median counts.
ROUNDS = 3
#: Name -> work, slots of a pack, steps of an epoch, epochs to time.
CASES = {
    "digits": ("digits16", 8, 40, 20),
    "mnist": ("mnist", 1, 100, 5),
    "fashion": ("fashion", 1, 10, 3),
    "translation": ("translation", 1, 10, 3),
}


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--name", default="rewrites", help="of the file in results/")
    arguments = parser.parse_args()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    at_once = steps.packs_at_once()
    rows: list[dict[str, Any]] = []
    for case in arguments.cases:
        for title, figure in measure(case).items():
            rows.append({"model": case, "variant": title, "packs_at_once": at_once, **figure})
            print(
                f"{case:12s} {title:30s} compile {figure['compile_seconds']:5.1f} s"
                f"   {figure['ms_per_trial_step']:8.3f} ms per trial-step",
                flush=True,
            )
    machine.keep(arguments.name, {"machine": found, "rows": rows})
    return 0


def variants() -> list[tuple[str, tuple[str, ...]]]:
    """Return the names of the variants, and the primitives that each does not rewrite."""
    places = ("argmax", "argmin")  # one rule
    names = (*CPU_RULES, *CPU_CHAINS)
    some = [(f"all but {name}", (name,)) for name in names if name not in places]
    some += [(f"all but {places[0]}", places), ("all but winograd", ("winograd",))]
    return [("as traced", names), ("all rewrites", ()), *some]


def measure(case: str) -> dict[str, dict[str, float]]:
    """Compile each variant of one model's step, and time the variants in turns on all cores.

    The variants take turns because the speed of the machine changes from minute to minute.
    """
    work, slots, n_steps, epochs = CASES[case]
    changed: Any = base
    steps.always_compile()
    (x, y), _ = WORKS[work].data()
    size = WORKS[work].batch_size
    n = n_steps * size
    x, y = jax.tree.map(lambda a: np.asarray(a)[:n], (x, y))
    step = steps.TracedStep(WORKS[work].build(), x, y, size)
    plan = "sequential" if step.role.full.canonical.convolves else "vectorized"
    programs: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for title, without in variants():
        changed.rewrite = lambda closed, platform, without=without: rewrite(
            closed, platform, without
        )
        programs[title], seconds[title] = step.compile(plan, slots)
    times: dict[str, list[float]] = {title: [] for title in programs}
    for _ in range(ROUNDS):
        for title, program in programs.items():
            times[title].append(
                step.milliseconds(program, steps.packs_at_once(), epochs, patience=60.0)
            )
    return {
        title: {
            "compile_seconds": round(seconds[title], 2),
            "ms_per_trial_step": round(statistics.median(times[title]), 4),
            "least": round(min(times[title]), 4),
            "most": round(max(times[title]), 4),
        }
        for title in programs
    }


if __name__ == "__main__":
    sys.exit(main())
