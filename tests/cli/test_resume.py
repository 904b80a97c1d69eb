"""``paceline resume``: the study says what to run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline.cli.user_file import file_digest
from paceline.study.study import Study


def store(name: str, origin: dict | None, *, storage: str | None = None, **search: object) -> None:
    study = Study(name, storage=storage, direction="maximize")
    study.persist(
        {
            "objective": "val_auc",
            "direction": "maximize",
            "sampler": "random",
            "seed": 5,
            "search": {"epochs": 3, "batch_size": 64, "n_trials": 16, "shuffle": True, **search},
            **({"origin": origin} if origin else {}),
        }
    )
    study.close()


def origin_of(path: Path, **more: object) -> dict:
    return {
        "file": str(path.resolve()),
        "function": "build",
        "digest": file_digest(path),
        "data": None,
        **more,
    }


def test_a_study_goes_on_as_it_began(paceline, tuner, model):
    store("s", origin_of(model))
    done = paceline("resume", "s")
    assert done.code == 0, done.err
    (made,) = tuner.made
    expected = {
        "study": "s",
        "storage": None,
        "objective": "val_auc",
        "direction": "maximize",
        "sampler": "random",
        "seed": 5,
        "_origin": origin_of(model),
    }
    assert expected.items() <= made.arguments.items()
    rest = {name: made.call[name] for name in ("epochs", "batch_size", "n_trials", "timeout")}
    assert rest == {"epochs": 3, "batch_size": 64, "n_trials": 16, "timeout": None}
    assert made.call["x"] == [1, 2]
    assert "has changed" not in done.err


def test_a_study_of_a_table_goes_on_with_it(paceline, tuner, model):
    Path("t.csv").write_text("size,kind\n" + "1,a\n2,b\n" * 10, encoding="utf-8")
    path = str(Path("t.csv").resolve())
    store("s", origin_of(model, data=path, target="kind", validation_split=0.5))
    assert paceline("resume", "s").code == 0
    (made,) = tuner.made
    assert made.call["x"].shape == (10, 1)
    origin = made.arguments["_origin"]
    assert (origin["target"], origin["validation_split"]) == ("kind", 0.5)


@pytest.mark.parametrize("more", [{"target": 3}, {"validation_split": "x"}])
def test_a_damaged_origin_of_data_is_none(paceline, tuner, model, more):
    store("s", origin_of(model, **more))
    done = paceline("resume", "s")
    assert done.code != 0 and "was not made by `paceline search`" in done.err


@pytest.mark.parametrize("given", [(), ("--executor", "auto")])
def test_a_study_of_a_cluster_may_go_on_on_one_machine(
    paceline, tuner, model, given: tuple[str, ...]
) -> None:
    store("s", origin_of(model, executor="ray"))
    assert paceline("resume", "s", *given).code == 0
    (made,) = tuner.made
    assert made.arguments["executor"] == made.arguments["_origin"]["executor"]
    assert made.arguments["executor"] == (given[-1] if given else "ray")


def test_repeats_and_folds_are_as_before(paceline, tuner, model):
    store("s", origin_of(model), repeats=2, folds=4)
    assert paceline("resume", "s").code == 0
    (made,) = tuner.made
    assert (made.call["repeats"], made.call["folds"]) == (2, 4)
    assert "validation_data" not in made.call


def test_trials_epochs_and_time_can_be_changed(paceline, tuner, model):
    store("s", origin_of(model), storage="journal:j.log")
    words = "resume s --trials +4 --epochs 9 --timeout 1m --storage journal:j.log --json"
    done = paceline(*words.split())
    assert done.code == 0, done.err
    call = tuner.made[0].call
    assert (call["n_trials"], call["epochs"], call["timeout"]) == ("+4", 9, 60)
    assert done.json["study"] == "model"


def test_data_and_function_are_those_of_the_search(paceline, tuner, model):
    np.savez("d.npz", x_train=[[1.0]], y_train=[1], x_val=[[2.0]], y_val=[0])
    model.write_text(model.read_text() + "\ndef wide(hp):\n    return 'wide'\n", encoding="utf-8")
    store("s", origin_of(model, function="wide", data=str(Path("d.npz").resolve())))
    assert paceline("resume", "s").code == 0
    assert tuner.made[0].build("hp") == "wide"
    assert tuner.made[0].call["x"].shape == (1, 1)


def test_a_changed_file_is_told_and_tried(paceline, tuner, model):
    store("s", origin_of(model))
    model.write_text(model.read_text() + "\nMORE = 1\n", encoding="utf-8")
    done = paceline("resume", "s", "--quiet")
    assert done.code == 0
    assert "model.py has changed since study 's' began" in done.err
    assert tuner.made[0].arguments["_origin"]["digest"] == file_digest(model)


def test_a_file_that_is_gone_says_what_to_do(paceline, tuner, model):
    store("s", origin_of(model))
    model.unlink()
    done = paceline("resume", "s")
    assert done.code == 2
    assert "model.py. Put the file back, or run" in done.err
    assert "--study s" in done.err


@pytest.mark.parametrize("lacks", ["all", "file", "data", "digest"])
def test_a_study_of_a_notebook_goes_on_in_the_notebook(paceline, tuner, model, lacks):
    whole = origin_of(model)
    store("s", None if lacks == "all" else {k: v for k, v in whole.items() if k != lacks})
    done = paceline("resume", "s")
    assert done.code == 2
    assert "Call search again in its notebook or script" in done.err


def test_a_study_of_another_program_is_no_study_to_resume(paceline, tuner):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    optuna.create_study(storage="sqlite:///o.db", study_name="other")
    done = paceline("resume", "other", "--storage", "sqlite:///o.db")
    assert done.code == 2
    assert "Call search again" in done.err


@pytest.mark.parametrize("command", ["resume", "best", "trials", "export"])
def test_a_study_that_is_not_there_is_named_with_those_that_are(paceline, tuner, model, command):
    store("there", origin_of(model))
    done = paceline(command, "missing")
    assert done.code == 2
    assert "there is no study 'missing' in runs; runs has there" in done.err
    assert not Path("runs/missing").exists()


def test_a_wrong_number_is_told_before_the_study_is_read(paceline, tuner):
    done = paceline("resume", "missing", "--trials", "none")
    assert done.code == 2
    assert "N more trials, got 'none'" in done.err


def test_the_best_can_train_longer_and_a_trial_gets_a_limit(paceline, tuner, model):
    store("s", origin_of(model))
    assert (
        paceline(*"resume s --epochs 9 --continue-best 2 --trial-timeout 1m30s".split()).code == 0
    )
    (made,) = tuner.made
    names = ("epochs", "continue_best", "n_trials", "trial_timeout")
    assert [made.call[name] for name in names] == [9, 2, 16, 90.0]


def test_the_limit_of_a_trial_is_as_before(paceline, tuner, model):
    store("s", origin_of(model), trial_timeout=60.0)
    assert paceline("resume", "s").code == 0
    assert tuner.made[0].call["trial_timeout"] == 60.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--continue-best 2", "--continue-best 2 needs --epochs N"),
        ("--continue-best 0 --epochs 4", "--continue-best must be an integer of at least 1, got 0"),
        ("--trial-timeout soon", "--trial-timeout must be a time above 0"),
    ],
)
def test_what_cannot_be_extended(paceline, tuner, model, words, message):
    store("s", origin_of(model))
    done = paceline("resume", "s", *words.split())
    assert done.code == 2
    assert message in " ".join(done.err.split())
    assert not tuner.made
