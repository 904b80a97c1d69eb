"""Preprocessing layers inside the model, adapted beforehand or random, in packs as in ``fit``."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import toys
from marks import slow_where
from streams import alone, same, search

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (32, 8, 8, 3), dtype="uint8")
LABELS = RNG.integers(0, 3, 32)


def images(*random: Any) -> Any:
    """A model that makes other images of its images in training, by layers of these strengths."""

    def build(hp: Any) -> Any:
        strength = hp.Float("strength", 0.05, 0.3)
        model = keras.Sequential([keras.Input((8, 8, 3), dtype="uint8")])
        model.add(layers.Rescaling(1 / 255))
        for layer in random:
            model.add(layer(strength))
        model.add(layers.Flatten())
        model.add(layers.Dense(3, activation="softmax"))
        return toys.compiled(model, hp.Float("lr", 1e-4, 1e-2, sampling="log"))

    return build


KINDS = {
    "flip and rotation": (lambda _: layers.RandomFlip("horizontal"), layers.RandomRotation),
    "zoom and contrast": (layers.RandomZoom, layers.RandomContrast),
    "translation and brightness": (
        lambda strength: layers.RandomTranslation(strength, 0.1),
        lambda strength: layers.RandomBrightness(strength, value_range=(0, 1)),
    ),
    "shear and noise": (lambda strength: layers.RandomShear(strength, 0.1), layers.GaussianNoise),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_where(KINDS, lambda kind: kind != "shear and noise"))
def test_each_trial_draws_as_in_fit(kind):
    build = images(*KINDS[kind])
    call = {"epochs": 2, "batch_size": 16, "shuffle": False}
    tuner = search(IMAGES, build=build, y=LABELS, parallel_trials=2, n_trials=3, **call)
    assert tuner.results()["plan"].tolist() == ["vectorized"] * 3
    assert tuner.results()["program_id"].nunique() == 1  # strengths are numbers of one program
    same(tuner, 2, alone(tuner.trial(2), build, IMAGES, y=LABELS, **call))
    losses = [tuner.history(number)["loss"][0] for number in range(3)]
    assert len(set(losses)) == 3


def test_a_layer_that_was_adapted_beforehand():
    x = RNG.normal(3.0, 2.0, (48, 4)).astype("float32")
    y = RNG.integers(0, 3, 48)
    normal = layers.Normalization()
    normal.adapt(x)

    def build(hp: Any) -> Any:
        inputs = keras.Input((4,))
        outputs = layers.Dense(3, activation="softmax")(normal(inputs))
        return toys.compiled(keras.Model(inputs, outputs), hp.Float("lr", 1e-3, 1e-1))

    call = {"epochs": 2, "batch_size": 16, "shuffle": False}
    tuner = search(x, build=build, y=y, **call)
    assert tuner.results()["plan"].tolist() == ["vectorized"] * 4
    for number in (0, 3):
        same(tuner, number, alone(tuner.trial(number), build, x, y=y, **call))
