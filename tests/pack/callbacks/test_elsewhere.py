"""What callbacks write on another machine lies below a folder there, and is put back by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import pytest

from paceline.pack.callbacks import per_trial
from paceline.pack.callbacks.elsewhere import OwnFolder, UserPlaces, WrittenFile
from paceline.pack.callbacks.per_trial import CallbackFactory, StudyPaths
from paceline.search_space import HyperParameters


@pytest.fixture(autouse=True)
def with_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if TensorFlow was there: nothing is written by a callback here."""
    monkeypatch.setattr(per_trial, "check_packages", lambda callbacks: None)


@pytest.fixture
def own(tmp_path: Path) -> OwnFolder:
    (tmp_path / "there").mkdir()
    return OwnFolder(tmp_path / "there")


def made(given: list[Any], study: Path, own: OwnFolder | None = None) -> list[Any]:
    """The callbacks of trial 3, here or on the machine of that folder."""
    factory = CallbackFactory(given, StudyPaths(study / "trials"), lambda text: None)
    if own is not None:
        factory = factory.below(own.here)
    return factory.of("3", HyperParameters())


def given(folder: Path) -> list[Any]:
    """Callbacks that write below the study, to an absolute path, and to one of their own naming."""
    return [
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.ModelCheckpoint("kept/{epoch}/model.keras"),
        keras.callbacks.TensorBoard(str(folder / "board")),
        keras.callbacks.CSVLogger(str(folder / "all" / "{trial}.csv")),
    ]


def test_files_end_where_the_user_wants_them(tmp_path: Path, own: OwnFolder) -> None:
    study = tmp_path / "runs" / "s"
    there = made(given(tmp_path), study, own)
    own.add(3, there, [])
    csv, model, board, named = (
        Path(str(path))
        for path in (there[0].filename, there[1].filepath, there[2].log_dir, there[3].filename)
    )
    csv.write_text("epoch\n0\n")
    first = Path(str(model).format(epoch=1))
    first.parent.mkdir()
    first.write_bytes(b"weights")
    (board / "train").mkdir()
    (board / "train" / "events").write_bytes(b"events")
    named.write_text("named")
    assert not study.exists() and not (tmp_path / "all").exists()

    here = UserPlaces.of(made(given(tmp_path), study))
    for file in own.news(3):
        here.put(file)
    assert (study / "trials" / "3" / "log.csv").read_text() == "epoch\n0\n"
    assert (study / "trials" / "3" / "kept" / "1" / "model.keras").read_bytes() == b"weights"
    assert (tmp_path / "s-3" / "board" / "train" / "events").read_bytes() == b"events"
    assert (tmp_path / "all" / "3.csv").read_text() == "named"


def test_only_what_has_changed_is_sent(tmp_path: Path, own: OwnFolder) -> None:
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


def test_a_trial_takes_along_what_its_callbacks_append_to(tmp_path: Path, own: OwnFolder) -> None:
    study = tmp_path / "s"
    here = UserPlaces.of(made(given(tmp_path), study))
    assert here.taken_along() == []
    (study / "trials" / "3" / "log.csv").write_text("epoch\n0\n")
    (study / "trials" / "3" / "kept").mkdir(exist_ok=True)
    (study / "trials" / "3" / "kept" / "model.keras").write_text("not appended to")
    there = made(given(tmp_path), study, own)
    own.add(3, there, here.taken_along())
    assert Path(there[0].filename).read_text() == "epoch\n0\n"
    assert not list(Path(there[1].filepath).parents[1].glob("*.keras"))
    assert own.news(3) == [], "it is there already"


@pytest.mark.parametrize("path", ["../out", "/out", "a/../../out", ""])
def test_no_file_lies_beside_its_place(path: str, tmp_path: Path) -> None:
    here = UserPlaces.of(made([keras.callbacks.CSVLogger("log.csv")], tmp_path / "s"))
    (place,) = here.places
    before = sorted(tmp_path.rglob("*"))
    here.put(WrittenFile(place, path, b"x"))
    here.put(WrittenFile("another", "out", b"x"))
    assert sorted(tmp_path.rglob("*")) == before


def test_what_a_killed_machine_has_left_is_removed(tmp_path: Path, own: OwnFolder) -> None:
    code = """
import os, sys
from pathlib import Path
from paceline.pack.callbacks.elsewhere import OwnFolder
OwnFolder(Path(sys.argv[1]))
os._exit(1)
"""
    parent = tmp_path / "there"
    (mine,) = parent.iterdir()
    subprocess.run([sys.executable, "-c", code, str(parent)], check=False, timeout=120)
    assert len(list(parent.iterdir())) == 2
    again = OwnFolder(parent)
    assert len(list(parent.iterdir())) == 2 and mine.exists()
    again.close()
    assert list(parent.iterdir()) == [mine]
