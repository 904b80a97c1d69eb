"""Storages that fail in earnest: full and read-only disks, locked files, servers that stop.

Training goes on, what it tells waits, and all of it is there when the storage answers again.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

import servers
from paceline.errors import StorageError
from paceline.study import study as study_module
from paceline.study.storage import rdb
from paceline.study.storage.storage import StudyStorage
from paceline.study.storage.write_behind import WriteBehind
from paceline.study.study import Study

Blocked = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Leaves no byte on a disk."""
    rest = folder / "rest"
    with rest.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"\0" * 1024):
            pass
    yield
    rest.unlink()


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    yield
    subprocess.run(["mount", "-o", "remount,rw", folder], check=True)


@contextmanager
def file_size_limited(size: int) -> Iterator[None]:
    """No file of this process may grow beyond ``size`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program is in the middle of a change of an SQLite file."""
    other = sqlite3.connect(path)
    other.execute("BEGIN EXCLUSIVE")
    yield
    other.rollback()
    other.close()


@contextmanager
def stopped(server: servers.PostgreSQL) -> Iterator[None]:
    server.stop()
    yield
    server.start()


def train(study: Study, n: int) -> None:
    """Trials of two epochs, one after another."""
    for _ in range(n):
        found = study.asker.propose(lambda hp, proposal: hp.Float("x", 0.0, 1.0))
        assert found is not None
        proposal, hp, _ = found
        study.persist({})
        number = study.accept(proposal, hp)
        for epoch in (1, 2):
            study.updates.report(number, epoch, {"val": epoch / 4}, epoch / 4)
        study.updates.finish(number, "complete")


def outlives(storage: str, blocked: Blocked, match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study whose storage fails for a while loses nothing, and says both."""
    monkeypatch.setattr(rdb, "SQLITE_WAIT", 0.05)
    notes: list[str] = []
    study = Study("s", storage=storage, direction="maximize", note=notes.append)
    train(study, 3)
    under_way = study.asker.propose(lambda hp, proposal: hp.Float("x", 0.0, 1.0))
    assert under_way is not None
    number = study.accept(*under_way[:2])
    study.updates.report(number, 1, {"val": 0.1}, 0.1)
    study.writer.flush()
    assert study.writer.check_storage()
    with blocked():
        study.updates.report(number, 2, {"val": 0.9}, 0.9)
        train(study, 3)
        study.updates.finish(number, "complete")
        with pytest.raises(StorageError, match=match):
            study.writer.flush()
        assert not study.writer.check_storage()
        train(study, 2)
        assert not study.writer.check_storage()
    study.writer.flush()
    assert study.writer.check_storage()
    assert len(notes) == 2
    assert "Training continues. " in notes[0]
    assert notes[1] == "the storage responds again; all queued records are written"
    study.close()
    again = Study("s", storage=storage)
    assert [trial.number for trial in again.trials] == list(range(9))
    assert list(again.trials) == list(study.trials)
    stored = StudyStorage.of(storage, "s", Path("runs")).load("s")
    assert stored is not None
    assert [t.intermediate_values for t in stored.trials if t.number != number] == [
        {1: 0.25, 2: 0.5}
    ] * 8
    assert stored.trials[number].intermediate_values == {1: 0.1, 2: 0.9}


@pytest.mark.parametrize(
    ("storage", "fault"),
    [
        ("journal:disk/s.log", filled),
        ("sqlite:///disk/s.db", filled),
        ("journal:disk/s.log", read_only),  # with an open database it cannot be made so
    ],
)
def test_a_disk_that_is_full_or_read_only_for_a_while(
    storage: str, fault: Callable[[Path], AbstractContextManager[None]], disk: Path, monkeypatch
) -> None:
    monkeypatch.chdir(disk.parent)
    match = r"cannot be written: .*([Nn]o space|disk is full|[Rr]ead-?only|disk I/O error)"
    outlives(storage, lambda: fault(disk), match, monkeypatch)


@pytest.mark.parametrize("storage", ["journal:s.log", "sqlite:///s.db"])
def test_a_file_that_may_not_grow_for_a_while(storage: str, monkeypatch) -> None:
    match = r"cannot be written: .*(File too large|disk I/O error|disk is full)"
    outlives(storage, lambda: file_size_limited(1), match, monkeypatch)


def test_a_database_that_another_program_locks(monkeypatch) -> None:
    def blocked() -> AbstractContextManager[None]:
        return locked(Path("s.db"))

    outlives("sqlite:///s.db", blocked, "written: .*database is locked", monkeypatch)


def test_a_server_that_stops_and_comes_back(postgresql: servers.PostgreSQL, monkeypatch) -> None:
    def blocked() -> AbstractContextManager[None]:
        return stopped(postgresql)

    url = postgresql.database()
    outlives(url, blocked, r"paceline:\*\*\*@127.0.0.1.*cannot be written", monkeypatch)


def test_a_folder_that_may_not_be_written_is_said_before_anything_is_trained(disk: Path) -> None:
    with read_only(disk):
        for storage in (f"journal:{disk}/s.log", f"sqlite:///{disk}/s.db"):
            with pytest.raises(
                StorageError, match=f"no permission to write to the folder {disk}. Choose"
            ):
                Study("s", storage=storage)
    assert list(disk.iterdir()) == []


def test_a_storage_that_never_answers_again_is_said_at_the_end(monkeypatch) -> None:
    monkeypatch.setattr(WriteBehind, "PATIENCE", 0.0)
    monkeypatch.setattr(rdb, "SQLITE_WAIT", 0.05)
    study = Study("s", storage="sqlite:///s.db", direction="maximize")
    train(study, 1)
    study.writer.flush()
    match = r"locked.* \d+ records of the last trials are not stored. .*search again"
    with locked(Path("s.db")):
        train(study, 1)
        with pytest.raises(StorageError, match=match):
            study.close()
    assert len(Study("s", storage="sqlite:///s.db").trials) == 1


def test_a_study_that_is_collected_holds_nobody_up(monkeypatch) -> None:
    """Python may collect it in anybody's code; what is left is written once the storage answers."""
    monkeypatch.setattr(study_module, "_SECONDS_TO_COLLECT", 0.05)
    monkeypatch.setattr(WriteBehind, "WAITS", (0.05,))
    monkeypatch.setattr(rdb, "SQLITE_WAIT", 0.05)
    study = Study("s", storage="sqlite:///s.db", direction="maximize")
    train(study, 1)
    study.writer.flush()
    writer = study.writer
    with locked(Path("s.db")):
        train(study, 1)
        del study
        gc.collect()
    writer.close()
    assert len(Study("s", storage="sqlite:///s.db").trials) == 2


def test_a_journal_cut_in_the_middle_of_a_line_loses_that_line_and_keeps_it_beside() -> None:
    study = Study("s", direction="maximize")
    train(study, 4)
    study.close()
    journal = Path("runs/s/journal.log")
    data = journal.read_bytes()
    lines = data.splitlines(keepends=True)
    whole = len(data) - len(lines[-1])
    os.truncate(journal, whole + len(lines[-1]) // 2)
    again = Study("s", direction="maximize")
    ended = [trial for trial in again.trials if trial.state == "complete"]
    assert ended == study.trials[:3]  # what is lost is the end of the last one
    assert len(again.trials) == 4
    before = len(again.trials)
    train(again, 2)
    again.close()
    assert len(Study("s").trials) == before + 2
    (cut,) = journal.parent.glob("journal.log.cut-*")
    assert data[whole:].startswith(cut.read_bytes().rstrip(b"\n"))
    assert journal.read_bytes().startswith(data[:whole])
