"""A change that is shared is there for as long as anyone wants it, and made once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import keras
import pytest

from paceline.program import keras_private
from paceline.program.keras_private import RefCountedPatch

#: Seconds after which a thread that should have gone on is given up.
LONG = 30


class Library:
    """What is changed: it counts, and knows whether it was changed twice."""

    def __init__(self) -> None:
        self.changed = False
        self.n_changes = 0
        self.patch = RefCountedPatch(self.install, self.remove)

    def install(self) -> None:
        assert not self.changed
        self.changed = True
        self.n_changes += 1

    def remove(self) -> None:
        assert self.changed
        self.changed = False


@pytest.fixture
def library() -> Library:
    return Library()


def test_users_inside_of_each_other_share_it(library):
    with library.patch.applied():
        assert library.changed
        with library.patch.applied():
            assert library.changed
        assert library.changed
    assert not library.changed
    assert library.n_changes == 1


def test_it_comes_again_for_the_next_user(library):
    for n in (1, 2):
        with library.patch.applied():
            assert library.changed
        assert not library.changed
        assert library.n_changes == n


def test_an_error_inside_takes_its_user_away_and_no_other(library):
    with library.patch.applied():
        with pytest.raises(ValueError, match="the user's"), library.patch.applied():
            raise ValueError("the user's")
        assert library.changed
    assert not library.changed


def test_the_last_of_two_threads_removes_it(library):
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with library.patch.applied():
            inside.set()
            assert leave.wait(LONG)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(first)
        assert inside.wait(LONG)
        with library.patch.applied():
            leave.set()
            done.result(LONG)
            assert library.changed  # the one who made the change has gone
        assert not library.changed
    assert library.n_changes == 1


def test_threads_that_come_and_go_never_find_it_missing(library):
    n_threads = 8
    together = threading.Barrier(n_threads)

    def many() -> bool:
        together.wait(LONG)
        there = True
        for _ in range(200):
            with library.patch.applied():
                there = there and library.changed
        return there

    with ThreadPoolExecutor(n_threads) as pool:
        done = [pool.submit(many) for _ in range(n_threads)]
        assert all(each.result(LONG) for each in done)
    assert not library.changed


def test_a_change_that_cannot_be_made_has_no_user():
    library, removed = Library(), []
    library.patch = RefCountedPatch(lambda: {}["name"], lambda: removed.append(1))
    for _ in range(2):  # the second is told as well: nothing stands from the first
        with pytest.raises(KeyError, match="name"), library.patch.applied():
            pass
    assert removed == []


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", "mse"])
def test_metrics_that_are_built_are_those_of_a_step(loss: str) -> None:
    """ "accuracy" is of another kind for each form of labels."""
    y = keras.KerasTensor((8,), "int32") if loss != "mse" else keras.KerasTensor((8, 1))
    batch = keras.KerasTensor((8, 4)), y
    found = []
    for build in (keras_private.symbolic_build, keras_private.build_metrics):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3 if loss != "mse" else 1)])
        model.compile("sgd", loss, metrics=["accuracy", loss])
        build(model, batch)
        kinds = [type(metric) for metric in model._compile_metrics.metrics]
        found.append((kinds, [variable.shape for variable in model.metrics_variables]))
    assert found[0] == found[1]
    twice = keras.Input((2,))
    assert not keras_private.build_metrics(keras.Model(twice, [twice, twice]), batch)


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", "mse"])
def test_a_model_that_is_built_untraced_is_as_if_it_had_been_traced(loss: str) -> None:
    n_classes, labels = (1, (8, 1)) if loss == "mse" else (3, (8,))
    batch = jax.ShapeDtypeStruct((8, 4), "float32"), jax.ShapeDtypeStruct(labels, "int32")
    found = []
    for untraced in (False, True):
        keras.backend.clear_session()
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(n_classes)])
        model.compile("adam", loss, metrics=["accuracy", keras.metrics.MeanMetricWrapper(mean)])
        if untraced:
            assert keras_private.build_untraced(model, batch)
            assert not keras_private.build_untraced(model, batch)  # nothing is left to create
        keras_private.symbolic_build(model, batch)
        found.append((words_of(model), [variable.path for variable in model.metrics_variables]))
    assert found[0] == found[1]


def mean(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.mean(y_pred, axis=-1)


def words_of(model: Any) -> dict[str, Any]:
    """The attributes of a model, of its metrics and of its loss, as far as they are plain."""
    parts = model, model._compile_metrics, model._compile_loss, *model.metrics
    plain = (bool, int, float, str, type(None))
    return {
        f"{i} {k}": v for i, p in enumerate(parts) for k, v in vars(p).items() if type(v) in plain
    }


class Shifted(keras.losses.Loss):
    """A loss of the user's."""

    def call(self, y_true, y_pred):
        return keras.ops.mean((y_true - y_pred) ** 2)


@pytest.mark.parametrize(
    "how", [{"metrics": ["AUC"]}, {"loss": Shifted()}, {"metrics": [keras.metrics.FBetaScore()]}]
)
def test_what_may_create_variables_later_is_left_to_a_trace(how: dict[str, Any]) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(**{"optimizer": "sgd", "loss": "mse", **how})
    batch = jax.ShapeDtypeStruct((8, 4), "float32"), jax.ShapeDtypeStruct((8, 1), "float32")
    assert not keras_private.build_untraced(model, batch)
    assert not model._compile_loss.built


class OneHot(keras.Model):
    """Gives its metrics other labels than those of the data."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return super().compute_metrics(x, keras.ops.one_hot(y, 3), y_pred, sample_weight)


def test_metrics_that_a_model_of_ones_own_gives_other_labels_are_left_to_its_step() -> None:
    inputs = keras.Input((4,))
    model = OneHot(inputs, keras.layers.Dense(3)(inputs))
    model.compile("sgd", "mse", metrics=["accuracy"])
    batch = keras.KerasTensor((8, 4)), keras.KerasTensor((8,), "int32")
    assert not keras_private.build_metrics(model, batch)
    assert not model._compile_metrics.built
