"""Text under JAX: vectorized beforehand it packs, by the user or by the search."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import paceline
import toys
from streams import alone, same, search

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="packs need JAX")
tf = pytest.importorskip("tensorflow", reason="TextVectorization needs TensorFlow")


def test_text_packs_where_it_is_vectorized_before_the_search():
    texts = ["a cat sat", "the dog ran", "a dog sat", "the cat ran"] * 6
    vectorize = layers.TextVectorization(output_sequence_length=4)
    vectorize.adapt(texts)
    x, y = np.asarray(vectorize(texts)), np.arange(24) % 2

    def build(hp: Any) -> Any:
        model = keras.Sequential([keras.Input((4,), dtype="int64")])
        model.add(layers.Embedding(vectorize.vocabulary_size(), 4))
        model.add(layers.GlobalAveragePooling1D())
        model.add(layers.Dense(2, activation="softmax"))
        return toys.compiled(model, hp.Float("lr", 1e-3, 1e-1))

    call = {"epochs": 2, "batch_size": 8, "shuffle": False}
    tuner = search(x, build=build, y=y, **call)
    same(tuner, 3, alone(tuner.trial(3), build, x, y=y, **call))

    def inside(hp: Any) -> Any:
        model = keras.Sequential([keras.Input((), dtype="string"), vectorize])
        model.add(layers.Embedding(vectorize.vocabulary_size(), 4))
        model.add(layers.GlobalAveragePooling1D())
        model.add(layers.Dense(2, activation="softmax"))
        return toys.compiled(model)

    # JAX has no strings: Keras' own fit refuses them. A search runs the layer before it trains.
    keras.utils.set_random_seed(0)
    with pytest.raises(ValueError, match="Invalid dtype"):
        inside(paceline.HyperParameters()).fit(np.array(texts), y, verbose=0)
    found = search(np.array(texts), "inside", build=inside, y=y, **call | {"n_trials": 1})
    assert found.best_trial.plan != "fit"
    assert found.best_model().layers[0].get_vocabulary() == vectorize.get_vocabulary()
    batches = tf.data.Dataset.from_tensor_slices((texts, y)).batch(8)
    more = {"epochs": 2, "n_trials": 1, "shuffle": False}
    other = search(batches, "batches", build=inside, y=None, **more)
    assert other.history(0) == found.history(0)

    def as_long_as_the_batch(hp: Any) -> Any:
        own = layers.TextVectorization()
        own.adapt(texts)
        model = keras.Sequential([keras.Input((), dtype="string"), own, layers.Embedding(99, 4)])
        model.add(layers.GlobalAveragePooling1D())
        return toys.compiled(model)

    with pytest.raises(paceline.DataError, match="JAX trains on numbers only.*TextVectorization"):
        search(np.array(texts), "longer", build=as_long_as_the_batch, y=y, n_trials=1)


@pytest.mark.parametrize("inputs", ["list", "one"])
def test_text_by_name_packs_where_the_inputs_have_none(inputs):
    lookup = layers.StringLookup(vocabulary=["cat", "dog"], output_mode="one_hot")
    kinds, sizes = np.array([["cat"], ["dog"], ["bird"]] * 8), np.arange(24.0)[:, None] / 24

    def build(hp: Any) -> Any:
        size, kind = keras.Input((1,), name="size"), keras.Input((1,), dtype="string", name="kind")
        read, taken = lookup(kind), [size, kind]
        x = layers.Concatenate()([size, read]) if inputs == "list" else read
        out = layers.Dense(2, activation="softmax")(x)
        model = keras.Model(taken if inputs == "list" else kind, out)
        return toys.compiled(model, hp.Float("lr", 1e-3, 1e-1))

    named = {"kind": kinds, "size": sizes} if inputs == "list" else {"kind": kinds}
    ordered = [sizes, kinds] if inputs == "list" else kinds
    call = {"y": np.arange(24) % 2, "epochs": 2, "batch_size": 8, "n_trials": 2}
    by_name = search(named, "named", build=build, **call)
    by_place = search(ordered, "ordered", build=build, **call)
    assert by_name.best_trial.plan != "fit"
    assert [by_name.history(n) for n in (0, 1)] == [by_place.history(n) for n in (0, 1)]
