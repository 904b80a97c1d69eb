"""Functions of users that share something: made anew by each call, as a notebook that is run again.

A maker returns a function of a number; what its functions share is made in the maker, or is global.
"""

from __future__ import annotations

import csv
import functools
import itertools
import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from compat.interception.functions import X_VAL, Y_VAL, X, Y, network
from toys import CLASSES, FEATURES

MAKERS: dict[str, Callable[[], Callable[[int], Any]]] = {}
#: Functions that touch what they share after their fits: they train together.
IN_ORDER: dict[str, Callable[[], Callable[[int], Any]]] = {}
LATEST: Any = None
FIXED = "fixed.weights.h5"
SETTINGS = {"epochs": 2, "rates": [0.01, 0.1, 0.5]}


def maker(made: Callable[[], Callable[[int], Any]]) -> Callable[[], Callable[[int], Any]]:
    MAKERS[made.__name__] = made
    return made


def in_order(made: Callable[[], Callable[[int], Any]]) -> Callable[[], Callable[[int], Any]]:
    IN_ORDER[made.__name__] = made
    return made


def fit(model: keras.Model, **arguments: Any) -> Any:
    return model.fit(X, Y, **{"epochs": 2, "batch_size": 32, "verbose": 0, **arguments})


# -- files -----------------------------------------------------------------------------------------


@maker
def checkpoint_of_one_name():
    def function(i):
        model = network(i)
        keep = keras.callbacks.ModelCheckpoint(
            "best.weights.h5", "loss", save_best_only=True, save_weights_only=True
        )
        history = fit(model, callbacks=[keep])
        model.load_weights("best.weights.h5")
        return history, model

    return function


@maker
def log_read_back():
    def function(i):
        model, name = network(i), "-".join(["log", "csv"])  # no text of the function
        fit(model, callbacks=[keras.callbacks.CSVLogger(name)])
        with open(name) as file:
            return model, np.array([float(row["loss"]) for row in csv.DictReader(file)])

    return function


@maker
def checkpoint_in_the_second_fit():
    def function(i):
        model, name = network(i), "".join(["second", ".weights.h5"])
        fit(model, epochs=1 + i)
        keep = keras.callbacks.ModelCheckpoint(name, "loss", save_weights_only=True)
        fit(model, callbacks=[keep])
        model.load_weights(name)
        return model.get_weights()

    return function


@maker
def weights_saved_before_and_loaded_after():
    def function(i):
        start = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(3)])
        start.save_weights(FIXED)
        history = fit(network(i))
        start.load_weights(FIXED)
        return history, start.get_weights()

    return function


# -- objects of Keras ------------------------------------------------------------------------------


@maker
def callback_made_outside():
    stop = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=0.3)

    def function(i):
        model = network(optimizer=keras.optimizers.SGD(SETTINGS["rates"][i]))
        return fit(model, epochs=5, callbacks=[stop])

    return function


@maker
def callback_in_a_cache():
    """Nothing shows it before the second fit."""

    @functools.lru_cache
    def get():
        return keras.callbacks.EarlyStopping("loss", patience=1, min_delta=0.3)

    def function(i):
        model = network(optimizer=keras.optimizers.SGD(SETTINGS["rates"][i]))
        return fit(model, epochs=5, callbacks=[get()])

    return function


@maker
def optimizer_made_outside():
    """Keras refuses an optimizer that was built for another model: so it does here."""
    optimizer = keras.optimizers.Adam(0.01)

    def function(i):
        model = network(i, optimizer=optimizer)
        try:
            return fit(model).history["loss"]
        except ValueError as error:
            return type(error).__name__

    return function


@maker
def model_made_outside():
    model = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(CLASSES, activation="softmax")]
    )

    def function(i):
        model.compile(keras.optimizers.SGD(0.1 * (i + 1)), "sparse_categorical_crossentropy")
        return fit(model), model.get_weights()

    return function


@maker
def layer_made_outside():
    layer = keras.layers.Dense(5, activation="relu", name="shared")

    def function(i):
        model = keras.Sequential([layer, keras.layers.Dense(CLASSES, activation="softmax")])
        model.compile(keras.optimizers.SGD(0.1 * (i + 1)), "sparse_categorical_crossentropy")
        return fit(model), model.get_weights()

    return function


# -- values ----------------------------------------------------------------------------------------


@maker
def global_bound_before_and_read_after():
    def function(i):
        global LATEST
        LATEST = i
        return fit(network(i)), LATEST

    return function


def keeps_latest(i):
    global LATEST
    fit(network(i))
    LATEST = i
    return LATEST


@maker
def outer_variable_bound_after():
    best = 10.0

    def function(i):
        nonlocal best
        before = best
        history = fit(network(i), epochs=3 - i)
        best = min(best, history.history["loss"][-1])
        return history, np.array([before, best])

    return function


@in_order
def list_that_grows_after():
    losses: list[float] = []

    def function(i):
        history = fit(network(i), epochs=3 - i)
        losses.append(history.history["loss"][-1])
        return history, np.array(losses)

    return function


@in_order
def best_model_that_is_kept():
    best, best_model = 10.0, None

    def function(i):
        nonlocal best, best_model
        model = network(i)
        model.fit(X, Y, epochs=3 - i, verbose=0)
        loss = model.evaluate(X_VAL, Y_VAL, verbose=0)[0]
        if loss < best:
            best, best_model = loss, model
            model.save_weights("best.weights.h5")
        with open("losses.txt", "a") as file:
            file.write(f"{loss:.3f}\n")
        with open("losses.txt") as file:
            return file.read(), best, best_model.get_weights()[0]

    return function


@in_order
def folds_of_which_a_list_keeps_the_mean():
    class Folds:
        def __init__(self):
            self.means = {}

        def run(self, i):
            losses = []
            for fold in range(2):
                part = slice(30 * fold, 30 * fold + 30)
                history = network(i).fit(X[part], Y[part], epochs=2 - i % 2, verbose=0)
                losses.append(history.history["loss"][-1])
            self.means[i] = np.mean(losses)
            return np.array([*self.means, *self.means.values()])

    return Folds().run


@in_order
def attribute_of_a_class_that_calls_its_parent():
    """By ``super`` code reaches the class, and so methods that nothing calls."""

    class Base:
        def run(self, i):
            return network(i).fit(X, Y, epochs=3 - i, verbose=0)

    class Table(Base):
        def __init__(self):
            self.rows = {}

        def run(self, i):
            history = super().run(i)
            self.rows[i] = history.history["loss"]
            return history, [*self.rows]

        def table(self):
            return list(self.rows)

    table = Table()

    def function(i):
        return table.run(i)

    return function


@in_order
def one_that_does_not_train():
    """The second one comes to the list in its first turn."""
    found: list[Any] = []

    def function(i):
        if i != 1:
            fit(network(i), epochs=3 - i)
        found.append(i)
        return list(found)

    return function


@maker
def list_of_two_names():
    """Only the objects show that the lists are one."""
    losses: list[float] = []
    seen = {"losses": losses}

    def function(i):
        n = len(seen["losses"])
        history = fit(network(i), epochs=3 - i)
        losses.append(history.history["loss"][-1])
        return n, np.array(losses)

    return function


@maker
def list_read_by_a_callback():
    losses: list[float] = []

    def function(i):
        seen = []
        log = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, _: seen.append(len(losses)))
        history = fit(network(i), epochs=3 - i, callbacks=[log])
        losses.append(history.history["loss"][-1])
        return seen

    return function


@maker
def dict_written_in_a_callback():
    logs: dict[str, Any] = {}

    def function(i):
        def note(epoch, found):
            logs["latest"] = i
            logs[f"{i} {epoch}"] = found["loss"]

        fit(network(i), epochs=3 - i, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=note)])
        return list(logs)

    return function


@maker
def array_changed_by_a_library():
    order = np.arange(6.0)

    def function(i):
        np.random.shuffle(order)
        history = fit(network(i))
        return history, order.copy()

    return function


@maker
def list_under_another_name():
    numbers: list[int] = []

    def function(i):
        here = numbers
        here.append(i)
        fit(network(i))
        return list(numbers)

    return function


@maker
def working_directory():
    def function(i):
        os.makedirs(f"{i}", exist_ok=True)
        os.chdir(f"{i}")
        fit(network(i))
        return os.path.relpath(os.getcwd(), here)

    here = os.getcwd()
    return function


def note(where, value):
    where.append(value)


@maker
def list_given_to_a_function():
    losses: list[float] = []

    def function(i):
        history = fit(network(i), epochs=3 - i)
        note(losses, history.history["loss"][-1])
        return history, np.array(losses)

    return function


@maker
def attribute_of_an_object():
    class Store:
        def __init__(self):
            self.latest = None

        def keep(self, value):
            self.latest = value

    store = Store()

    def function(i):
        store.keep(i)
        fit(network(i))
        return store.latest

    return function


@maker
def numbers_drawn_from_one_generator():
    rng = np.random.default_rng(0)

    def function(i):
        fit(network(i), epochs=3 - i)
        return float(rng.random())

    return function


@maker
def counted():
    numbers = itertools.count()

    def function(i):
        fit(network(i), epochs=3 - i)
        return next(numbers)

    return function


# -- shared without harm ---------------------------------------------------------------------------

HARMLESS: dict[str, Callable[[], Callable[[int], Any]]] = {}


def harmless(made: Callable[[], Callable[[int], Any]]) -> Callable[[], Callable[[int], Any]]:
    HARMLESS[made.__name__] = made
    return made


@harmless
def what_is_only_read():
    x, y = X.copy(), Y.copy()
    table = {"a": [1, 2], "b": {"c": (X_VAL, Y_VAL)}}
    names = ["loss"]

    def function(i):
        params = {"epochs": SETTINGS["epochs"]}
        params["units"] = 8
        callbacks = []
        callbacks.append(keras.callbacks.ReduceLROnPlateau(names[0]))
        model = network(i, optimizer=keras.optimizers.SGD(SETTINGS["rates"][i]))
        history = model.fit(
            x,
            y,
            epochs=params["epochs"],
            validation_data=table["b"]["c"],
            callbacks=callbacks,
            verbose=0,
        )
        return history, model

    return function


@harmless
def paths_of_their_own():
    def function(i):
        model = network(i)
        keep = keras.callbacks.ModelCheckpoint(f"{i}/best.keras", "loss", save_best_only=True)
        history = fit(model, callbacks=[keep])
        model.save(f"last-{i}.keras")
        return history, keras.models.load_model(f"{i}/best.keras")

    return function


@harmless
def layer_that_training_leaves_as_it_is():
    scale = keras.layers.Normalization()
    scale.adapt(X)

    def function(i):
        model = keras.Sequential([scale, keras.layers.Dense(CLASSES, activation="softmax")])
        model.compile(keras.optimizers.SGD(0.1 * (i + 1)), "sparse_categorical_crossentropy")
        return fit(model), model

    return function


@harmless
def metrics_made_outside():
    metrics = [keras.metrics.SparseCategoricalAccuracy(name="acc")]
    loss = keras.losses.SparseCategoricalCrossentropy()

    def function(i):
        model = network(i, metrics=metrics, loss=loss)
        return fit(model), np.array(model.evaluate(X_VAL, Y_VAL, verbose=0))

    return function
