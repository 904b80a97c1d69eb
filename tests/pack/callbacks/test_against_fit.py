"""Callbacks of packed trials do what they do in Keras' own ``fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import toys
import zoo
from marks import slow_where
from pack.callbacks.runs import (
    EPOCHS,
    SEEDS,
    XV,
    YV,
    Runs,
    alone,
    assert_same,
    assert_same_arrays,
    packed,
)

callbacks = keras.callbacks


class Recorder(callbacks.Callback):
    """Keeps what it is told, and the weights at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[Any, ...]] = []
        self.end: list[np.ndarray] = []

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self.told.append(("params", params))

    def on_train_begin(self, logs: Any = None) -> None:
        self.told.append(("train_begin", self.model.stop_training, int(self.iterations())))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.told.append(("epoch_begin", epoch, int(self.iterations())))

    def on_test_end(self, logs: Any = None) -> None:
        self.told.append(("test_end", sorted(logs)))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.told.append(("epoch_end", epoch, sorted(logs), int(self.iterations())))

    def on_train_end(self, logs: Any = None) -> None:
        self.told.append(("train_end", sorted(logs), len(self.model.history.epoch)))
        self.end = self.model.get_weights()

    def iterations(self) -> Any:
        return keras.ops.convert_to_numpy(self.model.optimizer.iterations)


class Meddles(callbacks.Callback):
    """Reads and writes what it can reach."""

    def on_train_begin(self, logs: Any = None) -> None:
        first = self.model.trainable_variables[0]
        first.assign(first * 0.9)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 3:
            self.model.optimizer.learning_rate = 0.02

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        model = self.model
        logs["evaluated"] = model.evaluate(XV, YV, verbose=0, return_dict=True)["loss"]
        logs["predicted"] = float(np.sum(model.predict(XV, verbose=0) ** 2))
        logs["size"] = sum(float(keras.ops.sum(keras.ops.abs(w))) for w in model.weights)
        if epoch == 1:
            model.set_weights([w / 2 for w in model.get_weights()])
        if epoch == 2:
            model.layers[-1].bias.assign_add(keras.ops.ones(toys.CLASSES))
            model.optimizer.learning_rate.assign(0.01)


def ema(hp: Any) -> Any:
    """As ``toys.dense``, with weights that are averages in the end."""
    model = toys.dense(hp)
    optimizer = keras.optimizers.SGD(hp.get("lr"), momentum=0.5, use_ema=True, ema_momentum=0.7)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def recurrent(hp: Any) -> Any:
    """Its validation draws dropout seeds: state that callbacks see and must leave as it is."""
    layers = [
        keras.Input((toys.FEATURES,)),
        keras.layers.Reshape((toys.FEATURES // 2, 2)),
        keras.layers.LSTM(4, recurrent_dropout=hp.Float("dropout", 0.1, 0.5)),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(toys.CLASSES, activation="softmax"),
    ]
    return toys.compiled(keras.Sequential(layers), hp.Float("lr", 1e-3, 1.0))


def twice(epoch: int, logs: Any) -> None:
    logs["twice"] = 2 * logs["loss"]


CASES: dict[str, Any] = {
    "early stopping": lambda: [
        callbacks.EarlyStopping(
            "val_loss", patience=1, min_delta=0.05, restore_best_weights=True, start_from_epoch=1
        )
    ],
    "early stopping by accuracy": lambda: [
        callbacks.EarlyStopping("val_accuracy", patience=2, baseline=0.4)
    ],
    "plateau": lambda: [
        callbacks.ReduceLROnPlateau("loss", factor=0.3, patience=1, min_delta=0.05, cooldown=1)
    ],
    "scheduler": lambda: [callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.8**epoch)],
    "lambdas": lambda: [callbacks.LambdaCallback(on_epoch_end=twice)],
    "terminate on nan": lambda: [callbacks.TerminateOnNaN()],
    "a user's own": lambda: [Meddles()],
    "in this order": lambda: [
        Meddles(),
        callbacks.ReduceLROnPlateau("evaluated", patience=0, min_delta=0.01, mode="min"),
        callbacks.EarlyStopping("size", mode="min", patience=2, restore_best_weights=True),
    ],
}

#: Those that stop, that fail, and that depend on one another.
QUICK = ["early stopping"]


def recorded(make: Any) -> Any:
    return lambda: [*make(), Recorder()]


def compare(ours: Runs, make: Any, build: Any = toys.dense) -> None:
    """Compares trials with ``fit``: logs, weights, and what callbacks are told and hold."""
    for number in (0, 2):  # one that was there from the beginning, one that came into a free slot
        theirs = alone(make, number, build)
        assert_same(ours, theirs, number)
        mine, other = ours.callbacks[number], theirs.callbacks[number]
        assert mine[-1].told == other[-1].told
        # The end of training may have made them others, as by restore_best_weights.
        assert_same_arrays(mine[-1].end, other[-1].end)


@pytest.mark.parametrize("name", slow_where(CASES, lambda name: name not in QUICK))
def test_a_callback_does_what_it_does_in_fit(name: str) -> None:
    make = recorded(CASES[name])
    with zoo.float64():
        ours = packed(make)
        compare(ours, make)
    assert not ours.failed
    if name.startswith("early"):
        epochs = [len(ours.history[number]["loss"]) for number in range(len(SEEDS))]
        assert min(epochs) < EPOCHS, "nothing was stopped early"
        # The slot of the first that stopped is the next one's in the round after.
        assert all(len(trials) == 2 for trials in ours.slots[: min(epochs) + 1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "plan"),
    [
        (ema, "looped"),
        (ema, "sequential"),
        (recurrent, "vectorized"),
    ],
)
def test_whatever_the_model_and_the_plan(build: Any, plan: str) -> None:
    make = recorded(CASES["in this order"])
    tolerance = 1e-6 if build is recurrent else 1e-9  # BatchNormalization keeps float32 inside
    with zoo.float64():
        ours = packed(make, build, plan=plan, slots=1 if plan == "sequential" else 2)
        theirs = alone(make, 1, build)
        assert_same(ours, theirs, 1, tolerance)
        assert ours.callbacks[1][-1].told == theirs.callbacks[1][-1].told
        assert_same_arrays(ours.callbacks[1][-1].end, theirs.callbacks[1][-1].end, tolerance)


@pytest.mark.slow
def test_spread_over_devices() -> None:
    make = recorded(CASES["in this order"])
    with zoo.float64():
        ours, theirs = packed(make, slots=4, mesh=(2, None)), alone(make, 1)
        assert_same(ours, theirs, 1)
        assert_same_arrays(ours.callbacks[1][-1].end, theirs.callbacks[1][-1].end)


@pytest.mark.slow
def test_a_schedule_cannot_be_replaced() -> None:
    """Keras raises, and so does the trial; reading the rate is fine."""

    def build(hp: Any) -> Any:
        model = toys.dense(hp)
        rate = keras.optimizers.schedules.ExponentialDecay(hp.get("lr"), 10, 0.5)
        model.compile(keras.optimizers.SGD(rate), "sparse_categorical_crossentropy")
        return model

    def reads() -> Any:
        return [callbacks.ReduceLROnPlateau("val_loss", min_delta=-1e9)]

    def writes() -> Any:
        return [callbacks.LearningRateScheduler(lambda epoch, lr: lr / 2)]

    with zoo.float64():
        ours = packed(reads, build)
        assert_same(ours, alone(reads, 0, build), 0)
        assert ours.history[0]["learning_rate"][0] != ours.history[0]["learning_rate"][1]
        ours, theirs = packed(writes, build), alone(writes, 0, build)
    assert {str(error) for error in ours.failed.values()} == {str(theirs.failed[0])}
    assert "LearningRateSchedule" in str(theirs.failed[0])


@pytest.mark.slow
def test_files_are_those_that_fit_writes(fresh_folder: Path) -> None:
    """ModelCheckpoint and CSVLogger, each trial's in a folder of its own."""
    made = iter(range(1000))

    def make() -> Any:
        folder = fresh_folder / str(next(made))
        folder.mkdir()
        return [
            callbacks.CSVLogger(folder / "log.csv"),
            callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True),
            callbacks.ModelCheckpoint(folder / "{epoch}.weights.h5", save_weights_only=True),
        ]

    with zoo.float64():
        ours = packed(make)
        theirs = alone(make, 1)
        mine, other = (Path(runs.callbacks[1][0].filename).parent for runs in (ours, theirs))
        names = sorted(path.name for path in other.iterdir())
        assert names == sorted(path.name for path in mine.iterdir())
        assert len(names) == 2 + EPOCHS
        for name in ("best.keras", "3.weights.h5"):
            models = [toys.softmax(), toys.softmax()]
            if name == "best.keras":
                models = [keras.models.load_model(folder / name) for folder in (mine, other)]
            else:
                models = [keras.models.load_model(f / "best.keras") for f in (mine, other)]
                for model, folder in zip(models, (mine, other), strict=True):
                    model.load_weights(folder / name)
            one, two = ([*m.get_weights(), *m.optimizer.variables] for m in models)
            for a, b in zip(one, two, strict=True):
                np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=1e-9)
        rows = [np.genfromtxt(f / "log.csv", delimiter=",", names=True) for f in (mine, other)]
        assert rows[0].dtype == rows[1].dtype
        for name in rows[0].dtype.names:
            np.testing.assert_allclose(rows[0][name], rows[1][name], rtol=0, atol=1e-9)
