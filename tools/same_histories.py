"""Runs one fixed search of each kind, and compares the histories of two checkouts to the bit.

    python tools/same_histories.py write before.json    # in one checkout
    python tools/same_histories.py write after.json     # in the other
    python tools/same_histories.py compare before.json after.json

For changes that must change nothing. Both files must come from the same machine and the same
packages. The exit code of `compare` is 1 if a history differs.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paceline  # before keras

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import keras
import numpy as np

import toys

X, Y = toys.data(60)
CALL: dict[str, Any] = {"validation_data": toys.data(20, seed=1), "batch_size": 16, "verbose": 0}
Histories = dict[str, dict[str, list[float]]]


def widths(hp: Any) -> keras.Model:
    """Widths, activations, dropout and two optimizers."""
    model = keras.Sequential(
        [
            keras.Input((toys.FEATURES,)),
            keras.layers.Dense(hp.Int("first", 4, 16, step=4), hp.Choice("act", ["relu", "tanh"])),
            keras.layers.Dropout(hp.Float("rate", 0.0, 0.4, step=0.2)),
            keras.layers.Dense(hp.Choice("second", [5, 9]), "relu"),
            keras.layers.Dense(toys.CLASSES, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.get(hp.Choice("optimizer", ["adam", "sgd"]))
    optimizer.learning_rate = hp.Float("lr", 1e-3, 1e-1, sampling="log")
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def tuned(build: Callable[[Any], Any], tuner: dict[str, Any], search: dict[str, Any]) -> Histories:
    """The histories of a search with `Tuner`."""
    found = paceline.Tuner(build, study="s", on_note=lambda text: None, **tuner)
    found.search(X, Y, **{**CALL, "epochs": 4, "n_trials": 16, **search})
    return histories(found)


def histories(tuner: paceline.Tuner) -> Histories:
    """Trial -> its values, history and state."""
    trials = [tuner.trial(int(number)) for number in tuner.results()["number"]]
    return {
        f"{each.number} {each.state} {each.seed} {sorted(each.hparams.items())}": each.history
        for each in trials
    }


def resumed() -> Histories:
    """A search that is stopped after some epochs and continued."""
    seen = [0]

    def stop(now: Any) -> bool:
        seen[0] = now.trial_epochs
        return now.trial_epochs < 20

    arguments: dict[str, Any] = {"study": "s", "pruner": "asha", "on_note": lambda text: None}
    call = {**CALL, "epochs": 9, "n_trials": 20}
    paceline.Tuner(toys.dense, on_progress=stop, **arguments).search(X, Y, **call)
    again = paceline.Tuner(toys.dense, **arguments)
    again.search(X, Y, **call)
    return histories(again)


def keras_tuner() -> Histories:
    """KerasTuner's Hyperband."""
    from paceline.compat import keras_tuner as kt

    tuner = kt.Hyperband(widths, "val_accuracy", max_epochs=6, factor=3, seed=1, directory="kt")
    tuner.search(X, Y, **CALL)
    return {
        f"{name} {trial.hyperparameters.values}": {
            metric: [one.value for one in trial.metrics.get_history(metric)]
            for metric in trial.metrics.metrics
        }
        for name, trial in sorted(tuner.oracle.trials.items())
    }


def talos() -> Histories:
    """A scan of Talos."""
    from paceline.compat import talos as ta

    def model(x: Any, y: Any, xv: Any, yv: Any, params: dict[str, Any]) -> Any:
        made = toys.dense_with(paceline.HyperParameters(values={"lr": params["lr"]}), params["act"])
        out = made.fit(x, y, validation_data=(xv, yv), epochs=3, batch_size=16, verbose=0)
        return out, made

    held_out = CALL["validation_data"]
    params = {"lr": [0.01, 0.03], "act": ["relu", "tanh"]}
    scan = ta.Scan(
        X, Y, params, model, "scan", *held_out, disable_progress_bar=True, print_params=False
    )
    names = [name for name in scan.data.columns if name not in ("start", "end", "duration")]
    return {str(i): {n: [row[n]] for n in names} for i, row in scan.data[names].iterrows()}


KINDS: dict[str, Callable[[], Histories]] = {
    "numbers": lambda: tuned(toys.dense, {"sampler": "random"}, {}),
    "tpe": lambda: tuned(toys.dense, {}, {"n_trials": 24}),
    "widths": lambda: tuned(widths, {"sampler": "random"}, {}),
    "widths, tpe": lambda: tuned(widths, {}, {"n_trials": 24}),
    "time": lambda: tuned(widths, {}, {"n_trials": 30, "timeout": 1e6}),
    "grid": lambda: tuned(toys.dense, {"sampler": "grid"}, {"n_trials": 8}),
    "asha": lambda: tuned(toys.dense, {"pruner": "asha"}, {"epochs": 9, "n_trials": 20}),
    "median": lambda: tuned(widths, {"pruner": "median"}, {"epochs": 6}),
    "populations": lambda: tuned(toys.dense, {"pruner": "pbt:2"}, {"epochs": 6, "n_trials": 6}),
    "folds": lambda: tuned(toys.dense, {}, {"folds": 3, "n_trials": 6, "validation_data": None}),
    "repeats": lambda: tuned(widths, {}, {"repeats": 2, "n_trials": 6}),
    "objectives": lambda: tuned(widths, {"objective": ["val_accuracy", "params"]}, {}),
    "fit": lambda: tuned(toys.dense, {"executor": "fit"}, {"n_trials": 3}),
    "resumed": resumed,
    "keras_tuner": keras_tuner,
    "talos": talos,
}


def write(path: Path) -> None:
    """Runs all searches, and writes what came of them."""
    found = {}
    for kind, search in KINDS.items():
        keras.utils.set_random_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            found[kind] = search()
            os.chdir(path.parent)
        print(f"{kind}: {len(found[kind])} trials", flush=True)
    path.write_text(json.dumps(found, indent=1, default=_plain), encoding="utf-8")


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def compare(one: Path, other: Path) -> int:
    """Prints which searches differ; returns the exit code."""
    before, after = (json.loads(path.read_text(encoding="utf-8")) for path in (one, other))
    differ = [kind for kind in {**before, **after} if before.get(kind) != after.get(kind)]
    for kind in {**before, **after}:
        print(f"{kind}: {'DIFFERS' if kind in differ else 'the same'}")
    return int(bool(differ))


def main(words: list[str]) -> int:
    """Runs the command line."""
    if len(words) == 2 and words[0] == "write":
        write(Path(words[1]).absolute())
        return 0
    if len(words) == 3 and words[0] == "compare":
        return compare(Path(words[1]), Path(words[2]))
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
