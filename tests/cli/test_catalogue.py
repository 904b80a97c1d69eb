"""``paceline list``, ``delete``, ``--version`` and what a shell completes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import optuna
import pytest

import paceline as package
from paceline.errors import StudyError
from paceline.study.sharing import requests
from paceline.study.sharing.heartbeat import Heartbeats
from paceline.study.sharing.worker import WORKERS, Worker
from paceline.study.storage.folder import study_lock
from paceline.study.storage.removal import Removal
from paceline.study.storage.storage import StudyStorage
from paceline.study.study import Study

SQLITE = "sqlite:///shared.db"


def make(name: str, storage: str | None = None, values: tuple[float, ...] = (0.5, 0.75)) -> None:
    study = Study(name, direction="maximize", storage=storage)
    study.persist({"objective": "val_accuracy", "direction": "maximize", "seed": 0})
    for value in values:
        proposal = study.asker.propose(lambda hp, proposal: hp.Float("lr", 1e-4, 1e-1))
        assert proposal is not None
        proposal, hp, _ = proposal
        number = study.accept(proposal, hp)
        study.updates.report(number, 1, {"val_accuracy": value}, value)
        study.updates.finish(number, "complete", value=value, attrs={"epochs": 1})
    study.close()


def test_the_version(paceline):
    assert paceline("--version").out == f"paceline {package.__version__}\n"


def test_studies_are_listed_with_their_best(paceline):
    make("digits")
    make("other", values=())
    head, _, first, second = paceline("list").out.splitlines()
    columns = "study trials complete stopped early failed unfinished best search objective"
    assert head.split() == columns.split()
    assert first.split() == ["digits", "2", "2", "0", "0", "0", "0.7500", "-", "val_accuracy"]
    assert second.split() == ["other", "0", "0", "0", "0", "0", "-", "-", "val_accuracy"]
    one, two = paceline("list", "--json").json
    assert (one["study"], one["n_trials"], one["best"]["number"]) == ("digits", {"complete": 2}, 1)
    assert two["best"] is None


def test_it_is_said_whether_a_study_is_searched_or_paused(paceline):
    worker = Worker(Path("runs/digits") / WORKERS, lambda text: None, beats=False)
    searched = Study("digits", direction="maximize", worker=worker)
    searched.persist({})
    store = StudyStorage.of(None, "digits", Path("runs"))
    study = store.find("digits")
    assert study is not None
    assert paceline("list").out.splitlines()[2].split()[7] == "runs"
    requests.ask(store, study, "pause")
    assert paceline("list").out.splitlines()[2].split()[7] == "paused"
    (record,) = paceline("list", "--json").json
    assert (record["searched"], record["paused"]) == (True, True)
    requests.ask(store, study, "continue")
    searched.close()
    worker.leave()
    (record,) = paceline("list", "--json").json
    assert (record["searched"], record["paused"]) == (False, False)
    elsewhere = Heartbeats(store, study, "0" * 16)
    elsewhere.beat()
    assert paceline("list", "--json").json[0]["searched"] is None


def test_studies_of_another_folder_and_of_a_storage_are_listed(paceline):
    make("digits")
    make("row", SQLITE)
    Path("runs").rename("old")
    assert paceline("list").out.startswith("no studies in runs; ")
    assert "digits" in paceline("list", "--directory", "old").out
    listed = paceline("list", "--storage", SQLITE).out
    assert "row" in listed and "digits" not in listed


def test_a_study_that_cannot_be_read_is_no_end_of_the_list(paceline):
    make("a")
    make("z")
    Path("runs/m").mkdir()
    Path("runs/m/journal.log").write_text("no json\n", encoding="utf-8")
    Path("runs/\x1b[31mred").mkdir()
    Path("runs/\x1b[31mred/journal.log").touch()
    listed = paceline("list")
    assert listed.code == 0
    assert "\na  " in listed.out and "\nz  " in listed.out
    assert "m cannot be read: storage " in listed.out
    assert "\x1b" not in listed.out and "\\x1b[31mred cannot be read" in listed.out


def test_a_study_is_removed_and_nothing_else(paceline):
    make("digits")
    make("digits2")
    Path("precious").mkdir()
    Path("precious/file").write_text("x", encoding="utf-8")
    Path("runs/digits/best").mkdir()
    Path("runs/digits/link").symlink_to(Path("precious").resolve())
    done = paceline("delete", "digits", "--yes")
    assert (done.code, done.out[:35]) == (0, "removed the folder runs/digits (1 f")
    assert os.listdir("runs") == ["digits2"]
    assert Path("precious/file").read_text(encoding="utf-8") == "x"


@pytest.mark.parametrize(("answer", "removed"), [("y\n", True), ("n\n", False), ("", False)])
def test_a_study_is_removed_if_the_answer_is_yes(paceline, monkeypatch, answer, removed):
    import io

    make("digits")
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    done = paceline("delete", "digits")
    assert "Remove the folder runs/digits (1 file, " in done.err
    assert Path("runs/digits").exists() is not removed
    assert done.code == (0 if removed else 1)
    assert removed or "nothing was removed; use --yes to remove without asking" in done.err


def test_of_a_shared_storage_only_the_study_is_removed(paceline):
    make("one", SQLITE)
    make("two", SQLITE)
    Path("runs/one/best").mkdir(parents=True)
    assert paceline("delete", "one", "--storage", SQLITE, "--yes").code == 0
    assert optuna.study.get_all_study_names(SQLITE) == ["two"]
    assert not Path("runs/one").exists()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nothing", "there is no study 'nothing' in runs"),
        ("../up", "begin with a dot, got '../up'"),
        ("mine", "runs/mine is not the folder of a study, so it was not removed"),
        ("linked", "runs/linked is a link to ../elsewhere"),
        ("elsewhere", "its trials are in another storage. Name that storage with --storage URL"),
        ("searched", "study 'searched' is being searched. Stop the search first"),
    ],
)
def test_what_is_not_removed_says_why(paceline, name, why):
    for folder in ("up", "elsewhere", "runs/mine/data", "runs/elsewhere/best"):
        Path(folder).mkdir(parents=True)
    make("searched")
    Path("runs/linked").symlink_to("../elsewhere")
    with study_lock(Path("runs/searched")):
        done = paceline("delete", name, "--yes")
    assert done.code == 2
    assert why in done.err
    assert Path("up").exists() and Path("elsewhere").exists()
    assert len(os.listdir("runs")) == 4


def test_a_study_that_another_machine_searches_stays():
    make("row", SQLITE)
    store = StudyStorage.of(SQLITE, "row", Path("runs"))
    study = store.find("row")
    assert study is not None
    elsewhere = Heartbeats(store, study, "0" * 16)
    elsewhere.beat()
    removal = Removal.of("row", SQLITE, Path("runs"))
    with pytest.raises(package.StudyError, match="'row' is being searched"):
        removal.carry_out(sleep=lambda seconds: elsewhere.beat())
    removal.carry_out(sleep=lambda seconds: None)  # nothing beats any more
    assert optuna.study.get_all_study_names(SQLITE) == []


def test_names_of_studies_complete_without_loading_anything_heavy():
    make("digits")
    make("dense")
    Path("runs/no study").mkdir()
    words = {"COMP_WORDS": "paceline best d", "COMP_CWORD": "2"}
    code = (
        "import sys; from paceline.cli.app import main\n"
        "try: main()\n"
        "finally: print({'jax', 'keras', 'optuna'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **words, "_PACELINE_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == ["dense", "digits"]
    assert done.stderr.endswith("set()\n")


def test_the_folder_of_a_study_of_the_same_name_in_its_journal_stays(paceline) -> None:
    make("s", SQLITE)
    make("s")
    assert "the folder" not in paceline("delete", "s", "--storage", SQLITE, "--yes").out
    assert len(Study("s").trials) == 2
    with pytest.raises(StudyError, match="runs/s already holds a journal of"):
        Study("s", storage=SQLITE, worker=Worker(None, repr))
