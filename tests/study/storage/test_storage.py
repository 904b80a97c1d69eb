import contextlib
import gc
import os
import sqlite3
import threading
import time
import traceback
from pathlib import Path

import optuna
import pytest

from paceline.errors import StorageError, StudyError
from paceline.study.storage import rdb
from paceline.study.storage.rdb import PasswordMask, hide_password
from paceline.study.storage.storage import StudyStorage, quiet_optuna

RUNS = Path("runs")


def stored_in(storage) -> StudyStorage:
    return StudyStorage.of(storage, "s", RUNS)


@pytest.mark.parametrize("storage", [None, "journal:deep/er/s.log", "sqlite:///deep/s.db"])
def test_a_study_is_there_once_it_is_made_and_nothing_is_before(storage):
    store = stored_in(storage)
    assert store.load("s") is None
    assert list(Path().iterdir()) == []

    store.create("s", ["maximize"], {"objective": "val_accuracy"})
    found = stored_in(storage).load("s")
    assert found is not None
    assert (found.directions, found.meta) == (("maximize",), {"objective": "val_accuracy"})
    assert found.trials == []
    assert stored_in(storage).load("another") is None


def test_the_default_is_a_journal_in_the_studys_folder():
    stored_in(None).create("s", ["minimize"], {})
    assert (RUNS / "s" / "journal.log").is_file()


@pytest.mark.parametrize(
    "line", ['{"op_code": 99}', '{"op_code": 0}', '{"op_code": 0, "worker_id": "a"}', "{}"]
)
def test_a_line_that_optuna_would_not_write_is_said(line):
    Path("s.log").write_text(f"{line}\n")
    match = r"journal:s.log: line 1 is damaged: .*paceline repair STUDY --storage journal:s.log"
    with pytest.raises(StorageError, match=match):
        stored_in("journal:s.log").load("s")


def test_a_storage_object_is_taken_as_it_is():
    memory = optuna.storages.InMemoryStorage()
    stored_in(memory).create("s", ["minimize"], {})
    found = stored_in(memory).load("s")
    assert found is not None and found.directions == ("minimize",)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///file:s.db?mode=rwc&uri=true",
        "sqlite+pysqlite:///file:deep%20er/s.db?uri=1",
        "sqlite:///file://localhost{here}/s.db?mode=rwc&uri=Yes",
    ],
)
def test_reading_makes_no_file_of_a_uri_of_sqlite(url):
    url = url.format(here=Path.cwd())
    assert stored_in(url).load("s") is None
    assert stored_in(url).names() == []
    assert list(Path().iterdir()) == []
    stored_in(url).create("s", ["minimize"], {})
    assert stored_in(url).names() == ["s"]
    assert [path.name for path in Path().rglob("*.db")] == ["s.db"]


@pytest.mark.parametrize("tables", [[], ["CREATE TABLE notes (text TEXT)"]])
def test_reading_makes_no_tables_in_a_database_of_others(tables):
    with contextlib.closing(sqlite3.connect("other.db")) as other:
        for statement in tables:
            other.execute(statement)
    Path("other.db").touch()
    before = Path("other.db").read_bytes()
    assert stored_in("sqlite:///other.db").load("s") is None
    assert Path("other.db").read_bytes() == before


def test_reading_makes_no_tables_on_a_server_and_leaves_no_connections(postgresql):
    url = postgresql.database()
    assert stored_in(url).load("s") is None
    assert not rdb.has_tables(url)
    with contextlib.closing(stored_in(url)) as store:
        store.create("s", ["minimize"], {})
    assert stored_in(url).names() == ["s"]
    assert len(optuna.load_study(study_name="s", storage=stored_in(url).storage).trials) == 0
    gc.collect()
    for _ in range(100):  # who forgets a store leaves no connection open; a server needs a moment
        if postgresql.connections(url) == 0:
            break
        time.sleep(0.05)
    assert postgresql.connections(url) == 0


@pytest.mark.parametrize(
    ("storage", "match"),
    [
        ("study.db", "must be a URL, got 'study.db'. Write journal:study.db or sqlite:///study.db"),
        ("", "must be a URL"),
        ("journal:", "Name the file"),
        ("journal:.", "is a folder"),
        ("journal:/dev/null", "is not a file. Name another"),
        ("sqlite://", "lost when the program ends"),
        ("sqlite:///:memory:", "lost when the program ends"),
        ("sqlite:///file::memory:?cache=shared&uri=true", "lost when the program ends"),
        ("sqlite:///file:s?mode=memory&uri=true", "lost when the program ends"),
        ("redis://host/0", "JournalRedisBackend"),
        ("carrier-pigeon://coop/s", "cannot be opened"),
        (Path("study.db"), "must be journal:PATH"),
        (7, "must be journal:PATH"),
        ("journal:file/s.log", "file is not a folder"),
        ("sqlite:///file/s.db", "file is not a folder"),
        ("sqlite:///file", "cannot be opened.*not a database"),
        ("journal:file", "line 1 is damaged: JSON is malformed.*it begins 'not a study'"),
    ],
)
def test_what_cannot_be_opened_says_why(storage, match):
    Path("file").write_text("not a study\n" * 100)
    with pytest.raises(StorageError, match=match):
        stored_in(storage).load("s")
    assert [path.name for path in Path().iterdir()] == ["file"]


def test_a_journal_made_just_after_it_was_not_there_is_no_fault(monkeypatch):
    is_file = Path.is_file

    def look(path: Path) -> bool:
        monkeypatch.setattr(Path, "is_file", is_file)
        path.touch()
        return False

    monkeypatch.setattr(Path, "is_file", look)
    assert stored_in("journal:s.log").load("s") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("storage", [None, "journal:shut/s.log", "sqlite:///shut/s.db"])
def test_a_folder_that_may_not_be_written_is_refused(storage, monkeypatch):
    Path("shut").mkdir(mode=0o500)
    monkeypatch.chdir("shut") if storage is None else None
    with pytest.raises(StorageError, match="no permission to write"):
        stored_in(storage).load("s")


def test_a_folder_that_may_not_be_written_is_refused_for_root_too(monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StorageError, match="no permission to write .* Choose another"):
        stored_in(None).load("s")


@pytest.mark.parametrize(
    "url",
    [
        "nosuchdriver://user:SECRET@host/db",
        "postgresql+nosuchdriver://user:SECRET@host:5432/db",
        "postgresql://user:SECRET@127.0.0.1:9/db",
        "mysql://user:SE@SECRET/x@host/db?password=SECRET",
    ],
)
def test_no_message_shows_a_password(url):
    with pytest.raises(StorageError, match="storage") as caught:
        stored_in(url).load("s")
    shown = "".join(traceback.format_exception(caught.value))
    assert "SECRET" not in shown


@pytest.mark.parametrize(
    "password",
    [
        "{SECRET}",
        "SECRET%7B0%7D",
        "SEC/RET@x",
        "SEC:RET",
        "{",
        "100%25SECRET",
        "x@SECRET:SECRET",
        "my SECRET",
        "SECRET x@SECRET",
    ],
)
def test_no_message_shows_a_password_that_is_hard_to_read(password):
    with pytest.raises(StorageError, match="storage") as caught:
        stored_in(f"postgresql://user:{password}@127.0.0.1:9/db").load("s")
    shown = "".join(traceback.format_exception(caught.value))
    assert "SEC" not in shown and f":{password}@" not in shown


def test_what_a_driver_says_shows_no_password_in_any_spelling():
    hide = PasswordMask("postgresql://me:p%40ss%2Fword@host/db?password=other+one")
    for text in ("p%40ss%2Fword", "p@ss/word", "other+one", "other one"):
        assert hide(f"no entry for {text}, sorry") == "no entry for ***, sorry"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:/user:SECRET@host/db",
        "postgresql:user:SECRET@host/db",
        "//user:SECRET@host/db",
        "user:SECRET@host/db",
        "postgresql://a user:SECRET@127.0.0.1:9/db",
        "postgresql://user@127.0.0.1:9/db?sslpassword=SECRET",
        "postgresql://127.0.0.1:9/db?user=me&password=my SECRET&connect_timeout=1",
        "postgresql://127.0.0.1:9/db?user=me&pass%77ord=SECRET",
        "redis://:SECRET@host",
    ],
)
def test_no_message_shows_a_password_of_what_is_hardly_a_url(url):
    with pytest.raises(StorageError, match="storage") as caught:
        stored_in(url).load("s")
    assert "SECRET" not in "".join(traceback.format_exception(caught.value))


def test_a_missing_driver_is_named(monkeypatch):
    monkeypatch.setattr(rdb.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StorageError, match=r'pip install "paceline\[postgresql\]"'):
        stored_in("postgresql://user@host/db").load("s")


def test_a_study_in_a_server(postgresql):
    url = postgresql.database()
    store = stored_in(url)
    assert store.load("s") is None
    store.create("s", ["maximize"], {"objective": "val_accuracy"})
    store.close()
    found = stored_in(url).load("s")
    assert found is not None and found.meta == {"objective": "val_accuracy"}
    assert postgresql.password in url and postgresql.password not in store.label
    with pytest.raises(StorageError, match="password authentication failed") as caught:
        stored_in(url.replace(postgresql.password, "SECRET")).load("s")
    assert "SECRET" not in str(caught.value)


def test_passwords_are_stars():
    assert hide_password("postgresql://me:pw@host/db") == "postgresql://me:***@host/db"
    assert hide_password("could not reach x://me:p@w/d@host") == "could not reach x://me:***@host"
    assert hide_password("x://host/db?user=me&password=pw&a=1").endswith("password=***&a=1")
    assert hide_password("sqlite:///a.db") == "sqlite:///a.db"


def test_a_study_of_several_objectives_has_their_directions_and_values():
    memory = optuna.storages.InMemoryStorage()
    with quiet_optuna():
        theirs = optuna.create_study(
            storage=memory, study_name="s", directions=["minimize", "maximize"]
        )
        theirs.add_trial(optuna.trial.create_trial(values=[1.0, 2.0]))
    found = stored_in(memory).load("s")
    assert found is not None
    assert found.directions == ("minimize", "maximize")
    assert [trial.values for trial in found.trials] == [[1.0, 2.0]]


def test_a_study_made_meanwhile_is_said():
    first, second = stored_in(None), stored_in(None)
    assert first.load("s") is None and second.load("s") is None
    first.create("s", ["minimize"], {})
    with pytest.raises(StudyError, match="created by another process"):
        second.create("s", ["minimize"], {})


@pytest.fixture
def talkative():
    """The user's verbosity: Optuna's log lines are shown."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.INFO)
    yield optuna.logging.INFO
    optuna.logging.set_verbosity(before)


def test_optunas_verbosity_is_restored_by_the_last_of_blocks_that_overlap(talkative):
    """As where the writer's thread enters before the search's thread leaves, and leaves after."""
    first, second = quiet_optuna(), quiet_optuna()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert optuna.logging.get_verbosity() == optuna.logging.ERROR, "the second is not over"
    second.__exit__(None, None, None)
    assert optuna.logging.get_verbosity() == talkative


def test_optunas_verbosity_is_restored_after_blocks_of_many_threads(talkative):
    levels = set()

    def enters() -> None:
        for _ in range(50):
            with quiet_optuna():
                time.sleep(1e-4)  # others enter and leave meanwhile
                levels.add(optuna.logging.get_verbosity())

    threads = [threading.Thread(target=enters) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert levels == {optuna.logging.ERROR}
    assert optuna.logging.get_verbosity() == talkative


def test_a_verbosity_that_the_user_sets_meanwhile_stays(talkative):
    with quiet_optuna():
        optuna.logging.set_verbosity(optuna.logging.DEBUG)
    assert optuna.logging.get_verbosity() == optuna.logging.DEBUG
