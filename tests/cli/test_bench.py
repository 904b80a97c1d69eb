"""``paceline bench``: words into arguments, results into print."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from bench_records import measurement, run
from paceline.benchmark import api
from paceline.benchmark.presentation.result import Bench


@pytest.fixture
def measured(monkeypatch, user_modules) -> dict[str, Any]:
    """What ``paceline.bench`` was called with; ``result`` is what it returns."""
    call: dict[str, Any] = {"result": Bench([run(measurement(32, 1000.0))])}

    @functools.wraps(api.bench)  # its arguments are those that are handed on
    def bench(build, x, y, **arguments):
        call.update(build=build, x=x, y=y, **arguments)
        return call["result"]

    monkeypatch.setattr(api, "bench", bench)
    return call


def test_words_become_arguments(paceline, measured, model):
    done = paceline(
        *(
            "bench",
            "model.py",
            "--batch-sizes",
            "8,16",
            "--parallel-trials",
            "1,4,auto",
            "--measure-for",
            "2m",
        ),
        *("--hparams", "lr=0.01", "--hparams", "units=3", "--hparams", "name=relu"),
        *("--hparams", "flag=true", "--precision", "bfloat16", "--seed", "5", "--executor", "fit"),
        *(
            "--fit",
            "--mesh",
            "2",
            "--predict-trials",
            "8",
            "--predict-epochs",
            "4",
            "--quota",
            "gpu=1h",
        ),
        *("--predict-batch-size", "8", "--predict-pruner", "asha", "--workers", "8"),
        *(
            "--epochs",
            "3",
            "--scale-lr",
            "sqrt",
            "--target-value",
            "0.9",
            "--objective",
            "val_loss",
        ),
    )
    assert done.code == 0, done.err
    assert {
        name: measured[name] for name in ("batch_sizes", "parallel_trials", "measure_for", "seed")
    } == {
        "batch_sizes": [8, 16],
        "parallel_trials": [1, 4, "auto"],
        "measure_for": 120.0,
        "seed": 5,
    }
    assert measured["hparams"] == {"lr": 0.01, "units": 3, "name": "relu", "flag": True}
    assert (measured["precision"], measured["executor"]) == ("bfloat16", "fit")
    assert (measured["epochs"], measured["scale_lr"], measured["target_value"]) == (3, "sqrt", 0.9)
    assert measured["objective"] == "val_loss"
    assert (measured["fit"], measured["mesh"], measured["quota"]) == (True, 2, "gpu=1h")
    assert measured["workers"] == 8
    plan = {name: value for name, value in measured.items() if name.startswith("predict_")}
    assert plan == {
        "predict_trials": 8,
        "predict_epochs": 4,
        "predict_batch_size": 8,
        "predict_pruner": "asha",
    }
    assert measured["name"] == "model.py"
    assert measured["x"] == [1, 2]
    assert measured["validation_data"] == ([3], [1])


def test_what_is_not_said_is_left_open(paceline, measured, model):
    assert paceline("bench", "model.py", "--measure-for", "none").code == 0
    assert measured["batch_sizes"] is None
    assert measured["parallel_trials"] is None
    assert measured["measure_for"] is None


def test_a_table_for_people(paceline, measured, model):
    done = paceline("bench", "model.py")
    assert "Fastest: batch 32" in done.out
    assert "1,000" in done.out


@pytest.mark.parametrize(("columns", "widest"), [(None, 100), ("80", 80), ("200", 200)])
def test_lines_are_as_long_as_there_is_room_for(
    paceline, measured, model, columns, widest, monkeypatch
):
    def piped(*_):
        raise OSError("no terminal")

    monkeypatch.setattr(os, "get_terminal_size", piped)
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    known = {"build": 0.02, "trace": 0.1, "first": 0.5, "peak_share": 0.05, "memory": 2e6}
    measured["result"] = Bench(
        [run(measurement(32, 1e6, **known), measurement(1024, 1e6, **known))]
    )
    done = paceline("bench", "model.py")
    assert max(map(len, done.out.splitlines())) <= widest
    assert ("Left out" in " ".join(done.out.split())) is (widest < 120)


def test_json_is_the_last_line_of_stdout(paceline, measured, model):
    done = paceline("bench", "model.py", "--json")
    assert done.json == json.loads(json.dumps(measured["result"].to_json()))
    assert done.out.count("\n") == 1
    assert "Fastest: batch 32" in done.err


def test_the_result_is_written(paceline, measured, model):
    assert paceline("bench", "model.py", "-o", "a.html").code == 0
    assert Path("a.html").read_text() == measured["result"].html()
    assert paceline("bench", "model.py", "-o", "a.json").code == 0
    assert json.loads(Path("a.json").read_text()) == measured["result"].to_json()


def test_an_interrupted_run_is_printed(paceline, measured, model):
    measured["result"] = Bench([run(measurement(32, 1000.0), interrupted=True)])
    done = paceline("bench", "model.py")
    assert done.code == 130
    assert "Fastest: batch 32" in done.out
    assert "interrupted; see the finished measurements above" in done.err


def test_where_every_cell_failed_the_command_failed(paceline, measured, model):
    from paceline.benchmark.records import CellConfig, Measurement

    measured["result"] = Bench([run(Measurement(CellConfig(32), "failed", "ValueError: no"))])
    done = paceline("bench", "model.py")
    assert done.code == 1
    assert "ValueError: no" in done.out
    assert "nothing could be measured" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--batch-sizes", "32,x"],
            "such as 32,128,512, got '32,x'",
        ),
        (
            ["--batch-sizes", "0"],
            "--batch-sizes must be integers of at least 1",
        ),
        (
            ["--parallel-trials", "1,many"],
            "--parallel-trials must be an integer",
        ),
        (["--measure-for", "soon"], "--measure-for must be a time above 0"),
        (["--hparams", "lr"], "--hparams must be NAME=VALUE"),
        (["-o", "a.txt"], "-o must end in .html or .json, got a.txt"),
        (["-o", "none/a.json"], "-o must be a file in an existing folder, got none/a.json"),
        (["-o", f"{'a' * 300}.html"], "cannot be written: File name too long"),
        (["other.py"], "bench measures one FILE.py at a time, got 'other.py' too"),
        (["--devices", "npu"], "--devices must be one of cpu, gpu, tpu, got 'npu'"),
        (["--keras-backends", "theano"], "--keras-backends must be one of"),
        (["--mesh", "4,2"], "--mesh must be one number of devices, such as 4, or auto, got '4,2'"),
        (
            ["--merge", "--predict-trials", "5"],
            "--predict-trials has no effect with --merge",
        ),
        (["--merge", "--quota", "gpu=1h"], "--quota has no effect with --merge"),
        (["--merge", "--target-value", "0"], "--target-value has no effect with --merge"),
        (["--merge", "--hparams", "lr=1"], "--hparams has no effect with --merge"),
        (["--merge", "--seed", "3"], "--seed has no effect with --merge"),
        (["--merge", "--measure-for", "none"], "--measure-for has no effect with --merge"),
        (
            ["--merge", "--predict-epochs", "5"],
            "--predict-epochs has no effect with --merge",
        ),
        (["--merge", "--executor", "fit"], "--executor has no effect with --merge"),
        (["--mesh", "x"], "--mesh must be one number of devices, such as 4, or auto, got 'x'"),
        (["--epochs", "0"], "--epochs must be an integer of at least 1, got 0"),
        (["--data", "nothing"], "digits or keras:NAME, got 'nothing'"),
    ],
)
def test_wrong_words(paceline, measured, model, words, message):
    done = paceline("bench", "model.py", *words)
    assert done.code == 2
    assert message in done.err
    assert "build" not in measured


def test_a_file_that_is_not_there(paceline, measured):
    done = paceline("bench", "none.py")
    assert done.code == 2
    assert "no such file" in done.err


def test_weights_of_examples_are_measured_too(paceline, measured):
    Path("model.py").write_text(
        "def data():\n    return ([1], [0], [0.5]), ([3], [1], [2.0])\n\ndef build(hp): ...\n"
    )
    assert paceline("bench", "model.py").code == 0
    assert measured["sample_weight"] == [0.5]
    assert measured["validation_data"] == ([3], [1], [2.0])


def test_places_have_processes(paceline, measured, model, monkeypatch):
    from paceline.benchmark.measure import subprocesses

    asked = {}

    def measure(where, words, budget, note):
        asked.update(where=where, words=words, budget=budget)
        return measured["result"]

    monkeypatch.setattr(subprocesses, "measure", measure)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(
        "sys.argv", ["paceline", "bench", "model.py", "--keras-backends", "jax,torch", "--json"]
    )
    done = paceline("bench", "model.py", "--keras-backends", "jax,torch", "--json")
    assert done.code == 0, done.err
    assert [str(place) for place in asked["where"]] == ["jax", "torch"]
    assert asked["words"] == ["model.py", "--fit"]  # what both have
    assert asked["budget"] == 300.0
    assert "build" not in measured  # nothing is measured here
    assert done.json["runs"]
