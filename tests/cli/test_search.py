"""``paceline search``: what reaches the tuner, what comes out, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toys
from paceline import Tuner
from paceline.cli import output
from paceline.cli.user_file import file_digest
from paceline.errors import ObjectiveError


def test_a_file_alone_is_enough(paceline, tuner, model):
    done = paceline("search", "model.py")
    assert done.code == 0
    (made,) = tuner.made
    assert made.build("hp") == "hp"
    assert callable(made.arguments.pop("on_hang"))
    progress, notes = made.arguments.pop("on_progress"), made.arguments.pop("on_note")
    assert callable(progress)
    assert callable(notes)
    assert made.arguments == {
        "study": "model",
        "storage": None,
        "directory": "runs",
        "objective": None,
        "sampler": "tpe",
        "pruner": None,
        "seed": 0,
        "parallel_trials": "auto",
        "plan": "auto",
        "share_widths": "auto",
        "mesh": "auto",
        "precision": None,
        "_origin": {
            "file": str(model.resolve()),
            "function": "build",
            "digest": file_digest(model),
            "data": None,
        },
    }
    assert made.call == {
        "x": [1, 2],
        "y": [0, 1],
        "validation_data": ([3], [1]),
        "epochs": 10,
        "batch_size": 32,
        "n_trials": 32,
        "timeout": None,
    }


def test_every_option_reaches_the_tuner(paceline, tuner, model):
    np.savez("d.npz", x_train=[[1.0]], y_train=[1], x_val=[[2.0]], y_val=[0])
    words = (
        "search model.py:build --data d.npz --trials +8 --epochs 3 --batch-size 64 "
        "--objective max:val_auc --sampler grid --pruner none --seed 7 --timeout 30m --study s "
        "--storage journal:j.log --parallel-trials 4 --plan vectorized --share-widths yes "
        "--mesh 4x2 --precision bfloat16 --quiet"
    )
    assert paceline(*words.split()).code == 0
    (made,) = tuner.made
    expected = {
        "study": "s",
        "storage": "journal:j.log",
        "objective": "max:val_auc",
        "sampler": "grid",
        "pruner": "none",
        "seed": 7,
        "parallel_trials": 4,
        "plan": "vectorized",
        "share_widths": True,
        "mesh": "4x2",
        "precision": "bfloat16",
    }
    assert expected.items() <= made.arguments.items()
    assert made.arguments["_origin"]["data"] == str(Path("d.npz").resolve())
    assert made.call["x"].shape == (1, 1)
    rest = {name: made.call[name] for name in ("epochs", "batch_size", "n_trials", "timeout")}
    assert rest == {"epochs": 3, "batch_size": 64, "n_trials": "+8", "timeout": 1800}


def test_a_table_reaches_the_tuner_and_the_study_keeps_how(paceline, tuner, model):
    Path("t.csv").write_text("size,color,kind\n" + "1,red,a\n2,blue,b\n" * 10, encoding="utf-8")
    words = "search model.py --data t.csv --target kind --validation-split 0.25"
    done = paceline(*words.split())
    assert done.code == 0, done.err
    (made,) = tuner.made
    assert made.call["x"].shape == (15, 3) and len(made.call["validation_data"][0]) == 5
    assert made.call["batch_size"] == 32
    origin = made.arguments["_origin"]
    assert (origin["target"], origin["validation_split"]) == ("kind", 0.25)
    assert origin["data"] == str(Path("t.csv").resolve())
    assert origin["encoding"]["target"] == {"name": "kind", "categories": ("a", "b")}
    assert "5 of its 20 examples are held out" in " ".join(done.err.split())


@pytest.mark.parametrize("given", [[], ["--batch-size", "8"]])
def test_data_sets_come_in_batches_of_their_own(paceline, tuner, given):
    Path("model.py").write_text(
        "import keras\n\nclass Batches(keras.utils.PyDataset):\n    pass\n\n"
        "def data():\n    return Batches(), Batches()\n\ndef build(hp): ...\n",
        encoding="utf-8",
    )
    assert paceline("search", "model.py", *given).code == 0
    call = tuner.made[0].call
    assert type(call["x"]).__name__ == type(call["validation_data"]).__name__ == "Batches"
    assert call["y"] is None
    assert call.get("batch_size") == (8 if given else None)  # which the search refuses


@pytest.mark.slow
def test_a_search_on_data_sets_is_that_of_the_tuner(paceline, user_modules) -> None:
    batches = """
class Batches(toys.keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return -(-len(self.x) // 16)

    def __getitem__(self, i):
        return self.x[16 * i : 16 * i + 16], self.y[16 * i : 16 * i + 16]

def data():
    return Batches(*toys.data()), Batches(*toys.data(23, seed=1))
"""
    words = ["--trials", "2", "--epochs", "2", "--sampler", "random", "--seed", "1", "--quiet"]
    Path("sets.py").write_text(toys.MODEL_FILE + batches, encoding="utf-8")
    assert paceline("search", "sets.py", *words).code == 0
    trials = paceline("trials", "sets", "--sort", "number", "--json").json
    assert [trial["state"] for trial in trials] == ["complete"] * 2
    made: dict[str, Any] = {}
    exec(compile(toys.MODEL_FILE + batches, "sets.py", "exec"), made)
    x, validation = made["data"]()
    tuner = Tuner(toys.dense, study="own", sampler="random", seed=1, on_note=len)
    tuner.search(x, validation_data=validation, n_trials=2, epochs=2)
    assert [trial["value"] for trial in trials] == tuner.results()["value"].tolist()


def test_a_deadline_becomes_a_timeout(paceline, tuner, model):
    assert paceline("search", "model.py", "--deadline", "2999-01-01 00:00").code == 0
    assert tuner.made[0].call["timeout"] > 1e9


def test_the_result_is_on_stdout_and_the_rest_is_not(paceline, tuner, model):
    done = paceline("search", "model.py")
    assert done.out == (
        "model: 32 trials (31 complete, 1 failed) in 4.2 s, 1 program (2 steps compiled, 0 from "
        "the cache)\n"
        "\n"
        "Best: val_accuracy 0.9750, trial 17, 10 epochs\n"
        "  lr  0.01\n"
        "  x   nan\n"
        "\n"
        "Next:\n"
        "  paceline best model                  this configuration again\n"
        "  paceline export model -o best.keras  its trained model\n"
        "  paceline trials model                every trial\n"
        "  paceline report model                a page of figures\n"
        "  paceline resume model --trials +32   32 more trials\n"
    )
    assert "paceline: a note of the tuner" in done.err


def test_json_is_the_last_line_and_strict(paceline, tuner, model):
    done = paceline("search", "model.py", "--json")
    assert done.out.count("\n") == 1
    assert done.json["best"] == {
        "number": 17,
        "value": 0.975,
        "hparams": {"lr": 0.01, "x": None},
        "epochs": 10,
    }
    assert done.json["seconds"]["build"] is None
    assert "Best: val_accuracy 0.9750" in done.err


def test_an_unfinished_study_is_gone_on_with(paceline, tuner, model):
    tuner.result["n_trials"] = {"complete": 3, "running": 1}
    done = paceline("search", "model.py", "--storage", "sqlite:///my db.sqlite")
    assert "paceline resume model --storage 'sqlite:///my db.sqlite'" in done.out
    assert "continue to 32 trials" in done.out


@pytest.mark.parametrize(
    ("words", "counts", "offered"),
    [
        ("--sampler grid", {"complete": 8}, None),  # the grid's end
        ("--sampler grid --trials 8", {"complete": 8}, None),
        ("--sampler grid", {"complete": 7, "running": 1}, "continue to 32 trials"),
        ("--sampler random", {"complete": 8}, None),  # every configuration was tried
        ("--timeout 5s", {"complete": 8}, "continue to 32 trials"),
        ("--trials 8", {"complete": 8}, "32 more trials"),
        ("--trials +8", {"complete": 16}, "32 more trials"),
        ("--trials +8", {"complete": 7, "running": 1}, "continue 1 unfinished trial\n  paceline"),
        (
            "--trials +8 --timeout 5s",
            {"complete": 7, "running": 2},
            "continue 2 unfinished trials",
        ),
    ],
)
def test_going_on_is_offered_where_there_is_more(paceline, tuner, model, words, counts, offered):
    tuner.result["n_trials"] = counts
    out = paceline("search", "model.py", *words.split()).out
    assert (offered in out) if offered else ("paceline resume" not in out)


def test_a_search_whose_trials_all_failed_has_failed(paceline, tuner, model):
    tuner.result.update(best=None, n_trials={"complete": 0, "failed": 3, "running": 0})
    done = paceline("search", "model.py", "--json")
    assert done.code == 1
    assert done.json["best"] is None
    assert done.err.endswith(
        "failed: no trial completed. See the errors above, or run:\n  paceline trials model\n"
    )


def test_a_password_is_not_repeated(paceline, tuner, model):
    done = paceline("search", "model.py", "--storage", "mysql://me:secret@host/db")
    assert "secret" not in done.out + done.err
    assert "paceline best model --storage URL" in done.out


def test_a_search_without_a_best_exports_nothing(paceline, tuner, model):
    tuner.result.update(best=None, n_trials={"complete": 0, "failed": 0, "running": 3})
    done = paceline("search", "model.py")
    assert done.code == 0
    assert "No trial is validated for an epoch yet, so there is no best val_accuracy." in done.out
    assert "paceline export" not in done.out


def test_data_that_steer_by_a_test_part_are_noted_even_when_quiet(paceline, tuner, model):
    np.savez("d.npz", x_train=[[1.0]], y_train=[1], x_test=[[2.0]], y_test=[0])
    done = paceline("search", "model.py", "--data", "d.npz", "--quiet")
    assert "paceline: d.npz has no validation part: its test part steers the search" in done.err


def test_repeats_reach_the_tuner(paceline, tuner, model):
    assert paceline("search", "model.py", "--repeats", "3", "--pruner", "wilcoxon:0.2").code == 0
    (made,) = tuner.made
    assert made.call["repeats"] == 3
    assert "folds" not in made.call
    assert made.call["validation_data"] == ([3], [1])
    assert made.arguments["pruner"] == "wilcoxon:0.2"


def test_folds_are_made_of_the_training_data_and_this_is_said(paceline, tuner, model):
    np.savez("d.npz", x_train=[[1.0]], y_train=[1], x_test=[[2.0]], y_test=[0])
    done = paceline("search", "model.py", "--data", "d.npz", "--folds", "5")
    assert done.code == 0
    (made,) = tuner.made
    assert made.call["folds"] == 5
    assert "validation_data" not in made.call and "repeats" not in made.call
    assert "folds are made of the training data; the validation data is not used" in done.err
    assert "steers the search" not in done.err


def test_a_mean_is_printed_with_its_spread(paceline, tuner, model):
    tuner.result["best"] |= {"value_std": 0.0123}
    out = paceline("search", "model.py", "--folds", "5").out
    assert "Best: val_accuracy mean 0.9750 (standard deviation 0.0123), trial 17, 10 epochs" in out


def test_digits_are_built_in(paceline, tuner, model):
    assert paceline("search", "model.py", "--data", "digits").code == 0
    assert tuner.made[0].call["x"].shape == (1437, 64)
    assert tuner.made[0].arguments["_origin"]["data"] == "digits"


def test_keras_runs_on_jax_unless_the_user_says_otherwise(paceline, tuner, model, monkeypatch):
    monkeypatch.delenv("KERAS_BACKEND")
    Path("model.py").write_text(
        "import os\nBACKEND = os.environ['KERAS_BACKEND']\n" + model.read_text(), encoding="utf-8"
    )
    paceline("search", "model.py")
    assert os.environ["KERAS_BACKEND"] == "jax"
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    paceline("search", "model.py")
    assert os.environ["KERAS_BACKEND"] == "torch"


WRONG = [
    ("model.py --trials 0", "--trials must be an integer"),
    ("model.py --epochs 0", "--epochs must be an integer of at least 1, got 0"),
    ("model.py --batch-size -1", "--batch-size must be an integer of at least 1, got -1"),
    ("model.py --parallel-trials many", "at least 1, or auto, got 'many'"),
    ("model.py --repeats 0", "--repeats must be an integer of at least 1, got 0"),
    ("model.py --folds 1", "--folds must be an integer of at least 2, got 1"),
    ("model.py --timeout soon", "--timeout must be a time above 0"),
    ("model.py --deadline never", "--deadline must be a time such as 17:30"),
    ("model.py --pruner medain", "pruner: 'medain' is unknown"),
    ("model.py --data nowhere.npz", "nowhere.npz: no such file"),
    ("model.py --target y", "--target 'y' needs a table. Use it with --data FILE.csv"),
    ("model.py --validation-split 2", "--validation-split must be between 0 and 1"),
    ("model.py --validation-split 0.2", "data() of model.py has a validation part"),
    (
        "model.py --data digits --target y",
        "--data digits is not a table",
    ),
    ("model.py --data nowhere.csv --target y", "nowhere.csv: no such file"),
    ("model.py --data mnist", "digits or keras:NAME, got 'mnist'"),
    ("model.py:other", "has no 'other'"),
    ("nowhere.py", "nowhere.py: no such file"),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_wrong_input_is_told_before_anything_is_made(paceline, tuner, model, words, message):
    done = paceline("search", *words.split())
    assert done.code == 2
    assert done.out == ""
    assert "paceline: error: " in done.err
    assert message in done.err
    assert not tuner.made
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "words", ["search", "search model.py --no-such-option", "search model.py --epochs x", "nothing"]
)
def test_wrong_usage_is_2_as_well(paceline, tuner, model, words):
    done = paceline(*words.split())
    assert done.code == 2
    assert "Usage: paceline" in done.err


def test_without_data_the_ways_to_give_it_are_named(paceline, tuner):
    Path("bare.py").write_text("def build(hp): ...\n", encoding="utf-8")
    done = paceline("search", "bare.py")
    assert done.code == 2
    assert "bare.py has no data(), and --data is missing" in done.err
    assert "digits or keras:NAME" in done.err


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise OSError('disk gone')", r"model\.py: data() raised OSError: disk gone (line 2)"),
        ("return 1", r"model.py: data() must return (x, y), (x_val, y_val), got one int"),
    ],
)
def test_a_data_function_that_fails_is_wrong_input(paceline, tuner, body, message):
    text = f"def data():\n    {body}\n\ndef build(hp): ...\n"
    Path("model.py").write_text(text, encoding="utf-8")
    done = paceline("search", "model.py")
    assert done.code == 2
    assert message.replace("\\", "") in done.err


def test_an_error_of_the_tuner_is_wrong_input(paceline, tuner, model):
    tuner.raises = ObjectiveError("objective [val_auc] is not among accuracy, loss")
    done = paceline("search", "model.py")
    assert done.code == 2
    assert "paceline: error: objective [val_auc] is not among accuracy, loss" in done.err
    assert done.out == ""


def test_anything_else_is_a_failure_with_its_traceback(paceline, tuner, model):
    tuner.raises = RuntimeError("odd")
    done = paceline("search", "model.py")
    assert done.code == 1
    assert "Traceback" in done.err
    assert done.err.endswith("paceline: failed: RuntimeError: odd\n")


def test_a_budget_is_a_timeout_for_any_number_of_trials(paceline, tuner, model):
    tuner.result["n_trials"] = {"complete": 3, "running": 2}
    done = paceline("search", "model.py", "--budget", "2m")
    call = tuner.made[0].call
    assert (call["n_trials"], call["timeout"], call["epochs"]) == (None, 120.0, 10)
    assert tuner.made[0].arguments["pruner"] is None  # the default by time
    assert "paceline resume model --timeout 120s" in done.out
    assert paceline("search", "model.py", "--budget", "2m").code == 0  # a study goes on with it


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--trials", "3"), "cannot be used with --trials"),
        (("--timeout", "9s"), "cannot be used with --timeout"),
        (("--deadline", "17:30"), "cannot be used with --deadline"),
        (("--pruner", "pbt:2"), "cannot be used with --pruner pbt:2"),
    ],
)
def test_what_contradicts_a_budget_is_refused(paceline, tuner, model, words, said):
    done = paceline("search", "model.py", "--budget", "8s", *words)
    assert done.code == 2
    assert "--budget 8s c" in done.err
    assert said in done.err
    assert not tuner.made


WEIGHTED = """\
def data():
    return ([1, 2], [0, 1], [0.5, 1.0]), ([3], [1], [2.0])

def build(hp): ...
"""


def test_weights_of_examples_reach_the_search(paceline, tuner):
    Path("model.py").write_text(WEIGHTED, encoding="utf-8")
    assert paceline("search", "model.py").code == 0
    given = tuner.made[0].call
    assert given["sample_weight"] == [0.5, 1.0]
    assert given["validation_data"] == ([3], [1], [2.0])


def test_ctrl_c_says_how_to_go_on(paceline, tuner, model):
    tuner.raises = KeyboardInterrupt()
    tuner.result["n_trials"] = {"complete": 12, "pruned": 0, "failed": 1, "running": 3}
    done = paceline("search", "model.py", "--study", "my study")
    assert done.code == 130
    assert done.out == ""
    said = "13 finished trials are kept. Resume with:\n"
    assert said in done.err
    assert done.err.endswith("\n  paceline resume 'my study'\n")


def test_ctrl_c_prints_as_json_what_is_kept(paceline, tuner, model):
    tuner.raises = KeyboardInterrupt()
    tuner.result["n_trials"] = {"complete": 12, "pruned": 0, "failed": 1, "running": 3}
    done = paceline("search", "model.py", "--json")
    assert done.code == 130
    assert done.json["n_trials"] == tuner.result["n_trials"]
    assert done.json["best"]["number"] == 17
    assert done.err.endswith("\n  paceline resume model\n")


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "Input/output error")])
def test_a_terminal_that_is_gone_takes_no_json_and_the_search_was_still_interrupted(
    paceline, tuner, model, monkeypatch, error
):
    def echo(text: str, err: bool = False) -> None:
        if not err:
            raise error
        sys.stderr.write(f"{text}\n")

    tuner.raises = KeyboardInterrupt()
    monkeypatch.setattr("typer.echo", echo)
    monkeypatch.setattr(output, "close_stdout", lambda: None)
    done = paceline("search", "model.py", "--json")
    assert (done.code, done.out) == (130, "")
    assert "Resume with" in done.err


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_ctrl_c_before_the_search_began_says_that_nothing_was_written(
    paceline, tuner, model, words
):
    tuner.raises = KeyboardInterrupt()
    tuner.result.clear()
    done = paceline("search", "model.py", *words)
    assert (done.code, done.out) == (130, "")
    assert "nothing was written" in done.err


def test_ctrl_c_while_loading_is_130_too(paceline, tuner):
    Path("model.py").write_text("raise KeyboardInterrupt\n", encoding="utf-8")
    assert paceline("search", "model.py").code == 130


def test_help_loads_nothing_heavy_and_names_every_command():
    code = (
        "import sys\n"
        "from paceline.cli.app import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "finally:\n"
        "    heavy = {'jax', 'keras', 'optuna', 'pandas', 'sklearn', 'numpy', 'zipfile'}\n"
        "    heavy &= set(sys.modules)\n"
        "    assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for command in ("search", "resume", "best", "trials", "export", "list", "delete", "devices"):
        assert command in done.stdout
