"""``paceline enqueue``, ``stop`` and ``pause`` of a study that nobody searches now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import filelock
import pytest

import toys
from commands import command
from copied_study import tuner
from paceline.study.sharing.heartbeat import BEAT, PLACE, boot, lock_name, make_place

CALL: dict[str, Any] = {"validation_data": toys.data(23, seed=1), "epochs": 2, "verbose": 0}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of one trial."""
    folder = tmp_path_factory.mktemp("steered") / "runs"
    tuner(directory=folder).search(*toys.data(), n_trials=1, **CALL)
    return folder


def test_what_is_enqueued_is_trained_next(searched, capsys) -> None:
    assert command("enqueue", "s", "lr=0.02", "dropout=0.25") == 0
    assert "trial 1 is queued" in capsys.readouterr().out
    again = tuner()
    again.search(*toys.data(), n_trials=2, **CALL)
    assert again.trial(1).hparams == {"lr": 0.02, "dropout": 0.25}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["enqueue", "s", "lrr=0.02"], "no hyperparameter 'lrr'. It has dropout, lr"),
        (["enqueue", "s", "lr=7"], "the value 7 is not a number from 0.001 to 0.1"),
        (["enqueue", "s", "lr"], "values must be NAME=VALUE, such as lr=0.01, got 'lr'"),
        (["enqueue", "s", "lr=0.02,dropout=0.2"], "Put spaces between them: lr=0.02 dropout=0.2"),
        (["enqueue", "t", "lr=0.02"], "there is no study 't'"),
        (["stop", "s"], "no search is running on 's'"),
        (["stop", "s", "0"], "trial 0 of 's' has already finished"),
        (["stop", "s", "9"], "study 's' has no trial 9"),
    ],
)
def test_what_cannot_be_done_says_why(searched, capsys, words, why) -> None:
    assert command(*words) != 0
    assert why in capsys.readouterr().err.replace("\n", " ")
    assert len(searched.optuna_study().trials) == 1


def test_a_search_that_was_killed_is_not_asked_to_stop(searched, capsys) -> None:
    folder = Path("runs/s/workers").absolute()
    folder.mkdir(exist_ok=True)
    make_place(folder)
    killed = {"beat": 3, "mode": "alone", "boot": boot(), "folder": str(folder)}
    killed["place"] = (folder / PLACE).read_text()
    study = searched.optuna_study()
    study._storage.set_study_system_attr(study._study_id, BEAT + "0" * 16, killed)
    with filelock.FileLock(folder / lock_name("0" * 16)):
        assert command("stop", "s") == 0
    (folder / lock_name("0" * 16)).touch()
    assert command("stop", "s") != 0
    assert "no search is running on 's'" in capsys.readouterr().err


def test_a_trial_that_waits_may_be_stopped(searched, capsys) -> None:
    assert command("enqueue", "s", "lr=0.02") == 0
    assert command("stop", "s", "1") == 0
    (trial,) = [trial for trial in searched.optuna_study().trials if trial.number == 1]
    assert trial.state.name == "PRUNED"
    assert trial.user_attrs["error"] == "stopped by `paceline stop`"


def test_pause_and_off(searched, capsys) -> None:
    assert command("pause", "s") == 0
    assert command("unpause", "s") == 0
    assert capsys.readouterr().out.splitlines() == [
        "s pauses after this epoch; `paceline unpause s` continues it",
        "s continues",
    ]
