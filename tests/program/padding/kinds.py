"""Further kinds of models with two widths, for pairs with optimizers and random stacks."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from program.padding.test_widths import CLASSES, Make, compiled, stack


def _images(*parts: Any) -> Any:
    return stack((6, 6, 2), *parts, layers.GlobalAveragePooling2D())


def _sequence(*parts: Any) -> Any:
    return stack((5, 3), *parts)


def _merged(merge: Any) -> Make:
    """Two branches of one width, put together."""

    def make(u: int, v: int) -> Any:
        x = keras.Input((10,))
        y = merge([layers.Dense(u, "tanh")(x), layers.Dense(u, "softplus")(x)])
        y = layers.Dense(v, "silu")(y)
        return compiled(keras.Model(x, layers.Dense(CLASSES, "softmax")(y)))

    return make


def _residual(u: int, v: int) -> Any:
    x = keras.Input((10,))
    y = layers.Dense(u, "relu")(x)
    y = y + layers.Dense(u)(layers.Dense(v, "relu")(layers.LayerNormalization()(y)))
    return compiled(keras.Model(x, layers.Dense(CLASSES, "softmax")(y)))


def _highway(u: int, v: int) -> Any:
    x = keras.Input((10,))
    y = layers.Dense(u)(x)
    gate = layers.Dense(u, "sigmoid")(y)
    y = gate * layers.Dense(u, "relu")(y) + (1 - gate) * y
    return compiled(keras.Model(x, layers.Dense(CLASSES, "softmax")(layers.Dense(v)(y))))


def _pair_of_attentions(u: int, v: int) -> Any:
    x = keras.Input((4, 8))
    y = layers.Attention()([layers.Dense(u)(x), layers.Dense(u)(x)])
    y = layers.AdditiveAttention()([y, y])
    y = layers.Dense(v, "relu")(layers.Flatten()(y))
    return compiled(keras.Model(x, layers.Dense(CLASSES, "softmax")(y)))


def _held(u: int, v: int) -> Any:
    first = layers.Dense(u, "selu", kernel_constraint="max_norm", bias_regularizer="l1")
    return stack((10,), first, layers.AlphaDropout(0.1), layers.Dense(v, activity_regularizer="l2"))


MORE: dict[str, Make] = {
    "conv1d": lambda u, v: _sequence(
        layers.Conv1D(u, 2, activation="relu"),
        layers.Conv1D(v, 2, padding="causal"),
        layers.GlobalMaxPooling1D(),
    ),
    "transposed": lambda u, v: _images(
        layers.Conv2DTranspose(u, 2, strides=2, activation="relu"), layers.Conv2D(v, 3, strides=2)
    ),
    "resized": lambda u, v: _images(
        layers.Conv2D(u, 1),
        layers.UpSampling2D(2),
        layers.ZeroPadding2D(1),
        layers.Cropping2D(2),
        layers.Conv2D(v, 2, dilation_rate=2, activation="elu"),
    ),
    "bidirectional": lambda u, v: _sequence(
        layers.Bidirectional(layers.LSTM(u, return_sequences=True)),
        layers.GRU(v, reset_after=False),
    ),
    "cells": lambda u, v: _sequence(layers.RNN([layers.LSTMCell(u), layers.GRUCell(v)])),
    "each step": lambda u, v: _sequence(
        layers.TimeDistributed(layers.Dense(u, "relu")),
        layers.SpatialDropout1D(0.2),
        layers.Flatten(),
        layers.Dense(v),
    ),
    "embedding": lambda u, v: stack(
        (5,),
        layers.Embedding(9, u),
        layers.GlobalAveragePooling1D(),
        layers.Dense(v, "relu"),
        dtype="int32",
    ),
    "einsum": lambda u, v: _sequence(
        layers.EinsumDense("abc,cde->abde", (5, 2, u)), layers.Flatten(), layers.Dense(v, "mish")
    ),
    "repeated": lambda u, v: stack(
        (10,),
        layers.Dense(u, "softsign"),
        layers.RepeatVector(3),
        layers.Permute((2, 1)),
        layers.Permute((2, 1)),
        layers.Flatten(),
        layers.Dense(v, "relu6"),
    ),
    "noise": lambda u, v: stack(
        (10,),
        layers.Dense(u, "leaky_relu"),
        layers.GaussianNoise(0.1),
        layers.GaussianDropout(0.2),
        layers.Dense(v, "hard_sigmoid"),
    ),
    "softmax": lambda u, v: stack(
        (10,), layers.Dense(u, "softmax"), layers.Dense(v, "log_softmax")
    ),
    "maximum": _merged(layers.Maximum()),
    "minimum": _merged(layers.Minimum()),
    "product": _merged(layers.Multiply()),
    "average": _merged(layers.Average()),
    "dot": _merged(layers.Dot(axes=1)),
    "residual": _residual,
    "highway": _highway,
    "attentions": _pair_of_attentions,
    "held": _held,
}
