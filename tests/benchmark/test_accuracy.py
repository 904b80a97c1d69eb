"""One trial trained at each batch size: it is that trial, timed."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import toys
from paceline.benchmark.measure.accuracy import SCALES, CurveInterrupted, train_curve
from paceline.benchmark.measure.subject import BenchModel
from paceline.data.arrays import prepare

X, Y = toys.data(40)
XV, YV = toys.data(16, seed=1)


def build(hp):
    return toys.softmax()


def curve(build=build, **more):
    subject = BenchModel(build, {}, prepare(X, Y), prepare(XV, YV), seed=3)
    given = {"objective": None, "scale": 1.0, "plan": "sequential", "left": lambda: 1e9}
    return train_curve(subject, 8, 3, **{**given, **more})


@pytest.fixture(scope="module")
def found():
    lines: list[str] = []
    return curve(note=lines.append), lines


def test_it_has_a_value_and_a_time_for_each_epoch(found):
    one, lines = found
    assert (one.metric, one.direction, one.plan) == ("val_accuracy", "maximize", "sequential")
    assert len(one.values) == 3
    assert one.seconds == sorted(one.seconds) and one.seconds[0] > 0
    assert (one.reason, one.scale, one.learning_rate) == (None, 1.0, pytest.approx(0.01))
    assert lines[0].startswith("batch 8, epoch 1 of 3: val_accuracy 0.")


def test_another_plan_trains_the_same_trial(found):
    other = curve(plan="vectorized")
    np.testing.assert_allclose(other.values, found[0].values, atol=1 / len(XV))  # one example


def test_a_scaled_rate_is_that_rate():
    scaled = curve(scale=2.0, objective="val_loss")
    assert scaled.learning_rate == pytest.approx(0.02)
    by_hand = curve(lambda hp: toys.compiled(toys.softmax(), 0.02), objective="val_loss")
    assert scaled.values == by_hand.values
    assert scaled.direction == "minimize"


def test_fit_is_scaled_too():
    scaled = curve(scale=2.0, plan="fit", objective="val_loss")
    assert scaled.learning_rate == pytest.approx(0.02)
    assert scaled.plan == "fit"
    assert len(scaled.values) == 3


def test_a_schedule_is_not_scaled():
    def build(hp):
        schedule = keras.optimizers.schedules.CosineDecay(0.01, 100)
        return toys.compiled(toys.softmax(), schedule)

    assert "is a schedule, which scale_lr cannot change" in curve(build, scale=2.0).reason
    one = curve(build)
    assert (one.reason, one.learning_rate) == (None, None)


def test_a_budget_ends_it_with_what_is_there():
    one = curve(left=lambda: 0.0)
    assert len(one.values) == 1
    assert one.reason == "stopped after 1 of 3 epochs: the measuring time is used up"


def test_an_interrupt_keeps_the_epochs_there_are():
    def told(line):
        if "epoch 2" in line:
            raise KeyboardInterrupt

    with pytest.raises(CurveInterrupted, match="^$") as stop:
        curve(note=told)
    assert len(stop.value.curve.values) == 1
    assert stop.value.curve.reason == "interrupted after 1 epoch"


def test_a_loss_that_is_no_number_ends_it():
    one = curve(lambda hp: toys.compiled(toys.softmax(), 1e38), objective="val_loss")
    assert one.reason.startswith("val_loss is ")
    assert len(one.values) < 3
    assert np.all(np.isfinite(one.values))


def test_a_model_that_fails_is_a_curve_that_failed():
    def build(hp):
        raise ValueError("none today")

    assert curve(build).reason == "ValueError: none today"


def test_an_objective_that_is_no_metric():
    assert "val_f1" in curve(objective="max:val_f1").reason


def test_rules_of_scaling():
    assert [SCALES[name](4.0) for name in ("none", "linear", "sqrt")] == [1.0, 4.0, 2.0]
