"""Clusters whose machines are objects of the test's process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

import paceline
import toys
from in_process_pool import Fault, InProcessPool
from paceline.executor.remote.cluster import Cluster
from paceline.executor.remote.host import Host, HostOptions

#: x f32[N, 4], y i64[N]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 4)).astype("float32")
Y = (X[:, 0] + X[:, 1] > 0).astype("int64")
DATA = {"x": X, "y": Y, "validation_data": (X[:16], Y[:16])}


class InProcessCluster(Cluster):
    """A cluster of machines in this process.

    Args:
        n: How many there are.
        fault: As of ``InProcessPool``.
        choose: As of ``InProcessPool``.
        elsewhere: As of ``HostOptions``.

    Attributes:
        pool: The pool of the last search.
    """

    name = "ray"

    def __init__(
        self,
        n: int = 2,
        fault: Callable[[str, int], Fault | None] = lambda host, number: None,
        choose: Callable[[list[str]], str] = lambda names: names[0],
        elsewhere: bool = False,
    ) -> None:
        self.n, self.fault, self.choose, self.elsewhere = n, fault, choose, elsewhere
        self.pool: InProcessPool

    def connect(
        self, job_factory: Any, options: HostOptions, note: Callable[[str], None]
    ) -> InProcessPool:
        """Machines that share this process' set-up."""

        options = replace(options, elsewhere=self.elsewhere)

        def make() -> Host:
            return Host(job_factory, options, own_process=False)

        self.pool = InProcessPool(make, self.n, self.fault, self.choose)
        return self.pool


def dense(features: int, units: int, dropout: float, classes: int) -> Any:
    """A model of one hidden layer."""
    return keras.Sequential(
        [
            keras.Input((features,)),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(classes, activation="softmax"),
        ]
    )


def build(hp: Any) -> Any:
    """A small classifier; nothing of its structure depends on hp."""
    model = dense(4, 8, hp.Float("dropout", 0.1, 0.5), 2)
    return toys.compiled(model, hp.Float("rate", 1e-3, 1e-1, sampling="log"))


def build_families(hp: Any) -> Any:
    """A small classifier of several structures."""
    layers = [
        keras.layers.Dense(hp.Choice("units", [4, 8]), activation="relu")
        for _ in range(hp.Int("layers", 1, 2))
    ]
    model = keras.Sequential(
        [keras.Input((4,)), *layers, keras.layers.Dense(2, activation="softmax")]
    )
    return toys.compiled(model, hp.Float("rate", 1e-3, 1e-1, sampling="log"))


def build_digits(hp: Any) -> Any:
    """A classifier of handwritten digits; nothing of its structure depends on hp."""
    model = dense(64, 32, hp.Float("dropout", 0.1, 0.5), 10)
    return toys.compiled(model, hp.Float("rate", 1e-3, 1e-1, sampling="log"))


def build_grid(hp: Any) -> Any:
    """A small classifier of a space with an end."""
    model = dense(4, 8, hp.Choice("dropout", [0.1, 0.2, 0.4]), 2)
    return toys.compiled(model, hp.Choice("rate", [0.003, 0.01, 0.03]))


def searched(
    executor: Any,
    study: str,
    make: Callable[[Any], Any] = build,
    notes: list[str] | None = None,
    search: dict[str, Any] | None = None,
    **tuner: Any,
) -> paceline.Tuner:
    """A search of a small space, by random draws unless ``tuner`` says something else.

    Args:
        executor: As of ``Tuner``.
        study: Its name.
        make: The build.
        notes: Gets what the search tells.
        search: Further arguments of ``search``.
        **tuner: Further arguments of ``Tuner``.
    """
    told = [] if notes is None else notes
    arguments = {
        "sampler": "random",
        "parallel_trials": 2,
        "plan": "vectorized",
        "objective": "val_loss",
    }
    found = paceline.Tuner(
        make, study=study, executor=executor, on_note=told.append, **{**arguments, **tuner}
    )
    found.search(**{**DATA, "epochs": 3, "batch_size": 16, "n_trials": 8, **(search or {})})
    return found


def trials(tuner: paceline.Tuner) -> list[Any]:
    """All trials of a study."""
    return [tuner.trial(number) for number in sorted(tuner.results()["number"])]


def records(tuner: paceline.Tuner) -> list[Any]:
    """All that must not depend on where trials were trained."""
    return [
        (trial.number, trial.state, trial.hparams, trial.seed, trial.value, trial.history)
        for trial in trials(tuner)
    ]


def differences(found: paceline.Tuner, alone: paceline.Tuner) -> list[int]:
    """The trials whose histories are others than on one machine; -1: some are not there.

    Of a trial that a pruner stopped, the epochs until then are compared.
    """
    whole = {trial.number: trial.history for trial in trials(alone)}
    wrong = []
    for trial in trials(found):
        expected = whole.get(trial.number, {})
        cut = trial.epochs if trial.state == "pruned" else None
        same = trial.history == {name: values[:cut] for name, values in expected.items()}
        if not same or (cut is None and log_of(found, trial) != log_of(alone, trial)):
            wrong.append(trial.number)
    return wrong if len(trials(found)) == len(whole) else [*wrong, -1]


def log_of(tuner: paceline.Tuner, trial: Any) -> bytes | None:
    """What the ``CSVLogger("log.csv")`` of a trial has written; None without one."""
    path = Path("runs") / tuner.name / "trials" / str(trial.number) / "log.csv"
    return path.read_bytes() if path.exists() else None


#: Name -> the build, further arguments of the tuner, and of its search: whose machines are killed.
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "random": (build, {}, {"n_trials": 12, "epochs": 8}),
    "families": (build_families, {}, {"n_trials": 10, "epochs": 4}),
    "asha": (build, {"pruner": "asha:1:2"}, {"n_trials": 10, "epochs": 4}),
    "repeats": (build, {}, {"n_trials": 5, "epochs": 4, "repeats": 2}),
    "files": (
        build,
        {},
        {"n_trials": 8, "epochs": 6, "callbacks": [keras.callbacks.CSVLogger("log.csv")]},
    ),
}


def slow_elsewhere(seconds: float) -> Any:
    """``build``, which takes long in any other process than this one."""
    here = os.getpid()

    def build_slowly(hp: Any) -> Any:
        if os.getpid() != here:
            time.sleep(seconds)
        return build(hp)

    return build_slowly
