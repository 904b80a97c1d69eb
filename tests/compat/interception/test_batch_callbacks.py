"""Fits whose callbacks act between training batches train in packs, and come out as alone."""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

import keras
import numpy as np
import pytest

from compat.interception.alone import alone, assert_same
from compat.interception.functions import X_VAL, Y_VAL, X, Y, network
from marks import slow_where
from paceline.compat.interception import Engine, FunctionCall
from paceline.compat.interception.batch_hooks import AskedHooks, SentSlot
from paceline.pack.callbacks.packable import why_not_packed
from paceline.program.canonical import Unpackable


class WarmUp(keras.callbacks.Callback):
    """Raises the learning rate with each batch of the first steps."""

    def __init__(self, top):
        super().__init__()
        self.top, self.step = top, 0

    def on_train_batch_begin(self, batch, logs=None):
        self.step += 1
        self.model.optimizer.learning_rate = self.top * min(1.0, self.step / 5)


class Cyclic(keras.callbacks.Callback):
    """A rate that goes up and down, and a record of it, as public code has it."""

    def __init__(self, top):
        super().__init__()
        self.top, self.iterations, self.history = top, 0, {}

    def rate(self):
        cycle = math.floor(1 + self.iterations / 6)
        x = abs(self.iterations / 3 - 2 * cycle + 1)
        return 1e-3 + (self.top - 1e-3) * max(0.0, 1 - x)

    def on_train_begin(self, logs=None):
        self.model.optimizer.learning_rate.assign(self.rate())

    def on_train_batch_end(self, batch, logs=None):
        self.iterations += 1
        rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        self.history.setdefault("lr", []).append(rate)
        for name, value in logs.items():
            self.history.setdefault(name, []).append(value)
        self.model.optimizer.learning_rate.assign(self.rate())


class StopsByBatch(keras.callbacks.Callback):
    """Stops in the middle of an epoch."""

    def __init__(self, after):
        super().__init__()
        self.after, self.seen = after, 0

    def on_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen == self.after:
            self.model.stop_training = True


class Records(keras.callbacks.Callback):
    """Keeps the logs of each batch."""

    def __init__(self):
        super().__init__()
        self.steps, self.losses = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(batch)
        self.losses.append(logs["loss"])


class Draws(keras.callbacks.Callback):
    """Draws from the function's random state, and writes weights."""

    def on_train_batch_end(self, batch, logs=None):
        if batch % 2:
            kernel = self.model.trainable_variables[0]
            kernel.assign_add(np.random.normal(0, 1e-2, kernel.shape).astype("float32"))


def fitted(i, callback, **arguments):
    model = network(i)
    given = {"epochs": 3, "batch_size": 16, "verbose": 0, "validation_data": (X_VAL, Y_VAL)}
    history = model.fit(X, Y, callbacks=[callback], **given | arguments)
    return history, model, np.random.random()


def warmed(i):
    return fitted(i, WarmUp(0.02 * (i + 1)))


def cycled(i):
    callback = Cyclic(0.05 + 0.01 * i)
    found = fitted(i, callback)
    return *found, callback.history["lr"], callback.history["loss"]


def stopped(i):
    return fitted(i, StopsByBatch(3 + 4 * i))


def recorded(i):
    callback = Records()
    return *fitted(i, callback), callback.steps, callback.losses


def drawn(i):
    return fitted(i, Draws())


def lambdas(i):
    losses = []

    def keep(batch, logs):
        losses.append(logs["loss"])

    return *fitted(i, keras.callbacks.LambdaCallback(on_train_batch_end=keep)), losses


def smaller_last(i):
    callback = Records()
    found = fitted(i, callback, batch_size=24, shuffle=False)
    return *found, callback.steps, callback.losses


FUNCTIONS = {
    function.__name__: function
    for function in (warmed, cycled, stopped, recorded, drawn, lambdas, smaller_last)
}


#: Those that `make test` runs.
QUICK = ("cycled", "stopped", "smaller_last")


def together(function, n=3):
    notes = []
    with Engine(notes=notes.append) as made:
        calls = [FunctionCall(i, partial(function, i), i) for i in range(n)]
        outcomes = {outcome.number: outcome for outcome in made.run(calls)}
        return outcomes, notes, made.program_counts()


@pytest.mark.parametrize("name", slow_where(FUNCTIONS, lambda name: name not in QUICK))
def test_fits_come_out_as_alone(name):
    function = FUNCTIONS[name]
    outcomes, notes, counts = together(function)
    assert (notes, counts["distinct"]) == ([], 1)
    assert [outcomes[i].error for i in range(3)] == [None] * 3
    assert all(outcomes[i].fits[0].plan != "fit" for i in range(3))
    for i in range(3):
        assert_same(outcomes[i].value, alone(partial(function, i), i))


class Raises(keras.callbacks.Callback):
    """Raises at the third batch."""

    def __init__(self, error):
        super().__init__()
        self.error, self.seen = error, []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(batch)
        if len(self.seen) == 3:
            raise self.error

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append("epoch")


def test_what_a_callback_raises_ends_its_own_fit():
    """Its function may catch it; the model is as it was after that batch."""

    def function(i):
        if i != 1:
            return recorded(i)
        callback, model = Raises(ValueError("no good")), network(i)
        with pytest.raises(ValueError, match="no good"):
            model.fit(X, Y, epochs=2, batch_size=16, callbacks=[callback], verbose=0)
        return callback.seen, float(np.abs(model.trainable_variables[0]).sum()) > 0

    outcomes, notes, _ = together(function)
    assert notes == []
    assert outcomes[1].value == ([0, 1, 2], True)
    for i in (0, 2):
        assert_same(outcomes[i].value, alone(partial(function, i), i))


def test_what_ends_the_process_ends_the_run():
    def function(i):
        return recorded(i) if i != 1 else fitted(i, Raises(KeyboardInterrupt("now")))

    with pytest.raises(KeyboardInterrupt, match="now"):
        together(function)
    assert "fit" not in vars(keras.Model)


LOG: list[float] = []


class LogsOutside(keras.callbacks.Callback):
    """Writes to a list that all fits share."""

    def on_train_batch_end(self, batch, logs=None):
        LOG.append(logs["loss"])


class LogsInto(keras.callbacks.Callback):
    """Writes to a list that it is given."""

    def __init__(self, sink):
        super().__init__()
        self.sink = sink

    def on_train_batch_end(self, batch, logs=None):
        self.sink.append(logs["loss"])


class LogsInClass(keras.callbacks.Callback):
    """Writes to a list that its class has."""

    losses: ClassVar[list[float]] = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])


def logs_outside(i):
    found = fitted(i, LogsOutside())
    return *found, [*LOG]


def logs_into(i):
    found = fitted(i, LogsInto(LOG))
    return *found, [*LOG]


def logs_in_class(i):
    before = len(LogsInClass.losses)
    return *fitted(i, LogsInClass()), LogsInClass.losses[before:]


@pytest.mark.parametrize(
    "function",
    slow_where([logs_outside, logs_into, logs_in_class], lambda each: each is logs_outside),
)
def test_a_side_effect_that_fits_share_is_detected(function):
    LOG.clear()
    outcomes, notes, _ = together(function)
    named = ("LOG", "'sink' of LogsInto", "LogsInClass change 'losses'")
    assert any(name in notes[0] for name in named)
    assert notes[0].startswith("functions run one at a time, in order: ")
    LOG.clear()
    for i in range(3):
        assert_same(outcomes[i].value, alone(partial(function, i), i))


class Evaluates(keras.callbacks.Callback):
    """Needs a model that holds its variables, not a slot."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.evaluate(X_VAL, Y_VAL, verbose=0)


class ReadsMetric(keras.callbacks.Callback):
    """Needs the state of a metric after a batch."""

    def __init__(self, metric):
        super().__init__()
        self.metric, self.seen = metric, []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(float(self.metric.result()))


def test_what_a_pack_does_not_keep_of_a_batch_goes_to_fit():
    outcomes, (note,), _ = together(lambda i: fitted(i, Evaluates(), epochs=1), n=1)
    assert outcomes[0].fits[0].plan == "fit"
    assert "Evaluates has its own on_train_batch_end" in note
    assert why_not_packed([ReadsMetric(keras.metrics.Mean())], by_batch=True) is not None


class Momentum(WarmUp):
    """Sets a number of the optimizer with which a step is traced."""

    def on_train_begin(self, logs=None):
        self.momentum = 0.5  # of its own, which changes nothing
        self.model.optimizer.momentum = 0.3


class HiddenMomentum(WarmUp):
    """Does so in a way that its code does not show."""

    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(batch, logs)
        setattr(self.model.optimizer, "momentum", 0.3)  # noqa: B010 - as some code has it


def with_momentum(i, callback):
    model = network(i, optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    history = model.fit(X, Y, epochs=2, batch_size=16, callbacks=[callback], verbose=0)
    return history, model


def test_a_number_that_a_step_is_traced_with_is_set_in_fit_alone():
    outcomes, (note,), _ = together(lambda i: with_momentum(i, Momentum(0.1)), n=1)
    assert "callbacks: Momentum sets 'momentum' while it trains, but the compiled program" in note
    assert_same(outcomes[0].value, alone(lambda: with_momentum(0, Momentum(0.1)), 0))


def test_a_number_that_is_set_unseen_is_an_error():
    outcomes, _, _ = together(lambda i: with_momentum(i, HiddenMomentum(0.1)), n=1)
    with pytest.raises(Unpackable, match="a callback set momentum of the optimizer when training"):
        raise outcomes[0].error


class Freezes(keras.callbacks.Callback):
    """Changes what is trained, which the compiled program cannot."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.layers[0].trainable = False


@pytest.mark.slow
def test_a_layer_that_is_frozen_between_two_batches_is_noted():
    _, (note,), _ = together(lambda i: fitted(i, Freezes(), epochs=1), n=1)
    assert note.startswith("a callback changes layer.trainable during training")


def test_hooks_that_reach_the_model_by_a_name_are_noted():
    """Keras on JAX takes what they write before the first batch of an epoch alone."""

    def function(i):
        model = network(i)
        model.compile("sgd", "sparse_categorical_crossentropy")

        def set_rate(batch, logs):
            model.optimizer.learning_rate.assign(0.01 * (batch + 1))

        named = keras.callbacks.LambdaCallback(on_train_batch_begin=set_rate)
        return model.fit(X, Y, batch_size=16, callbacks=[named], verbose=0), model

    _, (note,), _ = together(function, n=1)
    assert note.startswith("callbacks: LambdaCallback reaches its model by a name, not as self.")


class Refits(keras.callbacks.Callback):
    """Trains another model in a way that its code does not show."""

    def __init__(self, other, losses):
        super().__init__()
        self.train, self.losses = getattr(other, "f" + "it"), losses

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            history = self.train(X[:8], Y[:8], epochs=1, shuffle=False, verbose=0)
            self.losses.append(history.history["loss"][0])


@pytest.mark.slow
def test_a_fit_between_two_batches_is_keras_own():
    def function(i):
        other, losses = network(i), []
        return *fitted(i, Refits(other, losses)), other, losses

    outcomes, _, _ = together(function, n=2)
    assert [outcomes[i].error for i in range(2)] == [None] * 2
    for i in range(2):
        assert_same(outcomes[i].value, alone(partial(function, i), i))


def test_hooks_that_are_asked_for_are_called_in_each_epoch():
    """In a session that is not on JAX; a callback has ended an epoch, and the fit continues."""
    answers = iter([("done", ({}, False)), ("done", ({}, True))])
    hooks = AskedHooks(0, lambda *told: None, lambda: next(answers))
    hooks.attach(SentSlot({}, lambda part, leaf: np.zeros(1)))
    hooks.begin_batch(0)
    assert not hooks.in_batches
    hooks.begin_epoch()
    assert hooks.in_batches
