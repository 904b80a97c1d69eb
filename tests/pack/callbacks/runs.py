"""Trials with callbacks, in packs and alone in Keras' own ``fit``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

import toys
import zoo
from paceline.data.arrays import prepare
from paceline.executor.base import Answer, EpochReport, Job, PackOptions, SearchData
from paceline.executor.local import LocalExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import random_state_kept
from paceline.search_space import HyperParameters

X, Y = toys.data()
XV, YV = toys.data(23, seed=1)
EPOCHS, BATCH_SIZE = 7, 16
SEEDS = [5, 6, 7]
HPARAMS = [{"dropout": 0.2, "lr": 0.05}, {"dropout": 0.3, "lr": 0.002}, {"dropout": 0.4, "lr": 0.1}]

Make = Callable[[], Sequence[keras.callbacks.Callback]]


@dataclass
class Runs:
    """What came of trials, by number.

    Attributes:
        history: Metric name -> one value per epoch.
        weights: Trainable and other variables at the end of each epoch, before callbacks end.
        callbacks: Those of the trial, when it was over.
        failed: What those raised that failed.
        slots: Trials that trained in each round.
    """

    history: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    weights: dict[int, list[list[np.ndarray]]] = field(default_factory=dict)
    callbacks: dict[int, list[Any]] = field(default_factory=dict)
    failed: dict[int, BaseException] = field(default_factory=dict)
    slots: list[set[int]] = field(default_factory=list)


def packed(make: Make, build: Any = toys.dense, *, slots: int = 2, **executor: Any) -> Runs:
    """Trains a trial for each of ``HPARAMS`` in packs, without a study."""
    data = SearchData(prepare(X, Y), prepare(XV, YV), shuffle=False)
    local = LocalExecutor(data, PackOptions(slots=slots, **{"plan": "vectorized"} | executor))
    runs, builder = Runs(), ModelBuilder(build)

    def callbacks(number: int, model: Any) -> list[Any]:
        runs.callbacks[number] = list(make())
        return runs.callbacks[number]

    def report(epoch: EpochReport) -> Answer:
        history = runs.history.setdefault(epoch.number, {})
        for name, value in epoch.logs.items():
            history.setdefault(name, []).append(value)
        trainable, non_trainable = epoch.weights()
        runs.weights.setdefault(epoch.number, []).append([*trainable, *non_trainable])
        runs.slots[-1].add(epoch.number)
        return "continue"

    try:
        with random_state_kept():
            for number, (hparams, seed) in enumerate(zip(HPARAMS, SEEDS, strict=True)):

                def rebuild(hparams: Any = hparams, seed: int = seed) -> Any:
                    return builder(HyperParameters(values=hparams), seed)

                model = rebuild()
                job = Job(number, seed, EPOCHS, BATCH_SIZE, model, rebuild, callbacks=callbacks)
                local.demand.expected = len(SEEDS) - number
                local.submit(job)
            while local.busy:
                runs.slots.append(set())
                local.advance(report, lambda: False, runs.failed.__setitem__)
    finally:
        local.close()
    return runs


def alone(make: Make, number: int, build: Any = toys.dense) -> Runs:
    """Trains one of them in Keras' own ``fit``."""
    runs, weights = Runs(), _Weights()
    runs.callbacks[number] = list(make())
    with random_state_kept():
        zoo.fresh_session()
        model = ModelBuilder(build)(HyperParameters(values=HPARAMS[number]), SEEDS[number])
        try:
            runs.history[number] = model.fit(
                X,
                Y,
                validation_data=(XV, YV),
                epochs=EPOCHS,
                batch_size=BATCH_SIZE,
                shuffle=False,
                verbose=0,
                callbacks=[*runs.callbacks[number], weights],
            ).history
        except Exception as error:
            runs.failed[number] = error
    runs.weights[number] = weights.epochs
    return runs


def assert_same(one: Runs, other: Runs, number: int, tolerance: float = 1e-9) -> None:
    """Compares a trial; float64: rounding cannot hide an error. Measured: below 1e-13."""
    ours, keras_own = one.history[number], other.history[number]
    assert list(ours) == list(keras_own)
    for name, values in keras_own.items():
        np.testing.assert_allclose(ours[name], values, rtol=0, atol=tolerance, err_msg=name)
    assert len(one.weights[number]) == len(other.weights[number])
    for mine, theirs in zip(one.weights[number], other.weights[number], strict=True):
        assert_same_arrays(mine, theirs, tolerance)


def assert_same_arrays(one: Any, other: Any, tolerance: float = 1e-9) -> None:
    """Compares lists of arrays."""
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(
            np.asarray(a).astype("float64"), np.asarray(b).astype("float64"), rtol=0, atol=tolerance
        )


class _Weights(keras.callbacks.Callback):
    """Keeps the variables of every epoch's end, in the order of reports."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[list[np.ndarray]] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        variables = [*self.model.trainable_variables, *self.model.non_trainable_variables]
        self.epochs.append([np.array(v) for v in variables])
