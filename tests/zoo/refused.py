"""Models that no pack can hold: they train through Keras' own ``fit``, with a word of why."""

from __future__ import annotations

import jax
import keras
from keras import layers, ops

from zoo.base import case, vary
from zoo.layers import LRS, RATES, adam, softmax
from zoo.samples import images, vectors


def _network(hp, *extra: layers.Layer) -> keras.Model:
    return keras.Sequential(
        [
            layers.Dense(8, activation="relu"),
            layers.Dropout(hp.Float("dropout", 0.05, 0.5)),
            *extra,
            softmax(),
        ]
    )


def _compiled(model: keras.Model, hp, **arguments) -> keras.Model:
    model.compile(
        adam(hp), loss="sparse_categorical_crossentropy", metrics=["accuracy"], **arguments
    )
    return model


@case(vectors, hparams=vary(lr=LRS, dropout=RATES), packable=False)
def run_eagerly(hp):
    return _compiled(_network(hp), hp, run_eagerly=True)


class Callback(layers.Layer):
    """Leaves the program for Python on every step."""

    def call(self, inputs):
        shape = jax.ShapeDtypeStruct(inputs.shape, inputs.dtype)
        return inputs + jax.pure_callback(lambda x: 0 * x, shape, jax.lax.stop_gradient(inputs))


@case(vectors, hparams=vary(lr=LRS, dropout=RATES), packable=False)
def python_callback(hp):
    return _compiled(_network(hp, Callback()), hp)


class Printing(layers.Layer):
    """Has an effect: a debug callback on the mean activation."""

    def call(self, inputs):
        jax.debug.callback(lambda _: None, ops.mean(inputs))
        return inputs


@case(vectors, hparams=vary(lr=LRS, dropout=RATES), packable=False)
def side_effect(hp):
    return _compiled(_network(hp, Printing()), hp)


class OwnFit(keras.Sequential):
    """Overrides ``fit``, so that only the user knows what training means."""

    def fit(self, *args, **kwargs):
        return super().fit(*args, **kwargs)


@case(vectors, hparams=vary(lr=LRS, dropout=RATES), packable=False)
def own_fit(hp):
    return _compiled(OwnFit(_network(hp).layers), hp)


if hasattr(layers, "AugMix"):  # Keras 3.10 has it, earlier ones have not

    @case(images, hparams=vary(lr=LRS), packable=False)
    def augmix(hp):
        """Chooses layers with Python's random in each step, which Keras does not compile."""
        mix = layers.AugMix(value_range=(0, 1), num_chains=1, chain_depth=1)
        colours = layers.Conv2D(3, 1, activation="sigmoid")  # the images have two channels
        return _compiled(keras.Sequential([colours, mix, layers.Flatten(), softmax()]), hp)
