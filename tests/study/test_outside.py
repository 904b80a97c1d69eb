"""What a search learns of other programs, at moments that a whole search seldom meets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from paceline.study import trial_codec
from paceline.study.metadata import RestoredStudy
from paceline.study.outside import OutsideWatch, stop_trial
from paceline.study.storage.storage import StudyStorage
from paceline.study.study import Study
from paceline.study.trial_codec import OWNER


@pytest.fixture(params=[None, "sqlite:///s.db"])
def store(request) -> Iterator[StudyStorage]:
    with contextlib.closing(StudyStorage.of(request.param, "s", Path("runs"))) as store:
        store.create("s", ["minimize"], {})
        yield store


def watched(store: StudyStorage) -> OutsideWatch:
    watch = OutsideWatch(store)
    watch.begin(store.study_id("s"), "me", RestoredStudy(None, None), lambda token: False)
    return watch


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
    changes = watch.take_changes()
    assert watch.mine == set()
    assert changes.ended_here == []
    assert [trial.number for trial in changes.ended] == ([0] if ends else [])


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
    assert [trial.number for trial in watch.take_changes().ended_here] == [0]
    assert watch.mine == set()


def test_a_new_trial_that_ends_elsewhere_is_news(store) -> None:
    """Nothing else has changed since the watch began, and the trial is newer than that."""
    watch, theirs = watched(store), other(store)
    watch.look()
    trial = store.storage.create_new_trial(store.study_id("s"))
    store.storage.set_trial_system_attr(trial, OWNER, "me")
    watch.mine.add(0)
    watch.look()
    assert not watch.take_changes()
    theirs.tell(0, state=TrialState.FAIL)
    watch.look()
    assert [trial.number for trial in watch.take_changes().ended_here] == [0]


def test_unconfirmed_numbers_are_not_taken_for_those_of_other_programs(store) -> None:
    """A trial that began while the storage did not answer: there, its number is another's."""
    watch, theirs = watched(store), other(store)
    watch.began(0, confirmed=False)
    theirs.tell(theirs.ask(), 0.5)  # number 0 of the storage
    theirs.enqueue_trial({"lr": 0.5})
    watch.look()
    assert not watch.take_changes()
    assert watch.take_waiting() is None
    theirs.ask()
    theirs.tell(theirs.ask(), 0.25)
    watch.renumber({0: 3})  # stored by now, among them ours
    watch.look()
    changes = watch.take_changes()
    assert watch.mine == {3}
    assert changes.ended_here == []
    assert [(trial.number, trial.value) for trial in changes.ended] == [(0, 0.5), (2, 0.25)]


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
    study = Study.open("s", storage=None if store.rows is None else "sqlite:///s.db")
    study.persist({"objective": "loss", "direction": "minimize"})
    study.close()
    theirs.tell(trial, 0.5)
    assert theirs.trials[0].state == TrialState.COMPLETE
