"""Cases by kind of layer, and the pieces that most cases share."""

from __future__ import annotations

import keras
from keras import layers, ops

from zoo.base import case, vary
from zoo.samples import (
    N_CLASSES,
    images,
    segments,
    vectors,
)

LRS = [1e-3, 3e-3, 1e-2]
RATES = [0.1, 0.25, 0.4]


def classifier(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> keras.Model:
    """Compile a model of softmax outputs for integer labels."""
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def adam(hp) -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(hp.Float("lr", 1e-4, 1e-1, sampling="log"))


def softmax() -> layers.Layer:
    return layers.Dense(N_CLASSES, activation="softmax")


@case(vectors, hparams=vary(lr=[*LRS, 3e-2], dropout=[*RATES, 0.5]))
def dense(hp):
    model = keras.Sequential(
        [
            layers.Dense(16, activation="relu"),
            layers.Dropout(hp.Float("dropout", 0.05, 0.6)),
            layers.Dense(8, activation="elu"),
            softmax(),
        ]
    )
    return classifier(model, adam(hp))


@case(
    vectors, hparams=vary(l1=[1e-5, 1e-4, 1e-3], l2=[1e-3, 1e-4, 1e-5], activity=[0.01, 0.02, 0.0])
)
def dense_l1_l2(hp):
    """L1, L2 and activity regularizers; a strength of 0 stays in the same program."""
    both = keras.regularizers.L1L2(hp.Float("l1", 1e-6, 1e-2), hp.Float("l2", 1e-6, 1e-2))
    model = keras.Sequential(
        [
            layers.Dense(
                12,
                activation="relu",
                kernel_regularizer=both,
                activity_regularizer=keras.regularizers.L2(hp.Float("activity", 0.0, 0.1)),
            ),
            layers.Dense(
                N_CLASSES, activation="softmax", bias_regularizer=keras.regularizers.L2(0.01)
            ),
        ]
    )
    return classifier(model, keras.optimizers.SGD(0.05, momentum=0.9))


@case(vectors, hparams=vary(slope=[0.1, 0.2, 0.3], alpha=[0.5, 1.0, 1.5], lr=LRS))
def dense_slopes(hp):
    """Slopes of activations: LeakyReLU, ELU and a learnt PReLU."""
    model = keras.Sequential(
        [
            layers.Dense(12),
            layers.LeakyReLU(negative_slope=hp.Float("slope", 0.01, 0.5)),
            layers.Dense(10),
            layers.ELU(alpha=hp.Float("alpha", 0.1, 2.0)),
            layers.Dense(8),
            layers.PReLU(),
            softmax(),
        ]
    )
    return classifier(model, adam(hp))


@case(vectors, hparams=vary(stddev=[0.05, 0.1, 0.2], rate=RATES, alpha=RATES))
def gaussian_noise(hp):
    model = keras.Sequential(
        [
            layers.GaussianNoise(hp.Float("stddev", 0.01, 0.5)),
            layers.Dense(12, activation="selu"),
            layers.AlphaDropout(hp.Float("alpha", 0.05, 0.5)),
            layers.Dense(8, activation="relu"),
            layers.GaussianDropout(hp.Float("rate", 0.05, 0.5)),
            softmax(),
        ]
    )
    return classifier(model, keras.optimizers.Adam(3e-3))


@case(
    images,
    hparams=vary(lr=LRS, momentum=[0.8, 0.9, 0.99], dropout=RATES),
    float64_exact=False,
)
def conv_batchnorm(hp):
    """Batch statistics of the 2-sample remainder batch go into the moving averages too."""
    model = keras.Sequential(
        [
            layers.Conv2D(4, 3, padding="same", activation="relu"),
            layers.BatchNormalization(momentum=hp.Float("momentum", 0.5, 0.999)),
            layers.MaxPooling2D(2),
            layers.Conv2D(8, 3, activation="relu"),
            layers.Flatten(),
            layers.Dropout(hp.Float("dropout", 0.05, 0.5)),
            softmax(),
        ]
    )
    return classifier(model, adam(hp))


@case(
    images,
    hparams=vary(lr=LRS, slope=[0.1, 0.2, 0.3], stddev=[0.05, 0.1, 0.2]),
    float64_exact=False,
)
def separable_conv(hp):
    """Separable and depthwise convolutions with BatchNorm, LeakyReLU and noise."""
    model = keras.Sequential(
        [
            layers.SeparableConv2D(6, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.LeakyReLU(negative_slope=hp.Float("slope", 0.01, 0.5)),
            layers.GaussianNoise(hp.Float("stddev", 0.01, 0.5)),
            layers.DepthwiseConv2D(3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            softmax(),
        ]
    )
    return classifier(model, adam(hp))


@case(images, hparams=vary(lr=LRS, spatial=RATES))
def spatial_dropout(hp):
    model = keras.Sequential(
        [
            layers.Conv2D(6, 3, activation="relu"),
            layers.SpatialDropout2D(hp.Float("spatial", 0.05, 0.5)),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            softmax(),
        ]
    )
    return classifier(model, adam(hp))


@case(segments, hparams=vary(lr=LRS, dropout=RATES), float64_exact=False)
def conv_transpose(hp):
    """A label for every pixel, through a transposed convolution, padding, cropping, resizing."""
    model = keras.Sequential(
        [
            layers.Conv2D(6, 3, strides=2, padding="same", activation="relu"),
            layers.Dropout(hp.Float("dropout", 0.05, 0.5)),
            layers.Conv2DTranspose(6, 3, strides=2, padding="same", activation="relu"),
            layers.ZeroPadding2D(1),
            layers.Cropping2D(1),
            layers.Conv2D(N_CLASSES, 1, activation="softmax"),
        ]
    )
    return classifier(model, adam(hp))


@case(images, hparams=vary(lr=LRS, epsilon=[1e-3, 1e-4, 1e-5]), float64_exact=False)
def groupnorm(hp):
    """GroupNorm over images, then LayerNorm and UnitNorm over features."""
    model = keras.Sequential(
        [
            layers.Conv2D(4, 3),
            layers.GroupNormalization(2, epsilon=hp.Float("epsilon", 1e-6, 1e-2)),
            layers.Activation("gelu"),
            layers.GlobalAveragePooling2D(),
            layers.LayerNormalization(),
            layers.Dense(8),
            layers.UnitNormalization(),
            softmax(),
        ]
    )
    return classifier(model, adam(hp))


@case(
    vectors,
    hparams=vary(lr=LRS, dropout=RATES),
)
def shared_layers(hp):
    """One encoder used twice, a frozen layer, residual and concatenation."""
    inputs = layers.Input((12,))
    encoder = keras.Sequential([layers.Dense(6, activation="elu"), layers.Dense(6)])
    both = layers.Concatenate()([encoder(inputs), encoder(-inputs)])
    frozen = layers.Dense(12, activation="relu", trainable=False)(both)
    x = layers.Dropout(hp.Float("dropout", 0.05, 0.5))(layers.Add()([both, frozen]))
    return classifier(keras.Model(inputs, softmax()(x)), adam(hp))


@case(vectors, hparams=vary(lr=LRS, factor=[0.5, 1.0, 2.0]))
def lambda_layer(hp):
    """The factor is burnt into the step by a closure."""
    factor = hp.Float("factor", 0.1, 5.0)
    model = keras.Sequential(
        [
            layers.Lambda(lambda x: ops.softplus(x * factor)),
            layers.Dense(10, activation="relu"),
            softmax(),
        ]
    )
    return classifier(model, adam(hp))


@case(
    vectors,
    hparams=vary(lr=LRS, dropout=RATES),
    float64_exact=False,
    bfloat16=True,
    notes="bfloat16 arithmetic, float32 variables; floatx float64 changes nothing inside",
)
def mixed_bfloat16(hp):
    policy = keras.DTypePolicy("mixed_bfloat16")
    model = keras.Sequential(
        [
            layers.Dense(16, activation="relu", dtype=policy),
            layers.Dropout(hp.Float("dropout", 0.05, 0.5), dtype=policy),
            layers.Dense(8, activation="relu", dtype=policy),
            layers.Dense(N_CLASSES, activation="softmax", dtype="float32"),
        ]
    )
    return classifier(model, adam(hp))
