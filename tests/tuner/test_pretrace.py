"""Studying the ends of a space: fewer traces, the same trials."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import paceline
from paceline.program import compilation_cache, trace
from paceline.tuner.search import first_build

X = np.random.default_rng(0).random((48, 6)).astype("float32")
Y = np.arange(48) % 3


def build(hp):
    return with_dropout(hp, hp.Float("dropout", 0.1, 0.5))


def with_dropout(hp, rate):
    model = keras.Sequential(
        [
            keras.layers.Input((6,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dropout(rate),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(hp.Float("lr", 1e-4, 1e-2, sampling="log")),
        "sparse_categorical_crossentropy",
    )
    return model


def search(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[int, list[float]]:
    """Traces of train steps, and the values of the trials."""
    traces = []
    original = trace.trace_train

    def counted(*args):
        traces.append(1)
        return original(*args)

    monkeypatch.setattr(trace, "trace_train", counted)
    tuner = paceline.Tuner(build, objective="loss", study=name, sampler="random")
    tuner.search(X, Y, epochs=1, batch_size=16, n_trials=16, verbose=0)
    monkeypatch.setattr(trace, "trace_train", original)
    return len(traces), [trial.value for trial in tuner._require_study().trials]


def test_most_trials_are_not_traced_and_come_out_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    n_traces, values = search(monkeypatch, "studied")
    assert n_traces <= 5, "two ends and the first two trials, and seldom one beyond the ends"
    monkeypatch.setattr(first_build, "_ENOUGH", 1000)
    monkeypatch.setattr("paceline.executor.model_builder.structure_of", lambda model: None)
    n_all, traced = search(monkeypatch, "traced")
    assert n_all == 16
    np.testing.assert_allclose(values, traced, rtol=1e-6)


@pytest.mark.parametrize(
    ("declare", "continuous"),
    [
        (lambda hp: hp.Float("rate", 0.1, 0.5), True),
        (lambda hp: hp.Float("rate", 0.1, 0.5, step=0.2), False),
        (lambda hp: hp.Choice("rate", [0.1, 0.5]), False),
        (lambda hp: hp.Choice("activation", ["relu", "tanh"]) and hp.Int("units", 8, 16), True),
    ],
)
def test_the_executor_is_told_whether_two_trials_may_have_a_number_in_common(
    declare: Any, continuous: bool
) -> None:
    hp = paceline.HyperParameters()
    hp.Float("lr", 1e-4, 1e-2)
    declare(hp)
    packs: Any = SimpleNamespace(demand=SimpleNamespace())
    arguments: Any = SimpleNamespace(n_trials=1)
    builder: Any = None
    first_build.trace_ends_of_space(packs, builder, arguments, hp, 0)
    assert packs.demand.continuous is continuous


@pytest.mark.slow
def test_a_second_search_traces_one_trial(
    monkeypatch: pytest.MonkeyPatch, cache_folder: Path
) -> None:
    monkeypatch.setattr(compilation_cache, "cache_folder", lambda: str(cache_folder))
    first, values = search(monkeypatch, "first")
    second, again = search(monkeypatch, "second")
    assert first >= 4
    assert second == 1
    np.testing.assert_array_equal(values, again)


@pytest.mark.slow
def test_a_choice_that_changes_the_program_is_not_foreseen_from_the_disk(
    monkeypatch: pytest.MonkeyPatch, cache_folder: Path
) -> None:
    monkeypatch.setattr(compilation_cache, "cache_folder", lambda: str(cache_folder))

    def some(hp):
        return with_dropout(hp, hp.Choice("dropout", [0.3, 0.0, 0.2, 0.4]))

    def values(name: str) -> list[float]:
        # Apart: else a program is shared by models with dropout and without.
        tuner = paceline.Tuner(
            some, objective="loss", study=name, sampler="random", seed=1, share_widths=False
        )
        tuner.search(X, Y, epochs=1, batch_size=16, n_trials=12, verbose=0)
        assert tuner.summary()["programs"]["distinct"] == 2
        return [trial.value for trial in tuner._require_study().trials]

    first = values("first")
    assert values("second") == first
    monkeypatch.setattr("paceline.executor.model_builder.structure_of", lambda model: None)
    np.testing.assert_allclose(values("traced"), first, rtol=1e-6)


@pytest.mark.slow
def test_no_digit_depends_on_what_earlier_searches_left_on_the_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One trial and its repeats make all constants inputs, which moves last digits."""
    monkeypatch.setattr(compilation_cache, "cache_folder", lambda: str(tmp_path / "cache"))
    calls = {"x": X, "y": Y, "batch_size": 16, "verbose": 0}

    def searched(name: str, **arguments: Any) -> paceline.Tuner:
        tuner = paceline.Tuner(
            build,
            objective="loss",
            study=name,
            sampler="random",
            seed=1,
            parallel_trials=2,
            plan="vectorized",
        )
        tuner.search(**calls, **arguments)
        return tuner

    searched("repeats", n_trials=1, epochs=1, repeats=2)
    after = searched("after", n_trials=4, epochs=6)
    shutil.rmtree(tmp_path / "cache")
    alone = searched("alone", n_trials=4, epochs=6)
    for number in range(4):
        assert after.history(number) == alone.history(number)
    weights = (tuner.best_model().get_weights() for tuner in (after, alone))
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
