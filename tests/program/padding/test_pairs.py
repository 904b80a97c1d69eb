"""Every kind of model with every optimizer: a padded trial is the lone trial."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import numpy as np
import pytest

import zoo
from paceline.program.padding.axes import NotPaddable
from paceline.program.padding.widths import FamilyStep
from program.padding.kinds import MORE
from program.padding.test_widths import (
    KINDS,
    OPTIMIZERS,
    ROUNDS,
    Make,
    batches,
    compiled,
    riding,
    traced,
    train,
)

#: Each kind of model; those that differ in their optimizer only are one.
MODELS = {
    name: KINDS[name] for name in KINDS if name not in OPTIMIZERS and name != "clipped"
} | MORE
STANDARD = (6, 9), (2, 4), (4, 9)
#: Group normalisation wants widths that four groups divide.
WIDTHS = {"separable": ((16, 9), (8, 4), (12, 9))}
PAIRS = [(kind, optimizer) for kind in MODELS for optimizer in OPTIMIZERS]
#: Keras computes parts of these in float32, such as GlobalAveragePooling2D.
ROUNDS_TOO = {*ROUNDS, "residual", "dot", "transposed", "resized"}
#: Widths between which no weight becomes wider than it is high: Muon turns those round.
ALIKE = (6, 9), (2, 6), (4, 9)


def assert_alone(make: Make, optimizer: Any, tolerance: float, widths: Any) -> None:
    """Trains a trial for three steps in the program of its family, and alone."""

    def build(u: int, v: int) -> Any:
        return compiled(make(u, v), optimizer())

    largest, smaller, trial = widths
    with zoo.float64():
        keras.utils.set_random_seed(1)
        (family, w), (_, n) = traced(build(*largest)), traced(build(*smaller))
        role = FamilyStep((w, n), None)
        keras.utils.set_random_seed(2)
        model = build(*trial)
        state, step = traced(model)
        padded, embedding = riding(role, family, state, step)
        data = batches(model, 3)
        logs, last = train(step.closed, state, data)
        first = [constant.value for constant in padded.canonical.constants]
        ours, mine = train(padded.closed, embedding.embed(state), data, *first)
    np.testing.assert_allclose(ours, logs, rtol=tolerance, atol=tolerance)
    for part, (a, b) in enumerate(zip(mine.lists(), last.lists(), strict=True)):
        for x, y in zip(embedding.cut(part, a), b, strict=True):
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), PAIRS)
@pytest.mark.filterwarnings("ignore")
def test_a_padded_trial_is_the_lone_trial(kind: str, name: str) -> None:
    # As in test_widths.py: float32 rounds at 1e-7, and optimizers divide small gradients.
    tolerance = 1e-4 if kind in ROUNDS_TOO else 1e-9
    widths = WIDTHS.get(kind, STANDARD)
    make = MODELS[kind]
    if (kind, name) == ("attention", "Lion"):
        # The bias of keys has no gradient, since softmax does not see it, and Lion would take a
        # whole step in the direction of what rounding leaves.
        make = partial(make, use_bias=False)
    assert_alone(make, lambda: getattr(keras.optimizers, name)(1e-2), tolerance, widths)


@pytest.mark.slow
def test_adafactor_and_muon_are_proved() -> None:
    # Both sum squares in float32, whatever floatx is: 7e-8 measured.
    assert_alone(MODELS["dense"], lambda: keras.optimizers.Adafactor(1e-2), 1e-6, ALIKE)
    if hasattr(keras.optimizers, "Muon"):  # Keras 3.10 has none
        assert_alone(MODELS["dense"], lambda: keras.optimizers.Muon(1e-2), 1e-6, ALIKE)
        with pytest.raises(NotPaddable, match="other numbers of equations"):
            assert_alone(MODELS["dense"], lambda: keras.optimizers.Muon(1e-2), 1e-6, STANDARD)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_width_1_is_apart_or_the_lone_trial(kind: str) -> None:
    """Arrays of one element along an axis are squeezed and repeated, which is another step."""
    n_apart = 0
    for trial in ((1, 9), (6, 1), (1, 1)):
        largest, smaller, _ = WIDTHS.get(kind, STANDARD)
        try:
            tolerance = 1e-4 if kind in ROUNDS_TOO else 1e-9
            assert_alone(MODELS[kind], keras.optimizers.SGD, tolerance, (largest, smaller, trial))
        except NotPaddable:
            n_apart += 1
        except ValueError:
            assert kind == "separable", "whose groups do not divide a width of 1"
            n_apart += 1
    assert n_apart == 3 or kind != "dense", "its biases are repeated otherwise"
