"""After a death one trial at a time may be in memory: each kind of search ends all the same."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import pytest

import paceline
import toys
from marks import slow_where
from paceline.executor.wall.black_box import BlackBox
from paceline.executor.wall.deaths import Death, DeathRecord

KINDS: dict[str, dict[str, Any]] = {
    "random": {},
    "two programs": {"structures": True, "sampler": "tpe"},
    "asha": {"pruner": "asha", "epochs": 9},
    "hyperband": {"pruner": "hyperband", "epochs": 9},
    "population": {"pruner": paceline.PBT(perturbation_interval=2), "epochs": 4},
    "repeats": {"repeats": 2},
    "folds": {"folds": 3},
    "grid": {"sampler": "grid", "structures": True},
    "fit": {"executor": "fit"},
    "a slot each": {"parallel_trials": 3},
}


@pytest.fixture
def careful(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[list[int], int]]]:
    """Trials that train, and how many others are in memory, each time that this is noted."""
    box, seen = BlackBox(), list[tuple[list[int], int]]()
    box.deaths = [Death(-9, memory=True, begun=True, trials=((0, {}), (1, {}))).to_json()]
    assert DeathRecord([Death.of_json(each) for each in box.deaths]).precautions.alone
    trains = BlackBox.trains

    def noted(self: BlackBox, numbers: Iterable[int], beside: int = 0) -> None:
        numbers = [*numbers]
        seen.append((numbers, beside))
        trains(self, numbers, beside)

    monkeypatch.setattr(BlackBox, "trains", noted)
    monkeypatch.setattr(BlackBox, "current", box)
    yield seen
    os.close(box.descriptor)


def build(hp: Any, *, structures: bool) -> keras.Model:
    layers = [keras.layers.Dense(toys.CLASSES, activation="softmax")]
    if structures and hp.Boolean("deep"):
        layers.insert(0, keras.layers.Dense(4))
    model = keras.Sequential([keras.Input((toys.FEATURES,)), *layers])
    return toys.compiled(model, hp.Choice("lr", [0.01, 0.02, 0.04]) if structures else rate(hp))


def rate(hp: Any) -> float:
    return hp.Float("lr", 1e-3, 1e-1, sampling="log")


def search(given: dict[str, Any], folder: Any) -> paceline.Tuner:
    how: dict[str, Any] = {"sampler": "random", "objective": "val_accuracy"} | given
    structures = how.pop("structures", False)
    call: dict[str, Any] = {n: how.pop(n) for n in ("epochs", "repeats", "folds") if n in how}
    tuner = paceline.Tuner(
        lambda hp: build(hp, structures=structures),
        study="s",
        directory=folder,
        on_note=lambda text: None,
        **how,
    )
    validation: dict[str, Any] = (
        {} if "folds" in call else {"validation_data": toys.data(23, seed=1)}
    )
    call = {"epochs": 2, "n_trials": 6, "batch_size": 16} | validation | call
    tuner.search(*toys.data(), **call)
    return tuner


@pytest.mark.parametrize("kind", slow_where(KINDS, lambda kind: kind != "asha"))
def test_a_search_ends(careful: list[tuple[list[int], int]], kind: str, tmp_path: Any) -> None:
    here = search(KINDS[kind], tmp_path / "careful")
    assert max(len(numbers) for numbers, _ in careful) == 1
    if kind != "population":  # whose members wait for one another
        assert {beside for numbers, beside in careful if numbers} == {0}
    BlackBox.current = None
    there = search(KINDS[kind], tmp_path / "as ever")
    states = here.results()["state"].tolist()
    assert set(states) <= {"complete", "pruned"} and "complete" in states
    assert len(states) == len(there.results())
    if kind in ("random", "repeats", "folds", "fit", "a slot each", "grid"):
        for number in range(6):
            assert here.trial(number).hparams == there.trial(number).hparams
            for name, values in here.history(number).items():
                # Other slot counts change the order of sums: 1e-7 seen.
                np.testing.assert_allclose(
                    there.history(number)[name], values, rtol=1e-4, atol=1e-5
                )
