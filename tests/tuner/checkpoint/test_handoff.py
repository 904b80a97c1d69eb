"""Trials of a study that several workers share go on where their worker left them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import paceline
import toys
from epoch_reports import observe_reports
from paceline.executor.local import LocalExecutor
from paceline.study.sharing.worker import Worker
from paceline.tuner.checkpoint import files as checkpoint
from paceline.tuner.checkpoint.files import CheckpointManager, SavePolicy
from paceline.tuner.checkpoint.trial_variables import HandedOverTrials, TrialHandoff
from stopping import by_epochs, hears_signals, stopped_after  # noqa: F401 - a fixture

X, Y = toys.data()
CALL: dict[str, Any] = {**toys.CALL, "n_trials": 5}


@pytest.fixture
def make(make: Callable[..., paceline.Tuner]) -> Callable[..., paceline.Tuner]:
    """As everywhere, one trial after another."""
    return functools.partial(make, plan="sequential")


def left_by_one_that_shared(make: Any, rounds: int, call: Any = CALL, **arguments: Any) -> None:
    """A worker of a shared study that is stopped while it trains for the n-th time."""
    join = Worker.join

    def shares(self: Worker, *given: Any, **named: Any) -> bool:
        return join(self, *given, **(named | {"share": True}))

    with pytest.MonkeyPatch.context() as patch:
        stopped_after(patch, rounds)
        patch.setattr(Worker, "join", shares)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            make(**arguments).search(X, Y, **call)


@pytest.fixture
def epochs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Trial and epoch of all that is trained."""
    trained: list[tuple[int, int]] = []
    observe_reports(monkeypatch, before=lambda one: trained.append((one.number, one.epoch)))
    return trained


def test_who_takes_over_trains_no_epoch_twice_and_the_same(make, notes, epochs) -> None:
    left_by_one_that_shared(make, 9)
    before = len(epochs)
    assert before == 9
    files = list(Path("runs/s/checkpoints").iterdir())
    assert files
    tuner = make()
    tuner.search(X, Y, **CALL)
    assert len(epochs) == 5 * 6
    results = tuner.results()
    # One was in the middle, three had not begun.
    assert sorted(results["state"]) == ["complete"] * 5 + ["failed"] * 4
    taken = [note for note in notes if "a trial of a lost worker, after epoch" in note]
    assert len(taken) == 1
    assert taken[0].endswith("after epoch 3")
    (number,) = {n for n, _ in epochs[before:]} - {n for n, epoch in epochs[before:] if epoch == 1}
    # As it would have been, trained in one piece: Keras' history and the best weights.
    validation = CALL["validation_data"]
    found = make().reproduce(number, X, Y, validation_data=validation)
    assert len(found.history["val_loss"]) == 6
    # By itself to the bit. In three whole runs of the suite last places of a float32 were others
    # (2.4e-7 at most), after thousands of other searches in the process: why is not known yet. An
    # epoch that is missing or trained twice shows at 1e-2.
    assert max(found.differences.values()) <= 1e-6
    score = tuner.best_model().evaluate(*validation, verbose=0, return_dict=True)
    assert score["accuracy"] == pytest.approx(tuner.best_trial.value, abs=1e-6)
    assert not Path("runs/s/checkpoints").exists()


def test_who_gets_company_keeps_its_trials_at_once(make) -> None:
    """Not after a minute: what it kept when it was alone is of no use to others."""
    advance, join, keep = LocalExecutor.advance, Worker.join, SavePolicy.save
    rounds, workers, kept = [0], [], []

    def joined(self: Worker, *given: Any, **named: Any) -> bool:
        workers.append(self)
        return join(self, *given, **named)

    def counted(self: LocalExecutor, *given: Any) -> None:
        rounds[0] += 1
        workers[0].shared = rounds[0] > 3
        advance(self, *given)

    def seen(self: SavePolicy, snapshot: Any) -> None:
        kept.append((rounds[0], isinstance(snapshot.facts, HandedOverTrials)))
        keep(self, snapshot)

    with pytest.MonkeyPatch.context() as patch:
        by_epochs(patch)
        patch.setattr(LocalExecutor, "advance", counted)
        patch.setattr(Worker, "join", joined)
        patch.setattr(SavePolicy, "save", seen)
        make().search(X, Y, **CALL)
    assert kept == [(0, False), (4, True)]


@pytest.mark.slow
def test_the_best_epoch_may_be_one_that_the_first_worker_trained(make, epochs) -> None:
    """Every epoch is worse than the one before; the weights of the first come along."""

    def away(hp: Any) -> Any:
        return toys.compiled(toys.softmax(), -hp.Float("lr", 1e-3, 1e-2))

    call = CALL | {"n_trials": 1}
    left_by_one_that_shared(make, 3, call, build=away, objective="val_loss")
    tuner = make(build=away, objective="val_loss")
    tuner.search(X, Y, **call)
    assert [epoch for _, epoch in epochs] == [1, 2, 3, 4, 5, 6]
    assert tuner.best_trial.best_epoch == 1
    score = tuner.best_model().evaluate(*CALL["validation_data"], verbose=0, return_dict=True)
    assert score["loss"] == pytest.approx(tuner.best_trial.value, rel=1e-5)


@pytest.mark.parametrize("other", [{"epochs": 7}])
def test_another_search_begins_them_again(make, notes, epochs, other) -> None:
    left_by_one_that_shared(make, 3)
    tuner = make()
    tuner.search(X, Y, **(CALL | other))
    assert tuner.results()["state"].tolist().count("complete") == 5
    assert not any("after epoch" in note for note in notes)


def test_what_is_no_trial_is_begun_again(make, notes) -> None:
    """Whole, but by nobody that we know: numbers and columns that do not go together."""
    left_by_one_that_shared(make, 3)
    folder = Path("runs/s/checkpoints")
    found = CheckpointManager(folder, notes.append).load()
    assert found is not None
    (entry,) = found.facts["trials"]
    assert entry["epoch"] == 3
    relay = TrialHandoff(Path("runs/s"), found.facts["key"], notes.append)
    trial = make().trial(0)
    assert relay.take(trial) is not None
    for epoch in (4, 0, "three"):
        entry["epoch"] = epoch
        CheckpointManager(folder, notes.append).clear()
        checkpoint.save_checkpoint(folder, "checkpoint-000001", found)
        relay.forget()
        assert relay.take(trial) is None
    found.facts["trials"] = [1]
    CheckpointManager(folder, notes.append).clear()
    checkpoint.save_checkpoint(folder, "checkpoint-000001", found)
    assert TrialHandoff(Path("runs/s"), found.facts["key"], notes.append).take(trial) is None


@pytest.mark.slow
def test_with_a_pruner_they_begin_again(make, notes) -> None:
    left_by_one_that_shared(make, 3, pruner="median")
    assert not Path("runs/s/checkpoints").exists()
    tuner = make(pruner="median")
    tuner.search(X, Y, **CALL)
    assert not any("after epoch" in note for note in notes)
    assert "running" not in tuner.results()["state"].tolist()


@pytest.mark.slow
def test_a_model_that_has_changed_begins_again(make, notes) -> None:
    def changed(hp: Any) -> Any:
        hp.Float("dropout", 0.1, 0.5)
        return toys.compiled(toys.softmax(), hp.Float("lr", 1e-3, 1e-1, sampling="log"))

    left_by_one_that_shared(make, 3)
    tuner = make(build=changed)
    tuner.search(X, Y, **CALL)
    assert any("a trial of a lost worker, from its first epoch" in note for note in notes)
    assert tuner.results()["state"].tolist().count("complete") == 5
