"""Studies that are interrupted on the way, of every kind of checkpoint, for tests that resume them.

The objective is ``val_loss``: other processors round other last bits, which moves no trial past
another, where an accuracy jumps.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import optuna

import paceline
from toys import CLASSES, FEATURES, data

_SECONDS = "PACELINE_CHECKPOINT_SECONDS"
X, Y = data(50, 0)
VALIDATION = data(23, 1)


class Batches(keras.utils.PyDataset):
    """The training data, a batch at a time."""

    def __len__(self) -> int:
        return len(X) // 10

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(10 * index, 10 * index + 10)
        return X[rows], Y[rows]


# -- models ----------------------------------------------------------------------------------------


def compiled(hp: Any, *layers: keras.Layer) -> keras.Model:
    last = keras.layers.Dense(CLASSES, activation="softmax")
    model = keras.Sequential([keras.Input((FEATURES,)), *layers, last])
    rate = hp.Float("lr", 1e-3, 1e-1, sampling="log")
    model.compile(
        keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def softmax(hp: Any) -> keras.Model:
    """One program, a rate."""
    return compiled(hp)


def dropout(hp: Any) -> keras.Model:
    """One program, and seeds that checkpoints hold."""
    return compiled(
        hp,
        keras.layers.Dense(4, activation="relu"),
        keras.layers.Dropout(hp.Float("dropout", 0.1, 0.5)),
    )


def lengths(hp: Any) -> keras.Model:
    """As ``dropout``; trials train for different numbers of epochs."""
    hp.Choice("epochs", [2, 3, 5])
    return dropout(hp)


def families(hp: Any) -> keras.Model:
    """Two structures, rates beside them."""
    activation = hp.Choice("activation", ["relu", "elu"])
    return compiled(hp, keras.layers.Dense(4, activation=activation))


def grid(hp: Any) -> keras.Model:
    """Eight configurations of one program."""
    model = compiled(hp)
    model.optimizer.learning_rate = hp.Choice("rate", [0.0005, 0.002, 0.005, 0.01, 0.02, 0.05])
    return model


def averaged(hp: Any) -> keras.Model:
    """As ``dropout``, with weights that ``fit`` makes averages of at its end."""
    model = dropout(hp)
    optimizer = keras.optimizers.SGD(hp.get("lr"), momentum=0.5, use_ema=True, ema_momentum=0.7)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


# -- callbacks -------------------------------------------------------------------------------------


class Counts(keras.callbacks.Callback):
    """Moves the weights by what it has counted: an array, a number, a list and a mapping."""

    model: Any

    def __init__(self) -> None:
        super().__init__()
        self.epochs, self.sums = 0, np.zeros(2)
        self.losses: list[float] = []
        self.best: dict[str, float] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs += 1
        self.sums = self.sums + np.array([logs["loss"], 1.0])
        self.losses.append(float(logs["loss"]))
        self.best["loss"] = min(self.losses)
        bias = self.model.trainable_variables[-1]
        bias.assign(bias + 1e-2 * self.epochs + 1e-3 * self.sums[0])
        logs["counted"] = float(self.sums.sum()) + self.best["loss"]


def callbacks() -> list[Any]:
    return [
        Counts(),
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=0, min_delta=0.1),
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
    ]


# -- searches --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A search that is interrupted.

    Attributes:
        build: Builds its models.
        stop: What is counted ("build", "prune", "batch" or "callback"), and at which the search is
            interrupted.
        tuner: Arguments of ``Tuner``.
        search: Arguments of ``search``, beside data.
        first: Those in which a search before it differed; None: there was none.
        callbacks: Makes callbacks; None without.
        batches: Whether training data come in batches.
    """

    build: Callable[[Any], keras.Model]
    stop: tuple[str, int]
    tuner: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    first: Mapping[str, Any] | None = None
    callbacks: Callable[[], list[Any]] | None = None
    batches: bool = False


def epochs_of(hp: Any) -> int:
    return hp.get("epochs")


CASES = {
    # A pack with live slots, another structure that waits, two best models, a journal.
    "families": Case(families, ("build", 11), {"keep_best": 2}, {"n_trials": 12, "epochs": 3}),
    # Trials of one pack at different epochs, no families.
    "lengths": Case(lengths, ("build", 7), {}, {"n_trials": 9, "epochs": epochs_of}),
    # SQLite, TPE that has its ten trials to begin with, and median pruning.
    "sqlite": Case(
        softmax,
        ("prune", 32),
        {"storage": "sqlite:///runs/s/s.db", "sampler": "tpe", "pruner": "median"},
        {"n_trials": 16, "epochs": 4},
    ),
    "percentile": Case(
        softmax,
        ("prune", 22),
        {"sampler": "qmc", "pruner": "percentile:40", "plan": "sequential"},
        {"n_trials": 10, "epochs": 4},
    ),
    "hyperband": Case(
        softmax, ("prune", 30), {"pruner": "hyperband"}, {"n_trials": 10, "epochs": 9}
    ),
    "threshold": Case(
        grid, ("prune", 13), {"sampler": "grid", "pruner": "threshold:1.3"}, {"epochs": 4}
    ),
    # Paused trials of two structures, and TPE.
    "asha": Case(
        families,
        ("build", 16),
        {"sampler": "tpe", "pruner": "asha:1:2"},
        {"n_trials": 16, "epochs": 4},
    ),
    "folds": Case(
        softmax,
        ("prune", 5),
        {"pruner": "wilcoxon:0.3", "parallel_trials": 4},
        {"n_trials": 8, "epochs": 3, "folds": 3},
    ),
    "repeats": Case(
        dropout,
        ("prune", 11),
        {"pruner": "percentile:60", "parallel_trials": 3},
        {"n_trials": 8, "epochs": 3, "repeats": 2},
    ),
    # Callbacks of trials in packs, and patience.
    "callbacks": Case(
        dropout,
        ("callback", 13),
        {"pruner": "patience:2"},
        {"n_trials": 4, "epochs": 5},
        callbacks=callbacks,
    ),
    "fit": Case(
        averaged,
        ("callback", 7),
        {"executor": "fit"},
        {"n_trials": 3, "epochs": 4},
        callbacks=callbacks,
    ),
    # The best of a search that has ended go on to more epochs.
    "longer": Case(
        dropout,
        ("build", 3),
        {"keep_best": 2},
        {"n_trials": 7, "epochs": 5, "continue_best": 2},
        first={"n_trials": 4, "epochs": 3, "continue_best": None},
    ),
    "batches": Case(softmax, ("batch", 25), {}, {"n_trials": 5, "epochs": 3}, batches=True),
}


def tuner(name: str, study: str = "s", **more: Any) -> paceline.Tuner:
    """A tuner of a case, whose study is below the working folder.

    Args:
        name: Of the case.
        study: Of the study; another one has a storage of its own.
        more: Other arguments of ``Tuner``.
    """
    arguments = {"sampler": "random", "parallel_trials": 2, **CASES[name].tuner}
    if "storage" in arguments:
        arguments["storage"] = arguments["storage"].replace("s/s.db", f"{study}/s.db")
        Path("runs", study).mkdir(parents=True, exist_ok=True)
    found = CASES[name].build
    return paceline.Tuner(found, "val_loss", study=study, **(arguments | {"on_note": _no} | more))


def search(name: str, found: paceline.Tuner, stop: bool = False) -> None:
    """Searches as a case does, to the end of what ``tuner`` was made for.

    Args:
        name: Of the case.
        found: From ``tuner``.
        stop: Whether to interrupt the search.

    Raises:
        KeyboardInterrupt: It was interrupted.
    """
    case = CASES[name]
    call = dict(case.search)
    if case.first is not None and not _rows(found):
        _call(case, found, call | dict(case.first))
    if not stop:
        _call(case, found, call)
        return
    with _interrupting(*case.stop):
        _call(case, found, call)


def _call(case: Case, found: paceline.Tuner, call: dict[str, Any]) -> None:
    if "folds" not in call:
        call["validation_data"] = VALIDATION
    if case.callbacks is not None:
        call["callbacks"] = case.callbacks()
    if case.batches:
        found.search(Batches(), **call)
    else:
        found.search(X, Y, batch_size=16, **call)


def _rows(found: paceline.Tuner) -> int:
    try:
        return len(found.results())
    except paceline.StudyError:  # there is none yet
        return 0


def _no(note: str) -> None:
    """Says nothing."""


@contextmanager
def _interrupting(what: str, number: int) -> Iterator[None]:
    """A block that gets Ctrl-C when something happens for the n-th time: see ``_PLACES``."""
    count = itertools.count(1)  # a number bound anew would be what all trials' callbacks share

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if next(count) == number:
                os.kill(os.getpid(), signal.SIGINT)
            return original(*arguments, **named)

        return call

    before = [(owner, method, vars(owner)[method]) for owner, method in _PLACES[what]]
    for owner, method, original in before:
        setattr(owner, method, counted(original))
    try:
        yield
    finally:
        for owner, method, original in before:
            setattr(owner, method, original)


#: What is counted -> the methods whose calls it is, all of Keras, Optuna or this file: they are
#: called by the thread that searches, at a place that does not depend on time.
_PLACES: dict[str, list[tuple[Any, str]]] = {
    "build": [(sys.modules[__name__], "compiled")],
    "prune": [
        (optuna.pruners.PercentilePruner, "prune"),  # the median is one of them
        (optuna.pruners.HyperbandPruner, "prune"),
        (optuna.pruners.ThresholdPruner, "prune"),
        (optuna.pruners.WilcoxonPruner, "prune"),
    ],
    "callback": [(Counts, "on_epoch_end")],
    "batch": [(Batches, "__getitem__")],
}


# -- what is on disk -------------------------------------------------------------------------------


def interrupted(name: str, **more: Any) -> None:
    """Has the search of a case interrupted, in ``runs/s`` below the working folder.

    A checkpoint is written after each epoch, so that two are there that trials go on from.

    Args:
        name: Of the case.
        more: Other arguments of ``Tuner``.

    Raises:
        RuntimeError: It came to its end all the same, or left no checkpoint.
    """
    before = os.environ.get(_SECONDS)
    os.environ[_SECONDS] = "0"
    try:
        search(name, tuner(name, **more), stop=True)
    except KeyboardInterrupt:
        pass
    else:
        raise RuntimeError(f"{name}: the search ended before it was interrupted; mend its stop")
    finally:
        del os.environ[_SECONDS]
        if before is not None:
            os.environ[_SECONDS] = before
    if not list(Path("runs/s/checkpoints").glob("checkpoint-*")):
        raise RuntimeError(f"{name}: no checkpoint was written; mend its stop")


def write(name: str, folder: Path) -> None:
    """Writes the study of a case, as it is on disk once it is interrupted, as ``folder / name``."""
    shutil.rmtree("runs", ignore_errors=True)
    interrupted(name)
    shutil.copytree("runs/s", folder / name, ignore=shutil.ignore_patterns("*.lock", "workers"))
    shutil.rmtree("runs")
