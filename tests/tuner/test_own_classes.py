"""Models with own layers, losses and steps, or without an Input, share programs over widths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import paceline
from shared_programs import (
    DATA,
    KINDS,
    X,
    Y,
    check_each_trial_by_itself,
    check_going_on,
    first_of_many_guides,
    grid,
)
from stopping import hears_signals  # noqa: F401 - a fixture

ops: Any = keras.ops


class Normed(keras.layers.Layer):
    """A dense layer with a norm and a number that follows from its width."""

    def __init__(self, units: int, activation: str = "gelu", **arguments: Any) -> None:
        super().__init__(**arguments)
        self.units, self.activation = units, keras.activations.get(activation)

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], self.units))
        self.scale = self.add_weight(shape=(self.units,), initializer="ones")

    def call(self, x: Any) -> Any:
        h = ops.matmul(x, self.kernel)
        mean = ops.mean(h, axis=-1, keepdims=True)
        spread = ops.sqrt(ops.var(h, axis=-1, keepdims=True) + 1e-3)
        return self.activation(self.scale * (h - mean) / spread) / np.sqrt(self.units)


def focal(y_true: Any, y_pred: Any) -> Any:
    y_true = ops.one_hot(ops.cast(y_true, "int32"), 3)
    weighed = y_true * (1 - y_pred) ** 2 * ops.log(y_pred + 1e-6)
    return -ops.sum(weighed, axis=-1)


def classifier(layers: list[Any], loss: Any = focal, kind: Any = keras.Sequential) -> keras.Model:
    model = kind([*layers, keras.layers.Dense(3, activation="softmax")])
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def build(hp: Any) -> Any:
    return classifier(
        [
            Normed(hp.Int("units", 4, 12, step=4), hp.Choice("activation", ["gelu", "tanh"])),
            keras.layers.Dropout(0.3),
            Normed(hp.Choice("second", [5, 9])),
        ]
    )


def test_a_trial_is_that_trial_by_itself(fresh_folder: Path) -> None:
    """One that rides: the first trial founds the family."""

    def small(hp: Any) -> Any:
        activation = hp.Choice("activation", ["gelu", "tanh"])
        return classifier([Normed(hp.Int("units", 4, 12, step=4), activation)])

    check_each_trial_by_itself(small, "one after another", numbers=[1])


@pytest.mark.slow
@pytest.mark.parametrize("made", [build, first_of_many_guides])
@pytest.mark.parametrize("kind", KINDS)
def test_each_trial_is_that_trial_by_itself(made: Any, kind: str, fresh_folder: Path) -> None:
    check_each_trial_by_itself(made, kind)


@pytest.mark.slow
@pytest.mark.parametrize("made", [build, first_of_many_guides])
@pytest.mark.parametrize("stop", [1, 3, 9])
def test_a_search_goes_on_to_the_bit(
    made: Any, stop: int, fresh_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_going_on(made, "one after another", stop, monkeypatch)


class Weighed(keras.Sequential):
    """A model with a step of its own, which adds a penalty."""

    def train_step(self, *arguments: Any) -> Any:
        self.penalty = 0.01
        return super().train_step(*arguments)

    def compute_loss(self, *arguments: Any, **more: Any) -> Any:
        kernel = self.trainable_variables[0]
        return super().compute_loss(*arguments, **more) + 0.01 * ops.sum(kernel**2)


@pytest.mark.slow
def test_a_step_of_one_s_own_rides(fresh_folder: Path) -> None:
    def own(hp: Any) -> Any:
        hidden = keras.layers.Dense(hp.Int("units", 4, 14, step=2), "relu")
        return classifier([hidden], "sparse_categorical_crossentropy", Weighed)

    check_each_trial_by_itself(own, "one after another")


class MacroRecall(keras.metrics.Metric):
    """A metric with variables of its own."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.hits = self.add_variable((3,), "zeros", name="hits")
        self.counts = self.add_variable((3,), "zeros", name="counts")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        truth = ops.one_hot(ops.cast(ops.reshape(y_true, (-1,)), "int32"), 3)
        hit = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        self.hits.assign(self.hits + ops.sum(truth * ops.one_hot(hit, 3), axis=0))
        self.counts.assign(self.counts + ops.sum(truth, axis=0))

    def result(self) -> Any:
        return ops.mean(self.hits / ops.maximum(self.counts, 1.0))


@pytest.mark.slow
def test_metrics_and_clipping_of_one_s_own_ride(fresh_folder: Path) -> None:
    def own(hp: Any) -> Any:
        hidden = keras.layers.Dense(hp.Int("units", 4, 14, step=2), "relu")
        model = keras.Sequential([hidden, keras.layers.Dense(3, activation="softmax")])
        optimizer = keras.optimizers.AdamW(hp.Choice("lr", [0.1, 0.01]), global_clipnorm=0.5)
        loss = "sparse_categorical_crossentropy"
        model.compile(optimizer, loss, metrics=["accuracy", MacroRecall(name="recall")])
        return model

    check_each_trial_by_itself(own, "one after another")


def programs_and_error(made: Any, number: int) -> tuple[list[Any], float]:
    """The programs of all trials, and by how much one of them differs from the trial by itself."""
    call: dict[str, Any] = DATA | {"shuffle": False}  # Keras' own fit has another order of examples
    tuner = grid(made, True, [], **call)
    alone, packed = tuner.reproduce(number, X, Y, **call).history, tuner.trial(number).history
    error = max(float(np.abs(np.subtract(alone[k], v)).max()) for k, v in packed.items())
    return [tuner.trial(i).program_id for i in range(len(tuner.results()))], error


@pytest.mark.slow
def test_what_follows_from_hp_and_the_batch_size_at_once_is_seen(fresh_folder: Path) -> None:
    """The family's models have none of it: 0 is 0 on any batch."""

    def mixed(hp: Any) -> Any:
        strength = {"none": 0.0, "some": 30.0}[hp.Choice("kind", ["none", "some"])]

        def loss(y_true: Any, y_pred: Any) -> Any:
            share = np.float32(strength / y_true.shape[0])  # one number in the step
            return focal(y_true, y_pred) + share * ops.mean(y_pred**2, axis=-1)

        return classifier([keras.layers.Dense(hp.Choice("units", [4, 5, 8]))], loss)

    programs, error = programs_and_error(mixed, 4)
    assert len(programs) == 6 and len(set(programs[:3])) == 1
    assert set(programs[:3]).isdisjoint(programs[3:])
    assert error < 1e-5


@pytest.mark.slow
def test_other_operations_on_the_smaller_batch_are_seen(fresh_folder: Path) -> None:
    class Square(keras.layers.Layer):
        """Its operations depend on whether the smaller batch is as wide as the layer."""

        def call(self, x: Any) -> Any:
            return ops.tanh(x) if x.shape[0] == x.shape[1] else x

    def square(hp: Any) -> Any:
        units = hp.Choice("units", [4, 5, 6, 8])  # 21 examples to validate on: 16 and 5
        return classifier([keras.Input((12,)), keras.layers.Dense(units), Square()])

    programs, error = programs_and_error(square, 1)
    assert programs[0] == programs[2] == programs[3] != programs[1]
    assert error < 1e-5


@pytest.mark.slow
def test_class_weights_of_hp_ride(fresh_folder: Path) -> None:
    def stock(hp: Any) -> Any:
        units = hp.Choice("units", [4, 5, 8])
        return classifier([keras.layers.Dense(units, "relu")], "sparse_categorical_crossentropy")

    def weights(hp: Any) -> Any:
        return {0: 1.0, 1: hp.Choice("weight", [0.5, 3.0]), 2: 1.0}

    tuner = paceline.Tuner(stock, "val_loss", "s", sampler="grid", share_widths=True)
    call: dict[str, Any] = DATA | {"class_weight": weights}
    tuner.search(X, Y, epochs=2, **call)
    assert tuner.summary()["programs"]["distinct"] == 1
    for number in (0, 3):  # of both weights
        assert tuner.trial(number).hparams["weight"] == (0.5, 3.0)[number % 2]
        alone = tuner.reproduce(number, X, Y, **call).history
        for name, values in tuner.trial(number).history.items():
            # float32's rounding of sums with zeros in between
            np.testing.assert_allclose(values, alone[name], rtol=2e-5, atol=2e-6)
