"""The way from the data to each Embedding, and the numbers that it looks up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers, ops

from paceline.program import keras_private
from paceline.program.data_paths.lookups import lookups
from paceline.program.keras_private import embeddings

A = np.arange(8).reshape(2, 4)


def of(way: Callable[[Any], Any], dtype: str = "int32") -> Any:
    """A model with one Embedding, or several, on a way from four features."""
    features: Any = keras.Input((4,), dtype=dtype)
    return keras.Model(features, layers.Embedding(10, 3, name="e")(way(features)))


def found(model: Any, dtype: str = "int32") -> list[list[float] | None]:
    shapes = jax.ShapeDtypeStruct(A.shape, dtype)
    numbers = [each.numbers([A.astype(dtype)]) for each in lookups(model, shapes)]
    return [None if each is None else np.ravel(each).tolist() for each in numbers]


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (lambda x: x, A),
        (layers.Reshape((2, 2)), A),
        (lambda x: layers.Permute((2, 1))(layers.Reshape((2, 2))(x)), [0, 2, 1, 3, 4, 6, 5, 7]),
        (layers.Flatten(), A),
        (layers.Dropout(0.5), A),
        (lambda x: ops.cast(x, "float32"), A),
        (lambda x: ops.cast(ops.add(ops.cast(x, "float32"), 0.5), "int32"), A),
        (lambda x: x[:, 1:3], A[:, 1:3]),
        (lambda x: x[:, 2], A[:, 2]),
        (lambda x: ops.expand_dims(x, 2), A),
        (lambda x: ops.flip(x, 1), A[:, ::-1]),
        (lambda x: x + np.array([0, 10, 20, 30]), A + np.array([0, 10, 20, 30])),
        (lambda x: x - 1, A - 1),
        (lambda x: ops.clip(x, 1, 5), A.clip(1, 5)),
        (lambda x: ops.maximum(x, 2), A.clip(2)),
        (lambda x: ops.concatenate([x[:, 2:], x[:, :1]], axis=1), A[:, [2, 3, 0]]),
    ],
)
def test_moves_casts_and_constants_are_followed(way: Any, expected: Any) -> None:
    assert found(of(way)) == [np.ravel(expected).tolist()]


@pytest.mark.parametrize(
    "way",
    [
        lambda x: x % 10,
        lambda x: ops.where(x < 0, 0, x),
        lambda x: x[:, :2] + x[:, 2:],
        lambda x: ops.argmax(layers.Dense(4)(ops.cast(x, "float32")), axis=-1),
        ops.sort,
    ],
)
def test_what_depends_on_more_is_not_followed(way: Any) -> None:
    assert found(of(way)) == [None]


def test_an_embedding_that_is_called_twice_and_others() -> None:
    first, second = keras.Input((), dtype="int32", name="b"), keras.Input((4,), name="a")
    users, words = layers.Embedding(10, 3, name="users"), layers.Embedding(50, 3, name="words")
    joined = [users(first), layers.Flatten()(words(second)), users(first)]
    model = keras.Model({"b": first, "a": second}, layers.Concatenate()(joined))
    shapes = {name: jax.ShapeDtypeStruct(shape, "int32") for name, shape in
              (("b", (2,)), ("a", (2, 4)))}  # fmt: skip
    calls = lookups(model, shapes)
    assert sorted((each.name, each.rows) for each in calls) == [
        ("users", 10), ("users", 10), ("words", 50)
    ]  # fmt: skip
    for each in calls:  # the leaves are in the order of their names
        expected = [0, 4] if each.name == "users" else A.ravel().tolist()
        numbers, places = each.numbers([A, A[:, 0]]), each.places()
        assert numbers is not None and places is not None
        assert np.ravel(numbers).tolist() == expected
        assert np.ravel(places).tolist() == ([8, 9] if each.name == "users" else list(range(8)))


class Positions(layers.Layer):
    """Tokens and their places, as in a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = layers.Embedding(10, 3), layers.Embedding(4, 3)

    def call(self, x: Any) -> Any:
        return self.tokens(x) + self.places(ops.arange(0, x.shape[-1]))


class Hashed(layers.Embedding):
    """An Embedding of any number."""

    def call(self, inputs: Any) -> Any:
        return super().call(inputs % self.input_dim)


class Own(keras.Model):
    """A model that is built by its data."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = layers.Embedding(10, 3), layers.Dense(1)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.out(ops.mean(self.table(x), axis=1))


def test_embeddings_within_layers_and_models() -> None:
    features = keras.Input((4,), dtype="int32")
    assert found(keras.Model(features, Positions()(features))) == [A.ravel().tolist(), None]
    assert found(keras.Model(features, Hashed(10, 3)(features))) == [None]
    steps = layers.TimeDistributed(layers.Embedding(10, 3))(layers.Reshape((2, 2))(features))
    assert found(keras.Model(features, steps)) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    own = Own()
    own.compile("sgd", "mse")
    assert len(embeddings(own)) == 1 and not own.built
    shapes = jax.ShapeDtypeStruct((2, 4), "int32"), jax.ShapeDtypeStruct((2, 1), "float32")
    keras_private.symbolic_build(own, shapes)
    assert found(own) == [A.ravel().tolist()]


def test_keras_is_as_before_and_a_model_that_raises_has_no_lookups() -> None:
    before = keras.layers.Embedding.call

    class Raises(keras.Model):
        def call(self, x: Any) -> Any:
            raise RuntimeError

    assert found(Raises()) == []
    found(of(lambda x: x))
    assert keras.layers.Embedding.call is before
