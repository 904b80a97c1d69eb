import contextlib
import os
import threading
from pathlib import Path

import optuna
import pytest
from optuna.distributions import IntDistribution
from optuna.trial import TrialState, create_trial

from paceline.errors import StorageError
from paceline.study.storage.events import (
    EpochReported,
    StudyDescribed,
    TrialAnnotated,
    TrialCreated,
    TrialFinished,
)
from paceline.study.storage.storage import StudyStorage
from paceline.study.storage.write_behind import WriteBehind


class Counting(optuna.storages.InMemoryStorage):
    """Counts calls, and fails or waits where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None

    def _note(self, name: str) -> None:
        self.gate.wait(30)
        if self.failure is not None:
            raise self.failure
        self.calls.append(name)

    def create_new_trial(self, study_id, template_trial=None):
        self._note("create")
        return super().create_new_trial(study_id, template_trial)

    def set_trial_intermediate_value(self, trial_id, step, intermediate_value):
        self._note("report")
        super().set_trial_intermediate_value(trial_id, step, intermediate_value)

    def set_trial_user_attr(self, trial_id, key, value):
        self._note("attr")
        super().set_trial_user_attr(trial_id, key, value)

    def set_trial_state_values(self, trial_id, state, values=None):
        self._note("state")
        return super().set_trial_state_values(trial_id, state, values)


def begun(number: int) -> TrialCreated:
    template = create_trial(
        state=TrialState.RUNNING,
        params={"units": number},
        distributions={"units": IntDistribution(0, 100)},
        user_attrs={"hparams": {"units": number}},
    )
    return TrialCreated(number, template)


@pytest.fixture
def storage():
    return Counting()


@pytest.fixture
def writer(storage):
    store = StudyStorage.of(storage, "s", Path("runs"))
    store.create("s", ["maximize"], {})
    writer = WriteBehind(store)
    yield writer
    storage.gate.set()
    storage.failure = None
    with contextlib.suppress(StorageError):
        writer.close()


def trials(storage):
    return storage.get_all_trials(storage.get_study_id_from_name("s"))


def test_records_wait_for_the_start_and_then_arrive_in_order(storage, writer):
    writer.record(begun(0), EpochReported(0, 1, 0.5), begun(1))
    writer.flush()
    assert trials(storage) == []

    writer.start("s")
    writer.flush()
    writer.record(EpochReported(0, 2, 0.7), TrialAnnotated(1, {"plan": "vectorized"}))
    writer.record(TrialFinished(0, "complete", [0.7], {"epochs": 2}), StudyDescribed({"n": 1}))
    writer.flush()
    first, second = trials(storage)
    assert (first.state, first.value) == (TrialState.COMPLETE, 0.7)
    assert first.intermediate_values == {1: 0.5, 2: 0.7}
    assert first.user_attrs == {"hparams": {"units": 0}, "epochs": 2}
    assert (second.state, second.user_attrs["plan"]) == (TrialState.RUNNING, "vectorized")
    assert storage.get_study_user_attrs(storage.get_study_id_from_name("s")) == {
        "paceline": {"n": 1}
    }


def test_a_trial_that_begins_and_ends_in_one_batch_is_one_call(storage, writer):
    writer.record(
        begun(0), begun(1), EpochReported(0, 1, 0.5), TrialAnnotated(0, {"plan": "vectorized"})
    )
    writer.record(
        TrialFinished(0, "failed", None, {"error": "boom"}), TrialFinished(1, "pruned", [0.25])
    )
    writer.start("s")
    writer.flush()
    assert storage.calls == ["create", "create"]
    first, second = trials(storage)
    assert (first.state, first.value, first.params) == (TrialState.FAIL, None, {"units": 0})
    assert first.user_attrs == {"hparams": {"units": 0}, "plan": "vectorized", "error": "boom"}
    assert first.intermediate_values == {1: 0.5}
    assert first.datetime_start <= first.datetime_complete
    assert (second.state, second.value) == (TrialState.PRUNED, 0.25)


def test_putting_does_not_wait_for_a_storage_that_hangs(storage, writer):
    writer.start("s")
    storage.gate.clear()
    for number in range(100):
        writer.record(begun(number))
    assert storage.calls == []
    storage.gate.set()
    writer.close()
    assert len(trials(storage)) == 100
    assert writer.cpu_seconds > 0


MATCH = "storage Counting cannot be written: disk on fire"


def test_records_wait_for_a_storage_that_fails_and_are_then_all_there(storage, writer):
    writer.start("s")
    writer.record(begun(0))
    writer.flush()
    assert (writer.trouble, writer.n_waiting) == (None, 0)
    storage.failure = RuntimeError("disk on fire")
    writer.record(EpochReported(0, 1, 0.5), begun(1), EpochReported(1, 1, 0.25))
    with pytest.raises(StorageError, match=MATCH):
        writer.flush()
    writer.record(TrialFinished(1, "complete", [0.25]))
    assert (str(writer.trouble).startswith(MATCH), writer.n_waiting) == (True, 4)
    storage.failure = None
    writer.flush()
    assert (writer.trouble, writer.n_waiting) == (None, 0)
    first, second = trials(storage)
    assert first.intermediate_values == {1: 0.5}
    assert (second.state, second.value) == (TrialState.COMPLETE, 0.25)
    assert storage.calls == ["create", "report", "create", "state"]


def test_what_a_storage_took_before_it_failed_is_not_written_twice(storage, writer, monkeypatch):
    """The reply to a call is lost: it may have been carried out."""
    create = Counting.create_new_trial

    def cut_off(self, *arguments):
        create(self, *arguments)
        monkeypatch.setattr(Counting, "create_new_trial", create)
        raise RuntimeError("connection lost")

    monkeypatch.setattr(Counting, "create_new_trial", cut_off)
    writer.start("s")
    writer.record(begun(0), begun(1))
    with contextlib.suppress(StorageError):  # unless the second attempt was quicker
        writer.flush()
    writer.flush()
    writer.record(EpochReported(0, 1, 0.5), EpochReported(1, 1, 0.25))
    writer.flush()
    assert [t.intermediate_values for t in trials(storage)] == [{1: 0.5}, {1: 0.25}]


def test_a_storage_that_never_answers_is_given_up_when_the_study_closes(
    storage, writer, monkeypatch
):
    monkeypatch.setattr(WriteBehind, "PATIENCE", 0.0)
    writer.start("s")
    storage.failure = RuntimeError("disk on fire")
    writer.record(begun(0), begun(1))
    for _ in range(2):
        with pytest.raises(StorageError, match=f"{MATCH}.*2 records of the last trials"):
            writer.close()


def test_a_trial_that_another_process_ended_is_left_as_it_is(storage, writer):
    writer.start("s")
    writer.record(begun(0))
    writer.flush()
    storage.set_trial_state_values(0, TrialState.FAIL)
    writer.record(
        EpochReported(0, 1, 0.5), begun(1), TrialFinished(0, "complete", [0.5], {"epochs": 1})
    )
    writer.flush()
    first, second = trials(storage)
    assert (first.state, first.intermediate_values) == (TrialState.FAIL, {})
    assert second.state == TrialState.RUNNING


def test_closing_writes_what_is_left_and_may_be_done_twice(storage, writer):
    writer.start("s")
    writer.record(begun(0))
    writer.close()
    writer.close()
    assert len(trials(storage)) == 1


@pytest.mark.slow
def test_an_attempt_that_was_under_way_does_not_end_a_flush(storage, writer):
    """It may have met what is over when the flush begins."""
    failures, entered, later = [OSError("full")], threading.Event(), threading.Event()

    def note(name):
        entered.set()
        storage.gate.wait(30)
        if failures:
            raise failures.pop()
        later.wait(30)

    storage._note = note
    storage.gate.clear()
    writer.start("s")
    writer.record(begun(0))
    assert entered.wait(30)
    for seconds, event in ((0.1, storage.gate), (0.3, later)):
        threading.Timer(seconds, event.set).start()
    writer.flush()
    assert len(trials(storage)) == 1
    assert not failures


def journal_writer(folder: Path, notes: list[str]) -> WriteBehind:
    store = StudyStorage.of(None, "s", folder)
    store.create("s", ["maximize"], {})
    writer = WriteBehind(store, note=notes.append)
    writer.start("s")
    return writer


def test_a_trial_is_numbered_before_the_disk_has_it(tmp_path, monkeypatch):
    """A disk takes milliseconds for that, a drive of a network far longer."""
    gate = threading.Event()
    monkeypatch.setattr(WriteBehind, "NUMBERING", 30.0)
    writer = journal_writer(tmp_path, [])
    monkeypatch.setattr(os, "fsync", lambda _: gate.wait(30))
    assert writer.create(0, begun(0).template) == 0
    # Others see the trial, too.
    there = StudyStorage.of(None, "s", tmp_path).storage
    (trial,) = there.get_all_trials(there.get_study_id_from_name("s"))
    assert trial.state == TrialState.RUNNING
    assert writer.n_waiting == 1
    assert not gate.is_set()
    gate.set()
    writer.close()


def test_a_number_that_was_told_before_the_disk_failed_is_another_in_the_storage(
    tmp_path, monkeypatch
):
    failures, notes, waits, goes_on = [OSError("full")], [], threading.Event(), threading.Event()
    writer = journal_writer(tmp_path, notes)
    journal = tmp_path / "s" / "journal.log"

    def fsync(descriptor):  # writers of other studies may be at work, too
        if failures and os.path.samestat(os.fstat(descriptor), journal.stat()):
            raise failures.pop()

    def waited(self, seconds):
        waits.set()
        return goes_on.wait(30)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(WriteBehind, "_waited", waited)
    assert writer.create(0, begun(0).template) == 0
    assert waits.wait(30)
    # Another program adds a trial before the line is written again.
    other = StudyStorage.of(None, "s", tmp_path).storage
    other.create_new_trial(0, begun(7).template)
    goes_on.set()
    writer.record(EpochReported(0, 1, 0.5))
    writer.flush()
    theirs, ours = other.get_all_trials(0)
    assert (theirs.params, theirs.intermediate_values) == ({"units": 7}, {})
    assert (ours.params, ours.intermediate_values) == ({"units": 0}, {1: 0.5})
    assert any("trial 0 is trial 1 in the storage" in note for note in notes)
    writer.close()
