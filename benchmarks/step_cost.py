"""What a step costs: slots x ways to compile, for small models on this device.

For each model, number of slots and set of XLA's options, it measures the seconds of processor time
to compile the loop over the full batches, and the milliseconds of one epoch: the minimum of the
runs, which is the least disturbed one, and the median. Quoted in docs/decisions/0003 and 0035.

    python benchmarks/step_cost.py [--models dense gru ...] [--slots 1 8 16] [--ways long short]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import machine
import numpy as np
from models import LARGE, MODELS, RNG
from steps import TracedStep

from paceline.pack.plan import base, vectorized
from paceline.program import compile as compiling

N = 640
RUNS = 9
TRIALS = ({"dropout": 0.1, "lr": 1e-3}, {"dropout": 0.2, "lr": 1e-3})
#: All slots at once, on one device.
ALONE = vectorized.SlotAxis(None, looped=False)
#: Convolutions are left out; benchmarks/plans.py measures them.
NAMES = [name for name in MODELS if name not in ("cnn", *LARGE)]


#: Options of XLA on a CPU: those of a long run, and of a short run with either kind of loops.
WAYS: dict[str, dict[str, Any]] = {
    "long": compiling._CPU,
    "short": compiling._QUICK,
    "older": {**compiling._QUICK, **compiling._OLDER_LOOPS},
}


def measure(name: str, slots: int, way: str) -> dict[str, Any]:
    """Compile one cell of the table, and run its epoch a few times."""
    model = MODELS[name]
    step = TracedStep(model.build, *model.data(N), model.batch_size, TRIALS)
    role, state, data, batch_size = step.role, step.states[0], step.data, step.work.batch_size
    shapes = (
        *base.shapes(state, slots),
        base.lifted_shapes(role, slots),
        data.batch_shapes(data.n),
        base.index_shape(slots, N),
        base.index_shape(),
    )
    full = base.step_sizes(role, batch_size, 0)[0]
    epoch = vectorized._batches(full, len(role.full.log_names), ALONE)
    lowered = jax.jit(epoch, donate_argnums=(0, 1, 2)).lower(*shapes)
    options = WAYS[way] if jax.default_backend() == "cpu" else None
    began = time.process_time()
    call = lowered.compile(compiler_options=options)
    compile_seconds = time.process_time() - began
    many = [[jnp.asarray(np.stack([np.asarray(a)] * slots)) for a in p] for p in state.lists()]
    lifted = [np.stack([role.full.canonical.constants[i].value] * slots) for i in role.lifted]
    order = np.stack([RNG.permutation(N) for _ in range(slots)]).astype(np.int32)
    steps, on_device, seconds = np.int32(N // batch_size), data.on_device(), []
    for _ in range(RUNS):
        began = time.perf_counter()
        *many, logs = call(*many, lifted, on_device, order, steps)
        jax.block_until_ready(logs)
        seconds.append(time.perf_counter() - began)
    return {
        "model": name,
        "slots": slots,
        "way": way,
        "compile_cpu_seconds": compile_seconds,
        "epoch_ms": 1e3 * min(seconds),
        "epoch_ms_median": 1e3 * statistics.median(seconds),
        "ms_per_trial": 1e3 * min(seconds) / slots,
    }


def main() -> None:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=NAMES, choices=list(MODELS))
    parser.add_argument("--slots", nargs="+", type=int, default=[1, 8, 16])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    arguments = parser.parse_args()
    facts = machine.facts()
    print(facts)
    print("model       slots    way  compile cpu s  epoch ms (median)  ms per trial")
    rows = []
    for name in arguments.models:
        for slots in arguments.slots:
            for way in arguments.ways:
                row = measure(name, slots, way)
                rows.append(row)
                print(
                    f"{name:10s}  {slots:5d}  {way:>5s}  {row['compile_cpu_seconds']:13.2f}"
                    f"  {row['epoch_ms']:8.1f} ({row['epoch_ms_median']:6.1f})"
                    f"  {row['ms_per_trial']:12.2f}",
                    flush=True,
                )
    machine.keep("step_cost", {"machine": facts, "rows": rows})


if __name__ == "__main__":
    main()
