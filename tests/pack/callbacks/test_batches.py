"""Callbacks around training batches: packs train batch by batch, each trial as in ``fit``."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import pytest

import paceline
import toys
from streams import alone

X, Y = toys.data(50)
CALL: dict[str, Any] = {"epochs": 3, "batch_size": 16, "shuffle": False}
CALL["validation_data"] = toys.data(23, seed=1)


class WarmUp(keras.callbacks.Callback):
    """Raises the rate over the first steps, then follows a cosine; keeps what it saw."""

    def __init__(self, steps: int = 5) -> None:
        super().__init__()
        self.steps, self.step, self.seen = steps, 0, []

    def on_train_begin(self, logs: Any = None) -> None:
        self.highest = float(self.model.optimizer.learning_rate)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        share = min(1.0, (self.step + 1) / self.steps) * (1 + math.cos(self.step / 12)) / 2
        self.model.optimizer.learning_rate = self.highest * share
        self.step += 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append((batch, float(logs["loss"]), float(self.model.optimizer.learning_rate)))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["seen"] = sum(loss for _, loss, _ in self.seen)
        logs["last_rate"] = self.seen[-1][-1]


class StopsAtLoss(keras.callbacks.Callback):
    """Stops in the middle of an epoch, as soon as the loss so far is low."""

    def __init__(self, loss: float) -> None:
        super().__init__()
        self.loss = loss

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if logs["loss"] < self.loss:
            self.model.stop_training = True


def build(hp: Any) -> keras.Model:
    return toys.dense(hp)


def search(callbacks: Any, **settings: Any) -> paceline.Tuner:
    call = CALL | settings.pop("call", {})
    given: dict[str, Any] = {"study": "s", "objective": "val_loss", "sampler": "random", "seed": 2}
    given |= {"on_note": lambda text: None}
    tuner = paceline.Tuner(build, **(given | settings))
    tuner.search(X, Y, n_trials=4, callbacks=callbacks, **call)
    return tuner


def check(tuner: paceline.Tuner, callbacks: Any, **call: Any) -> None:
    trials = tuner._require_study().trials
    assert [trial.state for trial in trials] == ["complete"] * 4
    for trial in trials:
        assert trial.plan != "fit"
        history = alone(trial, build, X, Y, callbacks=[callbacks()], **(CALL | call))
        assert set(history) == set(trial.history)
        for name, values in history.items():
            # Sums of 32 bits in another order.
            np.testing.assert_allclose(trial.history[name], values, rtol=2e-4, err_msg=name)


@pytest.mark.parametrize("plan", ["auto", pytest.param("sequential", marks=pytest.mark.slow)])
def test_rates_by_batch_and_what_callbacks_see_are_as_in_fit(plan: str) -> None:
    check(search(WarmUp(), plan=plan), WarmUp)


@pytest.mark.slow
@pytest.mark.parametrize("size", [25, pytest.param(7, marks=pytest.mark.slow)])
def test_it_is_so_with_and_without_a_smaller_batch(size: int) -> None:
    check(search(WarmUp(), call={"batch_size": size}), WarmUp, batch_size=size)


@pytest.mark.parametrize("loss", [1.1, pytest.param(0.9, marks=pytest.mark.slow)])
def test_each_trial_stops_at_its_own_batch(loss: float) -> None:
    tuner = search(StopsAtLoss(loss))
    check(tuner, lambda: StopsAtLoss(loss))
    assert len({trial.epochs for trial in tuner._require_study().trials}) > 1


@pytest.mark.slow
def test_a_function_of_hp_decides_for_each_trial() -> None:
    def made(hp: Any) -> list[Any]:
        return [WarmUp(hp.Choice("steps", [2, 9]))]

    for trial in search(made)._require_study().trials:
        history = alone(trial, build, X, Y, callbacks=[WarmUp(trial.hparams["steps"])], **CALL)
        np.testing.assert_allclose(trial.history["loss"], history["loss"], rtol=2e-4)


def test_a_callback_that_raises_fails_its_own_trial() -> None:
    class Raises(WarmUp):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(batch, logs)
            if self.highest < 0.01 and batch == 1:
                raise ValueError("too slow")

    tuner = search(Raises())
    states = {(trial.hparams["lr"] < 0.01, trial.state) for trial in tuner._require_study().trials}
    assert states == {(True, "failed"), (False, "complete")}


@pytest.mark.slow
def test_a_search_comes_out_the_same_again() -> None:
    one, other = search(WarmUp(), study="one"), search(WarmUp(), study="other")
    for a, b in zip(one._require_study().trials, other._require_study().trials, strict=True):
        assert a.history == b.history


class Momentum(WarmUp):
    """Sets a number with which a step is traced."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_begin(batch, logs)
        self.model.optimizer.momentum = 0.2


class HiddenMomentum(WarmUp):
    """Does so in a way that its code does not show."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_begin(batch, logs)
        setattr(self.model.optimizer, "momentum", 0.2)  # noqa: B010 - as some code has it


def with_momentum(hp: Any) -> keras.Model:
    model = toys.dense(hp)
    rate = hp.get("lr")
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), "sparse_categorical_crossentropy")
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Momentum, HiddenMomentum])
def test_a_number_that_a_step_is_traced_with_is_set_in_fit_alone(kind: Any) -> None:
    tuner = paceline.Tuner(with_momentum, "loss", study="s", seed=2, on_note=lambda text: None)
    tuner.search(X, Y, n_trials=1, callbacks=kind(), epochs=2, batch_size=16, shuffle=False)
    trial, call = tuner.trial(0), {"epochs": 2, "batch_size": 16, "shuffle": False}
    assert trial.plan == "fit"
    history = alone(trial, with_momentum, X, Y, callbacks=[kind()], **call)
    np.testing.assert_allclose(trial.history["loss"], history["loss"], rtol=2e-4)


def test_data_in_chunks_or_batches_train_in_fit() -> None:
    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return X[index * 16 : index * 16 + 16], Y[index * 16 : index * 16 + 16]

    tuner = paceline.Tuner(build, "loss", study="s", on_note=lambda text: None)
    tuner.search(Batches(workers=1), n_trials=1, epochs=1, callbacks=StopsAtLoss(0.0))
    assert tuner.trial(0).plan == "fit"
