"""What a search learns of others, at moments that a whole search seldom meets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from paceline.study.metadata import RestoredStudy
from paceline.study.sharing.requests import stop_trial
from paceline.study.sharing.watch import StudyWatch
from paceline.study.storage.storage import StudyStorage
from paceline.study.study import Study
from paceline.study.trials import trial_codec
from paceline.study.trials.trial_codec import OWNER


@pytest.fixture(params=[None, "sqlite:///s.db"])
def store(request) -> Iterator[StudyStorage]:
    with contextlib.closing(StudyStorage.of(request.param, "s", Path("runs"))) as store:
        store.create("s", ["minimize"], {})
        yield store


def watched(store: StudyStorage) -> StudyWatch:
    heartbeats = SimpleNamespace(gone=lambda token: False)
    worker: Any = SimpleNamespace(token="me", shared=False, heartbeats=heartbeats)
    watch = StudyWatch(store)
    watch.begin(store.study_id("s"), worker, RestoredStudy(None, None))
    return watch


def changes(watch: StudyWatch, kind: str) -> list[optuna.trial.FrozenTrial]:
    found, _ = watch.take_changes()
    assert {change.kind for change in found} <= {kind, "begun"}
    return [change.trial for change in found if change.kind == kind]


def other(store: StudyStorage) -> optuna.Study:
    """The study in another program: a journal object of its own."""
    where = None if store.rows is None else "sqlite:///s.db"
    again = StudyStorage.of(where, "s", Path("runs"))
    return optuna.load_study(study_name="s", storage=again.storage)


@pytest.mark.parametrize("ends", [True, False])
def test_a_trial_that_another_program_takes_first_is_never_ours(store, monkeypatch, ends) -> None:
    """Also where it ends there, and is looked at, before this search knows whose it is."""
    watch, theirs = watched(store), other(store)
    theirs.enqueue_trial({"lr": 0.5})
    watch.look()
    take = watch._take

    def late(number: int) -> bool:
        trial = theirs.ask()
        if ends:
            theirs.tell(trial, 0.5)
        watch.look()
        return take(number)

    monkeypatch.setattr(watch, "_take", late)
    assert watch.take_waiting() is None
    watch.look()
    assert watch.mine == set()
    assert [trial.number for trial in changes(watch, "ended")] == ([0] if ends else [])


def test_a_trial_that_ends_elsewhere_as_it_is_taken_ends_here(store, monkeypatch) -> None:
    watch, theirs = watched(store), other(store)
    theirs.enqueue_trial({"lr": 0.5})
    watch.look()
    take = watch._take

    def early(number: int) -> bool:
        taken = take(number)
        theirs.tell(number, state=TrialState.FAIL)
        watch.look()
        return taken

    monkeypatch.setattr(watch, "_take", early)
    assert watch.take_waiting() is not None
    assert watch.mine == {0}
    watch.look()
    assert [trial.number for trial in changes(watch, "ended here")] == [0]
    assert watch.mine == set()


def test_a_new_trial_that_ends_elsewhere_is_news(store) -> None:
    """Nothing else has changed since the watch began, and the trial is newer than that."""
    watch, theirs = watched(store), other(store)
    watch.look()
    trial = store.storage.create_new_trial(store.study_id("s"))
    store.storage.set_trial_system_attr(trial, OWNER, "me")
    watch.mine.add(0)
    watch.look()
    assert watch.take_changes()[0] == []
    theirs.tell(0, state=TrialState.FAIL)
    watch.look()
    assert [trial.number for trial in changes(watch, "ended here")] == [0]


def test_unconfirmed_numbers_are_not_taken_for_those_of_other_programs(store) -> None:
    """A trial that began while the storage did not answer: there, its number is another's."""
    watch, theirs = watched(store), other(store)
    watch.began(0, confirmed=False)
    theirs.tell(theirs.ask(), 0.5)  # number 0 of the storage
    theirs.enqueue_trial({"lr": 0.5})
    watch.look()
    assert watch.take_changes()[0] == []
    assert watch.take_waiting() is None
    theirs.ask()
    theirs.tell(theirs.ask(), 0.25)
    watch.renumber({0: 3})  # stored by now, among them ours
    watch.look()
    assert watch.mine == {3}
    ended = [(trial.number, trial.value) for trial in changes(watch, "ended")]
    assert ended == [(0, 0.5), (2, 0.25)]


@pytest.mark.parametrize("values", [[0.5, 0.25, float("nan"), 0.75], []])
def test_a_trial_that_is_stopped_by_hand_has_the_value_of_its_best_epoch(store, values) -> None:
    study = store.study_id("s")
    number = store.storage.create_new_trial(study)
    for epoch, value in enumerate(values, 1):
        store.storage.set_trial_intermediate_value(number, epoch, value)
    stop_trial(store, study, "s", 0, "enough")
    trial = trial_codec.from_frozen(store.storage.get_trial(number))
    assert trial is not None
    assert (trial.state, trial.error) == ("pruned", "enough")
    assert (trial.value, trial.best_epoch) == ((0.25, 2) if values else (None, None))


def test_a_running_trial_of_another_program_stays_its_own(store) -> None:
    """Whatever it calls its attributes."""
    theirs = other(store)
    trial = theirs.ask()
    trial.set_user_attr("hparams", {"batch": 32})
    study = Study("s", storage=None if store.rows is None else "sqlite:///s.db")
    study.persist({"objective": "loss", "direction": "minimize"})
    study.close()
    theirs.tell(trial, 0.5)
    assert theirs.trials[0].state == TrialState.COMPLETE


def take_for(store: StudyStorage, token: str) -> None:
    """Another worker takes the first trial, which waits."""
    trial = store.storage.get_trial_id_from_study_id_trial_number(store.study_id("s"), 0)
    store.storage.set_trial_state_values(trial, TrialState.RUNNING)
    store.storage.set_trial_system_attr(trial, OWNER, token)


def test_a_waiting_trial_that_another_worker_takes_is_that_workers(store) -> None:
    """Its worker may have joined a moment ago."""
    watch = watched(store)
    heartbeats: Any = watch._worker.heartbeats
    seen: list[str] = []
    heartbeats.gone = lambda token: token not in seen
    heartbeats.look = lambda: seen.append("other")
    other(store).enqueue_trial({"lr": 0.5})
    watch.look()
    assert watch.n_waiting == 1
    take_for(store, "other")
    watch.look()
    assert watch.take_waiting() is None
    assert watch.mine == set()


def test_a_waiting_trial_that_a_dead_worker_took_waits_again(store) -> None:
    watch = watched(store)
    heartbeats: Any = watch._worker.heartbeats
    other(store).enqueue_trial({"lr": 0.5})
    take_for(store, "other")
    watch.look()
    assert watch.take_waiting() is None
    heartbeats.gone, heartbeats.look = lambda token: True, lambda: None
    _, theirs = watch.take_changes()
    assert watch.left(theirs) == []
    found = watch.take_waiting()
    assert found is not None
    assert (found.number, found.values, watch.mine) == (0, {"lr": 0.5}, {0})
