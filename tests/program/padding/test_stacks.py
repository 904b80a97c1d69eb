"""Random stacks of layers at random widths: a padded trial beside Keras' own ``fit``."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keras import layers

import zoo
from paceline.program.padding.axes import NotPaddable
from paceline.program.padding.widths import FamilyStep
from program.padding.test_widths import CLASSES, batches, riding, stack, traced, train

#: A layer of a width, and what may follow it.
LAYERS = {
    "dense": lambda width: layers.Dense(width, "relu"),
    "sigmoid": lambda width: layers.Dense(width, "sigmoid", use_bias=False),
    "conv": lambda width: layers.Conv1D(width, 2, padding="same", activation="elu"),
    "strided": lambda width: layers.Conv1D(width, 2, padding="same", activation="relu", strides=2),
    "gru": lambda width: layers.GRU(width, return_sequences=True),
    "shared": lambda width: layers.TimeDistributed(layers.Dense(width, "softplus")),
}
BETWEEN = {
    "nothing": lambda: [],
    "dropout": lambda: [layers.Dropout(0.3, seed=3)],
    "spatial": lambda: [layers.SpatialDropout1D(0.3, seed=4)],
    "norm": lambda: [layers.UnitNormalization()],
    "softmax": lambda: [layers.Softmax()],
    "prelu": lambda: [layers.PReLU()],
}
ENDS = {
    "flatten": layers.Flatten,
    "average": layers.GlobalAveragePooling1D,
    "max": layers.GlobalMaxPooling1D,
}
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(1e-2, global_clipnorm=1.0),
    "rmsprop": lambda: keras.optimizers.RMSprop(1e-2, momentum=0.5),
}
#: Least, own and largest width of a layer.
WIDTHS = st.lists(st.integers(2, 12), min_size=3, max_size=3, unique=True).map(sorted)


def stacks(least: int, most: int) -> Any:
    """Stacks of so many layers."""
    part = st.tuples(st.sampled_from([*LAYERS]), WIDTHS, st.sampled_from([*BETWEEN]))
    parts = st.lists(part, min_size=least, max_size=most)
    return st.tuples(parts, st.sampled_from([*ENDS]), st.sampled_from([*OPTIMIZERS]))


def assert_fit_alone(drawn: Any) -> None:
    """Trains the trial of own widths in the program of the largest, and by ``fit``."""
    parts, end, optimizer = drawn

    def build(which: int) -> Any:
        made: list[Any] = []
        for name, widths, between in parts:
            made += [LAYERS[name](widths[which]), *BETWEEN[between]()]
        return stack((4, 3), *made, ENDS[end](), optimizer=OPTIMIZERS[optimizer]())

    with zoo.float64():
        (family, w), (_, n) = traced(build(2)), traced(build(0))
        keras.utils.set_random_seed(5)
        state, step = traced(build(1))
        padded, embedding = riding(FamilyStep((w, n), None), family, state, step)
        keras.utils.set_random_seed(5)
        model = build(1)
        data = batches(model, 3)
        x, y = (np.concatenate(each) for each in zip(*data, strict=True))
        history = model.fit(x, y, batch_size=len(data[0][1]), epochs=1, shuffle=False, verbose=0)
        first = [constant.value for constant in padded.canonical.constants]
        logs, last = train(padded.closed, embedding.embed(state), data, *first)
    # Level 0, at which ``fit`` is compiled here, rounds some functions of float64 at 1e-8.
    for i, variable in enumerate(model.trainable_variables):
        ours = embedding.cut_leaf(0, i, last.trainable[i])
        np.testing.assert_allclose(ours, np.asarray(variable.value), rtol=1e-6, atol=1e-6)
    names = list(step.log_names)
    ours = dict(zip(names, logs[-1], strict=True))
    np.testing.assert_allclose(ours["loss"], history.history["loss"][0], rtol=1e-6)
    assert ours["accuracy"] == pytest.approx(history.history["accuracy"][0], abs=1e-6)
    assert 0 < history.history["loss"][0] < 10 * CLASSES


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=1)
@given(stacks(1, 3))
def test_a_random_stack_is_what_fit_trains(drawn: Any) -> None:
    assert_fit_alone(drawn)


@pytest.mark.slow
@pytest.mark.parametrize("n_layers", [1, 2, 3])
@pytest.mark.filterwarnings("ignore")
def test_many_random_stacks_are_what_fit_trains(n_layers: int) -> None:
    rode = []

    @settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
    @given(stacks(n_layers, n_layers))
    def check(drawn: Any) -> None:
        try:
            assert_fit_alone(drawn)
            rode.append(drawn)
        except NotPaddable:
            apart.append(drawn)

    apart: list[Any] = []
    check()
    # Two layers that have one width in both traces of the family may have two in a trial.
    assert len(rode) > 3 * len(apart), apart
