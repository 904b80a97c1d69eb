"""Whole searches of a dense and a convolutional model by Paceline alone, in this process."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine
import sides
from works import WORKS, MissingDataError, Pairs, Work, example_build, noise


class OneStructure:
    """An hp that gives all trials of the Fashion CNN one structure: only dropout is drawn."""

    def __init__(self, hp: Any) -> None:
        self.hp = hp

    def Choice(self, name: str, values: list[Any]) -> Any:  # noqa: N802
        """Draw between the first two numbers, or take the first value if it sets the structure."""
        if isinstance(values[0], float):
            return self.hp.Float(name, values[0], values[1])
        return values[0]


def cases(quick: bool, n_images: int, on_cpu: bool) -> list[tuple[str, Work]]:
    """Return a dense and a convolutional work, sized for the device."""
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
    """Return images with the channel axis that a convolution needs."""
    (x, y), (x_val, y_val) = pairs
    return (x[..., None], y), (x_val[..., None], y_val)


def first_of(name: str, n: int) -> Callable[[], Pairs]:
    """Return a function for the first N training examples of a work and all its validation data."""

    def data() -> Pairs:
        (x, y), validation = WORKS[name].data()
        return (x[:n], y[:n]), validation

    return data


def measured(part: str, rows: dict[str, tuple[Work, dict[str, Any]]], quick: bool) -> int:
    """Search the work of each row, print and save what it took; return 1 if one failed."""
    found = {**machine.facts(), "device": machine.device()}
    entries: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="paceline-bench-cache-") as cache:
        os.environ["PACELINE_CACHE_DIR"] = (
            cache  # before the first search, so that all compile anew
        )
        for name, (work, options) in rows.items():
            try:
                entries[name] = figures(work, options)
            except MissingDataError as reason:
                entries[name] = {"error": str(reason)}
            except Exception as error:  # an error of one row must not end the others
                entries[name] = {"error": f"{type(error).__name__}: {error}".partition("\n")[0]}
            print(f"  {name:28s} {_line(entries[name])}", flush=True)
            entry = {"device": found["device"], **entries[name]}
            machine.gather(f"gpu_{part}{'_tiny' if quick else ''}", found, {name: entry})
    return 1 if any("error" in entries[name] for name in rows) else 0


def figures(work: Work, options: dict[str, Any]) -> dict[str, Any]:
    """Run one search; return its seconds, and the milliseconds of a trial's training step."""
    data = work.data()
    n = len(data[0][0])
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        search = sides.paceline_side(work, data, directory, 1, on_note=_quiet, **options)
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


def _quiet(note: str) -> None:
    """Ignore a note for the user, because the table says enough."""


def _line(entry: dict[str, Any]) -> str:
    if "error" in entry:
        return f"FAILED: {entry['error']}"
    seconds = f"compile {entry['compile_seconds']:5.1f} s  {entry['seconds']:6.1f} s in all"
    rate = f"{entry['examples_per_second']:12,.0f} examples/s"
    return (
        f"{entry['ms_per_trial_step']:8.3f} ms per trial-step {rate}  {seconds}  "
        f"best {entry['best']:.4f}  {', '.join(entry['plans'])}"
    )
