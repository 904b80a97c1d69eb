"""CIFAR-10 at batch sizes 32 to 1,024: seconds of an epoch, accuracy after epochs and after time.

    make bench-batch-sizes                        # 5,000 images, 10 epochs, five seeds
    make bench-batch-sizes ARGS="--images 50000 --epochs 20"  # all images, for an accelerator
    make bench-batch-sizes ARGS="--sizes 32 64"   # pieces of one commit gather
    make bench-batch-sizes ARGS=--quick           # tries it

PACELINE_DATA names the folder of cifar10.npz. The model is that of examples/compare_devices.py. The
seconds of a size are of one trial that has the device alone: the mean of its epochs, validation
included and compilation left out. The accuracies are of several seeds, which train side by side in
one pack; for how long they train does not count.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import machine
import numpy as np

import paceline

SIZES = (32, 64, 128, 256, 512, 1024)
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "compare_devices.py"
#: Epochs of the trial that is timed.
_TIMED = 3


def load(n_images: int) -> dict[str, Any]:
    """Return the arguments of ``search`` that are data: a fifth as many images to validate on."""
    with np.load(Path(os.environ.get("PACELINE_DATA", "."), "cifar10.npz")) as data:
        x, y, x_val, y_val = (data[k] for k in ("x_train", "y_train", "x_test", "y_test"))
    n_val = min(len(x_val), n_images // 5)
    validation = x_val[:n_val], y_val[:n_val].ravel()
    return {"x": x[:n_images], "y": y[:n_images].ravel(), "validation_data": validation}


def train(build: Any, data: Mapping[str, Any], **arguments: Any) -> paceline.Trial:
    """Train the model of default values once, or from several seeds (``repeats``)."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        tuner = paceline.Tuner(
            build,
            objective="val_accuracy",
            sampler="random",
            seed=0,
            study="s",
            directory=folder,
            parallel_trials=arguments.get("repeats", 1),
            on_note=lambda note: print(f"  {note}", flush=True),
        )
        tuner.search(**data, **arguments, n_trials=1, enqueue_defaults=True, verbose=0)
        return tuner.trial(0)


def measured(
    build: Any, data: Mapping[str, Any], size: int, epochs: int, seeds: int
) -> dict[str, Any]:
    """Measure one batch size."""
    alone = train(build, data, batch_size=size, epochs=_TIMED)
    several = train(build, data, batch_size=size, epochs=epochs, repeats=seeds)
    return {
        "seconds": alone.train_seconds / alone.epochs,
        "accuracies": several.runs,  # of each epoch, one of each seed
        "load": os.getloadavg()[0],
    }


def accuracy(entry: Mapping[str, Any], epoch: int) -> tuple[float, float] | None:
    """Return mean and standard deviation over the seeds after an epoch, from 1; None: no such."""
    runs: Sequence[Sequence[float]] = entry["accuracies"]
    if not 1 <= epoch <= len(runs):
        return None
    return statistics.fmean(runs[epoch - 1]), statistics.pstdev(runs[epoch - 1])


def epochs_within(entry: Mapping[str, Any], seconds: float) -> int:
    """Return how many epochs of a size end within a time, of those that were trained."""
    return min(int(seconds / entry["seconds"] + 1e-9), len(entry["accuracies"]))


def table(entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the rows of a page: each size after all epochs, and after the time of the fastest."""
    n_epochs = min(len(entry["accuracies"]) for entry in entries.values())
    time = n_epochs * min(entry["seconds"] for entry in entries.values())
    rows = [
        f"| batch | s an epoch | val_accuracy after {n_epochs} epochs | after {time:.0f} s "
        "| epochs in that time |",
        "|---|---|---|---|---|",
    ]
    for size, entry in sorted(entries.items(), key=lambda item: int(item[0])):
        within = epochs_within(entry, time)
        found = (accuracy(entry, n_epochs), accuracy(entry, within))
        shown = ("none" if each is None else f"{each[0]:.3f} ± {each[1]:.3f}" for each in found)
        cells = f"{int(size):,}", f"{entry['seconds']:.2f}", *shown, str(within)
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def main() -> None:
    """Measure, keep and print each size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="256 images, 2 epochs, 2 seeds")
    arguments = parser.parse_args()
    images, epochs, seeds = arguments.images, arguments.epochs, arguments.seeds
    if arguments.quick:
        images, epochs, seeds = 256, 2, 2
    spec = importlib.util.spec_from_file_location("compare_devices", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    data = load(images)
    facts: dict[str, Any] = {**machine.facts(), "device": machine.device()}
    facts |= {"images": images, "seeds": seeds}
    print(f"{machine.describe(facts)}\n{facts['device']}, {images:,} images")
    platform = facts["device"].rpartition("(")[2].rstrip(")")
    name = f"batch_sizes_{platform}_{images}"
    entries: dict[str, Any] = {}
    for size in arguments.sizes:
        found = measured(example.build, data, size, epochs, seeds)
        entries = machine.gather(name, facts, {str(size): found})
    print("\n".join(table(entries)))


if __name__ == "__main__":
    main()
