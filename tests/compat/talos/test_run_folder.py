"""A scan's folder: going on after Ctrl-C and after a kill, and files that somebody has damaged."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pytest

from compat.talos.notebook import X, Y, classifier, no_training
from paceline.compat import talos
from paceline.compat.talos import portable
from paceline.compat.talos.errors import FolderNotEmptyError, TalosDataError
from paceline.compat.talos.rounds import Rounds, ScanRound, run_paths


def scan(params, model=no_training, **arguments):
    arguments = {"experiment_name": "test", "disable_progress_bar": True, "seed": 2, **arguments}
    return talos.Scan(X, Y, params, model, **arguments)


def test_ctrl_c_leaves_a_scan_that_goes_on(capsys):
    state = {"tired": True}

    def model(x_train, y_train, x_val, y_val, params):
        if params["a"] == 2 and state["tired"]:
            raise KeyboardInterrupt
        return no_training(x_train, y_train, x_val, y_val, params)

    found = scan({"a": [1, 2, 3]}, model)
    assert (found.status, found.details["status"]) == ("paused", "paused")
    assert found.data["a"].tolist() == [1]
    assert f"experiment_dir={str(found.run_dir)!r} and resume=True" in capsys.readouterr().err
    state["tired"] = False
    found = scan({"a": [1, 2, 3]}, model, experiment_dir=found.run_dir, resume=True)
    assert (found.status, found.data["a"].tolist()) == ("complete", [1, 2, 3])


def test_after_a_kill_the_lines_are_younger_than_the_checkpoint():
    whole = scan({"a": list(range(6))}, experiment_dir="whole")
    found = scan({"a": list(range(6))}, experiment_dir="run")
    rounds, checkpoint = found.run_dir / "round_data.jsonl", found.run_dir / "checkpoint.json"
    lines = rounds.read_text().splitlines()
    # Number 3 was under way, and the line of number 5 was being written.
    rounds.write_text("\n".join([lines[0], lines[4], lines[2], lines[5][:40]]))
    saved = json.loads(checkpoint.read_text())
    checkpoint.write_text(json.dumps({**saved, "begun": [0], "left": [1, 2, 3, 4, 5]}))
    again = scan({"a": list(range(6))}, experiment_dir="run", resume=True)
    assert again.data["a"].tolist() == list(range(6))
    assert again.round_history == whole.round_history
    # Rows whose lines are missing are not there twice.
    assert pd.read_csv(found.run_dir / "results.csv")["a"].tolist() == list(range(6))


def test_trained_models_are_there_after_going_on():
    params = {"first_neuron": [3], "dropout": [0.1], "lr": [0.01, 0.02]}
    before = scan(params, classifier, experiment_dir="run", stop_after=1)
    found = scan(params, classifier, experiment_dir="run", resume=True)
    assert found.data["lr"].tolist() == [0.01, 0.02]
    assert found.saved_weights[0] is None
    want = before.saved_weights[0]
    for got, one in zip(found.activate(0).get_weights(), want, strict=True):
        np.testing.assert_array_equal(got, one)


def test_without_a_seed_the_split_stays():
    seen = []

    def model(x_train, *others):
        seen.append(x_train)
        return no_training(x_train, *others)

    scan({"a": [1, 2]}, model, seed=None, experiment_dir="run", stop_after=1)
    scan({"a": [1, 2]}, model, seed=None, experiment_dir="run", resume=True)
    np.testing.assert_array_equal(seen[0], seen[1])


def test_a_reduction_is_remembered():
    arguments = {"reduction_method": lambda scan: ("a", 4), "reduction_interval": 2}
    scan({"a": [1, 2, 3, 4]}, experiment_dir="run", stop_after=3, **arguments)
    found = scan({"a": [1, 2, 3, 4]}, experiment_dir="run", resume=True, **arguments)
    assert found.data["a"].tolist() == [1, 2, 3]


def test_a_target_that_was_reached_stays_reached():
    arguments = {"performance_target": ["loss", 2.0, True], "experiment_dir": "run"}
    before = scan({"a": [3, 2, 1, 0]}, **arguments)
    found = scan({"a": [3, 2, 1, 0]}, resume=True, **arguments)
    assert found.status == before.status == "complete"
    assert found.data["a"].tolist() == before.data["a"].tolist()


def few(params):
    return params["a"] < 3


def fewer(params):
    return params["a"] < 2


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ({"boolean_limit": few}, {"boolean_limit": fewer}, "boolean_limit"),
        ({"boolean_limit": lambda p: p["a"] < 3}, {"boolean_limit": few}, "boolean_limit"),
        (
            {"boolean_limit": lambda p: p["a"] < 3},
            {"boolean_limit": lambda p: p["a"] < 2},
            "boolean_limit",
        ),
        ({}, {"performance_target": ["loss", 2.0, True]}, "performance_target"),
        ({}, {"reduction_method": "trees"}, "reduction_method"),
        (
            {"reduction_method": "trees", "reduction_interval": 2},
            {"reduction_method": "trees", "reduction_interval": 3},
            "reduction_interval",
        ),
        ({}, {"shuffle": False}, "shuffle"),
    ],
)
def test_a_limit_that_has_changed_is_named(before, after, name):
    scan({"a": [1, 2, 3]}, experiment_dir="run", stop_after=1, **before)
    with pytest.raises(TalosDataError, match=f"resume: the hash of {name} differs"):
        scan({"a": [1, 2, 3]}, experiment_dir="run", resume=True, **after)


def test_data_that_are_not_split_may_be_shuffled_or_not():
    own = {"x_val": X[:8], "y_val": Y[:8], "experiment_dir": "run"}
    scan({"a": [1, 2]}, stop_after=1, **own)
    assert len(scan({"a": [1, 2]}, resume=True, shuffle=False, **own).data) == 2


def test_a_lambda_is_the_same_in_another_call_and_the_time_may_be_another():
    first = {"boolean_limit": lambda params: params["a"] in {1, 2} and all(v for v in [True])}
    scan({"a": [1, 2, 3]}, experiment_dir="run", stop_after=1, **first)
    found = scan(
        {"a": [1, 2, 3]},
        boolean_limit=lambda params: params["a"] in {1, 2} and all(v for v in [True]),
        experiment_dir="run",
        resume=True,
        time_limit="2999-01-01 00:00",
    )
    assert found.data["a"].tolist() == [1, 2]


def test_a_folder_of_an_older_version_goes_on():
    scan({"a": [1, 2]}, experiment_dir="run", stop_after=1)
    metadata = Path("run/metadata.json")
    saved = json.loads(metadata.read_text())
    for name in ("boolean_limit", "performance_target", "reduction_method"):
        del saved["identity"][name]
    metadata.write_text(json.dumps(saved))
    assert len(scan({"a": [1, 2]}, experiment_dir="run", resume=True).data) == 2


def test_a_kill_after_the_target_was_reached_leaves_files_that_go_on(tmp_path):
    def rounds():
        space = talos.ParamSpace({"a": [1, 2, 3, 4]})
        return Rounds(space, tmp_path, tmp_path / "results.csv", last_epoch=True)

    before = rounds()
    begun = [before.next() for _ in range(3)]
    before.write()
    for number in (2, 1):  # number 0 is under way, and 1 reaches the target
        row, params = before.begun[number], begun[number][1]
        before.add(ScanRound(number, row, params, 1.0, 2.0, 1.0, {"loss": [0.5]}))
    assert [found.round_index for found in before.drop_after(1)] == [2]
    after = rounds()
    after.read()
    assert [(found.round_index, found.params) for found in after.done] == [(1, {"a": 2})]
    assert (after.begun, list(after.again), len(after.space)) == ([0, 1], [0], 0)


def test_two_scans_of_one_second_have_a_folder_each():
    made = [run_paths(Path("test"), None) for _ in range(3)]
    assert len(set(made)) == 3
    assert all(folder.is_dir() for folder, _ in made)


def test_what_may_not_go_on(fresh_folder):
    scan({"a": [1, 2]}, experiment_dir="run", stop_after=1)
    with pytest.raises(
        FolderNotEmptyError, match=r"experiment_dir must be an empty folder, got .*run.*resume=True"
    ):
        scan({"a": [1, 2]}, experiment_dir="run")
    with pytest.raises(TalosDataError, match="resume: the hash of params differs"):
        scan({"a": [1, 3]}, experiment_dir="run", resume=True)

    def other(*arguments):
        return {"loss": [0.0]}, None

    with pytest.raises(TalosDataError, match="resume: the hash of model differs"):
        scan({"a": [1, 2]}, other, experiment_dir="run", resume=True)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("metadata.json", "{", "is damaged"),
        ("metadata.json", "[]", "it is not a JSON object"),
        ("metadata.json", '{"identity": {}}', "Paceline did not write .*metadata.json"),
        ("checkpoint.json", None, r"checkpoint\.json is missing"),
        (
            "checkpoint.json",
            '{"numbers": [0, 7]}',
            "numbers in checkpoint.json must be a list of integers below 2",
        ),
        ("checkpoint.json", '{"numbers": [0, 0], "begun": [0], "left": [1]}', "names .* twice"),
        (
            "checkpoint.json",
            '{"numbers": [0, 1], "begun": [true], "left": []}',
            "begun in checkpoint.json must be a list",
        ),
        ("checkpoint.json", '{"numbers": [0, 1], "begun": [1], "left": []}', "does not match"),
        ("checkpoint.json", "[" * 100_000, "is damaged"),
        ("round_data.jsonl", "nonsense\n", "is damaged"),
        ("round_data.jsonl", "3\n", "a line is not a JSON object"),
        ("round_data.jsonl", '{"row": -1, "round_index": 0}\n', r"a line .* is damaged"),
        ("round_data.jsonl", '{"row": 0, "round_index": 0, "history": 3}\n', "is damaged"),
        ("round_data.jsonl", None, r"round_data\.jsonl is missing"),
    ],
)
def test_damaged_files(name, content, text):
    path = scan({"a": [1, 2]}, experiment_dir="run", stop_after=1).run_dir / name
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(TalosDataError, match=text):
        scan({"a": [1, 2]}, experiment_dir="run", resume=True)


def test_links_are_not_followed(tmp_path):
    found = scan({"a": [1, 2]}, experiment_dir="run", stop_after=1)
    (found.run_dir / "models").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(TalosDataError, match="models is a link, which Paceline does not follow"):
        scan({"a": [1, 2]}, experiment_dir="run", resume=True)


# -- values as JSON --------------------------------------------------------------------------------


def kept(value):
    return portable.decode(json.loads(json.dumps(portable.encode(value))))


@pytest.mark.parametrize(
    "value",
    [
        {"dropout": (0.1, 0.5, 2), "size": [(3, 3), [1, (2,)]], "none": [None, True, "a"]},
        {
            "kind": [keras.optimizers.Adam, keras.layers.Dense],
            "loss": [keras.losses.mean_squared_error],
        },
        {"activation": [keras.activations.relu, "relu"], 3: {"__talos__": (1,)}},
        {"numbers": [np.float32(0.1), np.int64(3), np.bool_(True)]},
    ],
)
def test_values_come_back(value):
    found = kept(value)
    assert found == value
    assert repr(found) == repr(value)


def test_objects_of_keras_come_back():
    found = kept({"optimizer": [keras.optimizers.SGD(0.3, momentum=0.5)]})["optimizer"][0]
    assert type(found) is keras.optimizers.SGD
    assert float(found.learning_rate) == pytest.approx(0.3)
    assert found.momentum == 0.5
    np.testing.assert_array_equal(kept(np.arange(3.0)), np.arange(3.0))


def test_what_has_no_public_name_is_its_name():
    class Mine(keras.layers.Dense):
        pass

    assert kept([scan, Mine, len]) == ["scan", "Mine", "len"]


@pytest.mark.parametrize(
    "found",
    [
        {"__talos__": "keras", "name": "utils.get_file"},
        {"__talos__": "keras", "name": "optimizers.os"},
        {"__talos__": "keras", "name": "layers.TFSMLayer", "config": {"filepath": "x"}},
        {"__talos__": "keras", "name": "optimizers.SGD", "config": {"no": 1}},
        {"__talos__": "keras", "name": "optimizers.__builtins__"},
        {"__talos__": "number", "dtype": "object", "value": 3},
        {"__talos__": "array", "dtype": "O", "value": [3]},
        {"__talos__": "tuple"},
        {"__talos__": "code", "value": "3"},
    ],
)
def test_crafted_values_are_refused(found):
    with pytest.raises(TalosDataError, match="params: "):
        portable.decode({"a": [found]})
