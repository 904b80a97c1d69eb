"""Several results as one."""

from __future__ import annotations

import pytest

from bench_records import measurement, run
from paceline.benchmark.presentation.result import Bench, load, merge
from paceline.benchmark.records import Curve, PlannedSearch
from paceline.errors import DataError

CPU = run(measurement(32, 1000.0))
GPU = run(measurement(32, 3000.0), platform="gpu")


@pytest.fixture
def saved(tmp_path):
    def save(*runs, **more):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        Bench(runs, **more).save(path)
        return path

    return save


def test_results_of_two_machines(saved):
    notes: list[str] = []
    found = merge([saved(CPU), saved(GPU, target_value=0.9)], notes.append)
    assert found.runs == [CPU, GPU]
    assert found.target_value == 0.9
    assert notes == []
    assert any("gpu is faster than cpu" in each.text for each in found.advice)


def test_what_is_there_twice_counts_once(saved):
    notes: list[str] = []
    assert merge([saved(CPU), saved(CPU)], notes.append).runs == [CPU]
    assert "appears twice" in notes[0]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"n_examples": 5}, "different numbers of training examples .10000 and 5"),
        ({"model": {"hparams": {"lr": 1.0}}}, "different hyperparameters"),
        ({"model": {"hparams": {"lr": 0.01}, "variables": 7}}, "different models"),
    ],
)
def test_other_models_are_not_compared(saved, other, message):
    with pytest.raises(DataError, match=message):
        merge([saved(CPU), saved(run(measurement(32, 1.0), **other))], lambda text: None)


def test_of_different_targets_and_plans_nothing_is_said(saved):
    notes: list[str] = []
    plan = PlannedSearch(10, 10)
    one = saved(CPU, target_value=0.9, plan=plan)
    assert merge([one, saved(GPU)], notes.append).plan == plan
    assert merge([one, saved(GPU, target_value=0.9, plan=plan)], notes.append).target_value == 0.9
    assert notes == []
    found = merge([one, saved(GPU, target_value=0.2, plan=PlannedSearch(500, 50))], notes.append)
    assert (found.target_value, found.plan) == (None, None)
    assert notes == [
        "the results are for different targets, so there is no comparison",
        "the results are for different planned searches, so there is no comparison",
    ]


def test_curves_of_other_metrics_are_not_compared(saved):
    def curved(platform, *named, values=(0.5,)):
        curves = [Curve(32, *named, list(values), [1.0] * len(values))]
        return saved(run(measurement(32, 1.0), platform=platform, curves=curves))

    one = curved("gpu", "val_acc", "maximize")
    merge([saved(CPU), one, curved("tpu", "", "maximize", values=())], lambda text: None)
    with pytest.raises(DataError, match="objectives .maximize val_acc and minimize val_loss."):
        merge([saved(CPU), one, curved("tpu", "val_loss", "minimize")], lambda text: None)


def test_odd_names_are_read_again(saved):
    odd = run(measurement(32, 1.0), model={"name": "a\u2028b", "hparams": {"act": "a\x85b"}})
    assert load(saved(odd)).runs == [odd]


def test_what_does_not_quite_compare_is_said(saved):
    notes: list[str] = []
    other = run(
        measurement(32, 1.0),
        platform="gpu",
        precision="mixed_bfloat16",
        versions={"jax": "0.6.2", "keras": "3.15.1"},
    )
    merge([saved(CPU), saved(other)], notes.append)
    assert notes == [
        "gpu was measured in mixed_bfloat16, cpu in float32",
        "cpu and gpu have different versions: jax 0.10.2 and 0.6.2",
    ]


def test_the_last_line_of_what_was_printed_is_read(tmp_path):
    path = tmp_path / "printed.json"
    from paceline.report import formats

    path.write_text("a table\n" + formats.to_json(Bench([CPU]).to_json()) + "\n")
    assert load(path).runs == [CPU]


def test_the_command(saved, paceline_command):
    done = paceline_command("bench", "--merge", str(saved(CPU)), str(saved(GPU)), "--json")
    assert done.code == 0
    assert len(done.json["runs"]) == 2


@pytest.fixture
def paceline_command(capsys):
    import json
    import types

    from paceline.cli.app import main

    def run(*words):
        with pytest.raises(SystemExit, match=r"\d") as stop:
            main(words)
        out = capsys.readouterr().out
        return types.SimpleNamespace(code=stop.value.code, json=json.loads(out.splitlines()[-1]))

    return run
