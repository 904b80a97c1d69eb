"""A model that was sent is that model, object by object."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from marks import slow_where
from paceline.executor.session.channel import Channel
from paceline.executor.session.models import SentModel
from paceline.program.canonical import Unpackable

X = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
Y = np.arange(8) % 3


class Scale(keras.layers.Layer):
    """Has no ``get_config``, and an attribute that its constructor is not given."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate, self.parts = rate, {"a": [keras.layers.Dense(6)], "b": (1, 2)}
        self.offset = keras.ops.ones((6,))

    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return self.parts["a"][0](x) * self.factor * self.rate + self.offset


def sequential() -> Any:
    scale = Scale(0.5)
    scale.rate = 2.0
    layers = [scale, keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
    model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3)])
    factor = 2.0

    def loss(y, logits):
        return factor * keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)

    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def functional() -> Any:
    x = inputs = keras.Input((6,))
    shared = keras.layers.Dense(6, activation="relu")
    keras.Model(inputs, shared(shared(inputs)))  # a model beside, with nodes of its own
    for _ in range(120):  # each layer within the next one would be deeper than Python recurses
        x = keras.layers.Activation("elu")(x)
    x = keras.layers.Add()([shared(x), shared(inputs) * 2.0])
    model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(x))
    model.compile("rmsprop", "sparse_categorical_crossentropy")
    return model


def trained() -> Any:
    model = sequential()
    model.fit(X, Y, epochs=1, verbose=0)
    return model


class Subclassed(keras.Model):
    """Counts its calls in a metric, and is not built."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = keras.layers.GRU(4), keras.layers.Dense(3, activation="softmax")

    def call(self, x):
        return self.out(self.hidden(keras.ops.expand_dims(x, -1)))


def subclassed() -> Any:
    model = Subclassed()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy")
    return model


def read(model: Any) -> Any:
    """The model after it was sent through a connection."""
    one, other = map(Channel, socket.socketpair())
    sending = threading.Thread(target=one.send, args=[SentModel.of(model)])
    sending.start()
    sent = other.receive().message()
    sending.join()
    one.close()
    other.close()
    return sent.read()[0]


BUILDS = [sequential, functional, trained, subclassed]


@pytest.mark.parametrize("build", slow_where(BUILDS, lambda build: build is not trained))
def test_a_model_that_was_sent_computes_and_trains_as_it_does(build: Callable[[], Any]) -> None:
    keras.utils.set_random_seed(1)
    model = build()
    other = read(model)
    assert type(other).__name__ == type(model).__name__ and other is not model
    assert [v.path for v in other.variables] == [v.path for v in model.variables]
    histories = []
    for each in (model, other):
        keras.utils.set_random_seed(2)
        histories.append(each.fit(X, Y, epochs=2, verbose=0).history)
    assert histories[0] == histories[1]
    for one, two in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_model_keeps_no_part_of_the_one_that_was_sent() -> None:
    model = sequential()
    other = read(model)
    before = model.get_weights()
    other.fit(X, Y, verbose=0)
    for one, two in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


def test_layers_that_are_added_later_are_tracked() -> None:
    other = read(subclassed())
    other.more = [keras.layers.Dense(2)]
    other.more[0].build((None, 3))
    assert [each for each in other.layers if each is other.more[0]]
    assert any(variable is other.more[0].kernel for variable in other.variables)


def test_what_cannot_be_sent_is_named() -> None:
    model = sequential()
    model.lock = threading.Lock()
    with pytest.raises(Unpackable, match="cannot be sent to another process: TypeErr"):
        SentModel.of(model)
