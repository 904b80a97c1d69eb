"""Layers made outside of ``build`` are part of every model; no trial sees another one through them.

Each trial begins with the values that these layers had when the search began, and they have them
again afterwards, as the user left them.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import keras
import numpy as np
import pytest

import toys
from paceline.errors import BuildError
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import random_state_kept
from paceline.pack.callbacks.slot_model import SlotModel
from paceline.program.initial_weights import as_built, changes_kept, variables_noted
from paceline.search_space import HyperParameters
from paceline.tuner.checkpoint.best_models import TrainedModels
from streams import alone

X, Y = toys.data()
XV, YV = toys.data(23, seed=1)
CALL: dict[str, Any] = {
    "validation_data": (XV, YV),
    "epochs": 2,
    "batch_size": 16,
    "shuffle": False,
}


def variables_from(build: Any) -> Iterator[Any]:
    """All variables that are reachable from the closure of a function."""
    for cell in build.__closure__ or ():
        for each in (
            cell.cell_contents if isinstance(cell.cell_contents, list) else [cell.cell_contents]
        ):
            yield from getattr(each, "variables", ())


def digest(build: Any) -> str:
    found = hashlib.sha256()
    for variable in variables_from(build):
        found.update(np.asarray(variable.value).tobytes())
    return found.hexdigest()


def shared_build(
    *, trainable: bool = True, metrics: Any = ("accuracy",), rate: float | None = None
) -> Any:
    """A ``build`` whose models have a backbone in common."""
    keras.utils.set_random_seed(3)
    backbone = keras.Sequential(
        [
            keras.Input((toys.FEATURES,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dropout(0.2),
        ]
    )
    backbone.trainable = trainable
    metrics = list(metrics)

    def build(hp: Any) -> keras.Model:
        head = keras.layers.Dense(toys.CLASSES, activation="softmax")
        model = keras.Sequential([keras.Input((toys.FEATURES,)), backbone, head])
        chosen = rate or hp.Float("lr", 1e-2, 1e-1, sampling="log")
        model.compile(
            keras.optimizers.Adam(chosen), "sparse_categorical_crossentropy", metrics=metrics
        )
        return model

    return build


def assert_alone(build: Any, trial: Any, callbacks: Any = ()) -> None:
    """A trial's history is as Keras has it; the layers are afterwards as they were before."""
    before = [(v, np.array(v.value)) for v in variables_from(build)]
    call = {**CALL, "epochs": trial.epochs, "callbacks": list(callbacks)}
    history = alone(trial, build, X, Y, **call)
    for variable, value in before:
        variable.assign(value)
    for name, values in history.items():
        # Rounding of float32 sums: 2e-7 measured. A trial that began elsewhere is 1e-2 away.
        np.testing.assert_allclose(trial.history[name], values, atol=2e-5, err_msg=name)


@pytest.fixture
def saves_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves the best model and a checkpoint whenever the search may."""
    monkeypatch.setattr(TrainedModels, "EVERY", 0.0)
    monkeypatch.setenv("PACELINE_CHECKPOINT_SECONDS", "0")


@pytest.mark.slow
@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("executor", ["auto", "fit"])
def test_trials_begin_with_the_users_layers(make, saves_always, executor, trainable) -> None:
    build = shared_build(trainable=trainable)
    before = digest(build)
    seen = []
    tuner = make(build, executor=executor, on_progress=lambda now: seen.append(digest(build)))
    tuner.search(X, Y, **CALL, n_trials=3)
    assert digest(build) == before
    if executor == "auto":
        assert set(seen) == {before}
    for trial in tuner._require_study().trials:
        assert trial.plan == "fit" if executor == "fit" else trial.plan != "fit"
    assert_alone(build, tuner.trial(2))
    best = tuner.best_model()
    loss = best.evaluate(XV, YV, batch_size=16, verbose=0)[0]
    assert loss == pytest.approx(
        min(tuner.trial(tuner.best_trial.number).history["val_loss"]), rel=1e-5
    )
    assert digest(build) == before
    tuner.search(X, Y, **CALL, n_trials="+1")
    assert_alone(build, tuner.trial(3))


class Weights(keras.callbacks.Callback):
    """Keeps what a trial's callbacks see, by learning rate."""

    seen: ClassVar[dict[float, list[np.ndarray]]] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        rate = float(np.asarray(self.model.optimizer.learning_rate))
        self.seen.setdefault(round(rate, 7), []).append(self.model.layers[0].get_weights()[0])


@pytest.mark.slow
def test_callbacks_see_their_own_trial(make, saves_always) -> None:
    metric = keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")
    build = shared_build(metrics=[metric])
    before = digest(build)
    Weights.seen.clear()
    seen = []

    def callbacks() -> list[Any]:
        return [Weights(), keras.callbacks.EarlyStopping("val_loss", restore_best_weights=True)]

    tuner = make(
        build,
        objective="max:val_top",
        on_progress=lambda now: seen.append(digest(build)),
        parallel_trials=3,
    )
    tuner.search(X, Y, **CALL, n_trials=3, callbacks=callbacks())
    assert set(seen) == {before}
    in_packs = {rate: list(kept) for rate, kept in Weights.seen.items()}
    Weights.seen.clear()
    for trial in tuner._require_study().trials[1:]:
        assert trial.plan != "fit"
        assert_alone(build, trial, callbacks())
    assert in_packs.keys() > Weights.seen.keys()
    for rate, kept in Weights.seen.items():
        np.testing.assert_allclose(in_packs[rate], kept, atol=2e-5)
    metric.reset_state()
    assert float(metric.result()) == 0.0  # the user's metric still works


def test_a_model_that_keras_cannot_copy_says_what_it_shares(make, notes) -> None:
    build = shared_build()

    class NoConfig(keras.Model):
        def __init__(self, inner: Any, function: Any) -> None:
            super().__init__()
            self.inner, self.function = inner, function

        def call(self, x: Any, training: bool = False) -> Any:
            return self.inner(self.function(x), training=training)

    def wrapped(hp: Any) -> keras.Model:
        inner = build(hp)
        model = NoConfig(inner, lambda x: x)
        model.compile("sgd", "sparse_categorical_crossentropy")
        return model

    tuner = make(wrapped)
    before = digest(build)
    tuner.search(X, Y, **CALL, n_trials=2)
    assert digest(build) == before
    model = tuner.best_model()
    loss = model.evaluate(XV, YV, batch_size=16, verbose=0)
    assert loss == pytest.approx(tuner.best_trial.value, rel=1e-5)
    assert any("shares layers with build, and Keras cannot copy it" in n for n in notes)


def test_layers_that_a_build_keeps_for_later_trials_are_refused_while_looked_at() -> None:
    @functools.cache
    def backbone(kind: str) -> Any:
        layers = [keras.Input((toys.FEATURES,)), keras.layers.Dense(8, activation=kind)]
        return keras.Sequential(layers)

    def build(hp: Any) -> keras.Model:
        kind = hp.Choice("kind", ["relu", "tanh"])
        head = keras.layers.Dense(toys.CLASSES, activation="softmax")
        return toys.compiled(
            keras.Sequential([keras.Input((toys.FEATURES,)), backbone(kind), head])
        )

    builder, hp = ModelBuilder(build), HyperParameters(values={"kind": "tanh"})
    with random_state_kept():
        first = builder(hp, 0)
        SlotModel(first)  # a callback of the trial looks at it
        with pytest.raises(BuildError, match="layers of another trial"):
            builder(hp, 1)


@pytest.mark.parametrize("callbacks", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_whole_model_may_be_made_outside(make, notes, callbacks) -> None:
    model = toys.softmax()

    def build(hp: Any) -> keras.Model:
        return toys.compiled(model, hp.Float("lr", 1e-2, 1e-1))

    before = digest(build)
    tuner = make(build)
    stops = [keras.callbacks.EarlyStopping("loss")] if callbacks else []
    tuner.search(X, Y, **CALL, callbacks=stops, n_trials=2)
    assert digest(build) == before
    assert {trial.plan == "fit" for trial in tuner._require_study().trials} == {callbacks}
    assert_alone(build, tuner.trial(1))
    said = [note for note in notes if "build returns a model that was created outside" in note]
    assert len(said) == callbacks


def toggling_build(always: bool) -> Any:
    """A ``build`` that freezes the backbone which its models have in common, in some trials."""
    keras.utils.set_random_seed(3)
    backbone = keras.Sequential(
        [
            keras.Input((toys.FEATURES,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(momentum=0.5),
        ]
    )
    backbone.layers[0].trainable = False  # the user's own choice

    def build(hp: Any) -> keras.Model:
        frozen = hp.Choice("frozen", ["yes", "no"]) == "yes"
        if frozen or always:
            backbone.trainable = not frozen
        head = keras.layers.Dense(toys.CLASSES, activation="softmax")
        model = keras.Sequential([keras.Input((toys.FEATURES,)), backbone, head])
        return toys.compiled(model, hp.Choice("lr", [0.02, 0.05]))

    return build


def flags_from(build: Any) -> list[bool]:
    found = []
    for cell in build.__closure__:
        if isinstance(cell.cell_contents, keras.Model):
            model = cell.cell_contents
            found += [model.trainable, *(each.trainable for each in model.layers)]
            found += [variable.trainable for variable in model.variables]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("executor", ["auto", "fit"])
def test_a_trial_that_freezes_shared_layers_leaves_others_alone(
    make, saves_always, executor, always
) -> None:
    build = toggling_build(always)
    before, flags = digest(build), flags_from(build)
    tuner = make(build, executor=executor, sampler="grid")
    stops = [keras.callbacks.EarlyStopping("val_loss", patience=5)]
    tuner.search(X, Y, **CALL, callbacks=stops)
    trials = tuner._require_study().trials
    assert [trial.error for trial in trials] == [None] * 4
    assert (digest(build), flags_from(build)) == (before, flags)
    assert [trial.hparams["frozen"] for trial in trials] == ["yes", "yes", "no", "no"]
    for trial in trials:
        assert_alone(build, trial)
        put_back(build, flags)
    tuner.best_model()
    assert (digest(build), flags_from(build)) == (before, flags)


def put_back(build: Any, flags: list[bool]) -> None:
    """Sets the flags as the user had them: building a model by hand changes them."""
    for cell in build.__closure__:
        model = cell.cell_contents
        if isinstance(model, keras.Model):
            model.trainable = flags[0]
            for one, flag in zip([*model.layers, *model.variables], flags[1:], strict=True):
                one.trainable = flag


@pytest.mark.slow
def test_values_that_one_build_loads_are_not_those_of_the_next(make) -> None:
    plain = shared_build(rate=0.01)
    (backbone,) = [c.cell_contents for c in plain.__closure__ if hasattr(c.cell_contents, "layers")]
    zeros = [np.zeros_like(w) for w in backbone.get_weights()]

    def build(hp: Any) -> keras.Model:
        if hp.Choice("start", ["zeros", "as it is"]) == "zeros":
            backbone.set_weights(zeros)
        return toys.compiled(plain(hp), hp.Choice("rate", [0.02, 0.05]))

    before = digest(plain)
    tuner = make(build, sampler="grid")
    tuner.search(X, Y, **CALL)
    assert digest(plain) == before
    trials = tuner._require_study().trials
    assert [trial.hparams["start"] for trial in trials] == [
        "zeros",
        "zeros",
        "as it is",
        "as it is",
    ]
    kept = [(v, np.array(v.value)) for v in backbone.variables]
    for trial in trials:
        assert_alone(build, trial)
        for variable, value in kept:
            variable.assign(value)


def test_what_a_build_changed_is_there_again_when_its_model_is_traced() -> None:
    build = toggling_build(always=False)
    layer = next(c.cell_contents for c in build.__closure__ if hasattr(c.cell_contents, "layers"))
    zeros = [np.zeros_like(w) for w in layer.get_weights()]

    def loads(hp: Any) -> keras.Model:
        model = build(hp)
        if hp.Choice("frozen", ["yes", "no"]) == "yes":
            layer.set_weights(zeros)
        return model

    before, flags, builder = digest(build), flags_from(build), ModelBuilder(loads)
    with variables_noted(), random_state_kept():
        models = [builder(HyperParameters(values={"frozen": v}), 0) for v in ("yes", "no", "yes")]
        for model, n_trainable in zip(models, (2, 4, 2), strict=True):
            with as_built(model):
                assert len(model.trainable_variables) == n_trainable
                assert not layer.layers[0].trainable
                assert (n_trainable == 2) == (not any(w.any() for w in layer.get_weights()))
        assert len(models[0].trainable_variables) == 2  # as the last build has set the flags
        with changes_kept():
            builder(HyperParameters(values={"frozen": "no"}), 0)
            assert (digest(build), flags_from(build)) == (before, flags)
        assert not any(w.any() for w in layer.get_weights())
    assert (digest(build), flags_from(build)) == (before, flags)


def test_models_that_changed_shared_layers_are_not_kept() -> None:
    build, kept = toggling_build(always=True), weakref.WeakSet()

    def noted(hp: Any) -> keras.Model:
        model = build(hp)
        model.trainable = True
        kept.add(model)
        return model

    builder = ModelBuilder(noted)
    with variables_noted(), random_state_kept():
        for _ in range(3):
            builder(HyperParameters(values={"frozen": "yes"}), 0)
        gc.collect()
        assert len(kept) <= 1
