"""What Paceline adds to Keras' own loop, and what callbacks cost a pack.

Asserted: a trial in the ``fit`` executor takes at most 5 % longer than ``fit`` called by hand. The
time that EarlyStopping and ReduceLROnPlateau add to a trial's epoch in a pack is printed.

    python benchmarks/fit.py [--quick]

Runs on any Keras backend (KERAS_BACKEND); the second part needs JAX.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import machine
import numpy as np

import paceline
from paceline.executor.base import Job
from paceline.executor.fit import FitExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import random_state_kept
from paceline.search_space import HyperParameters

#: The fit executor may take this many times as long as Keras' own loop.
ALLOWED = 1.05
ROUNDS = 7


def data(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return examples whose class can be learned from the features."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, n)
    x = rng.normal(size=(n, 64)).astype("float32")
    x[np.arange(n), y] += 2.0
    return x, y


def build(hp: Any) -> keras.Model:
    """Build a small dense classifier."""
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dropout(hp.Float("dropout", 0.1, 0.5)),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    rate = hp.Float("lr", 1e-3, 1e-1, sampling="log")
    model.compile(
        keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def executor_beside_loop(n: int, epochs: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of a trial in Keras' own loop and in the executor, run in turns."""
    x, y = data(n)
    arguments = {"x": x, "y": y, "validation_data": data(n // 5)}
    made, hparams = ModelBuilder(build), {"dropout": 0.2, "lr": 0.01}

    def model() -> Any:
        return made(HyperParameters(values=hparams), 7)

    def by_hand() -> None:
        model().fit(**arguments, batch_size=32, epochs=epochs, verbose=0)

    def in_executor() -> None:
        executor = FitExecutor(arguments)
        executor.submit(Job(0, 7, epochs, 32, None, model))

        def failed(number: int, error: BaseException) -> None:
            raise error

        executor.advance(lambda report: "continue", lambda: False, failed)

    sides: dict[str, Callable[[], None]] = {"keras": by_hand, "executor": in_executor}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    with random_state_kept():
        for each in sides.values():
            each()  # compiles, where a cache keeps it
        for turn in range(rounds):
            for name, run in list(sides.items())[:: 1 if turn % 2 else -1]:
                began = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    pairs = zip(seconds["executor"], seconds["keras"], strict=True)
    return {
        "examples": n,
        "epochs": epochs,
        "seconds": medians,
        "ratio": statistics.median(a / b for a, b in pairs),
    }


def callbacks_in_packs(n: int, epochs: int, n_trials: int) -> dict[str, Any]:
    """Return seconds of training in packs, without callbacks and with two that run every epoch."""
    x, y = data(n)
    found: dict[str, Any] = {"trials": n_trials, "epochs": epochs}
    given = {
        "none": None,
        "two": [
            keras.callbacks.EarlyStopping("val_loss", patience=10**6, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau("val_loss", patience=2),
        ],
    }
    for turn in range(2):  # the first compiles
        for name, callbacks in given.items():
            with tempfile.TemporaryDirectory() as folder:
                tuner = paceline.Tuner(
                    *(build,),
                    sampler="random",
                    directory=folder,
                    on_note=lambda _: None,
                )
                began = time.perf_counter()
                tuner.search(
                    *(x, y),
                    validation_data=data(n // 5),
                    epochs=epochs,
                    n_trials=n_trials,
                    callbacks=callbacks,
                )
                if turn:
                    found[name] = time.perf_counter() - began
    added = (found["two"] - found["none"]) / (n_trials * epochs)
    return {**found, "ms_per_trial_epoch": 1000 * added}


def main() -> None:
    """Run both parts, and write their results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small, and nothing is asserted")
    quick = parser.parse_args().quick
    backend = keras.backend.backend()
    report: dict[str, Any] = {"machine": machine.facts() | {"backend": backend}}
    report["fit"] = executor_beside_loop(*((320, 2, 1) if quick else (6400, 8, ROUNDS)))
    print(f"fit on {backend}: {report['fit']}")
    if backend == "jax":
        report["machine"]["device"] = machine.device()
        report["packs"] = callbacks_in_packs(*((320, 2, 2) if quick else (1600, 20, 16)))
        print(f"callbacks in packs: {report['packs']}")
    machine.keep(f"fit_{backend}", report)
    assert quick or report["fit"]["ratio"] <= ALLOWED, "the fit executor is slower than it says"


if __name__ == "__main__":
    main()
