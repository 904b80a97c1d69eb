"""Small steps of Talos' users, each of which Talos 2.0.10 passes itself.

A step is given a ``Kit`` of the package under test, and asserts one thing. ``test_steps.py`` takes
the steps on ours, ``tests/installed/test_steps.py`` on both. What a step takes from a package is
only what a notebook can import.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from compat.talos.notebook import X, Y, classifier

#: Steps that ours does not take -> why.
DIFFERS = {
    "deploy_packs_a_model_of_sklearn": "an archive of it would be a pickle",
    "restore_gives_functions_of_the_users_own": "an archive of it would be a pickle",
}
STEPS: dict[str, Callable[[Kit], None]] = {}
ADAM, ADAGRAD = keras.optimizers.Adam, keras.optimizers.Adagrad


def step(function: Callable[[Kit], None]) -> Callable[[Kit], None]:
    """Registers a step."""
    assert function.__name__ not in STEPS, "two steps of one name"
    STEPS[function.__name__] = function
    return function


def my_metric(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(keras.ops.max(y_pred, axis=-1)))


def my_loss(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred)


class MyLayer(keras.layers.Dense):
    """A layer of the user's own, which is not registered with Keras."""


def with_own_objects(x_train, y_train, x_val, y_val, params):
    """A model with a layer, a loss and a metric of the user's own."""
    model = keras.Sequential([MyLayer(4, activation="relu"), keras.layers.Dense(3, "softmax")])
    model.compile(keras.optimizers.Adam(params["lr"]), my_loss, metrics=["acc", my_metric])
    history = model.fit(x_train, y_train, validation_data=(x_val, y_val), epochs=1, verbose=0)
    return history, model


def logistic(x_train, y_train, x_val, y_val, params):
    """A model of scikit-learn; quick, for steps in which nothing but the results matters."""
    model = LogisticRegression(C=params["c"], max_iter=50, tol=1e-2).fit(x_train, y_train)
    loss = float(log_loss(y_val, model.predict_proba(x_val)))
    return SimpleNamespace(history={"loss": [loss + 1, loss], "val_loss": [loss + 1, loss]}), model


def numbers(x_train, y_train, x_val, y_val, params):
    """Results that follow from the params."""
    value = float(sum(v for v in params.values() if isinstance(v, (int, float))))
    return {"loss": [value + 2, value + 1], "val_acc": [0.0, 1 / (1 + value)]}, None


class Kit:
    """A package under test, and scans of it that several steps look at.

    Args:
        package: Its name, such as "talos".
        folder: Where scans are made.
    """

    def __init__(self, package: str, folder: Path) -> None:
        self.package, self.folder = package, folder
        self.talos: Any = importlib.import_module(package)
        self._count = 0

    def module(self, path: str) -> Any:
        return importlib.import_module(f"{self.package}.{path}")

    def new(self, name: str = "new") -> Path:
        """A path that is not there."""
        self._count += 1
        return self.folder / f"{name}{self._count}"

    def scan(self, params: Any, function: Any = numbers, **arguments: Any) -> Any:
        arguments = {"disable_progress_bar": True, "experiment_name": str(self.new()), **arguments}
        return self.talos.Scan(X, Y, params, function, **arguments)

    @functools.cached_property
    def trained(self) -> Any:
        params = {"first_neuron": [6], "dropout": (0.1, 0.5, 2), "lr": [0.001, 0.03], "epochs": [2]}
        return self.scan(params, classifier, seed=4)

    @functools.cached_property
    def own(self) -> Any:
        return self.scan({"lr": [0.001, 0.03]}, with_own_objects, seed=4)

    @functools.cached_property
    def sklearn(self) -> Any:
        return self.scan({"c": [0.1, 1.0]}, logistic, seed=4)

    @functools.cached_property
    def odd(self) -> Any:
        """A scan whose params need more than numbers."""
        params = {"loss": [0.5, 0.25], "optimizer": [ADAM], "size": [(3, 3)], "rate": (0.1, 0.3, 2)}
        return self.scan(params, seed=4)

    @functools.cached_property
    def restored(self) -> Any:
        path = self.talos.Deploy(self.trained, self.new("deploy"), "val_acc").path
        return self.talos.Restore(path)


def raises(kind: type[Exception], function: Callable[[], Any], text: str = ".") -> None:
    """Asserts that a function raises an error of a kind, with a text; each tool has its own."""
    with pytest.raises(kind, match=text):
        function()
