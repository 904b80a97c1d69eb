"""Code that fits for itself, with one line changed and as it was: whole processes, cold.

    python benchmarks/any_fits.py
    python benchmarks/any_fits.py --works loop --quick  # a quarter of the calls; no floor checked
    python benchmarks/any_fits.py --backend tensorflow --python PYTHON  # in such sessions

Works
    optuna: an objective with a dense network on scikit-learn's digits, 64 trials of 10 epochs.
    pruned: the same with a callback that reports and prunes.
    widths: the same with widths from 16 to 128.
    mnist, gru: objectives around the models and data of ``works.py`` of these names.
    loop: a function called with 32 configurations.

Each side runs in a process of its own, whose time counts from its start to its end: imports, data,
compiling, training. ``paceline`` has the changed line; ``original`` is the code as it was. Keras is
on JAX, or on ``--backend``; PYTHON is an interpreter with that backend and Paceline's dependencies.
PACELINE_DATA names the folder of the data of mnist and gru.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import machine
import works
from sides import Suggest

#: Work -> number of trials, and how many times as fast as the original Paceline has to be.
WORKS = {
    "optuna": (64, 12.0),
    "pruned": (64, 8.0),
    "widths": (64, 4.0),
    "mnist": (8, 3.0),
    "gru": (8, 2.0),
    "loop": (32, 10.0),
}
SIDES = ("paceline", "original")
EPOCHS = 10


def fitted(
    units: int, dropout: float, rate: float, callbacks: tuple[Any, ...] = ()
) -> dict[str, list[float]]:
    """Trains a network of the digits; returns its history."""
    import keras

    import paceline

    (x, y), validation_data = paceline.datasets.digits()
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model.fit(
        x,
        y,
        validation_data=validation_data,
        epochs=EPOCHS,
        callbacks=list(callbacks),
        verbose=0,
    ).history


def pruning_callback(trial: Any) -> Any:
    """Returns a callback as Optuna's own for Keras."""
    import keras
    import optuna

    class Pruning(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            trial.report((logs or {})["val_accuracy"], epoch)
            if trial.should_prune():
                raise optuna.TrialPruned(f"at epoch {epoch}")

    return Pruning()


def objective_of(work: str) -> Callable[[Any], float]:
    """Returns the objective of a work with Optuna."""
    if work in works.WORKS:
        return objective_around(works.WORKS[work])

    def objective(trial: Any) -> float:
        high = 128 if work == "widths" else 64
        units = trial.suggest_int("units", 16, high, step=16)
        dropout = trial.suggest_float("dropout", 0.1, 0.5)
        rate = trial.suggest_float("lr", 1e-4, 1e-2, log=True)
        callbacks = (pruning_callback(trial),) if work == "pruned" else ()
        return fitted(units, dropout, rate, callbacks)["val_accuracy"][-1]

    return objective


def objective_around(work: works.Work) -> Callable[[Any], float]:
    """Returns an objective that builds and trains the model of a work."""
    build = work.build()
    (x, y), validation_data = work.data()

    def objective(trial: Any) -> float:
        options = {"epochs": work.epochs, "batch_size": work.batch_size, "verbose": 0}
        history = build(Suggest(trial)).fit(x, y, validation_data=validation_data, **options)
        return history.history[work.objective][-1]

    return objective


def searched(work: str, side: str, n_trials: int) -> dict[str, Any]:
    """Runs a search with Optuna; returns what came of it."""
    import paceline  # noqa: F401, I001, RUF100 - the first import: Keras on JAX

    if side == "paceline":
        from paceline.compat import optuna
    else:
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective_of(work), n_trials=n_trials)
    states = [trial.state.name for trial in study.trials]
    return {"best": study.best_value, "pruned": states.count("PRUNED")}


def looped(side: str, n_calls: int) -> dict[str, Any]:
    """Calls a function with each configuration; returns the best value."""
    import paceline

    rates = [10 ** (-4 + 2 * i / n_calls) for i in range(n_calls)]

    def train(rate: float) -> float:
        return fitted(64, 0.2, rate)["val_accuracy"][-1]

    results = paceline.map(train, rates, seeds=0) if side == "paceline" else map(train, rates)
    return {"best": max(results)}


def run(
    script: str,
    work: str,
    side: str,
    n_trials: int,
    *,
    python: str = sys.executable,
    backend: str = "jax",
) -> dict[str, Any]:
    """Runs a side in a process of its own, with empty caches; returns its seconds and results.

    ``script`` takes the options --side, --works and --trials, and prints the results last, as JSON.
    """
    with tempfile.TemporaryDirectory() as folder:
        own = {"XDG_CACHE_HOME": folder, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment = machine.fresh_environment() | own
        began = time.perf_counter()
        outcome = subprocess.run(
            [python, script, "--side", side, "--works", work, "--trials", str(n_trials)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        seconds = time.perf_counter() - began
    return {"seconds": round(seconds, 1), **json.loads(outcome.stdout.splitlines()[-1])}


def main() -> None:
    """Measures the works, and fails where one is slower than promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--works", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results")
    parser.add_argument("--backend", choices=("jax", "tensorflow", "torch"), default="jax")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--trials", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        (work,) = options.works
        if work == "loop":
            print(json.dumps(looped(options.side, options.trials)))
        else:
            print(json.dumps(searched(work, options.side, options.trials)))
        return
    slow, rows = [], {}
    for work in options.works:
        n_trials, floor = WORKS[work]
        n_trials = n_trials // 4 if options.quick else n_trials
        how = {"python": options.python, "backend": options.backend}
        rows[work] = {side: run(__file__, work, side, n_trials, **how) for side in SIDES}
        times = rows[work]["original"]["seconds"] / rows[work]["paceline"]["seconds"]
        rows[work] |= {"n_trials": n_trials, "times": round(times, 1)}
        print(json.dumps({"work": work, **rows[work]}), flush=True)
        if times < floor and not options.quick:
            slow.append(f"{work}: {times:.1f} times as fast, {floor} wanted")
    if options.keep:
        name = "any_fits" if options.backend == "jax" else f"any_fits_{options.backend}"
        machine.keep(name, {"machine": machine.facts(), "works": rows})
    if slow:
        sys.exit("\n".join(slow))


if __name__ == "__main__":
    main()
