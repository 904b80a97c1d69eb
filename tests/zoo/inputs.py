"""Cases by what goes in: pixels, augmentation, normalization, several inputs and outputs."""

from __future__ import annotations

import keras
from keras import layers

from zoo.base import case, vary
from zoo.layers import LRS, RATES, adam, classifier, softmax
from zoo.samples import (
    N_CLASSES,
    N_WORDS,
    images,
    images_uint8,
    two_inputs_dict,
    two_inputs_list,
    vectors,
)


@case(images_uint8, hparams=vary(lr=LRS, dropout=RATES))
def uint8_rescaling(hp):
    """Images stay uint8 until the model casts them."""
    model = keras.Sequential(
        [
            layers.Rescaling(1 / 255),
            layers.Conv2D(4, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(hp.Float("dropout", 0.05, 0.5)),
            softmax(),
        ]
    )
    return classifier(model, adam(hp))


@case(images_uint8, hparams=vary(scale=[1 / 255, 1 / 128, 1 / 64], offset=[0.0, -0.5, -1.0]))
def rescaling_constants(hp):
    """Scale and offset of the pixels are constants that differ."""
    model = keras.Sequential(
        [
            layers.Rescaling(hp.Float("scale", 1e-3, 0.1), hp.Float("offset", -1.0, 0.0)),
            layers.Flatten(),
            layers.Dense(8, activation="relu"),
            softmax(),
        ]
    )
    return classifier(model, keras.optimizers.Adam(3e-3))


@case(vectors, hparams=vary(lr=LRS, dropout=RATES))
def normalization_adapted(hp):
    """Normalization adapted inside build: its mean and variance are state that trains not."""
    normalize = layers.Normalization()
    normalize.adapt(3.0 * vectors(50, 1)[0] + 1.0)
    model = keras.Sequential(
        [
            normalize,
            layers.Dense(10, activation="relu"),
            layers.Dropout(hp.Float("dropout", 0.05, 0.5)),
            softmax(),
        ]
    )
    return classifier(model, adam(hp))


@case(images, hparams=vary(lr=LRS, brightness=[0.1, 0.2, 0.3]))
def random_flip(hp):
    """Flip and brightness: each draws from its own generator; neither acts in validation."""
    model = keras.Sequential(
        [
            layers.RandomFlip("horizontal_and_vertical"),
            layers.RandomBrightness(hp.Float("brightness", 0.05, 0.5), value_range=(0, 1)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.Flatten(),
            softmax(),
        ]
    )
    return classifier(model, adam(hp))


@case(images, hparams=vary(lr=LRS, contrast=[0.1, 0.2, 0.3]), float64_exact=False)
def random_contrast(hp):
    model = keras.Sequential(
        [
            layers.RandomContrast(hp.Float("contrast", 0.05, 0.5), value_range=(0, 1)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.Flatten(),
            softmax(),
        ]
    )
    return classifier(model, adam(hp))


@case(
    images,
    hparams=vary(lr=LRS, turn=[0.05, 0.1, 0.2], shift=[0.1, 0.2, 0.3]),
    float64_exact=False,
)
def random_rotation(hp):
    """Keras itself does not jit a model with these layers (``supports_jit`` is False in them).

    JAX traces them all the same, so that they pack (``paceline.program.trace``).
    """
    shift = hp.Float("shift", 0.05, 0.5)
    model = keras.Sequential(
        [
            layers.RandomRotation(hp.Float("turn", 0.01, 0.5)),
            layers.RandomTranslation(shift, shift),
            layers.Conv2D(4, 3, activation="relu"),
            layers.Flatten(),
            softmax(),
        ]
    )
    return classifier(model, adam(hp))


def _two_towers(hp) -> tuple[list, list]:
    left = layers.Input((12,), name="left")
    right = layers.Input((8,), dtype="int32", name="right")
    read = layers.GlobalAveragePooling1D()(layers.Embedding(N_WORDS, 6, mask_zero=True)(right))
    both = layers.Concatenate()([layers.Dense(8, activation="relu")(left), read])
    both = layers.Dropout(hp.Float("dropout", 0.05, 0.5))(both)
    kind = layers.Dense(N_CLASSES, activation="softmax", name="kind")(both)
    amount = layers.Dense(2, name="amount")(both)
    return [left, right], [kind, amount]


class Jitter(layers.RandomTranslation):
    """A user's own kind of augmentation."""

    def call(self, inputs, training=True):
        return super().call(inputs * 0.9, training=training)


class Holds(layers.Layer):
    """A layer that holds one which Keras would not compile."""

    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        self.inner = inner

    def call(self, inputs, training=False):
        return self.inner(inputs, training=training)

    def compute_output_shape(self, shape):
        return shape


@case(images, hparams=vary(lr=LRS, shift=[0.1, 0.2, 0.3]), float64_exact=False)
def own_augmentation(hp):
    """A subclass of such a layer, in a layer of the user's."""
    shift = hp.Float("shift", 0.05, 0.5)
    model = keras.Sequential([Holds(Jitter(shift, shift)), layers.Flatten(), softmax()])
    return classifier(model, adam(hp))


if hasattr(layers, "RandAugment"):

    @case(images, hparams=vary(lr=LRS), float64_exact=False)
    def rand_augment(hp):
        augment = layers.Pipeline(
            [layers.RandAugment(value_range=(0, 1), num_ops=1), layers.RandomFlip("horizontal")]
        )
        colours = layers.Conv2D(3, 1, activation="sigmoid")  # the images have two channels
        model = keras.Sequential([colours, augment, layers.Flatten(), softmax()])
        return classifier(model, adam(hp))


@case(
    two_inputs_dict,
    hparams=vary(dropout=RATES, kind=[0.5, 1.0, 2.0], amount=[2.0, 1.0, 0.5]),
    float64_exact=False,
)
def functional_dict(hp):
    """Two inputs, two outputs, everything by name; loss weights are hyperparameters."""
    inputs, outputs = _two_towers(hp)
    model = keras.Model(
        {"left": inputs[0], "right": inputs[1]}, {"kind": outputs[0], "amount": outputs[1]}
    )
    model.compile(
        keras.optimizers.Adam(3e-3),
        loss={"kind": "sparse_categorical_crossentropy", "amount": "mse"},
        loss_weights={
            "kind": hp.Float("kind", 0.1, 5.0),
            "amount": hp.Float("amount", 0.1, 5.0),
        },
        metrics={"kind": ["accuracy"], "amount": ["mae"]},
    )
    return model


@case(
    two_inputs_list,
    hparams=vary(dropout=RATES, lr=LRS, delta=[0.5, 1.0, 1.5]),
    float64_exact=False,
)
def functional_list(hp):
    """The same by position, with fixed loss weights."""
    model = keras.Model(*_two_towers(hp))
    model.compile(
        adam(hp),
        loss=[
            keras.losses.SparseCategoricalCrossentropy(),
            keras.losses.Huber(delta=hp.Float("delta", 0.1, 2.0)),
        ],
        loss_weights=[1.0, 0.5],
        metrics=[["accuracy"], ["mse", "mae"]],
    )
    return model
