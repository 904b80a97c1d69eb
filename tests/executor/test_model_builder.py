"""The user's build under a trial's seed."""

from __future__ import annotations

import random

import keras
import keras_tuner
import numpy as np
import pytest

import toys
from paceline.compat import keras_tuner as kt
from paceline.errors import UsageError
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import random_state_kept
from paceline.search_space import HyperParameters


def test_the_seed_decides_the_weights():
    build = ModelBuilder(toys.dense)

    def weights(seed):
        return build(HyperParameters(), seed).get_weights()[0]

    with random_state_kept():
        np.testing.assert_array_equal(weights(1), weights(1))
        assert not np.array_equal(weights(1), weights(2))
        keras.utils.set_random_seed(1)
        alone = toys.dense(HyperParameters()).get_weights()[0]
        np.testing.assert_array_equal(weights(1), alone)


def test_automatic_names_are_the_same_for_every_trial():
    build = ModelBuilder(toys.dense)
    keras.layers.Dense(1)
    with random_state_kept():
        names = [[layer.name for layer in build(HyperParameters(), 0).layers] for _ in range(2)]
    assert names[0] == names[1] == ["dense", "dropout", "dense_1"]


@pytest.mark.parametrize("base", [keras_tuner.HyperModel, kt.HyperModel])
def test_a_hypermodel_of_keras_tuner_is_built(base):
    class Mine(base):
        def build(self, hp):
            return toys.dense(hp)

    with random_state_kept():
        assert ModelBuilder(Mine())(HyperParameters(), 0).compiled

    class Trains(Mine):
        def fit(self, hp, model, *args, **kwargs):
            return model.fit(*args, **kwargs)

    with pytest.raises(UsageError, match=r"Trains has its own fit\(\)"):
        ModelBuilder(Trains())


def test_random_state_is_kept_when_a_build_raises():
    def build(hp):
        random.random()
        np.random.random()
        raise ValueError("no")

    before = random.getstate(), np.random.get_state()[1].tolist()
    with pytest.raises(ValueError, match="no"), random_state_kept():
        ModelBuilder(build)(HyperParameters(), 3)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
