"""Plan x slots for one model of each kind on this device, compared with Keras' own fit.

    python benchmarks/plans.py [digits] [mnist] [cnn] [gru] [attention] [--slots 1 4 8 16 32]
    python benchmarks/plans.py fashion --slots 1 2 8    on an accelerator

The table has the milliseconds of one trial's training step, as a search runs it (on a CPU, all
cores at once, with a thread each), and the seconds to compile the step. The plan ``sequential``
always has one slot, because trials follow one another. Two trials that differ in dropout and rate
fill the slots in turn. The exit code is 1 if a cell fails, or if their losses, after one epoch in
the order of the data, are not those of Keras' fit. The data are random, since only shapes matter.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import machine
import steps
from models import LARGE, MODELS, Model

from paceline.executor.model_builder import ModelBuilder
from paceline.search_space import HyperParameters

SLOTS = (1, 4, 8, 16, 32)
TRIALS = ({"dropout": 0.1, "lr": 1e-3}, {"dropout": 0.5, "lr": 1e-2})
#: Epochs of a run, and seconds for all runs of one cell.
EPOCHS, PATIENCE = 10, 4.0
#: A loss may differ from that of Keras by SHARE of the difference between the two trials, and on a
#: CPU by ROUNDING of itself: the most seen on a CPU is 4e-5 (the CNN, 40 steps). Other devices
#: round products.
SHARE, ROUNDING = 0.1, 1e-3

Row = dict[str, Any]


def main(words: Sequence[str] | None = None) -> int:
    """Measure; return the exit code."""
    usual = [name for name in MODELS if name not in LARGE]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=usual, help=f"of {', '.join(MODELS)}")
    parser.add_argument("--slots", nargs="+", type=int, default=list(SLOTS), metavar="N")
    parser.add_argument("--quick", action="store_true", help="tiny: only to see that it works")
    parser.add_argument("--name", default="plans", help="of the file in results/")
    arguments = parser.parse_args(words)
    unknown = set(arguments.models) - set(MODELS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no such model; there are {', '.join(MODELS)}")
    found = {**machine.facts(), "device": machine.device(), "packs_at_once": steps.packs_at_once()}
    print(
        f"{machine.describe(found)}\n{found['device']}, packs at once: {found['packs_at_once']}\n",
        flush=True,
    )
    steps.always_compile()
    rows: list[Row] = []
    for name in arguments.models:
        for row in cells(name, arguments.slots, arguments.quick):
            rows.append({"model": name, **row})
            print(f"{MODELS[name].title:36s} {_line(row)}", flush=True)
    print("\n" + table(rows), flush=True)
    machine.keep(arguments.name, {"machine": found, "rows": rows})
    wrong = [row for row in rows if "error" in row or not row["agrees"]]
    for row in wrong:
        print(f"{row['model']}, {row['plan']} {row['slots']}: {_line(row)}", file=sys.stderr)
    return 1 if wrong else 0


def cells(name: str, slots: Sequence[int], quick: bool) -> Iterator[Row]:
    """Yield the rows of one model: Keras' fit, sequential, stacked and mapped with these slots."""
    model = MODELS[name]
    n_steps, patience = (4, 0.2) if quick else (model.n_steps, PATIENCE)
    x, y = model.data(n_steps * model.batch_size)
    fit, expected = fitted(model, x, y, epochs=3 if quick else EPOCHS)
    allowed = SHARE * deviation(expected[:1], expected[1:])
    if steps.on_cpu():
        allowed = min(allowed, ROUNDING)
    yield {"plan": "fit", "slots": 1, **fit, "deviation": 0.0, "agrees": True}
    step = steps.TracedStep(model.build, x, y, model.batch_size, TRIALS)
    packs = [(plan, n) for plan in ("vectorized", "looped") for n in slots]
    # With a single slot, stacked and mapped are the same: one row for both.
    for plan, n_slots in (("sequential", 1), *(p for p in packs if p != ("looped", 1))):
        row: Row = {"plan": plan, "slots": n_slots}
        try:
            program, seconds = step.compile(plan, n_slots)
            row["compile_seconds"] = round(seconds, 2)
            row["allowed"] = allowed
            row["deviation"] = deviation(step.history(program), expected)
            row["agrees"] = row["deviation"] <= allowed
            milliseconds = step.milliseconds(program, steps.packs_at_once(), EPOCHS, patience)
            row["ms_per_trial_step"] = round(milliseconds, 4)
        except Exception as error:  # an error of one cell must not end the others
            row["error"] = f"{type(error).__name__}: {error}".partition("\n")[0]
        program = None
        gc.collect()  # frees the arrays before the next cell needs memory
        yield row


class Clock(keras.callbacks.Callback):
    """A callback that records the seconds of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note when an epoch begins."""
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note when an epoch ends: the logs are numbers, so its steps are done."""
        self.seconds.append(time.perf_counter() - self._began)


def fitted(model: Model, x: Any, y: Any, epochs: int) -> tuple[Row, list[dict[str, float]]]:
    """Time Keras' fit of the first trial; return also each trial's logs after one ordered epoch."""
    logs, clock = [], Clock()
    for seed, values in enumerate(TRIALS):
        alone = ModelBuilder(model.build)(HyperParameters(values=values), seed)
        history = alone.fit(
            x,
            y,
            batch_size=model.batch_size,
            shuffle=False,
            verbose=0,
            epochs=1 if seed else epochs,
            callbacks=[] if seed else [clock],
        ).history
        logs.append({metric: series[0] for metric, series in history.items()})
    steady = min(clock.seconds[1:])
    return {
        "compile_seconds": round(clock.seconds[0] - steady, 2),
        "ms_per_trial_step": round(1e3 * steady * model.batch_size / len(x), 4),
    }, logs


def deviation(found: list[dict[str, float]], expected: list[dict[str, float]]) -> float:
    """Return the largest relative difference of a loss; NaN if a loss is not finite."""
    return max(
        (abs(a["loss"] - b["loss"]) / abs(b["loss"]) for a, b in zip(found, expected, strict=True)),
        key=lambda each: (each != each, each),
    )


def table(rows: Sequence[Row]) -> str:
    """Return milliseconds per trial-step as a Markdown table, one line for each model."""
    columns = list(dict.fromkeys((row["plan"], row["slots"]) for row in rows))
    heads = [f"{plan} {n}" if n > 1 else _alone(plan) for plan, n in columns]
    lines = [f"| ms per trial-step | {' | '.join(heads)} |", "|" + " --- |" * (len(heads) + 1)]
    for name in dict.fromkeys(row["model"] for row in rows):
        of = {(r["plan"], r["slots"]): r for r in rows if r["model"] == name}
        shown = [_milliseconds(of.get(column, {})) for column in columns]
        lines.append(f"| {MODELS[name].title} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _alone(plan: str) -> str:
    return "a loop over steps" if plan == "vectorized" else plan


def _milliseconds(row: Row) -> str:
    value = row.get("ms_per_trial_step")
    return "failed" if value is None else f"{value:.3g}"


def _line(row: Row) -> str:
    where = f"{row['plan']:10s} {row['slots']:3d}"
    if "error" in row:
        return f"{where}  FAILED: {row['error']}"
    text = (
        f"{where}  compile {row['compile_seconds']:6.2f} s  {row['ms_per_trial_step']:8.4f} ms per "
        f"trial-step  loss off by {row['deviation']:.0e}"
    )
    return text if row["agrees"] else f"{text}: NOT THE SAME HISTORY"


if __name__ == "__main__":
    sys.exit(main())
