"""What is traced: Keras' own steps, their logs by the names of ``fit``'s history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers

from paceline.program import keras_private, trace
from paceline.program.canonical import Unpackable

BATCH = (
    jax.ShapeDtypeStruct((4, 2), np.dtype("float32")),
    jax.ShapeDtypeStruct((4, 1), np.dtype("float32")),
)


def model(**compiled: Any) -> keras.Model:
    made = keras.Sequential([layers.Input((2,)), layers.Dropout(0.5), layers.Dense(1)])
    made.compile(**{"optimizer": "sgd", "loss": "mse", **compiled})
    return made


def test_state_is_in_keras_order_and_quick_state_is_the_same() -> None:
    full = model(optimizer=keras.optimizers.Adam(0.1), metrics=["mae"])
    state = trace.build_state(full, BATCH)
    assert [len(part) for part in state.lists()] == [2, 1, 6, 4]
    assert state.nbytes == sum(np.asarray(a).nbytes for part in state.lists() for a in part)
    keras.utils.set_random_seed(1)
    other = model(optimizer=keras.optimizers.Adam(0.2), metrics=["mae"])
    quick = trace.quick_state(other, trace.shapes_only(state), state.metrics)
    slow = trace.build_state(other, BATCH)
    assert quick is not None
    for one, two in zip(quick.lists(), slow.lists(), strict=True):
        for a, b in zip(one, two, strict=True):
            np.testing.assert_array_equal(a, b)


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam, averaged": lambda: keras.optimizers.Adam(0.1, use_ema=True),
    "adam, accumulating": lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),  # starts from 0.1: not zero
    "adagrad from 0": lambda: keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.0),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "schedule": lambda: keras.optimizers.RMSprop(
        keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    ),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1)),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizer_need_not_be_built_to_know_its_start(optimizer: Callable[[], Any]) -> None:
    state, start = trace.optimizer_start(model(optimizer=optimizer()), BATCH)
    keras.utils.set_random_seed(1)
    other = model(optimizer=optimizer())
    quick = trace.quick_state(other, trace.shapes_only(state), state.metrics, start)
    slow = trace.build_state(other, BATCH)
    assert quick is not None
    for a, b in zip(quick.optimizer, slow.optimizer, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_a_start_that_is_not_zero_is_not_taken_for_granted() -> None:
    assert trace.optimizer_start(model(optimizer=OPTIMIZERS["adagrad"]()), BATCH)[1] is None
    assert trace.optimizer_start(model(optimizer=OPTIMIZERS["adagrad from 0"]()), BATCH)[1]


def test_quick_state_of_another_structure_is_none() -> None:
    state = trace.build_state(model(), BATCH)
    other = model(optimizer="adam")
    assert trace.quick_state(other, trace.shapes_only(state), state.metrics) is None


def test_logs_are_named_as_in_the_history() -> None:
    made: Any = model(metrics=["mae"])
    state = trace.build_state(made, BATCH)
    history = made.fit(np.zeros((4, 2)), np.zeros((4, 1)), verbose=0).history
    assert set(trace.trace_train(made, state, BATCH).log_names) == set(history)
    assert trace.trace_test(made, state, BATCH).log_names == ("loss", "mae")


def test_a_dict_among_the_logs_stands_for_its_parts() -> None:
    logs = {"loss": 1, "b": {"x": 2, "b": 3}, "a": {"y": 4, "x": 5}}
    assert list(trace.flat_logs(logs).items()) == [
        ("loss", 1),
        ("x", 2),
        ("b", 3),
        ("y", 4),
    ]


class OwnFit(keras.Sequential):
    """Trains in its own way."""

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        return super().fit(*args, **kwargs)


def own_fit() -> keras.Model:
    made = OwnFit([layers.Input((2,)), layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


REFUSED: dict[str, tuple[Callable[[], keras.Model], str]] = {
    "eager": (lambda: model(run_eagerly=True), "run_eagerly=True"),
    "own fit": (own_fit, r"OwnFit has its own fit\(\)"),
}


@pytest.mark.parametrize(("make", "why"), REFUSED.values(), ids=REFUSED)
def test_what_keras_would_train_in_another_way_is_refused(make: Callable, why: str) -> None:
    with pytest.raises(Unpackable, match=why):
        trace.check_packable(make())


class Growing(keras.Sequential):
    """Its step gives back a state of another dtype."""

    def train_step(self, state: Any, data: Any) -> Any:
        logs, (trainable, *rest) = super().train_step(state, data)
        return logs, ([v.astype("bfloat16") for v in trainable], *rest)


class Silent(keras.Sequential):
    """Its step has no logs."""

    def train_step(self, state: Any, data: Any) -> Any:
        return {}, super().train_step(state, data)[1]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Growing, "changes the shape or dtype"),
        (Silent, "returns dict for logs, not a dict with entries"),
    ],
)
def test_steps_that_no_pack_can_hold_are_refused(kind: type, why: str) -> None:
    made = kind([layers.Input((2,)), layers.Dense(1)])
    made.compile("sgd", "mse")
    state = trace.build_state(made, BATCH)
    with pytest.raises(Unpackable, match=why):
        trace.trace_train(made, state, BATCH)


class ReadsWeights(keras.Sequential):
    """Its step reads a variable that it is not given."""

    def train_step(self, state: Any, data: Any) -> Any:
        logs, state = super().train_step(state, data)
        return {**logs, "first": self.weights[0][0, 0] * 1.0}, state


def test_a_step_that_reads_a_variable_fails_as_in_fit_and_leaves_the_values() -> None:
    made = ReadsWeights([layers.Input((2,)), layers.Dense(1)])
    made.compile("sgd", "mse")
    state = trace.build_state(made, BATCH)
    with pytest.raises(TypeError, match="the step reads a variable that it is not given"):
        trace.trace_train(made, state, BATCH)
    assert all(variable.value is not None for variable in made.optimizer.variables)
    assert float(made.optimizer.learning_rate.value) == pytest.approx(0.01)
    assert trace.trace_test(made, state, BATCH).log_names == ("loss",)
    assert not keras_private.is_bound(made.optimizer.learning_rate)
