"""Searches whose trials share a program although their models differ, and what holds of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import pytest

import paceline
from epoch_reports import observe_reports
from paceline.executor.base import EpochReport

X = np.random.default_rng(0).normal(size=(50, 12)).astype("float32")
Y = np.random.default_rng(1).integers(0, 3, 50)
DATA: dict[str, Any] = {"validation_data": (X[:21], Y[:21]), "batch_size": 16}
Build = Callable[[Any], Any]
_TRIALS = 6


def compiled(*layers: Any, optimizer: Any = "adam") -> keras.Model:
    """A classifier with these hidden layers."""
    head = keras.layers.Dense(3, activation="softmax")
    model = keras.Sequential([keras.Input((12,)), *layers, head])
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def first_of_many_guides(hp: Any) -> Any:
    """It learns its inputs from the data."""
    activation = hp.Choice("activation", ["relu", "elu"])
    hidden = keras.layers.Dense(hp.Int("units", 4, 12, step=4), activation)
    layers = [hidden, keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    model = keras.Sequential([*layers, keras.layers.Dense(3, activation="softmax")])
    optimizer = keras.optimizers.Adam(hp.Choice("lr", [0.1, 0.01, 0.001]))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    assert not model.built
    return model


def grid(
    build: Build, share_widths: bool | str, notes: list[str], **arguments: Any
) -> paceline.Tuner:
    """A search over all configurations, two slots a pack."""
    tuner = paceline.Tuner(
        build,
        sampler="grid",
        study={True: "together", False: "apart"}.get(share_widths, "auto"),
        share_widths=share_widths,
        on_note=notes.append,
        parallel_trials=2,
    )
    tuner.search(X, Y, epochs=2, **(DATA | arguments))
    return tuner


#: What else a search does with its trials: arguments of ``Tuner``, arguments of ``search``.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one after another": ({}, {}),
    "asha": ({"pruner": "asha:1:2"}, {}),
    "repeats": ({}, {"repeats": 2}),
    "folds": ({}, {"folds": 3, "validation_data": None}),
}


def search_kind(build: Build, kind: str, study: str) -> paceline.Tuner:
    """A search of six trials that share a program wherever that is proved."""
    arguments, call = KINDS[kind]
    tuner = paceline.Tuner(
        build,
        sampler="random",
        study=study,
        share_widths=True,
        parallel_trials=2,
        **arguments,
    )
    tuner.search(X, Y, **(DATA | {"epochs": 4, "n_trials": _TRIALS} | call))
    return tuner


def check_each_trial_by_itself(
    build: Build, kind: str, numbers: Iterable[int] = range(_TRIALS)
) -> None:
    """Each trial of these numbers is the one that ``reproduce`` trains by itself."""
    tuner = search_kind(build, kind, "s")
    assert tuner.summary()["programs"]["distinct"] == 1
    call = {name: value for name, value in (DATA | KINDS[kind][1]).items() if value is not None}
    for number in numbers:
        history = tuner.trial(number).history
        alone = tuner.reproduce(number, X, Y, **call).history
        for name, values in history.items():
            # float32's rounding of sums with zeros in between
            np.testing.assert_allclose(alone[name], values, rtol=2e-5, atol=2e-6)


def check_going_on(build: Build, kind: str, stop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that is stopped after so many epochs goes on to the bit."""
    tuners = whole_and_resumed(lambda study: search_kind(build, kind, study), stop, monkeypatch)
    weights = [tuner.best_model().get_weights() for tuner in tuners]
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def whole_and_resumed(
    search: Callable[[str], paceline.Tuner], stop: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[paceline.Tuner, paceline.Tuner]:
    """A search, and the same one stopped after so many epochs and gone on with to the bit.

    Args:
        search: Searches as the study of that name.
        stop: How many epochs are reported before it is stopped.
        monkeypatch: Sets what stops it.
    """
    monkeypatch.setenv("PACELINE_CHECKPOINT_SECONDS", "0")
    left: list[int] = []

    def interrupt(report: EpochReport) -> None:
        if left == [len(epochs)]:
            os.kill(os.getpid(), signal.SIGINT)

    epochs = observe_reports(monkeypatch, before=interrupt)
    whole = search("whole")
    left.append(len(epochs) + stop)
    with pytest.raises(KeyboardInterrupt, match="^$"):
        search("s")
    left.clear()
    resumed = search("s")
    assert len(resumed.results()) == len(whole.results())
    for number in range(len(whole.results())):
        assert resumed.trial(number).history == whole.trial(number).history
    return whole, resumed
