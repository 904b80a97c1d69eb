"""Every optimizer that Keras exports, and what all of them can do (clipping, averaging, ...)."""

from __future__ import annotations

import keras
from keras import layers
from keras import optimizers as kopt

from zoo.base import case, vary
from zoo.layers import LRS, classifier, softmax
from zoo.samples import vectors

# Names exported beside the optimizers proper.
NOT_OPTIMIZERS = {"Optimizer", "OptimizerMap"}


def exported() -> list[str]:
    """Names of all optimizers of the installed Keras (its versions differ)."""
    return sorted(
        name
        for name, value in vars(kopt).items()
        if isinstance(value, type)
        and issubclass(value, kopt.Optimizer)
        and name not in NOT_OPTIMIZERS
    )


def network() -> keras.Model:
    """Layers with a matrix, a bias and a dropout each; the optimizers differ in all of them."""
    return keras.Sequential(
        [
            layers.Dense(10, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(6, "elu"),
            softmax(),
        ]
    )


def lr(hp, low: float = 1e-5, high: float = 2.0) -> float:
    return hp.Float("lr", low, high, sampling="log")


# name -> (optimizer of hp, values). Rates are large: two epochs of 4 steps must move the weights.
BUILT_IN = {
    "SGD": (
        lambda hp: kopt.SGD(lr(hp), momentum=hp.Float("momentum", 0.1, 0.99), nesterov=True),
        vary(lr=[0.01, 0.03, 0.1], momentum=[0.5, 0.9, 0.95]),
    ),
    "Adam": (
        lambda hp: kopt.Adam(lr(hp), beta_1=hp.Float("b1", 0.1, 0.99), amsgrad=True),
        vary(lr=LRS, b1=[0.8, 0.9, 0.95]),
    ),
    "AdamW": (
        lambda hp: kopt.AdamW(lr(hp), weight_decay=hp.Float("decay", 1e-4, 0.5)),
        vary(lr=LRS, decay=[1e-3, 1e-2, 1e-1]),
    ),
    "RMSprop": (
        lambda hp: kopt.RMSprop(
            lr(hp), rho=hp.Float("rho", 0.1, 0.99), momentum=hp.Float("momentum", 0.1, 0.9)
        ),
        vary(lr=LRS, rho=[0.8, 0.9, 0.95], momentum=[0.2, 0.4, 0.6]),
    ),
    "Adagrad": (
        lambda hp: kopt.Adagrad(lr(hp), epsilon=hp.Float("epsilon", 1e-8, 1e-2)),
        vary(lr=[0.01, 0.03, 0.1], epsilon=[1e-7, 1e-5, 1e-3]),
    ),
    "Adadelta": (
        lambda hp: kopt.Adadelta(lr(hp), rho=hp.Float("rho", 0.1, 0.99)),
        vary(lr=[0.3, 1.0, 1.5], rho=[0.8, 0.9, 0.95]),
    ),
    "Adamax": (
        lambda hp: kopt.Adamax(lr(hp), beta_2=hp.Float("b2", 0.5, 0.9999)),
        vary(lr=LRS, b2=[0.9, 0.99, 0.999]),
    ),
    "Adafactor": (
        lambda hp: kopt.Adafactor(lr(hp), clip_threshold=hp.Float("clip", 0.1, 5.0)),
        vary(lr=[0.01, 0.03, 0.1], clip=[0.5, 1.0, 2.0]),
    ),
    "Ftrl": (
        lambda hp: kopt.Ftrl(
            lr(hp),
            l1_regularization_strength=hp.Float("l1", 1e-6, 1e-2),
            l2_regularization_strength=hp.Float("l2", 1e-6, 1e-2),
        ),
        vary(lr=[0.05, 0.1, 0.2], l1=[1e-5, 1e-4, 1e-3], l2=[1e-3, 1e-4, 1e-5]),
    ),
    "Lamb": (
        lambda hp: kopt.Lamb(lr(hp), beta_1=hp.Float("b1", 0.1, 0.99)),
        vary(lr=LRS, b1=[0.8, 0.9, 0.95]),
    ),
    "Lion": (
        lambda hp: kopt.Lion(lr(hp), beta_2=hp.Float("b2", 0.5, 0.9999)),
        vary(lr=[3e-4, 1e-3, 3e-3], b2=[0.9, 0.99, 0.999]),
    ),
    "Muon": (
        lambda hp: kopt.Muon(lr(hp), momentum=hp.Float("momentum", 0.1, 0.99)),
        vary(lr=[3e-3, 1e-2, 3e-2], momentum=[0.8, 0.9, 0.95]),
    ),
    "Nadam": (
        lambda hp: kopt.Nadam(lr(hp), beta_1=hp.Float("b1", 0.1, 0.99)),
        vary(lr=LRS, b1=[0.8, 0.9, 0.95]),
    ),
    "LossScaleOptimizer": (
        lambda hp: kopt.LossScaleOptimizer(
            kopt.Adam(lr(hp), weight_decay=hp.Float("decay", 1e-4, 0.5)), dynamic_growth_steps=3
        ),
        vary(lr=LRS, decay=[1e-3, 1e-2, 1e-1]),
    ),
    "MultiOptimizer": (
        lambda hp: kopt.MultiOptimizer(
            kopt.OptimizerMap(
                kopt.SGD(lr(hp), momentum=hp.Float("momentum", 0.1, 0.99)),
                {".*bias": kopt.Adam(hp.Float("bias_lr", 1e-4, 1e-1))},
            )
        ),
        vary(lr=[0.01, 0.03, 0.1], momentum=[0.5, 0.9, 0.95], bias_lr=LRS),
    ),
    "ScheduleFreeAdamW": (
        lambda hp: kopt.ScheduleFreeAdamW(
            lr(hp), beta_1=hp.Float("b1", 0.1, 0.99), weight_decay=hp.Float("decay", 1e-4, 0.5)
        ),
        vary(lr=LRS, b1=[0.8, 0.9, 0.95], decay=[1e-3, 1e-2, 1e-1]),
    ),
}

# What a particular optimizer's case needs beside the defaults.
SPECIAL = {
    "Adafactor": {"float64_exact": False, "notes": "ops.mean of squares, in float32"},
    "Muon": {"float64_exact": False, "notes": "ops.norm, in float32"},
}


def _add_built_in(name: str) -> None:
    make, hparams = BUILT_IN[name]

    @case(vectors, name=f"optimizer_{name}", hparams=hparams, **SPECIAL.get(name, {}))
    def build(hp):
        return classifier(network(), make(hp))


for _name in exported():
    # One without an entry is found by test_zoo.py, which compares the two lists.
    if _name in BUILT_IN:
        _add_built_in(_name)


@case(vectors, hparams=vary(lr=LRS, clipnorm=[0.05, 0.2, 1.0]))
def clipnorm(hp):
    return classifier(network(), kopt.Adam(lr(hp), clipnorm=hp.Float("clipnorm", 0.01, 2.0)))


@case(vectors, hparams=vary(lr=[0.03, 0.1, 0.3], norm=[0.1, 0.5, 2.0]))
def global_clipnorm(hp):
    """Clips over all gradients together."""
    return classifier(network(), kopt.SGD(lr(hp), global_clipnorm=hp.Float("norm", 0.01, 5.0)))


@case(vectors, hparams=vary(lr=[0.03, 0.1, 0.3], value=[0.02, 0.05, 0.2]))
def clipvalue(hp):
    return classifier(network(), kopt.SGD(lr(hp), clipvalue=hp.Float("value", 0.01, 1.0)))


@case(vectors, hparams=vary(lr=[0.03, 0.1, 0.3], decay=[1e-3, 1e-2, 1e-1]))
def weight_decay(hp):
    """Weight decay on an optimizer that has none of its own; biases excluded."""
    optimizer = kopt.SGD(lr(hp), momentum=0.9, weight_decay=hp.Float("decay", 1e-4, 0.5))
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return classifier(network(), optimizer)


@case(vectors, hparams=vary(lr=LRS, ema=[0.5, 0.9, 0.99]))
def ema(hp):
    """The averages replace the weights after the last epoch only: validation sees the weights."""
    optimizer = kopt.Adam(lr(hp), use_ema=True, ema_momentum=hp.Float("ema", 0.1, 0.999))
    return classifier(network(), optimizer)


@case(vectors, hparams=vary(lr=LRS, ema=[0.5, 0.9, 0.99]))
def ema_overwrite(hp):
    """The averages replace the weights every third step."""
    optimizer = kopt.RMSprop(
        lr(hp), use_ema=True, ema_momentum=hp.Float("ema", 0.1, 0.999), ema_overwrite_frequency=3
    )
    return classifier(network(), optimizer)


@case(vectors, hparams=vary(lr=LRS, decay=[1e-3, 1e-2, 1e-1]))
def gradient_accumulation(hp):
    """Every third step updates; an epoch has four, so that the count runs on over epochs."""
    optimizer = kopt.AdamW(
        lr(hp), weight_decay=hp.Float("decay", 1e-4, 0.5), gradient_accumulation_steps=3
    )
    return classifier(network(), optimizer)


@case(vectors, hparams=vary(lr=LRS, scale=[16.0, 100.0, 1024.0]))
def loss_scale_factor(hp):
    """A fixed loss scale; the reported loss is unscaled."""
    return classifier(
        network(), kopt.Adam(lr(hp), loss_scale_factor=hp.Float("scale", 1.0, 4096.0))
    )
