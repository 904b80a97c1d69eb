"""Fits on data sets train in packs, and come to the same as in Keras' own ``fit``."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import partial

import keras
import numpy as np
import pytest

from compat.interception.alone import alone, assert_same
from compat.interception.functions import X, Y, network
from marks import slow_where
from paceline.compat.interception import Engine, FunctionCall
from paceline.errors import DataError

N, B = 64, 16


class Batches(keras.utils.PyDataset):
    """Examples in batches, the last of which may be smaller."""

    def __init__(self, n: int = N, noise: float = 0.0) -> None:
        super().__init__()
        self.index, self.noise = np.arange(n), noise

    def __len__(self) -> int:
        return math.ceil(len(self.index) / B)

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        at = self.index[B * number : B * (number + 1)]
        noise = self.noise and np.random.normal(size=X[at].shape)
        return (X[at] + noise).astype("float32"), Y[at]


class Shuffled(Batches):
    """The same in another order after each epoch."""

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.index)


class Norms(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.norms = []

    def on_epoch_end(self, epoch, logs=None):
        self.norms.append(float(np.linalg.norm(self.model.get_weights()[0])))


def batches(noise: float = 0.0):
    while True:
        yield from map(Batches(noise=noise).__getitem__, range(4))


def fitted(i: int, x, **arguments):
    """What a fit comes to, and what the function draws after it."""
    model = network(i)
    history = model.fit(x, **{"epochs": 3, "verbose": 0} | arguments)
    return history, model, random.random(), float(np.random.random())


def seen(i: int):
    norms = Norms()
    more = {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}, "validation_data": Batches(40)}
    return *fitted(i, Batches(60), shuffle=False, callbacks=[norms], **more), norms.norms


def by_batch(y, p):
    """A metric that depends on which examples are in one batch."""
    return keras.ops.max(p) * keras.ops.mean(keras.ops.cast(y, "float32"))


def shuffled_validation(i: int, **arguments):
    model = network(i)
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[by_batch])
    more = {"validation_data": Shuffled(40), "epochs": 3, "shuffle": False, "verbose": 0}
    return model.fit(Shuffled(60), **more | arguments), model, float(np.random.random())


PACKS = {
    "shuffled by fit": lambda i: fitted(i, Batches()),
    "shuffled by itself": lambda i: fitted(i, Shuffled(60), shuffle=False),
    "generator": lambda i: fitted(i, batches(), steps_per_epoch=4, shuffle=False),
    "with callbacks": seen,
    "steps of validation": lambda i: fitted(
        i, Batches(), validation_data=Batches(), validation_steps=2, shuffle=False
    ),
    "steps of validation arrays": lambda i: fitted(
        i, X[:N], y=Y[:N], validation_data=(X[:N], Y[:N]), validation_steps=3, batch_size=20
    ),
    "validation data that shuffle": shuffled_validation,
    "the same for one epoch": lambda i: shuffled_validation(i, epochs=1),
}
ALONE = {
    "augmented": lambda i: fitted(i, Batches(noise=0.1), shuffle=False),
    "augmented generator": lambda i: fitted(i, batches(0.1), steps_per_epoch=4, shuffle=False),
    "small batch among others": lambda i: fitted(i, Batches(60)),
}


def compared(function):
    """Why fits were alone, and the notes, of functions that equal themselves alone."""
    notes: list[str] = []
    with Engine(notes=notes.append) as engine:
        calls = [FunctionCall(i, partial(function, i), 20 + i) for i in range(2)]
        outcomes = {outcome.number: outcome for outcome in engine.run(calls)}
        counts = engine.program_counts()
    for i, outcome in outcomes.items():
        assert outcome.error is None
        assert_same(outcome.value, alone(partial(function, i), 20 + i))
    return [fit.why_alone for each in outcomes.values() for fit in each.fits], notes, counts


@pytest.mark.parametrize("name", slow_where(PACKS, lambda name: name != "shuffled by itself"))
def test_the_same_examples_in_any_order_train_in_packs(name: str) -> None:
    why, notes, counts = compared(PACKS[name])
    assert why == [None, None] and notes == []
    assert counts["distinct"] == 1  # fits on equal examples share an executor


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_other_examples_in_each_epoch_train_in_fit(name: str) -> None:
    why, notes, _ = compared(ALONE[name])
    said = "smaller batch" if name == "small batch among others" else "differ from epoch to epoch"
    assert all(said in each for each in why)
    assert len(notes) == 1 and "train in Keras' own fit, one at a time" in notes[0]


class Harder(Batches):
    """Other examples from the third pass on."""

    n = 0

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = super().__getitem__(number)
        return x + np.float32(self.n >= 5), y

    def on_epoch_end(self) -> None:
        self.n += 1


def test_validation_data_that_change_late_are_an_error() -> None:
    """The model was trained for two epochs, which another fit would train again."""

    def function(i: int) -> None:
        network(i).fit(X, Y, epochs=4, verbose=0, validation_data=Harder())

    with Engine() as engine:
        (outcome,) = engine.run([FunctionCall(0, partial(function, 0), 0)])
    with pytest.raises(DataError, match="differ from epoch to epoch, which shows after 2 epochs"):
        raise outcome.error


@dataclass
class Unhashable(Batches):
    size: int = 4

    def __post_init__(self) -> None:
        super().__init__()


@pytest.mark.parametrize("validates", [False, True])
def test_data_sets_need_no_hash(validates: bool) -> None:
    given = {"validation_data": Unhashable()} if validates else {}

    def function(i: int) -> int:
        return len(network(i).fit(Unhashable(), epochs=2, verbose=0, **given).history["loss"])

    with Engine() as engine:
        outcomes = list(engine.run([FunctionCall(i, partial(function, i), i) for i in range(2)]))
    assert [outcome.value for outcome in outcomes] == [2, 2]
