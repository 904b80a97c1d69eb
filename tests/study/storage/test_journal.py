import contextlib
import json
import os
import subprocess
import threading
import time
from pathlib import Path

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal import JournalStorage as OptunasStorage
from optuna.study import StudyDirection

from paceline.study.storage.journal import (
    DamagedLineError,
    FileLock,
    JournalFile,
    _process_space,
    lines_of,
    record_of,
)
from paceline.study.storage.journal_storage import JournalStorage

PATH = Path("study.log")


def record(number: int) -> dict:
    return {"op_code": 2, "worker_id": "w", "study_id": 0, "user_attr": {"n": number}}


def read(journal: JournalFile, start: int = 0) -> list[dict]:
    return [json.loads(line) for line in journal.read(start, lines_of)]


def write(journal: JournalFile, *records: dict) -> None:
    with journal.batch():
        for each in records:
            journal.append(each)


def new_study(path: Path = PATH) -> JournalStorage:
    storage = JournalStorage(JournalFile(path))
    storage.create_new_study([StudyDirection.MINIMIZE], "s")
    return storage


def test_records_are_read_back_from_any_number_on():
    journal = JournalFile(PATH)
    assert read(journal) == []
    write(journal, record(0), record(1))
    write(journal, record(2))
    assert read(journal) == [record(0), record(1), record(2)]
    assert read(journal, 2) == [record(2)]
    assert read(journal, 3) == []
    assert read(JournalFile(PATH), 1) == [record(1), record(2)]


def test_optuna_reads_what_is_written_here_and_the_other_way_round():
    ours, theirs = JournalFile(PATH), JournalFileBackend(str(PATH))
    write(ours, record(0))
    theirs.append_logs([record(1)])
    with ours.batch():
        write(ours, record(2))
        write(ours, record(3))
    assert list(theirs.read_logs(0)) == read(ours) == [record(n) for n in range(4)]


def test_a_batch_is_seen_at_once_here_and_written_once(monkeypatch):
    syncs = []
    monkeypatch.setattr(os, "fsync", syncs.append)
    journal = JournalFile(PATH)
    with journal.batch():
        for number in range(5):
            write(journal, record(number))
            assert read(journal, number) == [record(number)]
        assert read(JournalFile(PATH)) == []
    assert len(syncs) == 1
    assert read(journal, 5) == []
    assert read(JournalFile(PATH)) == [record(number) for number in range(5)]


def test_a_batch_begins_with_what_others_wrote_before_it():
    storage, other = JournalFile(PATH), JournalFile(PATH)
    write(storage, record(0))
    assert read(storage) == [record(0)]
    write(other, record(1))
    with storage.batch():
        write(storage, record(2))
        assert read(storage, 1) == [record(1), record(2)]
        assert read(storage, 3) == []
    assert read(storage, 3) == []


def test_half_a_line_is_neither_read_nor_in_the_way():
    journal = JournalFile(PATH)
    write(journal, record(0))
    whole = PATH.read_bytes()
    PATH.write_bytes(whole + json.dumps(record(1)).encode()[:20])
    assert read(JournalFile(PATH)) == [record(0)]

    write(JournalFile(PATH), record(2))
    assert (
        Path(f"study.log.cut-{len(whole)}").read_bytes()
        == json.dumps(record(1))[:20].encode() + b"\n"
    )
    assert read(JournalFile(PATH)) == [record(0), record(2)]
    assert list(JournalFileBackend(str(PATH)).read_logs(0)) == [record(0), record(2)]


def test_a_file_that_is_half_a_line_and_nothing_else_begins_anew():
    PATH.write_bytes(b'{"op_')
    write(JournalFile(PATH), record(0))
    assert read(JournalFile(PATH)) == [record(0)]


def test_a_line_that_is_no_record_is_shown():
    PATH.write_text("never a journal\n")
    with pytest.raises(DamagedLineError, match="it begins 'never a journal'"):
        record_of(PATH.read_bytes())


def test_a_full_disk_leaves_no_half_batch(monkeypatch):
    journal = JournalFile(PATH)
    write(journal, record(0))

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write(journal, record(1))
    assert read(JournalFile(PATH)) == [record(0)]


def test_a_batch_that_fails_leaves_nothing_behind():
    journal = JournalFile(PATH)
    write(journal, record(0))
    with contextlib.suppress(ZeroDivisionError), journal.batch():
        write(journal, record(1))
        raise ZeroDivisionError
    assert read(JournalFile(PATH)) == read(journal) == [record(0)]


def test_a_file_cut_by_someone_else_is_not_written_on():
    journal = JournalFile(PATH)
    write(journal, record(0))
    read(journal)
    PATH.unlink()
    with pytest.raises(OSError, match="truncated or removed"):
        write(journal, record(1))
    assert not PATH.exists()


def test_several_writers_lose_nothing():
    storage = new_study()
    study = storage.get_study_id_from_name("s")
    failures = []

    def write(batch: int) -> None:
        try:
            file = JournalFile(PATH)
            mine = JournalStorage(file)
            for _ in range(10):
                with file.batch():
                    for _ in range(batch):
                        trial = mine.create_new_trial(study)
                        mine.set_trial_intermediate_value(trial, 1, float(trial))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(batch,)) for batch in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures

    theirs = OptunasStorage(JournalFileBackend(str(PATH)))
    trials = theirs.get_all_trials(study)
    assert [trial.number for trial in trials] == list(range(60))
    # Whoever got an id wrote to that trial: nobody's batch slipped in between.
    assert all(trial.intermediate_values == {1: float(trial.number)} for trial in trials)


def test_ours_waits_while_optuna_holds_the_lock_and_the_other_way_round():
    theirs = optuna.storages.journal.JournalFileSymlinkLock(str(PATH.absolute()))
    order = []
    theirs.acquire()

    def write() -> None:
        with FileLock(PATH).held():
            order.append("ours")

    thread = threading.Thread(target=write)
    thread.start()
    time.sleep(0.05)
    order.append("theirs")
    theirs.release()
    thread.join(timeout=30)
    assert order == ["theirs", "ours"]

    with FileLock(PATH).held():
        thread = threading.Thread(target=theirs.acquire)
        thread.start()
        time.sleep(0.05)
        assert thread.is_alive()
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_a_lock_left_by_a_killed_process_is_broken_at_once():
    with subprocess.Popen(["true"]) as process:
        pass
    lock = Path("study.log.lock")
    lock.write_text(f"{process.pid} {_process_space()}")
    write(JournalFile(PATH), record(0))
    assert not lock.exists()
    assert read(JournalFile(PATH)) == [record(0)]


@pytest.mark.parametrize(
    ("content", "hours"), [("", -1), ("", 1), ("1 of another machine", 1), ("{}", 0)]
)
def test_a_lock_of_another_machine_is_watched(monkeypatch, content, hours):
    """Clocks of machines that share a folder differ, and a clock may be set meanwhile."""
    lock = Path("study.log.lock")
    lock.write_text(content.format(f"{2**70} {_process_space()}"))
    then = time.time() - 3600 * hours
    os.utime(lock, (then, then))
    waited = []
    monkeypatch.setattr(FileLock, "STALE", 0.5)
    pause = time.sleep

    def sleep(seconds: float) -> None:
        waited.append(lock.exists())
        pause(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    break_, held_for = FileLock._break, FileLock.STALE

    def broken(lock: FileLock, made: int) -> None:
        break_(lock, made)
        monkeypatch.setattr(FileLock, "STALE", 60 * held_for)  # the write's own: disks stand still

    monkeypatch.setattr(FileLock, "_break", broken)
    write(JournalFile(PATH), record(0))
    assert waited.count(True) >= 3, "the lock was broken without watching it"
    assert not lock.exists()
    assert read(JournalFile(PATH)) == [record(0)]


def test_the_lock_of_a_process_that_lives_is_waited_for(monkeypatch):
    monkeypatch.setattr(FileLock, "STALE", 0.2)
    lock = FileLock(PATH)
    with lock.held():
        assert not FileLock(PATH)._holder_died()


def test_locks_of_others_that_come_one_after_another_are_waited_for(monkeypatch):
    """Each is young, however long one has waited; and who finds a new one does not remove it."""
    monkeypatch.setattr(FileLock, "STALE", 0.2)
    lock = Path("study.log.lock")
    done = threading.Event()

    def write() -> None:
        with FileLock(PATH).held():
            done.set()

    lock.touch()
    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(6):
        time.sleep(0.1)
        assert not done.is_set()
        other = Path("next")
        other.touch()
        other.replace(lock)
    lock.unlink()
    thread.join(timeout=30)
    assert done.is_set()
    assert not lock.exists()


def test_who_was_thought_dead_leaves_the_lock_of_the_next_alone(monkeypatch):
    monkeypatch.setattr(FileLock, "STALE", 0.0)
    lock = Path("study.log.lock")
    with FileLock(PATH).held():
        lock.unlink()
        Path("other").touch()
        Path("other").rename(lock)
    assert lock.exists()


def test_of_two_that_find_a_lock_stale_the_second_takes_no_new_one(monkeypatch):
    lock = Path("study.log.lock")
    lock.touch()
    stale = FileLock(PATH)
    made = stale._made()
    rename = Path.rename

    def late(self: Path, target: Path) -> Path:
        if self == lock.absolute():
            monkeypatch.setattr(Path, "rename", rename)
            time.sleep(0.01)  # another file's time
            Path("new").touch()
            Path("new").replace(lock)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    stale._break(made)
    assert lock.exists()
    assert sorted(path.name for path in Path().iterdir()) == ["study.log.lock"]
