"""Folds in a search: each is a search by hand on its part of the data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import paceline
import toys

# 53 examples in 3 folds of 17: two are left out, and both steps have a smaller last batch.
X, Y = toys.data(53)
CALL: dict[str, Any] = {"batch_size": 16, "epochs": 3, "verbose": 0}


@pytest.fixture
def make(make: Callable[..., paceline.Tuner]) -> Callable[..., paceline.Tuner]:
    """As everywhere, four trials at a time."""
    return functools.partial(make, parallel_trials=4)


def close(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert set(one) == set(other)
    for name, values in one.items():
        # float32 over a few epochs, sums in another order: 1e-6 seen.
        np.testing.assert_allclose(values, other[name], atol=1e-5, err_msg=name)


def mean_of(histories: list[dict[str, list[float]]]) -> dict[str, Any]:
    return {name: np.mean([h[name] for h in histories], axis=0) for name in histories[0]}


def by_hand(make: Any, tuner: paceline.Tuner, **call: Any) -> list[paceline.Tuner]:
    """A search for each fold, with its part of the data for validation."""
    found = []
    weight = call.pop("sample_weight", None)
    for number, (train, validation) in enumerate(tuner.folds):
        more = {} if weight is None else {"sample_weight": weight[train]}
        pair = (X[validation], Y[validation])
        if weight is not None:
            pair += (weight[validation],)
        found.append(make(study=f"fold{number}"))
        found[-1].search(X[train], Y[train], validation_data=pair, **CALL, **call, **more)
    return found


@pytest.mark.parametrize(
    ("shuffle", "plan"),
    [
        (True, "vectorized"),
        pytest.param(False, "sequential", marks=pytest.mark.slow),
        pytest.param(True, "sequential", marks=pytest.mark.slow),
        pytest.param(False, "vectorized", marks=pytest.mark.slow),
    ],
)
def test_folds_are_searches_by_hand(make, plan: str, shuffle: bool) -> None:
    tuner = make(plan=plan)
    tuner.search(X, Y, folds=3, n_trials=2, shuffle=shuffle, **CALL)
    searches = by_hand(make, tuner, n_trials=2, shuffle=shuffle)
    for number in range(2):
        close(tuner.history(number), mean_of([search.history(number) for search in searches]))
        values = [search.history(number)["val_accuracy"] for search in searches]
        np.testing.assert_allclose(tuner.trial(number).runs, np.transpose(values), atol=1e-5)
    # One program for all: the folds are slots of one pack.
    programs = tuner.summary()["programs"]
    assert programs["distinct"] == 1 and programs["compiled"] + programs["from_cache"] == 2


@pytest.mark.parametrize(
    ("executor", "kind"),
    [
        pytest.param("packed", "sample_weight", marks=pytest.mark.slow),
        pytest.param("packed", "class_weight", marks=pytest.mark.slow),
        pytest.param("fit", "sample_weight", marks=pytest.mark.slow),
    ],
)
def test_weights_follow_the_examples(make, executor: str, kind: str) -> None:
    weight: Any = np.linspace(0.5, 1.5, len(X)) if kind == "sample_weight" else {0: 1.0, 1: 3.0}
    tuner = make(executor=executor)
    call = {"n_trials": 1, "shuffle": False, kind: weight}
    tuner.search(X, Y, folds=3, **CALL, **call)
    close(tuner.history(0), mean_of([search.history(0) for search in by_hand(make, tuner, **call)]))


@pytest.mark.slow
@pytest.mark.parametrize("repeats", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_in_fit_members_are_the_same(make, repeats: int) -> None:
    packs, fit = make(study="packs"), make(study="fit", executor="fit")
    call = {"folds": 3, "repeats": repeats, "n_trials": 1, "shuffle": False}
    for tuner in (packs, fit):
        tuner.search(X, Y, **CALL, **call)
    close(packs.history(0), fit.history(0))
    assert len(fit.trial(0).runs[0]) == 3 * repeats
    np.testing.assert_allclose(packs.trial(0).runs, fit.trial(0).runs, atol=1e-5)
    assert fit.results()["plan"].tolist() == ["fit"]


class Own(keras.Sequential):
    """Its own ``evaluate`` keeps it out of packs."""

    def evaluate(self, *arguments: Any, **more: Any) -> Any:
        return super().evaluate(*arguments, **more)


@pytest.mark.slow
def test_models_that_cannot_be_packed_have_members_too(make) -> None:
    def build(hp: Any) -> Any:
        kind = hp.Choice("kind", ["own", "plain"])
        layers = [keras.Input((toys.FEATURES,)), keras.layers.Dense(toys.CLASSES, "softmax")]
        return toys.compiled(Own(layers) if kind == "own" else keras.Sequential(layers))

    tuner = make(build=build, sampler="grid")
    tuner.search(X, Y, folds=2, **(CALL | {"epochs": 1}))
    assert tuner.results()["plan"].tolist() == ["fit", "vectorized"]
    assert tuner.results()["value_std"].notna().all()


@pytest.mark.slow
def test_what_is_left_out_is_said(make) -> None:
    notes: list[str] = []
    tuner = make(on_note=notes.append)
    tuner.search(X, Y, folds=3, n_trials=1, **(CALL | {"epochs": 1}))
    assert any("3 folds of 17 examples" in n and "2 examples are left out" in n for n in notes)
