"""What the initial weights of a new width cost, in Keras alone and as within a search.

    python benchmarks/initial_weights.py

Builds dense models of eight widths, one after another, without a cache on disk, and measures the
seconds of each: as Keras alone builds it, and as a search does (``initial_weights`` in
``paceline.program``). The exit code is 1 if the weights differ in a bit, or if a search is not
twice as fast.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

import keras
import machine
import numpy as np

from paceline.program.initial_weights import shared_initializer_programs

WIDTHS = (32, 96, 128, 160, 192, 256, 320, 512)
CLAIM = 2.0


def built(units: int) -> list[np.ndarray]:
    """Build a network of that width and return its weights."""
    keras.utils.set_random_seed(units)
    layers: list[Any] = [keras.Input((784,)), keras.layers.Dense(units), keras.layers.Dense(10)]
    return keras.Sequential(layers).get_weights()


def measure(widths: tuple[int, ...], inside: Any) -> tuple[list[float], list[list[np.ndarray]]]:
    """Return the seconds of each width, and the weights."""
    seconds, weights = [], []
    with inside:
        for units in widths:
            began = time.perf_counter()
            weights.append(built(units))
            seconds.append(time.perf_counter() - began)
    return seconds, weights


def main() -> int:
    """Measure, print, keep; return the exit code."""
    found = machine.facts()
    print(machine.describe(found))
    built(7)  # the programs that all models need
    # As in a search first: it does not use the programs that Keras alone would compile.
    ours, cut = measure(WIDTHS, shared_initializer_programs())
    alone, drawn = measure(WIDTHS, nullcontext())
    for units, one, other in zip(WIDTHS, alone, ours, strict=True):
        print(f"width {units:4d}: alone {one:6.3f} s, in a search {other:6.3f} s")
    same = all(
        np.array_equal(a, b)
        for x, y in zip(cut, drawn, strict=True)
        for a, b in zip(x, y, strict=True)
    )
    ratio = sum(alone) / sum(ours)
    print(f"together: alone {sum(alone):.2f} s, in a search {sum(ours):.2f} s: {ratio:.1f} times")
    report = {"machine": found, "widths": WIDTHS, "alone": alone, "search": ours, "same": same}
    machine.keep("initial_weights", report)
    if not same or ratio < CLAIM:
        print("the weights differ" if not same else "slower than is claimed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
