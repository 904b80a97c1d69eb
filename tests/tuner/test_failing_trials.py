"""Trials that fail: each with its reason, the search goes on, and nobody proposes them again."""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import optuna
import pytest

import paceline
import toys
from epoch_reports import observe_reports
from marks import slow_where
from paceline.cli.app import main
from paceline.executor.base import EpochReport
from paceline.pack.pack import Pack
from paceline.tuner.checkpoint.best_models import BestModels

X, Y = toys.data()
CALL: dict[str, Any] = {
    "validation_data": toys.data(23, seed=1),
    "epochs": 2,
    "batch_size": 16,
}


@pytest.fixture
def make(make: Callable[..., paceline.Tuner]) -> Callable[..., paceline.Tuner]:
    """As everywhere, all that there is to try."""
    return functools.partial(make, sampler="grid")


def all_kinds(hp: Any) -> keras.Model:
    """Four ways to fail, and two that train."""
    kind = hp.Choice("kind", ["well", "raises", "shapes", "nan", "memory", "also well"])
    if kind == "raises":
        raise ValueError("no such kind")
    if kind == "shapes":
        head = keras.layers.Dense(toys.CLASSES, activation="softmax")
        layers = [keras.Input((toys.FEATURES,)), keras.layers.Reshape((2, 3)), head]
        return toys.compiled(keras.Sequential(layers))
    units = 5 if kind == "memory" else 4  # a program of its own
    layers = [
        keras.Input((toys.FEATURES,)),
        keras.layers.Dense(units),
        keras.layers.Dense(toys.CLASSES, activation="softmax"),
    ]
    return toys.compiled(keras.Sequential(layers), 1e30 if kind == "nan" else 0.01)


@pytest.fixture
def no_memory(monkeypatch) -> None:
    """Programs with five units get no memory, as XLA would say it."""
    run_epoch = Pack.run_epoch

    def fails(self: Pack) -> Any:
        if any(a.shape == (toys.FEATURES, 5) for s in self._waiting.values() for a in s.trainable):
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 12 bytes")
        return run_epoch(self)

    monkeypatch.setattr(Pack, "run_epoch", fails)


def test_each_fails_with_its_reason_and_the_others_train(make, no_memory, capsys) -> None:
    tuner = make(all_kinds)
    tuner.search(X, Y, n_trials=6, **CALL)
    results = tuner.results().set_index("kind")
    assert results.state.to_dict() == {
        "well": "complete",
        "raises": "failed",
        "shapes": "failed",
        "nan": "failed",
        "memory": "failed",
        "also well": "complete",
    }
    assert results.reason["raises"] == "ValueError: no such kind"
    assert "ValueError" in results.reason["shapes"]
    assert "loss is nan in epoch" in results.reason["nan"]
    assert "RESOURCE_EXHAUSTED" in results.reason["memory"]
    assert results.reason.isna().to_dict()["well"]
    # As the command line shows the same.
    for words in (["trials", "s", "--json"], ["trials", "s", "--csv"]):
        with pytest.raises(SystemExit, match="^0$"):
            main(words)
    as_json, as_csv = capsys.readouterr().out.split("\n", 1)
    errors = {trial["hparams"]["kind"]: trial.get("reason") for trial in json.loads(as_json)}
    rows = {row["kind"]: row["reason"] or None for row in csv.DictReader(io.StringIO(as_csv))}
    expected = results.reason.astype(object).where(results.reason.notna(), None).to_dict()
    assert errors == rows == expected


def test_data_that_change_shape_in_fit_fail_the_trial_that_meets_them(make) -> None:
    """A generator goes on from trial to trial, as in Keras: the second one gets whole batches."""

    def batches() -> Any:
        for number in range(100):
            yield (X[:16, :5], Y[:16]) if number == 3 else (X[:16], Y[:16])

    def build(hp: Any) -> keras.Model:
        hp.Choice("kind", ["one", "two"])
        return toys.softmax()

    tuner = make(build, executor="fit", objective="val_loss")
    data = {"steps_per_epoch": 5, "validation_data": CALL["validation_data"], "epochs": 1}
    tuner.search(batches(), **data, n_trials=2)
    first, second = tuner.results().itertuples()
    assert (first.state, second.state) == ("failed", "complete")
    assert "(16, 5)" in first.reason


def test_without_failures_there_is_no_such_column(make) -> None:
    tuner = make(toys.dense)
    tuner.search(X, Y, n_trials=2, **CALL)
    assert "reason" not in tuner.results().columns


# -- not proposed again ----------------------------------------------------------------------------


def third_fails(hp: Any) -> keras.Model:
    """Nine configurations; the third of them with b = 2 fail, by halves in the build."""
    a, b = hp.Choice("a", [0, 1, 2]), hp.Int("b", 0, 2)
    if b == 2 and a:
        raise ValueError("not with b = 2")
    layers = [
        keras.Input((toys.FEATURES,)),
        keras.layers.Dense(4),
        keras.layers.Dense(toys.CLASSES, activation="softmax"),
    ]
    return toys.compiled(keras.Sequential(layers), 1e30 if b == 2 else 0.01)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "random": lambda: "random",
    "tpe": lambda: "tpe",
    "qmc": lambda: "qmc",
    "grid": lambda: "grid",
    "nsgaii": lambda: optuna.samplers.NSGAIISampler(seed=0),
}


@pytest.mark.parametrize("name", slow_where(SAMPLERS, lambda name: name != "tpe"))
def test_failed_values_are_not_proposed_again(make, name) -> None:
    """By no sampler, in no later session, and not where the user asks for them."""
    tuner = make(third_fails, sampler=SAMPLERS[name]())
    tuner.search(X, Y, n_trials=5, **CALL)
    tuner = make(third_fails, sampler=SAMPLERS[name]())
    tuner.enqueue({"a": 1, "b": 2})
    tuner.enqueue({"a": 1, "b": 2})
    tuner.search(X, Y, n_trials=30, **CALL)
    results = tuner.results()
    values = list(zip(results.a, results.b, strict=True))
    assert sorted(values) == [(a, b) for a in range(3) for b in range(3)]
    assert (results.state == "failed").sum() == 3
    assert np.all((results.state == "failed") == (results.b == 2))


@pytest.mark.parametrize("executor", ["auto", "fit"])
def test_logs_of_a_search_that_is_refused_are_closed(make, executor) -> None:
    made = []

    def callbacks(hp: Any) -> list[Any]:
        made.append(keras.callbacks.CSVLogger("log.csv"))
        return made[-1:]

    tuner = make(
        lambda hp: toys.softmax_at(hp.Choice("lr", [0.01, 0.02])),
        executor=executor,
        objective="max:never",
    )
    with pytest.raises(paceline.ObjectiveError, match='objective "never" is not a metric'):
        tuner.search(X, Y, **CALL, callbacks=callbacks)
    # Keras 3.10 sets the attribute when training begins, later releases set it to None before.
    opened = [file for each in made if (file := getattr(each, "csv_file", None)) is not None]
    assert opened
    assert all(file.closed for file in opened)


def test_weights_are_held_of_the_best_trial_and_of_those_under_way_alone(make, monkeypatch) -> None:
    """Also where the best one so far fails later; arrays that nobody needs are freed at once."""
    held: dict[int, weakref.ref[np.ndarray]] = {}
    offer = BestModels.offer

    def watched(self: BestModels, number: int, epoch: int, value: float, fetch: Any) -> None:
        def fetched() -> Any:
            # A copy: the reports that the test collects hold what they have fetched.
            weights = tuple([np.array(leaf) for leaf in part] for part in fetch())
            held[number] = weakref.ref(weights[0][0])
            return weights

        offer(self, number, epoch, value, fetched)

    def counted(report: EpochReport) -> EpochReport | None:
        trials = tuner._require_study().trials
        alive = {number for number, array in held.items() if array() is not None}
        best = max(
            (t for t in trials if t.state == "complete"), key=lambda t: t.value, default=None
        )
        needed = {trial.number for trial in trials if trial.state == "running"}
        most.append(len(alive))
        assert alive <= needed | ({best.number} if best is not None else set())
        if report.epoch == 2 and report.number % 3 == 0:
            return replace(report, logs={**report.logs, "loss": math.nan})
        return None

    most: list[int] = []
    monkeypatch.setattr(BestModels, "offer", watched)
    observe_reports(monkeypatch, before=counted)
    tuner = make(toys.dense, sampler="random", objective="val_accuracy")
    tuner.search(X, Y, n_trials=8, **(CALL | {"epochs": 3}))
    assert 0 < max(most) <= 3, "two in slots, and the best one"
    assert tuner.results().state.value_counts().to_dict() == {"complete": 5, "failed": 3}
