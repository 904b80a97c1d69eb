"""A first look at a model: the names of its logs, in the order of ``compile``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

import toys
from paceline.errors import PacelineError
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import random_state_kept
from paceline.program import keras_private
from paceline.study.objectives import Objective, resolve_objective
from paceline.tuner.arguments.arguments import read_arguments
from paceline.tuner.search.first_build import FirstBuild, probe

X, Y = toys.data()


def look(build: Any, y: Any = Y, **arguments: Any) -> list[str] | None:
    return first(build, y, **arguments).names


def first(build: Any, y: Any = Y, **arguments: Any) -> FirstBuild:
    given = {"x": X, "y": y, "validation_split": 0.2, "epochs": 1, "n_trials": 1, **arguments}
    with random_state_kept():
        read = read_arguments(
            given, executor="auto", needs_end=True, folder=Path("trials"), note=lambda text: None
        )
        return probe(ModelBuilder(build), read, 0, 5)


def single(metrics: list[Any], weighted: Any = None) -> Any:
    def build(hp):
        model = toys.softmax()
        loss = "sparse_categorical_crossentropy"
        model.compile("adam", loss, metrics=metrics, weighted_metrics=weighted)
        return model

    return build


def several(order: str) -> Any:
    """Outputs ``b`` and ``a``, given to Keras as a list or a dict."""

    def build(hp):
        inputs = keras.Input((toys.FEATURES,))
        b = keras.layers.Dense(3, activation="softmax", name="b")(inputs)
        a = keras.layers.Dense(1, name="a")(inputs)
        model = keras.Model(inputs, [b, a] if order == "list" else {"b": b, "a": a})
        losses = {"b": "sparse_categorical_crossentropy", "a": "mse"}
        model.compile("adam", losses, metrics={"a": ["mae"], "b": ["accuracy"]})
        return model

    return build


@pytest.mark.parametrize(
    ("metrics", "default"),
    [
        (["accuracy"], "val_accuracy"),
        ([keras.metrics.SparseTopKCategoricalAccuracy(2, name="auc_of_mine"), "accuracy"], None),
        (["sparse_categorical_crossentropy", "accuracy"], "val_sparse_categorical_crossentropy"),
        ([], "val_loss"),
    ],
)
def test_the_default_is_the_first_metric_of_compile(metrics, default):
    names = look(single(metrics))
    assert names is not None
    assert names[0] == "loss"
    assert names[len(names) // 2] == "val_loss"
    if default is None:
        default, objective = "val_auc_of_mine", "max:val_auc_of_mine"
    else:
        objective = None
    assert resolve_objective(objective, None, names).name == default


@pytest.mark.parametrize(("order", "first"), [("list", "val_b_accuracy"), ("dict", "val_a_mae")])
def test_of_several_outputs_the_first_output_counts(order, first):
    # Keras sorts the outputs of a dict by name.
    y = {"b": Y, "a": X[:, 0]}
    names = look(several(order), [Y, X[:, 0]] if order == "list" else y)
    assert names is not None
    assert {"b_accuracy", "a_mae", "a_loss", "b_loss"} <= set(names)
    assert resolve_objective(None, None, names).name == first
    assert resolve_objective("val_b_accuracy", None, names).direction == "maximize"
    assert resolve_objective("val_a_mae", None, names).direction == "minimize"


def test_no_validation_no_names_of_it():
    assert look(single(["accuracy"]), validation_split=0.0) == ["loss", "accuracy"]


class Steps(keras.Model):
    """Reports names that no metric has."""

    def train_step(self, state, data):
        logs, state = super().train_step(state, data)
        return {**logs, "twice": 2 * logs["loss"]}, state

    def test_step(self, state, data):
        logs, state = super().test_step(state, data)
        return {**logs, "half": logs["loss"] / 2}, state


def test_a_step_of_the_users_may_report_anything():
    def build(hp):
        inputs = keras.Input((toys.FEATURES,))
        head = keras.layers.Dense(3, activation="softmax")(inputs)
        return toys.compiled(Steps(inputs, head))

    # In no order of ours: Keras before 3.12 sorts what a step returns.
    names = {"loss", "accuracy", "twice", "val_loss", "val_accuracy", "val_half"}
    assert set(look(build)) == names


def test_an_eager_model_is_looked_at_too():
    assert look(lambda hp: toys.softmax(run_eagerly=True)) == [
        *("loss", "accuracy", "val_loss", "val_accuracy"),
    ]


@pytest.fixture
def names_unchecked():
    """Keras' private names are looked for anew in a test, and again after it."""
    keras_private._missing_names.cache_clear()
    yield
    keras_private._missing_names.cache_clear()


def without(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Keras as it would be if it had renamed a method of its models."""
    (owner,) = (cls for cls in keras.Model.__mro__ if name in vars(cls))
    monkeypatch.delattr(owner, name)


def test_a_private_name_that_keras_has_no_more_is_named(monkeypatch, names_unchecked):
    """And not the user's data, or the user's build, which is not even called."""
    without(monkeypatch, "_symbolic_build")
    builds: list[Any] = []
    supported = r"supports Keras 3\.10 to 3\.15: pip install"
    wanted = rf"^Keras {keras.__version__} has no Model\._symbolic_build\(.*{supported}"
    with pytest.raises(PacelineError, match=wanted):
        look(builds.append)
    assert builds == []


def test_the_names_are_looked_for_once(monkeypatch, names_unchecked):
    look(lambda hp: toys.softmax())
    without(monkeypatch, "_symbolic_build")
    keras_private.check_names()
    keras_private._missing_names.cache_clear()
    with pytest.raises(PacelineError, match="_symbolic_build"):
        keras_private.check_names()


def test_what_is_supported_is_what_is_tested():
    """The oldest and the newest Keras of the environments that tests run in."""
    requirements = Path(__file__).parents[2] / "requirements"
    for lock, (major, minor) in zip(("oldest", "dev"), keras_private.SUPPORTED, strict=True):
        assert f"\nkeras=={major}.{minor}." in (requirements / f"{lock}.lock").read_text()


# -- the default objective -------------------------------------------------------------------------


class InCall(keras.Model):
    """Its ``call`` makes a metric, with which Keras trains on TensorFlow."""

    def __init__(self, name: str = "spread") -> None:
        super().__init__()
        self.out, self.metric = keras.layers.Dense(1), keras.metrics.Mean(name=name)

    def call(self, x: Any) -> Any:
        y = self.out(x)
        self.metric.update_state(keras.ops.mean(y))
        return y


class InStep(keras.Model):
    """Its ``train_step`` adds a log that validation does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.out = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.out(x)

    def train_step(self, state: Any, data: Any) -> Any:
        logs, state = super().train_step(state, data)
        return {**logs, "extra": logs["loss"] * 2}, state


@pytest.mark.parametrize(
    ("model", "metrics", "expected", "noted"),
    [
        (InCall, [], "val_loss", "spread"),
        (InStep, [], "val_loss", "extra"),
        (InStep, ["mae"], "val_mae", None),
        (InCall, ["mae"], "val_mae", None),
        (lambda: InCall("accuracy"), [], "val_accuracy", None),
        (InStep, None, "val_loss", "extra"),
    ],
)
def test_a_metric_of_the_models_own_is_no_default_objective(
    model: Any, metrics: list[str] | None, expected: str, noted: str | None
) -> None:
    def build(hp: Any) -> Any:
        made = model()
        made.compile("sgd", "mse", metrics=metrics)
        return made

    found = first(build)
    objective = found.objective(None, None, callbacks=False)
    assert isinstance(objective, Objective)
    assert objective.name == expected
    note = found.note_on(objective, None)
    assert (note is not None) == (noted is not None)
    if note is not None:
        assert note.startswith("objective: val_loss, because") and f"({noted})" in note
    assert found.note_on(objective, expected) is None  # it was asked for


def test_who_gives_a_direction_means_the_metric_of_the_models_own() -> None:
    def build(hp: Any) -> Any:
        made = InCall()
        made.compile("sgd", "mse")
        return made

    found = first(build).objective(None, "maximize", callbacks=False)
    assert found == Objective("val_spread", "maximize")
