"""Functions of users, of many kinds: each builds, compiles and fits.

Every one takes a number, which makes it differ from the others of its kind, and returns what it
wants compared: histories, and models or arrays.
"""

from __future__ import annotations

import contextlib
import io
import random
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from toys import CLASSES, FEATURES, data

X, Y = data(64, seed=1)
X_VAL, Y_VAL = data(32, seed=2)
FUNCTIONS: dict[str, Callable[[int], Any]] = {}


def function(made: Callable[[int], Any]) -> Callable[[int], Any]:
    FUNCTIONS[made.__name__] = made
    return made


def network(i: int = 0, *, units: int = 8, **arguments: Any) -> keras.Model:
    """A compiled classifier that is not yet built; i decides dropout and learning rate."""
    model = keras.Sequential(
        [
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dropout(0.1 + 0.1 * i),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    arguments = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], **arguments}
    model.compile(
        arguments.pop("optimizer", None) or keras.optimizers.Adam(0.01 * (i + 1)), **arguments
    )
    return model


@function
def plain(i):
    model = network(i)
    history = model.fit(X, Y, epochs=3, batch_size=16, validation_data=(X_VAL, Y_VAL), verbose=0)
    return history, model


@function
def remainders(i):
    model = network(i)
    history = model.fit(
        X,
        Y,
        epochs=2,
        batch_size=48,
        validation_data=(X_VAL, Y_VAL),
        verbose=0,
        validation_batch_size=20,
    )
    return history, model


@function
def defaults(i):
    model = network(i)
    return model.fit(X, Y, verbose=0), model


@function
def positional(i):
    model = network(i)
    return model.fit(X, Y, 16, 2, 0), model


@function
def split_and_weighted(i):
    model = network(i)
    fit = model.fit(
        X, Y, epochs=2, validation_split=0.3, class_weight={0: 1.0, 1: 2.0, 2: 0.5}, verbose=0
    )
    return fit, model


@function
def validation_in_a_list(i):  # as Talos' own examples write it
    model = network(i)
    history = model.fit(
        x=X, y=Y, validation_data=[X_VAL, Y_VAL], batch_size=64, epochs=2, verbose=0
    )
    return history, model


@function
def unshuffled(i):
    model = network(i)
    return model.fit(X, Y, epochs=2, shuffle=False, batch_size=128, verbose=0), model


@function
def first_epoch_later(i):
    model = network(i)
    return model.fit(X, Y, epochs=5, initial_epoch=3, verbose=0), model


@function
def twice(i):
    model = network(i)
    first = model.fit(X, Y, epochs=2, batch_size=16, verbose=0)
    weights = model.get_weights()
    second = model.fit(X, Y, epochs=2, batch_size=16, validation_split=0.2, verbose=0)
    return first, weights, second, model


@function
def compiled_again_between(i):
    model = network(i)
    first = model.fit(X, Y, epochs=1, verbose=0)
    model.layers[0].trainable = False
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return first, model.fit(X, Y, epochs=2, verbose=0), model


@function
def two_models(i):
    one, other = network(i), network(i, units=5)
    histories = [m.fit(X, Y, epochs=2, verbose=0) for m in (one, other)]
    return *histories, one, other


@function
def no_fit(i):
    model = network(i)
    model(X[:2])
    return model


@function
def another_layer_count(i):
    model = keras.Sequential([keras.Input((FEATURES,))])
    for _ in range(i % 2 + 1):
        model.add(keras.layers.Dense(6, activation="tanh"))
    model.add(keras.layers.Dense(CLASSES, activation="softmax"))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model.fit(X, Y, epochs=2, verbose=0), model


@function
def own_data(i):  # two functions each share theirs
    x, y = data(40, seed=i // 2)
    model = network(i)
    return model.fit(x, y, epochs=2, verbose=0), model


@function
def folds_inside(i):
    histories = []
    for fold in range(2):
        part = np.arange(len(X)) % 2 == fold
        model = network(i)
        histories.append(
            model.fit(X[part], Y[part], epochs=2, validation_data=(X[~part], Y[~part]), verbose=0)
        )
    return (*histories, model)


@function
def data_overwritten_between(i):
    x = X.copy()
    first = network(i)
    one = first.fit(x, Y, epochs=2, verbose=0)
    x *= 0.5
    second = network(i)
    return one, second.fit(x, Y, epochs=2, verbose=0), first, second


@function
def session_cleared(i):
    keras.utils.clear_session()
    model = network(i, metrics=[keras.metrics.SparseCategoricalAccuracy(), "accuracy"])
    history = model.fit(X, Y, epochs=2, verbose=0)
    keras.backend.clear_session()
    other = network(i)
    return (
        history,
        other.fit(X, Y, epochs=1, verbose=0),
        model,
        [layer.name for layer in other.layers],
    )


@function
def own_seed(i):
    keras.utils.set_random_seed(100 + i)
    model = network(i)
    return model.fit(X, Y, epochs=2, verbose=0), model


@function
def random_numbers_around(i):
    before = random.random(), np.random.random()
    model = network(i)
    history = model.fit(X, Y, epochs=2, verbose=0)
    return history, model, np.array([*before, random.random(), np.random.random()])


@function
def model_built_and_trained_before(i):
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.RMSprop(0.01 * (i + 1)), loss)
    for _ in range(3):
        model.train_on_batch(X, Y)
    return model.fit(X, Y, epochs=2, verbose=0), model


@function
def two_inputs_by_name(i):
    a, b = keras.Input((FEATURES,), name="a"), keras.Input((FEATURES,), name="b")
    joined = keras.layers.Concatenate()([a, keras.layers.Dense(3)(b)])
    model = keras.Model({"a": a, "b": b}, keras.layers.Dense(CLASSES, activation="softmax")(joined))
    model.compile(keras.optimizers.SGD(0.1 * (i + 1)), "sparse_categorical_crossentropy")
    return model.fit({"a": X, "b": X[:, ::-1]}, Y, epochs=2, verbose=0), model


@function
def averaged_weights(i):
    model = network(i, optimizer=keras.optimizers.Adam(0.01 * (i + 1), use_ema=True))
    return model.fit(X, Y, epochs=2, verbose=0), model


@function
def evaluated_and_asked(i):
    model = network(i)
    history = model.fit(X, Y, epochs=2, verbose=0)
    return (
        history,
        model,
        model.predict(X_VAL, verbose=0),
        np.array(model.evaluate(X_VAL, Y_VAL, verbose=0)),
    )


@function
def early_stopping_with_restore(i):
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    model = network(i, optimizer=keras.optimizers.Adam(0.3))
    history = model.fit(X, Y, epochs=8, validation_data=(X_VAL, Y_VAL), callbacks=[stop], verbose=0)
    return history, model


@function
def plateau(i):
    slower = keras.callbacks.ReduceLROnPlateau("loss", factor=0.1, patience=0, min_delta=10.0)
    watch = keras.callbacks.EarlyStopping("accuracy", patience=4)  # looks for the metric
    model = network(i)
    model.build((None, FEATURES))
    return model.fit(X, Y, epochs=4, callbacks=[slower, watch], verbose=0), model


@function
def scheduled(i):
    rate = keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr * (0.5 if epoch else 3.0))
    model = network(i)
    return model.fit(X, Y, epochs=3, callbacks=rate, verbose=0), model


@function
def ended_by_a_loss_that_is_no_number(i):
    model = network(i, optimizer=keras.optimizers.SGD(1e30))
    watch = keras.callbacks.TerminateOnNaN()
    history = model.fit(X * 1e20, Y, epochs=4, callbacks=[watch], verbose=0)
    return [history.epoch, [np.isfinite(v) for v in history.history["loss"]]]


class Validations(keras.callbacks.Callback):
    """Notes what it is told of validations."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_test_end(self, logs=None):
        self.seen.append(logs["loss"])


@function
def validations_are_told_of(i):
    watch, model = Validations(), network(i)
    model.fit(
        X, Y, epochs=2, batch_size=16, validation_data=(X_VAL, Y_VAL), callbacks=[watch], verbose=0
    )
    return model, np.array(watch.seen)


class Shrink(keras.callbacks.Callback):
    """Writes weights, and reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.norms: list[float] = []

    def on_train_begin(self, logs=None):
        self.model.layers[0].kernel.assign(self.model.layers[0].kernel * 0.5)

    def on_epoch_end(self, epoch, logs=None):
        self.norms.append(float(np.linalg.norm(self.model.get_weights()[0])))
        self.model.layers[-1].bias.assign(self.model.layers[-1].bias * 0.0)


@function
def weights_written_by_a_callback(i):
    shrink = Shrink()
    model = network(i)
    history = model.fit(X, Y, epochs=3, callbacks=[shrink], verbose=0)
    return history, model, np.array(shrink.norms)


class Evaluates(keras.callbacks.Callback):
    """Uses the model, and fits another one, between epochs."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.predict(X_VAL, verbose=0)
        if epoch == 0:
            network().fit(X[:32], Y[:32], verbose=0)


@function
def model_used_by_a_callback(i):
    model = network(i)
    return model.fit(X, Y, epochs=2, callbacks=[Evaluates()], verbose=0), model


@function
def checkpoint_on_disk(i):
    keep = keras.callbacks.ModelCheckpoint(f"best-{i}.keras", "loss", save_best_only=True)
    model = network(i)
    history = model.fit(X, Y, epochs=2, callbacks=[keep], verbose=0)
    return history, model, keras.models.load_model(f"best-{i}.keras")


@function
def in_quiet(i):
    out = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(out):
        warnings.simplefilter("ignore")
        model = network(i)
        history = model.fit(X, Y, epochs=2, verbose=0)
        warnings.warn("not heard", stacklevel=1)
    return history, model
