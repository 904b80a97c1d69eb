"""``pruner="auto"``, and what a search without a pruner does whose end is a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import paceline

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(32, 4)).astype("float32"), RNG.integers(0, 2, 32)
DATA: dict[str, Any] = {"validation_split": 0.25, "batch_size": 12}


def build(hp: Any) -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
    rate = hp.Float("lr", 1e-4, 1e-2, sampling="log")
    hp.Choice("kind", ["a", "b"])
    loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.SGD(rate), loss, metrics=["accuracy"])
    return model


def searched(
    study: str = "s", pruner: Any = None, *, epochs: Any = 4, **arguments: Any
) -> tuple[paceline.Tuner, list[str]]:
    """The search, and what it said of its pruner."""
    notes: list[str] = []
    settings = {name: arguments.pop(name) for name in ("executor", "sampler") if name in arguments}
    tuner = paceline.Tuner(
        build, "val_loss", study, pruner=pruner, on_note=notes.append, seed=1, **settings
    )
    tuner.search(X, Y, epochs=epochs, **{"n_trials": 6, **DATA, **arguments})
    return tuner, [note for note in notes if note.startswith("pruner")]


def meta(tuner: paceline.Tuner) -> tuple[Any, Any]:
    stored = tuner.optuna_study().user_attrs["paceline"]
    return stored["pruner"], stored.get("pruner_reason")


def test_where_time_ends_a_search_asha_is_chosen_and_kept(fresh_folder: Path) -> None:
    tuner, notes = searched(timeout=1000.0)
    why = "time ends the search, and trials have 4 epochs"
    assert notes == [
        f'pruner: "auto" chose asha:1:3: {why} '
        '(to train all trials to their end, use pruner="none")'
    ]
    assert meta(tuner) == ("asha:1:3", why)
    assert set(tuner.results()["state"]) == {"complete", "pruned"}

    tuner, notes = searched(n_trials="+2")  # no time limit now: the study's own pruner goes on
    assert notes == [f'pruner: "auto" keeps asha:1:3: {why}']
    assert meta(tuner) == ("asha:1:3", why)


def test_without_a_time_limit_nothing_is_chosen(fresh_folder: Path) -> None:
    tuner, notes = searched(n_trials=3)
    assert notes == []
    assert meta(tuner) == (None, None)
    assert set(tuner.results()["state"]) == {"complete"}
    tuner, notes = searched(n_trials="+1", timeout=1000.0)  # its trials were not stopped before
    assert (notes, meta(tuner)) == ([], (None, None))


def test_none_is_none(fresh_folder: Path) -> None:
    tuner, notes = searched(pruner="none", n_trials=3, timeout=1000.0)
    assert (notes, meta(tuner)) == ([], (None, None))
    assert set(tuner.results()["state"]) == {"complete"}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"epochs": 3}, "trials have 3 epochs"),
        ({"repeats": 2}, "trials have repeats or folds"),
        ({"epochs": lambda hp: 4}, "epochs depend on hp"),
        ({"validation_freq": 2}, "some epochs are not validated"),
        ({"executor": "fit"}, "trials train in Keras' fit, where they cannot be paused"),
    ],
)
def test_why_auto_chooses_none(arguments: dict[str, Any], why: str, fresh_folder: Path) -> None:
    tuner, notes = searched(pruner="auto", n_trials=2, **arguments)
    assert notes == [f'pruner: "auto" chose none: {why}']
    assert meta(tuner) == (None, None)


def test_several_objectives_have_no_pruner(fresh_folder: Path) -> None:
    notes: list[str] = []
    tuner = paceline.Tuner(
        build, ["val_loss", "val_accuracy"], "s", pruner="auto", on_note=notes.append
    )
    tuner.search(X, Y, epochs=4, n_trials=2, **DATA)
    assert 'pruner: "auto" chose none: there are several objectives' in notes


def test_auto_chooses_asha_without_a_time_limit_too(fresh_folder: Path) -> None:
    tuner, _ = searched(pruner="auto")
    assert meta(tuner) == ("asha:1:3", "trials have 4 epochs")


def test_where_time_ends_a_search_it_begins_in_the_middle(fresh_folder: Path) -> None:
    tuner, _ = searched(n_trials=1, timeout=1000.0)
    assert tuner.trial(0).hparams == {"lr": pytest.approx(1e-3), "kind": "a"}
    other, _ = searched("other", n_trials=1)
    assert other.trial(0).hparams["lr"] != pytest.approx(1e-3)
    chosen, _ = searched("chosen", n_trials=1, timeout=1000.0, sampler="random")
    assert chosen.trial(0).hparams["lr"] != pytest.approx(1e-3)
