"""What it costs to send training data to the device in chunks, compared with data that stay there.

    python benchmarks/streams.py                 prints and writes results/streams.json

After a warm-up, the same search runs twice in one process: once with all data on the device, once
with a limit of memory (PACELINE_MEMORY_BYTES) that makes it send chunks. Both train one
pack of 8 slots. The figure is the seconds of training, the median of the rounds; nothing is
claimed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine
from works import WORKS

EPOCHS, SLOTS = 3, 8


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("works", nargs="*", default=["mnist"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="streams", help="of the file in results/")
    arguments = parser.parse_args()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    report: dict[str, Any] = {"machine": found, "works": {}}
    for name in arguments.works:
        data_bytes = sum(part.nbytes for part in WORKS[name].data()[0])
        seconds: dict[str, list[float]] = {"resident": [], "streamed": []}
        chunks = ""
        for way in [*seconds, *(list(seconds) * arguments.rounds)]:
            took, note = search(name, int(1.6 * data_bytes) if way == "streamed" else None)
            seconds[way].append(took)
            chunks = note or chunks
        # The first run of each compiled the programs: it does not count.
        medians = {way: statistics.median(times[1:]) for way, times in seconds.items()}
        cost = medians["streamed"] / medians["resident"] - 1
        report["works"][name] = {"seconds": medians, "cost": cost, "note": chunks}
        print(
            f"{name}: {data_bytes / 1e6:.1f} MB, resident {medians['resident']:.2f} s, streamed "
            f"{medians['streamed']:.2f} s, {cost:+.0%}; {chunks}",
            flush=True,
        )
        if not chunks:
            print(f"{name}: nothing was streamed")
            return 1
    machine.keep(arguments.name, report)
    return 0


def search(name: str, limit: int | None) -> tuple[float, str]:
    """Return the seconds of training of one search, and its note on chunks."""
    import paceline

    work = WORKS[name]
    (x, y), validation = work.data()
    if limit is None:
        os.environ.pop("PACELINE_MEMORY_BYTES", None)
    else:
        os.environ["PACELINE_MEMORY_BYTES"] = str(limit)
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        tuner = paceline.Tuner(
            work.build(),
            objective="val_accuracy",
            study="s",
            sampler="random",
            directory=directory,
            parallel_trials=SLOTS,
            plan="vectorized",
            on_note=notes.append,
        )
        tuner.search(
            x,
            y,
            validation_data=tuple(part[:500] for part in validation),
            epochs=EPOCHS,
            batch_size=work.batch_size,
            n_trials=SLOTS,
        )
        said = next((note for note in notes if "chunks of" in note), "")
        return tuner.summary()["seconds"]["train"], said


if __name__ == "__main__":
    sys.exit(main())
