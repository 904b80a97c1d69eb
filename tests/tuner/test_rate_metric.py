"""Metrics that read the optimizer's variables show what TensorFlow shows, in packs.

TensorFlow updates the optimizer before it updates metrics, and validates with the rate of then.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import paceline
import toys

X, Y = toys.data(48)
STEPS, RATE = 3, 0.9  # batches of 16 in an epoch; decay per step


def rate_of(optimizer: Any) -> Any:
    def lr(y_true: Any, y_pred: Any) -> Any:
        return optimizer.learning_rate

    return lr


def decaying(hp: Any) -> keras.Model:
    first = hp.Float("lr", 1e-3, 1e-1, sampling="log")
    schedule: Any = keras.optimizers.schedules.ExponentialDecay(first, 1, RATE)
    return made(keras.optimizers.Adam(schedule))


def constant(hp: Any) -> keras.Model:
    return made(keras.optimizers.SGD(hp.Float("lr", 1e-3, 1e-1, sampling="log")))


def made(optimizer: Any) -> keras.Model:
    layers = [keras.Input((toys.FEATURES,)), keras.layers.Dense(3, activation="softmax")]
    model = keras.Sequential(layers)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=[rate_of(optimizer)])
    return model


def search(build: Any, **settings: Any) -> paceline.Tuner:
    call = {k: settings.pop(k) for k in ("callbacks", "validation_data", "folds") if k in settings}
    given: dict[str, Any] = {"study": "s", "on_note": len, "objective": "loss", "seed": 1}
    given |= {"sampler": "random", "executor": "packed"}
    tuner = paceline.Tuner(build, **(given | settings))
    tuner.search(X, Y, epochs=2, batch_size=16, n_trials=3, **call)
    return tuner


def check(tuner: paceline.Tuner, *, validated: bool = True) -> None:
    trials = tuner._require_study().trials
    assert [trial.state for trial in trials] == ["complete"] * 3
    for trial in trials:
        rates = trial.hparams["lr"] * RATE ** np.arange(1, 2 * STEPS + 1).reshape(2, STEPS)
        # Rates are of 32 bits.
        np.testing.assert_allclose(trial.history["lr"], rates.mean(axis=1), rtol=1e-5)
        if validated:
            np.testing.assert_allclose(trial.history["val_lr"], rates[:, -1], rtol=1e-5)


@pytest.mark.parametrize("plan", ["vectorized", "looped", "sequential"])
def test_it_shows_the_rate_after_each_step_under_every_plan(plan: str) -> None:
    tuner = search(decaying, plan=plan, validation_data=toys.data(20, seed=1))
    check(tuner)
    assert {trial.plan for trial in tuner._require_study().trials} == {plan}
    assert tuner.summary()["programs"]["distinct"] == 1


def test_it_shows_it_without_validation_and_in_folds() -> None:
    check(search(decaying), validated=False)
    tuner = search(decaying, study="folds", folds=2, objective="val_loss")
    for trial in tuner._require_study().trials:
        rates = trial.hparams["lr"] * RATE ** np.arange(1, 5).reshape(2, 2)  # 24 examples
        np.testing.assert_allclose(trial.history["val_lr"], rates[:, -1], rtol=1e-5)


def test_it_follows_a_callback_that_sets_the_rate() -> None:
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    tuner = search(constant, callbacks=[schedule], validation_data=(X, Y))
    for trial in tuner._require_study().trials:
        rates = trial.hparams["lr"] * np.array([0.5, 0.25])
        np.testing.assert_allclose(trial.history["lr"], rates, rtol=1e-5)
        np.testing.assert_allclose(trial.history["val_lr"], rates, rtol=1e-5)


def test_weights_are_those_of_the_model_without_the_metric() -> None:
    def plain(hp: Any) -> keras.Model:
        model = constant(hp)
        model.compile(model.optimizer, "sparse_categorical_crossentropy")
        return model

    one, other = search(constant), search(plain, study="plain")
    for a, b in zip(one._require_study().trials, other._require_study().trials, strict=True):
        assert a.hparams == b.hparams
        np.testing.assert_allclose(a.history["loss"], b.history["loss"], rtol=1e-6)


class Reads(keras.Model):
    """Counts steps by the optimizer's own variable, in a step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(3, activation="softmax")
        self.steps = keras.metrics.Mean(name="steps")

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        self.steps.update_state(self.optimizer.iterations)
        return super().compute_metrics(x, y, y_pred, sample_weight)


def test_any_variable_of_the_optimizer_can_be_read() -> None:
    def build(hp: Any) -> keras.Model:
        model = Reads()
        rate = hp.Float("lr", 1e-3, 1e-1, sampling="log")
        model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy")
        return model

    tuner = search(build, validation_data=(X, Y))
    for trial in tuner._require_study().trials:
        assert trial.history["steps"] == [2.0, 5.0]  # means of 1, 2, 3 and 4, 5, 6
        assert trial.history["val_steps"] == [3.0, 6.0]
