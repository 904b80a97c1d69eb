"""A variable that a callback and the model have in common: what the callback writes counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import paceline
import toys
from marks import slow_where
from paceline.pack.callbacks.model_variables import copied, why_not_beside
from paceline.search_space import HyperParameters

X, Y = toys.data()
CALL: dict[str, Any] = {"epochs": 3, "batch_size": 16, "shuffle": False}
LATER = np.array([1.0, 2.0])  # what the second and the third epoch add to the loss


class Anneal(keras.callbacks.Callback):
    """Counts a variable up, epoch by epoch."""

    def __init__(self, beta: Any = None) -> None:
        super().__init__()
        self.beta = beta

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.beta.assign(float(epoch))


class Adds(keras.layers.Layer):
    """Adds a variable to the loss."""

    def __init__(self, beta: Any) -> None:
        super().__init__()
        self.beta = beta

    def call(self, inputs: Any) -> Any:
        self.add_loss(1.0 * self.beta)
        return inputs


def variable() -> Any:
    return keras.Variable(0.0, trainable=False, name="beta")


def model(hp: Any, beta: Any, rate: float = 0.0) -> keras.Model:
    """A model that learns so slowly that only the variable moves its loss."""
    head = keras.layers.Dense(toys.CLASSES, activation="softmax")
    built = keras.Sequential([keras.Input((toys.FEATURES,)), Adds(beta), head])
    built.compile(
        keras.optimizers.SGD(hp.Float("lr", 1e-7, 1e-6)), "sparse_categorical_crossentropy"
    )
    return built


def search(build: Any, callbacks: Any, **options: Any) -> tuple[paceline.Tuner, list[str]]:
    notes: list[str] = []
    tuner = paceline.Tuner(build, "loss", "s", on_note=notes.append, parallel_trials=2)
    tuner.search(X, Y, **CALL, n_trials=2, callbacks=callbacks, **options)
    for number in range(2):
        losses = np.array(tuner.history(number)["loss"])
        np.testing.assert_allclose(losses[1:] - losses[0], LATER, atol=1e-3)
    return tuner, notes


@pytest.mark.parametrize(
    "given", [lambda beta: [Anneal(beta)], lambda beta: lambda hp: [Anneal(beta)]]
)
def test_a_variable_made_beside_build_is_annealed_in_packs(
    given: Callable[..., Any], fresh_folder: Any
) -> None:
    beta = variable()
    tuner, _ = search(lambda hp: model(hp, beta), given(beta))
    assert tuner.results()["plan"].tolist() == ["vectorized"] * 2
    assert float(beta) == 0.0, "the user's variable is as it was"


@pytest.mark.parametrize("repeats", slow_where([1, 2], lambda repeats: repeats > 1))
def test_a_variable_that_build_makes_is_annealed_in_fit_and_it_is_said(
    repeats: int, fresh_folder: Any
) -> None:
    """Each build gives the callback its variable; packs build ahead, so it may be another's."""
    anneal = Anneal()

    def build(hp: Any) -> keras.Model:
        anneal.beta = variable()
        return model(hp, anneal.beta)

    tuner, notes = search(build, [anneal], repeats=repeats)
    assert tuner.results()["plan"].tolist() == ["fit"] * 2
    assert any("Anneal holds a variable that build creates, but packs" in note for note in notes)


def test_a_layer_that_both_have_is_one() -> None:
    beta = variable()
    built = model(HyperParameters(), beta)
    callback = keras.callbacks.LambdaCallback()
    callback.layer, callback.own = built.layers[0], keras.layers.Dense(1)
    (copy,) = copied([callback], built, {})
    assert copy is not callback
    assert copy.layer is built.layers[0] and copy.layer.beta is beta
    assert copy.own is not callback.own


def test_what_a_model_reads_untracked_is_not_packed() -> None:
    """Keras reads it when its step is traced: after the callbacks of the first epoch's begin."""
    beta, other = variable(), variable()
    built = toys.softmax()
    built.compile("sgd", lambda y, p: beta + keras.losses.sparse_categorical_crossentropy(y, p))
    (copy,) = copied([Anneal(beta)], built, {})
    assert copy.beta is beta
    assert "reads but does not track" in (why_not_beside([copy], built) or "")
    (copy,) = copied([Anneal(other)], built, {})
    assert copy.beta is not other
    assert why_not_beside([copy], built) is None


def test_on_another_machine_a_variable_of_the_model_is_another() -> None:
    beta = variable()
    built = model(HyperParameters(), beta)
    assert why_not_beside([Anneal(beta)], built) is None
    assert "on another machine" in (why_not_beside([Anneal(beta)], built, away=True) or "")
