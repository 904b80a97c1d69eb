"""What callbacks write on another machine lies below a folder there, and is put in its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import pytest

import toys
from paceline.pack.callbacks import per_trial
from paceline.pack.callbacks.per_trial import CallbackFactory, StudyPaths
from paceline.pack.callbacks.remote_files import MachineFolder, UserFolders, WrittenFile
from paceline.search_space import HyperParameters


@pytest.fixture(autouse=True)
def with_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if TensorFlow was there: nothing is written by a callback here."""
    monkeypatch.setattr(per_trial, "check_packages", lambda callbacks: None)


@pytest.fixture
def own(tmp_path: Path) -> MachineFolder:
    (tmp_path / "there").mkdir()
    return MachineFolder(tmp_path / "there")


def made(given: list[Any], study: Path, own: MachineFolder | None = None) -> list[Any]:
    """The callbacks of trial 3, here or on the machine of that folder."""
    factory = CallbackFactory(given, StudyPaths(study / "trials"), lambda text: None)
    if own is not None:
        factory = factory.below(own.here)
    return factory.of("3", HyperParameters(), toys.softmax())


def given(folder: Path) -> list[Any]:
    """Callbacks that write below the study, to an absolute path, and to one of their own naming."""
    return [
        keras.callbacks.ModelCheckpoint("kept/{epoch:02d}/model.keras"),
        keras.callbacks.CSVLogger("kept/log.csv"),
        keras.callbacks.TensorBoard(str(folder / "board")),
        keras.callbacks.CSVLogger(str(folder / "all" / "{trial}.csv")),
    ]


def test_files_end_where_the_user_wants_them(tmp_path: Path, own: MachineFolder) -> None:
    study = tmp_path / "runs" / "s"
    there = made(given(tmp_path), study, own)
    own.add(3, there, [])
    model, csv, board, named = (
        Path(str(path))
        for path in (there[0].filepath, there[1].filename, there[2].log_dir, there[3].filename)
    )
    csv.write_text("epoch\n0\n")
    first = Path(str(model).format(epoch=1))
    first.parent.mkdir()
    first.write_bytes(b"weights")
    (board / "train").mkdir()
    (board / "train" / "events").write_bytes(b"events")
    named.write_text("named")
    assert not study.exists() and not (tmp_path / "all").exists()

    here = UserFolders(made(given(tmp_path), study))
    for file in own.news(3):
        here.put(file)
    kept = study / "trials" / "3" / "kept"
    assert (kept / "log.csv").read_text() == "epoch\n0\n"
    assert (kept / "01" / "model.keras").read_bytes() == b"weights"
    assert (tmp_path / "s-3" / "board" / "train" / "events").read_bytes() == b"events"
    assert (tmp_path / "all" / "3.csv").read_text() == "named"


def test_only_what_has_changed_is_sent(tmp_path: Path, own: MachineFolder) -> None:
    there = made([keras.callbacks.CSVLogger("log.csv")], tmp_path, own)
    own.add(3, there, [])
    path = Path(there[0].filename)
    assert own.news(3) == []
    path.write_text("one")
    assert [file.data for file in own.news(3)] == [b"one"]
    assert own.news(3) == []
    path.write_text("one, two")
    assert [file.data for file in own.news(3)] == [b"one, two"]
    own.remove(3)
    assert not path.exists() and own.news(3) == []


def test_a_trial_takes_along_what_its_callbacks_append_to(
    tmp_path: Path, own: MachineFolder
) -> None:
    study = tmp_path / "s"
    here = UserFolders(made(given(tmp_path), study))
    assert here.taken_along(begins=False) == []
    kept = study / "trials" / "3" / "kept"
    kept.mkdir(parents=True, exist_ok=True)
    (kept / "log.csv").write_text("epoch\n0\n")
    (kept / "model.keras").write_text("not appended to")
    assert here.taken_along(begins=True) == [], "its log is begun anew"
    there = made(given(tmp_path), study, own)
    own.add(3, there, here.taken_along(begins=False))
    assert Path(there[1].filename).read_text() == "epoch\n0\n"
    assert not list(Path(there[0].filepath).parents[1].glob("*.keras"))
    assert own.news(3) == [], "it is there already"


def test_a_log_that_is_appended_to_begins_with_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "3.csv"
    path.write_text("epoch\n99\n")
    here = UserFolders(made([keras.callbacks.CSVLogger(str(path), append=True)], tmp_path))
    path = next(tmp_path.glob("*-3")) / "3.csv"
    assert here.taken_along(begins=True) == []
    path.write_text("epoch\n99\n")
    here = UserFolders(
        made([keras.callbacks.CSVLogger(str(tmp_path / "3.csv"), append=True)], tmp_path)
    )
    path.write_text("epoch\n99\n0\n")  # of a machine that has died since
    assert [file.data for file in here.taken_along(begins=True)] == [b"epoch\n99\n"]
    assert [file.data for file in here.taken_along(begins=False)] == [b"epoch\n99\n0\n"]


def test_a_trial_that_no_checkpoint_has_takes_its_rows_back_when_it_begins_again(
    tmp_path: Path,
) -> None:
    def logger() -> Any:
        return keras.callbacks.CSVLogger(str(tmp_path / "3.csv"), append=True)

    path = tmp_path / f"{tmp_path.name}-3" / "3.csv"
    (first,) = made([logger()], tmp_path)
    path.write_text("epoch\n99\n")
    UserFolders([first]).begin()
    path.write_text("epoch\n99\n0\n1\n")  # and the process is killed
    (again,) = made([logger()], tmp_path)
    assert UserFolders([again]).kept == {"0": 9}
    (sent,) = UserFolders([again]).taken_along(begins=True)
    assert sent.data == b"epoch\n99\n", "another machine begins with that, too"
    UserFolders([again]).begin()
    assert path.read_text() == "epoch\n99\n"
    kept = tmp_path / "trials" / "3" / ".log-0.json"
    for text in ("", "[]", '{"bytes": -1, "trial": "{}"}', '{"bytes": 2, "trial": "{1}"}'):
        path.write_text("epoch\n99\n0\n")
        kept.write_text(text)  # damaged, or of another trial
        UserFolders(made([logger()], tmp_path)).begin()
        assert path.read_text() == "epoch\n99\n0\n"


@pytest.mark.parametrize(
    "path", ["../out", "/out", "a/../../out", "", "train.py", "1/other.keras", "1\0/model.keras"]
)
def test_nothing_is_written_but_what_the_callback_would_write(path: str, tmp_path: Path) -> None:
    here = UserFolders(
        made([keras.callbacks.ModelCheckpoint("{epoch}/model.keras")], tmp_path / "s")
    )
    before = sorted(tmp_path.rglob("*"))
    for at in (0, 1):
        with pytest.raises(ValueError, match="does not write"):
            here.put(WrittenFile(at, path, b"x"))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_log_is_written_to_its_own_name_alone(tmp_path: Path) -> None:
    here = UserFolders(made([keras.callbacks.CSVLogger("log.csv")], tmp_path / "s"))
    here.put(WrittenFile(0, "train.py", b"x"))
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert found == [tmp_path / "s" / "trials" / "3" / "log.csv"]


@pytest.mark.slow
def test_what_a_killed_machine_has_left_is_removed(tmp_path: Path, own: MachineFolder) -> None:
    code = """
import os, sys
from pathlib import Path
from paceline.pack.callbacks.remote_files import MachineFolder
MachineFolder(Path(sys.argv[1]))
os._exit(1)
"""
    parent = tmp_path / "there"
    (mine,) = parent.iterdir()
    subprocess.run([sys.executable, "-c", code, str(parent)], check=False, timeout=120)
    assert len(list(parent.iterdir())) == 2
    again = MachineFolder(parent)
    assert len(list(parent.iterdir())) == 2 and mine.exists()
    again.close()
    assert list(parent.iterdir()) == [mine]
