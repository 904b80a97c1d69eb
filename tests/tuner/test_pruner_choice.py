"""``pruner="auto"``, and what a search without a pruner does whose end is a time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import paceline
from marks import slow_where
from paceline.study.objectives import Objective
from paceline.study.pruners.pruners import check_pruner
from paceline.tuner.arguments.pruner_choice import note_on_averages

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


def normalized(hp: Any) -> Any:
    layers = keras.layers
    frozen = layers.BatchNormalization(momentum=0.999, trainable=False)
    model = keras.Sequential(
        [keras.Input((4,)), layers.BatchNormalization(), frozen, layers.Dense(2, "softmax")]
    )
    model.compile(
        keras.optimizers.SGD(hp.Float("lr", 1e-4, 1e-2)), "sparse_categorical_crossentropy"
    )
    return model


def test_moving_averages_that_are_far_off_are_named_once_before_training(
    fresh_folder: Path,
) -> None:
    notes: list[str] = []
    tuner = paceline.Tuner(normalized, "val_loss", "s", pruner="asha", on_note=notes.append)
    tuner.search(X, Y, epochs=2, n_trials=1, **DATA)
    assert [note for note in notes if "BatchNormalization" in note] == [
        "pruner: it compares trials after 2 steps, when BatchNormalization (momentum 0.99) still "
        'has 98% of its initial averages. Pass pruner="none"'
    ]


def said(
    pruner: Any,
    name: str = "val_loss",
    *,
    steps: int = 94,
    momentum: float = 0.99,
    **more: Any,
) -> str | None:
    """What a search of 12 epochs says whose first model is such; ``more`` are arguments of it."""
    config: Any = SimpleNamespace(pruner=check_pruner(pruner))
    usual = {"epochs": 12, "initial_epoch": 0, "validation_freq": 1}
    arguments: Any = SimpleNamespace(**{**usual, **more})
    found: Any = SimpleNamespace(steps=steps, momentum=momentum)
    return note_on_averages(config, arguments, found, Objective(name, "minimize"))


@pytest.mark.parametrize("pruner", ["asha", "median", "percentile:50", "hyperband"])
def test_the_first_rung_that_is_late_enough_is_named(pruner: str) -> None:
    text = said(pruner)
    assert text is not None
    assert "after 94 steps" in text
    assert "39% of its initial averages" in text
    assert text.endswith('or pass pruner="asha:3"')
    assert said("asha:3") is None  # 0.99**282 is 0.06


@pytest.mark.parametrize(
    "case",
    [
        {"pruner": None},
        {"pruner": "patience:2"},  # compares no trials
        {"pruner": "asha", "name": "loss"},  # training uses each batch's own mean
        {"pruner": "asha", "steps": 230},
        {"pruner": "asha", "momentum": 0.9},
        {"pruner": "asha", "momentum": 0.0},  # no such layer
        {"pruner": "asha", "steps": 0},  # unknown: batches from a generator
    ],
)
def test_averages_that_are_right_or_not_compared_are_not_named(case: dict[str, Any]) -> None:
    assert said(**case) is None


@pytest.mark.parametrize("loops", slow_where([False, True], bool))
def test_where_time_ends_a_search_quick_trials_share_a_structure(
    loops: bool, fresh_folder: Path
) -> None:
    """What a loop costs is unknown, so each trial has the structure that TPE chooses."""

    def build(hp: Any) -> Any:
        layers = keras.layers
        first = layers.SimpleRNN(2) if loops else layers.Flatten()
        units = layers.Dense(hp.Int("units", 1, 999), "relu")
        model = keras.Sequential([keras.Input((4, 1)), first, units, layers.Dense(1)])
        model.compile(keras.optimizers.SGD(hp.Float("lr", 1e-4, 1e-2)), "mse")
        return model

    tuner = paceline.Tuner(build, "val_loss", "s", share_widths=False, on_note=lambda text: None)
    tuner.search(X[..., None], Y, epochs=1, n_trials=3, timeout=1000.0, **DATA)
    tried = [tuner.trial(number).hparams for number in range(3)]
    assert len({hparams["lr"] for hparams in tried}) == 3
    assert len({hparams["units"] for hparams in tried}) == (3 if loops else 1)


@pytest.mark.parametrize(
    ("case", "hint"),
    [
        ({}, 'Set momentum=0.9 in build, or pass pruner="asha:3"'),
        # 0.9**10 is 0.35, so it would not be enough, and may be what the model has.
        ({"steps": 10, "momentum": 0.9}, 'Pass pruner="asha:3"'),
        ({"steps": 1}, 'Pass pruner="none"'),
        # Rungs count the epochs that are trained.
        ({"initial_epoch": 9}, "Set momentum=0.9 in build"),
        ({"initial_epoch": lambda hp: 9}, 'Set momentum=0.9 in build, or pass pruner="asha:3"'),
        # All rungs are validated.
        ({"steps": 60, "validation_freq": [1, 3]}, "Set momentum=0.9 in build"),
        (
            {"steps": 60, "validation_freq": [1, 3, 5]},
            'Set momentum=0.9 in build, or pass pruner="asha:5"',
        ),
    ],
)
def test_a_note_on_averages_names_what_helps(case: dict[str, Any], hint: str) -> None:
    text = said("asha", **case)
    assert text is not None
    assert text.endswith(f"initial averages. {hint}")


def test_pruners_of_optuna_compare_where_the_first_value_is() -> None:
    assert "after 94 steps" in (said("median") or "")
    text = said("median", validation_freq=2)
    assert "after 188 steps" in (text or "")
    assert (text or "").endswith('or pass pruner="asha:4"')
    assert said("median", validation_freq=3) is None
    assert said("median", validation_freq=[3, 4]) is None
    assert "after 94 steps" in (said("median", validation_freq=[1, 3]) or "")
    # Epochs are counted from the first of all, rungs from the first that is trained.
    text = said("median", steps=18, validation_freq=2, initial_epoch=1, epochs=61)
    assert (text or "").endswith('Pass pruner="asha:13"')
    text = said("median", steps=60, validation_freq=[5, 7, 8], initial_epoch=3)
    assert (text or "").endswith('or pass pruner="asha:4"')
    assert "after 94 steps" in (said("median", validation_freq=3, initial_epoch=5) or "")
    assert "after 188 steps" in (said("median", validation_freq=[1, 3], initial_epoch=1) or "")
    assert said("median", validation_freq=[1, 3], initial_epoch=4) is None  # there is no value


@pytest.mark.parametrize("folds", [None, 2])
def test_steps_are_those_that_a_trial_trains(folds: int | None, fresh_folder: Path) -> None:
    notes: list[str] = []
    tuner = paceline.Tuner(normalized, "val_loss", "s", pruner="median", on_note=notes.append)
    more: Any = {"folds": folds} if folds else {"validation_split": 0.25}
    tuner.search(X, Y, epochs=2, n_trials=1, batch_size=4, verbose=0, **more)
    (text,) = [note for note in notes if "BatchNormalization" in note]
    n = len(X) // 2 if folds else len(X) * 3 // 4
    assert f"after {-(-n // 4)} steps" in text
