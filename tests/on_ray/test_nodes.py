"""Searches on real nodes: the histories of one machine, whatever dies."""

from __future__ import annotations

import os
import signal
from typing import Any

import keras
import pytest

import paceline
from clusters import build_families, records, searched, trials
from on_ray.hook import Hook

#: Long enough for several rounds of each worker.
LONG = {"n_trials": 12, "epochs": 8}


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Hook:
    return Hook(monkeypatch)


def on(nodes: Any, **settings: Any) -> paceline.Ray:
    return paceline.Ray(address=nodes.address, **settings)


def test_two_nodes_search_as_one_machine_does(nodes: Any) -> None:
    local = searched("local", "local", build_families)
    notes: list[str] = []
    found = searched(on(nodes), "nodes", build_families, notes=notes)
    assert records(found) == records(local)
    assert len({trial.worker for trial in trials(found)}) == 2
    assert any("usage statistics" in note for note in notes)
    assert found.best_model().count_params() == local.best_model().count_params()


@pytest.mark.parametrize("order", [1, 6], ids=["while it compiles", "while it trains"])
def test_a_worker_that_is_killed_is_replaced(nodes: Any, hook: Hook, order: int) -> None:
    hook.at_order(order, hook.kill)
    hook.hold_answers_until(3)  # a worker may take longer to start than the search takes
    notes: list[str] = []
    found = searched(on(nodes), "nodes", search=LONG, notes=notes)
    assert hook.done and any("is gone" in note for note in notes), notes
    assert len(hook.pids) == 3
    assert records(found) == records(searched("local", "local", search=LONG))


def test_a_node_that_dies_takes_nothing_with_it_and_a_new_one_trains(
    nodes: Any, hook: Hook
) -> None:
    hook.at_order(5, lambda host: nodes.replace())
    found = searched(on(nodes), "nodes", search=LONG)
    assert hook.done
    assert records(found) == records(searched("local", "local", search=LONG))


def test_asha_with_callbacks_while_workers_die(nodes: Any, hook: Hook) -> None:
    """A paused trial's state is with the search; a trial's callbacks go where it goes."""

    def search() -> dict[str, Any]:
        halve = keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, min_delta=0.1)
        return {"callbacks": [halve], "n_trials": 10, "epochs": 4}

    hook.at_order(8, hook.kill)
    found = searched(on(nodes), "nodes", pruner="asha:1:2", search=search())
    assert hook.done
    alone = searched("local", "local", search=search())
    for trial in trials(found):
        whole = alone.history(trial.number)
        assert trial.history == {name: values[: trial.epochs] for name, values in whole.items()}
    assert {trial.state for trial in trials(found)} == {"complete", "pruned"}


def test_sigterm_saves_and_the_search_goes_on(nodes: Any, hook: Hook) -> None:
    """Ray's own handler would end the process without a checkpoint."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        hook.at_order(5, lambda host: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(KeyboardInterrupt, match="^$"):
            searched(on(nodes), "nodes", search=LONG)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    notes: list[str] = []
    found = searched(on(nodes), "nodes", search=LONG, notes=notes)
    assert any("going on from the last checkpoint" in note for note in notes), notes
    assert records(found) == records(searched("local", "local", search=LONG))
