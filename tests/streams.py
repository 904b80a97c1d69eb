"""Data sets in batches for tests, and Keras' own ``fit`` on the same."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

import paceline
import toys

N, BATCH = 50, 16
X, Y = toys.data(N)
XV, YV = toys.data(23, seed=1)


class Batches(keras.utils.PyDataset):
    """Arrays, batch by batch; counts what Keras would tell it."""

    def __init__(self, *arrays: Any, size: int = BATCH, **options: Any) -> None:
        super().__init__(**options)
        self.arrays, self.size, self.ends = arrays or (X, Y), size, 0

    def __len__(self) -> int:
        return math.ceil(len(self.arrays[0]) / self.size)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        part = slice(index * self.size, (index + 1) * self.size)
        return tuple(array[part] for array in self.arrays)

    def on_epoch_end(self) -> None:
        self.ends += 1


class Turning(Batches):
    """Examples in another order after each epoch, the same orders for whoever reads it."""

    def on_epoch_end(self) -> None:
        super().on_epoch_end()
        self.arrays = tuple(np.roll(array, 5, axis=0) for array in self.arrays)


def endless(*arrays: Any, size: int = BATCH) -> Iterator[Any]:
    """Passes one after another, each with its smaller batch."""
    data = Batches(*arrays, size=size)
    while True:
        for index in range(len(data)):
            yield data[index]


def alone(trial: Any, build: Callable[[Any], Any], *data: Any, **arguments: Any) -> dict[str, Any]:
    """The history of Keras' own ``fit`` from a trial's seed."""
    keras.utils.set_random_seed(trial.seed)
    model = build(paceline.HyperParameters(values=trial.hparams))
    with warnings.catch_warnings():
        # Where only reading tells the length, or epochs cut a pass, Keras says it each time.
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        return model.fit(*data, verbose=0, **arguments).history


def search(x: Any, name: str = "s", build: Any = None, **arguments: Any) -> paceline.Tuner:
    """Four trials in packs of three."""
    options = {"executor": "packed", "parallel_trials": 3, "sampler": "random", "objective": "loss"}
    options |= {key: arguments.pop(key) for key in list(arguments) if key in _OPTIONS}
    notes = options.pop("notes", lambda text: None)
    tuner = paceline.Tuner(build or toys.dense, study=name, on_note=notes, **options)
    tuner.search(x, **({"epochs": 2, "n_trials": 4, "shuffle": False} | arguments))
    return tuner


_OPTIONS = (
    "executor",
    "parallel_trials",
    "sampler",
    "objective",
    "on_note",
    "plan",
    "mesh",
    "pruner",
)


def same(tuner: paceline.Tuner, number: int, expected: dict[str, Any]) -> None:
    """A trial's history is Keras'.

    1e-5: float32, a few steps; 4e-7 measured.
    """
    history = tuner.history(number)
    assert set(history) == set(expected)
    for name, values in expected.items():
        ours = [value for value in history[name] if not np.isnan(value)]
        np.testing.assert_allclose(ours, values, rtol=1e-5, atol=1e-6, err_msg=name)
