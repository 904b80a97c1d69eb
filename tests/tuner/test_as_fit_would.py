"""What ``fit`` takes and what it raises, a search takes and raises: steps, metrics, sizes, data.

Each trial is compared with Keras' own ``fit`` of the same hyperparameters and seed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
import pytest
import scipy.sparse
from keras import layers, ops

import toys
from marks import slow_where
from paceline.data import arrays
from paceline.errors import BuildError, ObjectiveError
from paceline.search_space import HyperParameters
from streams import alone

X, Y = toys.data()
XV, YV = toys.data(23, seed=1)
ONE_HOT, ONE_HOT_V = np.eye(toys.CLASSES)[Y], np.eye(toys.CLASSES)[YV]
CALL: dict[str, Any] = {"epochs": 2, "batch_size": 16, "shuffle": False}


def network(kind: Any = keras.Sequential, **dense: Any) -> Any:
    hidden = layers.Dense(8, activation="relu", **dense)
    return kind([keras.Input((toys.FEATURES,)), hidden, layers.Dense(3, activation="softmax")])


def compiled(model: Any, hp: Any, **arguments: Any) -> Any:
    model.compile(
        keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-1, sampling="log")),
        **{"loss": "sparse_categorical_crossentropy", **arguments},
    )
    return model


def search(make: Any, build: Any, *data: Any, n_trials: int = 2, **call: Any) -> Any:
    tuner = make(build, objective="min:loss", keep_best=1)
    tuner.search(*data, **{**CALL, **call}, n_trials=n_trials)
    return tuner


def assert_as_fit(tuner: Any, build: Any, *data: Any, packed: bool = True, **call: Any) -> None:
    for trial in tuner._require_study().trials:
        assert trial.state == "complete" and (trial.plan != "fit") == packed
        history = alone(trial, build, *data, **{**CALL, **call})
        assert set(history) == set(trial.history)
        for name, values in history.items():
            # Rounding of float32 sums; Keras itself is as far from a run in another order.
            np.testing.assert_allclose(trial.history[name], values, atol=2e-5, err_msg=name)


# -- steps that read variables ---------------------------------------------------------------------


class LogsRate(keras.Sequential):
    def train_step(self, state: Any, data: Any) -> Any:
        logs, state = super().train_step(state, data)
        return {**logs, "lr": self.optimizer.learning_rate}, state


class OfTheGuide(keras.Sequential):
    """The ``train_step`` of Keras' guide for JAX."""

    def compute_loss_and_updates(self, trainable, fixed, x, y, training=False):
        y_pred, fixed = self.stateless_call(trainable, fixed, x, training=training)
        return self.compute_loss(x, y, y_pred), (y_pred, fixed)

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, fixed, optimizer, metrics = state
        x, y = data
        gradient = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        (loss, (_, fixed)), grads = gradient(trainable, fixed, x, y, training=True)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, grads, trainable)
        return {"loss": loss}, (trainable, fixed, optimizer, metrics)


class CountsInCall(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(3, activation="softmax")
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, x: Any) -> Any:
        self.seen.update_state(ops.mean(x))
        return self.dense(x)


def scheduled(hp: Any) -> Any:
    rate = hp.Float("lr", 1e-3, 1e-1, sampling="log")
    return keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(rate, 3, 0.5))


def logs_rate(hp: Any) -> Any:
    model = network(LogsRate)
    model.compile(scheduled(hp), "sparse_categorical_crossentropy")
    return model


def penalised(hp: Any) -> Any:
    return compiled(network(OfTheGuide, kernel_regularizer="l2"), hp)


def counting(hp: Any) -> Any:
    return compiled(CountsInCall(), hp)


def metric_of_rate(hp: Any) -> Any:
    optimizer = scheduled(hp)

    def lr(y: Any, y_pred: Any) -> Any:
        return optimizer.learning_rate

    model = network()
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=[lr])
    return model


@pytest.mark.parametrize("build", [penalised, counting])
def test_a_variable_that_no_step_is_given_is_read_as_in_fit(make, build: Callable) -> None:
    """Either both raise the same, or both have the same history."""
    hp = HyperParameters()
    keras.utils.set_random_seed(0)
    raised: Exception | None = None
    try:
        build(hp).fit(X, Y, **CALL, verbose=0)
    except Exception as error:
        raised = error
    with contextlib.suppress(BuildError):
        tuner = search(make, build, X, Y)
    if raised is None:
        assert_as_fit(tuner, build, X, Y)
        return
    tuner = make(build)
    found = [tuner.trial(0)]
    assert [trial.state for trial in found] == ["failed"] * len(found)
    assert type(raised).__name__ in str(found[0].error)


def test_without_an_objective_the_error_of_the_step_is_told(make) -> None:
    with pytest.raises(ObjectiveError, match="shows no metrics: TypeError: .* it is not given"):
        make(penalised).search(X, Y, **CALL, n_trials=1)


class TestsRate(keras.Sequential):
    __test__ = False

    def test_step(self, state: Any, data: Any) -> Any:
        logs, state = super().test_step(state, data)
        return {**logs, "lr": self.optimizer.learning_rate}, state


def validated_rate(hp: Any) -> Any:
    model = network(TestsRate)
    model.compile(scheduled(hp), "sparse_categorical_crossentropy")
    return model


@pytest.mark.parametrize("build", [logs_rate, metric_of_rate, validated_rate])
def test_rates_are_read_as_in_tensorflow_where_fit_on_jax_fails(make, build: Callable) -> None:
    """There is the rate after each update; tests/tuner/test_rate_metric.py has the values."""
    tuner = search(make, build, X, Y, validation_data=(XV, YV), n_trials=1)
    trial = tuner.trial(0)
    assert trial.plan != "fit"
    rates = trial.history["lr" if build is logs_rate else "val_lr"]
    assert all(after < before for before, after in zip(rates, rates[1:], strict=False))


# -- x alone ---------------------------------------------------------------------------------------


class Autoencoder(keras.Model):
    """Its step takes what ``fit(x)`` gives it: x, and not a tuple of it."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(toys.FEATURES)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def x_of(self, data: Any) -> Any:
        return data

    def train_step(self, state: Any, data: Any) -> Any:
        x = self.x_of(data)
        trainable, fixed, optimizer, metrics = state

        def loss_of(trainable: Any) -> Any:
            y, _ = self.stateless_call(trainable, fixed, x)
            return ops.mean(ops.square(y - x))

        loss, grads = jax.value_and_grad(loss_of)(trainable)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, grads, trainable)
        return {"loss": loss}, (trainable, fixed, optimizer, metrics)


def test_a_step_is_given_x_alone(make) -> None:
    def build(hp: Any) -> Any:
        return compiled(Autoencoder(), hp, loss=None)

    tuner = search(make, build, X, n_trials=1)
    assert_as_fit(tuner, build, X)


class Wrapped(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, at: int) -> Any:
        return (X[at * 16 : at * 16 + 16],)


class Unwraps(Autoencoder):
    def x_of(self, data: Any) -> Any:
        (x,) = data
        return x


@pytest.mark.slow
def test_a_step_is_given_the_tuple_of_a_data_set(make) -> None:
    def build(hp: Any) -> Any:
        return compiled(Unwraps(), hp, loss=None)

    tuner = search(make, build, Wrapped(), batch_size=None, n_trials=1)
    assert_as_fit(tuner, build, Wrapped(), batch_size=None)


# -- metrics that are arrays -----------------------------------------------------------------------


def per_class(hp: Any) -> Any:
    metrics = [
        keras.metrics.F1Score(name="f1_score"),
        keras.metrics.Recall(thresholds=[0.2, 0.5], name="recall"),
    ]
    return compiled(network(), hp, loss="categorical_crossentropy", metrics=metrics)


@pytest.mark.parametrize("executor", ["auto", pytest.param("fit", marks=pytest.mark.slow)])
def test_arrays_are_reported_number_by_number(make, notes, executor) -> None:
    tuner = make(per_class, executor=executor)
    call = {**CALL, "epochs": 1, "validation_data": (XV, ONE_HOT_V)}
    tuner.search(X, ONE_HOT, **call, n_trials=1)
    trial = tuner.best_trial
    assert (trial.plan == "fit") == (executor == "fit")
    history = alone(trial, per_class, X, ONE_HOT, **{**CALL, **call})
    f1 = np.asarray(history["val_f1_score"])
    np.testing.assert_allclose(trial.history["val_f1_score"], f1.mean(axis=1), atol=2e-5)
    for at in range(3):
        np.testing.assert_allclose(trial.history[f"val_f1_score_{at}"], f1[:, at], atol=2e-5)
    recall = np.asarray(history["recall"])
    np.testing.assert_allclose(trial.history["recall_1"], recall[:, 1], atol=2e-5)
    assert trial.value == pytest.approx(max(f1.mean(axis=1)), abs=2e-5)
    assert [n for n in notes if "the metric is an array of 3 numbers" in n]


@pytest.mark.slow
def test_one_number_of_an_array_may_be_the_objective(make, notes) -> None:
    tuner = make(per_class, objective="val_f1_score_2")
    tuner.search(X, ONE_HOT, **CALL, validation_data=(XV, ONE_HOT_V), n_trials=2)
    assert tuner.best_trial.value == max(tuner.best_trial.history["val_f1_score_2"])
    assert not [n for n in notes if "array" in n]


# -- what Keras does not compile -------------------------------------------------------------------


def test_jit_compile_false_packs_and_says_so(make, notes) -> None:
    def build(hp: Any) -> Any:
        return compiled(network(), hp, jit_compile=False)

    tuner = search(make, build, X, Y, n_trials=1, epochs=1)
    assert tuner.trial(0).plan != "fit"  # the zoo's case without_jit compares it with fit
    assert [n for n in notes if n.startswith("jit_compile=False has no effect")]


class Python(layers.Layer):
    """Needs numbers, which a compiled step has not."""

    def call(self, x: Any) -> Any:
        return x * 2 if float(ops.sum(x)) > 0 else x


def test_what_cannot_be_compiled_trains_in_fit_where_keras_does_not_compile(make) -> None:
    def build(hp: Any) -> Any:
        # No Input: the layer is called with numbers, and never to build a graph.
        model = keras.Sequential([Python(), layers.Dense(3, activation="softmax")])
        return compiled(model, hp, jit_compile=False, run_eagerly=False)

    with contextlib.suppress(BuildError):
        tuner = search(make, build, X, Y, n_trials=1)
        assert "step cannot be compiled" in tuner.trial(0).fallback_reason


# -- sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["auto", pytest.param("fit", marks=pytest.mark.slow)])
def test_a_batch_size_above_the_examples_is_one_smaller_batch(make, executor) -> None:
    def build(hp: Any) -> Any:
        return compiled(network(), hp, metrics=["accuracy"])

    tuner = make(build, objective="min:loss", executor=executor)
    x, y = X[:20], Y[:20]
    call = {**CALL, "batch_size": lambda hp: hp.Choice("size", [30]), "validation_data": (XV, YV)}
    tuner.search(x, y, **call, n_trials=1)
    call["batch_size"] = 30
    assert_as_fit(tuner, build, x, y, **call, packed=executor == "auto")


@pytest.mark.slow
def test_a_batch_size_above_the_examples_of_a_fold_is_one_smaller_batch(make) -> None:
    tuner = make(lambda hp: compiled(network(), hp), objective="min:loss")
    tuner.search(X, Y, **{**CALL, "batch_size": 45}, folds=5, n_trials=1)
    assert tuner.trial(0).state == "complete"


@pytest.mark.slow
def test_validation_freq_leaves_gaps_in_the_history_and_says_so(make, notes) -> None:
    def build(hp: Any) -> Any:
        return compiled(network(), hp)

    data = {"validation_data": (XV, YV), "validation_freq": 2, "epochs": 4}
    tuner = search(make, build, X, Y, **data, n_trials=1)
    history = alone(tuner.trial(0), build, X, Y, **{**CALL, **data})
    ours = np.asarray(tuner.history(0)["val_loss"])
    assert np.isnan(ours[::2]).all()
    np.testing.assert_allclose(ours[1::2], history["val_loss"], atol=2e-5)
    assert [n for n in notes if n.startswith("validation_freq: ")]


# -- sparse data -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csr_matrix", pytest.param("coo_array", marks=pytest.mark.slow)])
def test_sparse_x_packs(make, kind) -> None:
    x = np.where(X > 0.5, X, 0.0)
    sparse = getattr(scipy.sparse, kind)(x)

    def build(hp: Any) -> Any:
        return compiled(network(), hp)

    tuner = search(make, build, sparse, Y, n_trials=1)
    assert_as_fit(tuner, build, x, Y)


@pytest.mark.slow
def test_sparse_x_that_is_too_large_trains_in_fit(make, monkeypatch) -> None:
    monkeypatch.setattr(arrays, "_MOST_DENSE", 100)
    sparse = scipy.sparse.csr_matrix(np.where(X > 0.5, X, 0.0))

    def build(hp: Any) -> Any:
        return compiled(network(), hp)

    tuner = make(build, objective=None)
    tuner.search(sparse, Y, **CALL, validation_data=(XV, YV), n_trials=1)
    assert tuner.trial(0).plan == "fit" and tuner.trial(0).state == "complete"


@pytest.mark.slow
def test_labels_of_two_classes_may_be_weighted_by_hp(make: Any) -> None:
    weights = {0: 1.0, 1: 3.0}

    def build(hp: Any) -> Any:
        head = layers.Dense(1, activation="sigmoid")
        model = keras.Sequential([keras.Input((toys.FEATURES,)), head])
        return compiled(model, hp, loss="binary_crossentropy")

    tuner = search(make, build, X, Y == 1, class_weight=lambda hp: weights)
    assert_as_fit(tuner, build, X, Y == 1, class_weight=weights)


@pytest.mark.slow
def test_means_of_weights_are_there_when_training_ends_where_float16_wraps_the_optimizer(
    make: Any,
) -> None:
    seen: list[Any] = []

    class Looks(keras.callbacks.Callback):
        def on_train_end(self, logs: Any = None) -> None:
            seen.append(self.model.get_weights())

    def build(hp: Any) -> Any:
        model = network()
        adam = keras.optimizers.Adam(hp.Float("lr", 5e-2, 1e-1), use_ema=True, ema_momentum=0.9)
        model.compile(adam, "sparse_categorical_crossentropy")
        return model

    keras.config.set_dtype_policy("mixed_float16")
    try:
        tuner = search(make, build, X, Y, n_trials=1, callbacks=lambda hp: [Looks()])
        alone(tuner.trial(0), build, X, Y, **CALL, callbacks=[Looks()])
    finally:
        keras.config.set_dtype_policy("float32")
    assert tuner.trial(0).plan != "fit"
    for ours, theirs in zip(*seen, strict=True):
        # float16's rounding of activations, other fusions; without the mean 0.1 and more
        np.testing.assert_allclose(ours, theirs, atol=5e-3)


@pytest.mark.parametrize("resets", slow_where([True, False], lambda resets: not resets))
def test_a_metric_may_count_over_epochs(make: Any, resets: bool) -> None:
    class Counts(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="counts")
            self.n = self.add_weight(name="n", initializer="ones")

        def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
            self.n.assign_add(1.0)

        def result(self) -> Any:
            return self.n * 1.0

        def reset_state(self) -> None:
            if resets:
                self.n.assign(1.0)

    def build(hp: Any) -> Any:
        return compiled(network(), hp, metrics=[Counts()])

    tuner = search(make, build, X, Y)
    assert_as_fit(tuner, build, X, Y, packed=resets)
