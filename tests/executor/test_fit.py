"""Trials in Keras' own ``fit``."""

from __future__ import annotations

import re
from typing import Any

import keras
import numpy as np
import pytest

import toys
from paceline.data.folds import make_folds
from paceline.executor.base import Answer, EpochReport, Job
from paceline.executor.fit import FitExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import random_state_kept
from paceline.search_space import HyperParameters

X, Y = toys.data()
XV, YV = toys.data(23, seed=1)
DATA: dict[str, Any] = {"x": X, "y": Y, "validation_data": (XV, YV)}


def job(number: int = 0, epochs: int = 2, seed: int = 7) -> Job:
    build = ModelBuilder(lambda hp: toys.softmax(run_eagerly=True))  # no compile

    def rebuild() -> keras.Model:
        return build(HyperParameters(), seed)

    return Job(number, seed, epochs, 25, rebuild(), rebuild)


def run(executor: FitExecutor, report: Any = None) -> list[EpochReport]:
    reports: list[EpochReport] = []

    def collect(epoch: EpochReport) -> Answer:
        reports.append(epoch)
        return "continue" if report is None else report(epoch)

    def failed(number: int, error: BaseException) -> None:
        raise error

    with random_state_kept():
        while executor.busy:
            executor.advance(collect, lambda: False, failed)
    return reports


@pytest.mark.slow
def test_every_epoch_is_reported_as_keras_has_it():
    executor = FitExecutor(DATA)
    executor.submit(job())
    assert (executor.busy, executor.waiting, executor.next_number) == (True, 1, 0)
    reports = run(executor)
    with random_state_kept():
        alone = job().rebuild().fit(**DATA, batch_size=25, epochs=2, verbose=0).history
    assert [epoch.epoch for epoch in reports] == [1, 2]
    for name, values in alone.items():
        np.testing.assert_allclose([epoch.logs[name] for epoch in reports], values, rtol=1e-6)
    assert {epoch.plan for epoch in reports} == {"fit"}
    assert sum(epoch.seconds for epoch in reports) <= executor.seconds


@pytest.mark.slow
def test_weights_are_those_of_the_epoch():
    executor = FitExecutor(DATA)
    executor.submit(job())
    weights: list[Any] = []

    def keep(epoch: EpochReport) -> Answer:
        weights.append(epoch.weights())
        return "continue"

    (_, last) = run(executor, keep)
    assert not np.array_equal(weights[0][0][0], weights[1][0][0])
    model = job().rebuild()
    model.set_weights([*weights[1][0]])
    loss = model.evaluate(XV, YV, verbose=0)[0]
    assert loss == pytest.approx(last.logs["val_loss"], abs=1e-6)


@pytest.mark.slow
def test_a_report_ends_a_trial_and_the_next_begins():
    executor = FitExecutor(DATA)
    executor.submit(job(0, epochs=5))
    executor.submit(job(1, epochs=2))
    reports = run(executor, lambda epoch: "continue" if epoch.number == 1 else "stop")
    assert [(epoch.number, epoch.epoch) for epoch in reports] == [(0, 1), (1, 1), (1, 2)]


def test_the_users_callbacks_come_first():
    class Adds(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.n = 0

        def on_epoch_end(self, epoch, logs=None):
            self.n += 1
            logs["mine"] = float(self.n)

    executor = FitExecutor(DATA)
    for number in range(2):
        one = job(number)
        one.callbacks = lambda number, model: [Adds()]
        executor.submit(one)
    reports = run(executor)
    assert [epoch.logs["mine"] for epoch in reports] == [1.0, 2.0, 1.0, 2.0]
    assert [epoch.last for epoch in reports] == [False, True] * 2


@pytest.mark.parametrize("stopped", [True, False])
def test_who_fails_at_the_end_of_a_trial_that_the_search_stopped_is_noted(stopped):
    class Fails(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            raise ValueError("too few epochs")

    notes, failed = [], {}
    one = job(epochs=2)
    one.callbacks = lambda number, model: [Fails()]
    executor = FitExecutor(DATA, note=notes.append)
    executor.submit(one)
    answer = "stop" if stopped else "continue"
    executor.advance(lambda epoch: answer, lambda: False, failed.__setitem__)
    said = "a callback of a trial that was stopped failed in on_train_end: ValueError: too few"
    assert [note for note in notes if note.startswith(said)] == notes
    assert len(notes) == stopped and len(failed) == (not stopped)


def test_the_last_report_has_the_weights_of_its_epoch_whatever_comes_after():
    class Ends(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1

        def on_train_end(self, logs=None):
            self.model.set_weights([0 * w for w in self.model.get_weights()])

    one = job(epochs=9)
    one.callbacks = lambda number, model: [Ends()]
    executor = FitExecutor(DATA)
    executor.submit(one)
    *_, last = run(executor)
    assert (last.epoch, last.last) == (2, True)
    assert np.any(last.weights()[0][0])


def test_the_weights_are_in_the_order_of_a_model_that_is_built_again():
    class Freezes(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.layers[0].trainable = epoch == 0

    one = job()
    one.callbacks = lambda number, model: [Freezes()]
    executor = FitExecutor(DATA)
    executor.submit(one)
    found = [report.weights() for report in run(executor)]
    again = one.rebuild()
    lists = again.trainable_variables, again.non_trainable_variables
    for weights in found:
        for values, variables in zip(weights, lists, strict=True):
            assert [value.shape for value in values] == [variable.shape for variable in variables]


def test_epochs_count_from_one_wherever_they_begin():
    executor = FitExecutor({**DATA, "initial_epoch": 2})
    executor.submit(job(epochs=4))
    assert [epoch.epoch for epoch in run(executor)] == [1, 2]


def test_what_a_model_raises_is_raised_and_the_next_can_run():
    executor = FitExecutor({"x": X[:, :4], "y": Y})
    executor.submit(job(0))
    executor.submit(job(1))
    errors: dict[int, BaseException] = {}
    with random_state_kept():
        executor.advance(lambda epoch: "continue", lambda: False, errors.__setitem__)
    assert re.search("expected|incompatible", str(errors[0]))
    assert executor.next_number == 1


def test_an_error_of_the_report_is_raised_even_where_a_users_fit_swallows_it():
    class Swallows(keras.Model):
        def fit(self, *args, **kwargs):
            try:
                return super().fit(*args, **kwargs)
            except Exception:
                return None

    def build(hp):
        inputs = keras.Input((toys.FEATURES,))
        model = Swallows(inputs, keras.layers.Dense(toys.CLASSES, activation="softmax")(inputs))
        model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
        return model

    def report(epoch: EpochReport) -> Answer:
        raise ValueError("of the search")

    one = job()
    one.rebuild = lambda: ModelBuilder(build)(HyperParameters(), 7)
    executor = FitExecutor(DATA)
    executor.submit(one)
    with pytest.raises(ValueError, match="^of the search$"):
        run(executor, report)


def test_folds_train_one_after_another_on_their_examples():
    folds, _ = make_folds(Y, len(Y), 2, 0)
    data = {"x": X, "y": Y, "sample_weight": np.linspace(0, 1, len(X), dtype="float32")}
    executor = FitExecutor({**data, "validation_data": tuple(data.values()), "shuffle": False})
    folded = job(4)
    folded.folds = folds
    executor.submit(folded)
    assert executor.waiting == 2
    reports = run(executor)
    assert [epoch.number for epoch in reports] == [5, 5, 4, 4]  # the first is the last
    parts = [{name: a[fold.train] for name, a in data.items()} for fold in folds]
    with random_state_kept():
        held_out = tuple(array[folds[0].validation] for array in data.values())
        alone = (
            job()
            .rebuild()
            .fit(
                **parts[0],
                validation_data=held_out,
                shuffle=False,
                batch_size=25,
                epochs=2,
                verbose=0,
            )
        )
    for name, values in alone.history.items():
        np.testing.assert_allclose([epoch.logs[name] for epoch in reports[2:]], values, rtol=1e-5)


def test_what_is_dropped_does_not_train():
    executor = FitExecutor(DATA)
    for number in range(3):
        executor.submit(job(number, epochs=1))
    executor.drop(1)
    executor.drop(7)
    assert [epoch.number for epoch in run(executor)] == [0, 2]
