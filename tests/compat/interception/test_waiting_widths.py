"""Fits of several widths that wait share a program, and come out as if the functions ran alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest

from compat.interception.alone import alone, assert_same
from marks import slow_where
from paceline.compat.interception import Engine, FunctionCall
from paceline.executor.sharing import family_builder

X = np.random.default_rng(0).normal(size=(50, 6)).astype("float32")
Y = np.random.default_rng(1).integers(0, 3, 50)


class Shrink(keras.callbacks.Callback):
    """Changes the weights after each epoch, and keeps what it saw of them."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.set_weights([0.9 * value for value in self.model.get_weights()])


def fitted(
    units: int, rate: float = 0.01, dropout: float = 0.3, epochs: int = 2, layers: Any = ()
) -> Any:
    """What a user's function trains: it learns its inputs from the data."""
    hidden = keras.layers.Dense(units, activation="relu")
    rest = [keras.layers.Dropout(dropout), *layers, keras.layers.Dense(3, activation="softmax")]
    model = keras.Sequential([hidden, *rest])
    adam = keras.optimizers.Adam(rate)
    model.compile(adam, "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(
        X,
        Y,
        epochs=epochs,
        batch_size=16,
        validation_data=(X[:21], Y[:21]),
        callbacks=[Shrink()],
        verbose=0,
    )
    assert model.layers[0].units == units
    return history, model


def run(functions: list[Callable[[], Any]], **arguments: Any) -> tuple[list[Any], int]:
    """What each function returned, and the number of programs."""
    with Engine(concurrent=True, **arguments) as engine:
        calls = [FunctionCall(i, function, i) for i, function in enumerate(functions)]
        outcomes = {outcome.number: outcome for outcome in engine.run(calls)}
        count = engine.program_counts()["distinct"]
    assert [outcomes[i].error for i in range(len(functions))] == [None] * len(functions)
    return [outcomes[i].value for i in range(len(functions))], count


def check(functions: list[Callable[[], Any]], n_programs: int, first: int = 0, **more: Any) -> None:
    """Checks the number of programs, and what the functions from the first one on returned."""
    values, count = run(functions, **more)
    assert count == n_programs
    for i in range(first, len(functions)):
        assert_same(values[i], alone(functions[i], i))


SIZES = [
    *((8, 0.01, 0.3), (16, 0.1, 0.3), (4, 0.1, 0.1), (12, 0.01, 0.3)),
    *((8, 0.1, 0.1), (16, 0.01, 0.1), (4, 0.01, 0.3), (12, 0.1, 0.1)),
]


@pytest.mark.parametrize(
    ("n", "compared"), slow_where([(4, 2), (8, 8)], lambda case: case == (8, 8))
)
def test_four_widths_are_one_program(n: int, compared: int) -> None:
    """Of eight, two trials have each width: constants differ too, as they do among the four."""
    check([partial(fitted, *size) for size in SIZES[:n]], 1, n - compared)


@pytest.mark.slow
def test_a_run_gives_the_same_bits_again() -> None:
    functions = [partial(fitted, units) for units in (8, 16, 4, 12)]
    for value, again in zip(run(functions)[0], run(functions)[0], strict=True):
        for ours, theirs in zip(value[1].get_weights(), again[1].get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_two_widths_are_two_programs() -> None:
    """A program of several takes as long to compile as two."""
    check([partial(fitted, units) for units in (8, 16, 8, 16)], 2)


@pytest.mark.slow
def test_a_wider_one_that_comes_later_has_a_program_of_its_own() -> None:
    waiting = [8, 16, 4, 12] * 6
    functions = [partial(fitted, units, epochs=1) for units in (*waiting, 20, 6)]
    check(functions, 2, len(waiting), slots=2)


@pytest.mark.slow
@pytest.mark.parametrize("compared", [0, 6])
def test_none_is_the_largest_in_all(compared: int) -> None:
    """Those that fit into one of two share its program, and the others into the other's."""

    def two(a: int, b: int) -> Any:
        return fitted(a, layers=[keras.layers.Dense(b, activation="tanh")])

    pairs = [(16, 4), (15, 3), (14, 4), (4, 16), (3, 15), (4, 14)]
    check([partial(two, a, b) for a, b in pairs], 2, 6 - compared)


@pytest.mark.slow
def test_large_products_are_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family_builder, "_STRUCTURE", {"cpu": 1.0})
    check([partial(fitted, units) for units in (8, 16, 4, 12)], 4)


@pytest.mark.parametrize("compared", slow_where([0, 4], bool))
def test_other_operations_on_the_smaller_batch_are_seen(compared: int) -> None:
    class Square(keras.layers.Layer):
        """Its operations depend on whether the smaller batch is as wide as the layer."""

        def call(self, x: Any) -> Any:
            return keras.ops.tanh(x) if x.shape[0] == x.shape[1] else x

    # 21 examples to validate on: 16 and 5.
    check([partial(fitted, n, layers=[Square()]) for n in (4, 5, 6, 8)], 2, 4 - compared)


@pytest.mark.slow
def test_one_that_is_unlike_leaves_the_others_together() -> None:
    """A width of one has other operations, and other activations do not share a program here."""
    functions = [partial(fitted, units) for units in (8, 1, 16, 4, 12)]
    activation = keras.layers.Activation("tanh")
    check([*functions, partial(fitted, 8, layers=[activation])], 3)
