"""Data sets in batches in a whole search: trials are pruned, paused, stopped, and go on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import paceline
import toys
from marks import slow_where
from stopping import hears_signals, same, stopped_after  # noqa: F401 - a fixture
from streams import BATCH, XV, YV, Batches, X, Y, endless

CALL: dict[str, Any] = {"epochs": 4, "n_trials": 6, "shuffle": False}


class Endless(Batches):
    """Passes one after another, and nowhere an end."""

    num_batches = None

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return super().__getitem__(index % len(self))


#: What a search is given; made anew each time, as by a script that is started again.
DATA: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "passes": (Batches, {"validation_data": (XV, YV)}),
    "passes cut in two": (Batches, {"steps_per_epoch": 3, "validation_data": (XV, YV)}),
    "without end": (Endless, {"steps_per_epoch": 3, "validation_data": (XV, YV)}),
    "orders by the seed": (Batches, {"shuffle": True, "validation_data": (XV, YV)}),
}


def some_of(quick: list[tuple[str, Any]], others: list[Any]) -> list[Any]:
    """All kinds of data with all of the others; ``make test-slow`` runs most of them."""
    return slow_where(itertools.product(DATA, others), lambda pair: pair not in quick)


def tuner(study: str, **options: Any) -> paceline.Tuner:
    settings = {
        "parallel_trials": 2,
        "sampler": "random",
        "objective": "val_loss",
        "executor": "packed",
    }
    return paceline.Tuner(toys.dense, study=study, on_note=len, **(settings | options))


def searched(study: str, data: str, **options: Any) -> paceline.Tuner:
    make, call = DATA[data]
    one = tuner(study, **options)
    one.search(make(), **(CALL | call))
    return one


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "pruner"),
    some_of([("passes cut in two", "asha")], ["threshold", "asha"]),
)
def test_trials_that_are_pruned_or_paused_have_unbroken_histories(data, pruner):
    """One that comes back reads on where it was, whoever trains beside it."""
    full = searched("full", data)
    losses = sorted(full.history(number)["val_loss"][1] for number in range(6))
    if pruner == "threshold":
        given: Any = f"threshold:{(losses[2] + losses[3]) / 2}"
    else:
        given = paceline.ASHA(min_epochs=1, reduction_factor=2)
    some = searched("some", data, pruner=given)
    results = some.results()
    assert set(results["state"]) == {"complete", "pruned"}
    assert results["plan"].tolist() == ["vectorized"] * 6
    if pruner == "asha":
        assert set(results["epochs"]) == {1, 2, 4}, "none was promoted and then pruned"
    for number, epochs in enumerate(results["epochs"]):
        for name, values in full.history(number).items():
            # Float32, 14 steps, other neighbours: 3e-7 measured.
            np.testing.assert_allclose(some.history(number)[name], values[:epochs], rtol=1e-5)


@pytest.mark.slow
def test_a_generator_is_read_on_where_trials_are_pruned():
    """Those that stay see what they would have seen."""
    call = CALL | {"n_trials": 2, "steps_per_epoch": 3, "validation_data": (XV, YV)}
    full = tuner("full")
    full.search(endless(), **call)
    worse, better = sorted(range(2), key=lambda n: -full.history(n)["val_loss"][0])
    limit = (full.history(worse)["val_loss"][0] + full.history(better)["val_loss"][0]) / 2
    some = tuner("some", pruner=f"threshold:{limit}")
    some.search(endless(), **call)
    assert some.trial(worse).state == "pruned" and some.trial(worse).epochs == 1
    np.testing.assert_allclose(
        some.history(better)["loss"], full.history(better)["loss"], rtol=1e-6
    )


@pytest.mark.parametrize(("data", "rounds"), some_of([("passes cut in two", 5)], [2, 5]))
def test_a_search_that_was_stopped_goes_on(data, rounds, monkeypatch):
    """To the bit: batches are read on from where the packs were."""
    whole = searched("whole", data)
    with monkeypatch.context() as patch:
        stopped_after(patch, rounds)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            searched("s", data)
    same(searched("s", data), whole)


@pytest.mark.slow
def test_paused_trials_of_a_search_that_was_stopped_come_back(monkeypatch):
    pruner = paceline.ASHA(min_epochs=1, reduction_factor=2)
    whole = searched("whole", "passes cut in two", pruner=pruner)
    with monkeypatch.context() as patch:
        stopped_after(patch, 4)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            searched("s", "passes cut in two", pruner=pruner)
    same(searched("s", "passes cut in two", pruner=pruner), whole)


@pytest.mark.slow
def test_a_generator_goes_on_with_what_it_yields_then(monkeypatch):
    def one_batch() -> Iterator[Any]:
        while True:
            yield X[:BATCH], Y[:BATCH]

    def search(study: str) -> paceline.Tuner:
        one = tuner(study)
        one.search(one_batch(), steps_per_epoch=2, validation_data=(XV, YV), **CALL)
        return one

    whole = search("whole")
    with monkeypatch.context() as patch:
        stopped_after(patch, 3)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            search("s")
    same(search("s"), whole)


def test_a_batch_is_read_once_for_all_slots():
    class Counted(Batches):
        read = 0

        def __getitem__(self, index: int) -> tuple[Any, ...]:
            Counted.read += 1  # of all copies
            return super().__getitem__(index)

    data = Counted()
    tuner("s", parallel_trials=3, objective="loss").search(
        data, **(CALL | {"n_trials": 3, "epochs": 2})
    )
    assert data.read == (1 + 2) * len(data)  # a look before, and a pass an epoch
