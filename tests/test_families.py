"""A whole search over several structures: packs are full, and nothing else has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

import paceline
import toys
from paceline.study import Study

X, Y = toys.data()
CALL: dict[str, Any] = {"validation_data": toys.data(23, seed=1), "epochs": 2, "batch_size": 16}
N = 24


def four(hp: Any) -> keras.Model:
    """Four structures; learning rate and dropout are no part of them."""
    activation = hp.Choice("activation", ["relu", "tanh"])
    model = keras.Sequential(
        [
            keras.Input((toys.FEATURES,)),
            keras.layers.Dense(hp.Choice("units", [4, 8]), activation=activation),
            keras.layers.Dropout(hp.Float("dropout", 0.1, 0.5)),
            keras.layers.Dense(toys.CLASSES, activation="softmax"),
        ]
    )
    return toys.compiled(model, hp.Float("lr", 1e-3, 1e-1, sampling="log"))


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch):
    """A function that has later searches ask in the plain order."""
    return lambda: monkeypatch.setattr(Study, "fill", lambda self, slots: None)


def searched(folder: Path, sampler: str, slots: int) -> paceline.Tuner:
    tuner = paceline.Tuner(
        four,
        study="s",
        sampler=sampler,
        slots=slots,
        directory=folder,
        notes=lambda text: None,
    )
    tuner.search(X, Y, n_trials=N, **CALL)
    assert set(tuner.results()["state"]) == {"complete"}
    assert tuner.summary()["programs"]["distinct"] == 4
    return tuner


def changes(tuner: paceline.Tuner) -> int:
    programs = tuner.results()["program"].tolist()
    return sum(a != b for a, b in zip(programs, programs[1:], strict=False))


@pytest.mark.parametrize(("sampler", "slots"), [("random", 2), ("random", 4), ("tpe", 4)])
def test_x(sampler, slots, tmp_path, plainly):
    family = searched(tmp_path / "family", sampler, slots)
    plainly()
    plain = searched(tmp_path / "plain", sampler, slots)
    print(
        sampler,
        slots,
        family.summary()["slots_busy"],
        plain.summary()["slots_busy"],
        changes(family),
        changes(plain),
        family.summary()["programs"],
    )
