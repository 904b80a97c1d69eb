"""Records of benchmarks go to JSON and come back."""

from __future__ import annotations

import json

import numpy as np
import pytest

import bench_records
from paceline.benchmark.records import (
    FORMAT,
    CellConfig,
    Curve,
    Device,
    Measurement,
    from_json,
    labels,
    to_json,
)
from paceline.errors import DataError
from paceline.report import formats


def test_a_run_comes_back_as_it_was():
    run = bench_records.run(
        bench_records.measurement(32, 1000.0, 8, "vectorized", packs=2, flops=1e6, fits=True),
        Measurement(CellConfig(64), "failed", "ValueError: no"),
        first_epoch=bench_records.FIRST_EPOCH,
        curves=[Curve(32, "val_accuracy", "maximize", [0.5, 0.75], [1.0, 2.0])],
        notes=["a note"],
    )
    text = formats.to_json({"format": FORMAT, "runs": to_json([run])})
    assert from_json(json.loads(text), "a.json").runs == [run]


def test_what_follows_of_a_cell_stands_beside_it():
    (record,) = to_json(
        [bench_records.run(bench_records.measurement(50, 2000.0, 4, "vectorized", packs=2))]
    )
    (measurement,) = record["cells"]
    assert (measurement["examples_per_second"], measurement["at_once"]) == (2000.0, 8)
    assert measurement["epoch_seconds"] == 5.0  # 10,000 examples


def test_numbers_of_numpy_are_numbers():
    run = bench_records.run(bench_records.measurement(32, 1.0, flops=np.float64(2.5)))
    assert to_json([run])[0]["cells"][0]["flops"] == 2.5


def test_a_round_is_of_all_trials_at_once():
    measurement = bench_records.measurement(32, 6400.0, 8, "vectorized", packs=2)
    assert measurement.step == pytest.approx(0.08)  # 512 examples


def test_a_cell_that_is_not_measured_has_no_rate():
    measurement = Measurement(CellConfig(32), "skipped", "the measuring time is used up", step=0.1)
    assert measurement.rate == 0.0
    assert measurement.epoch(100) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "a.json is not a result of `paceline bench --json` .format 'list'"),
        ({"format": "other"}, "format 'other', not 'paceline-bench-2'"),
        ({"format": FORMAT}, "a.json is damaged: .*object missing required field runs"),
        ({"format": FORMAT, "runs": []}, "a.json is damaged: runs is .*. Measure again"),
        ({"format": FORMAT, "runs": [{"device": {}}]}, r"runs\[0\].device: object missing"),
    ],
)
def test_what_is_no_result_is_refused(value, message):
    with pytest.raises(DataError, match=message):
        from_json(value, "a.json")


def test_the_parts_of_a_first_epoch():
    first = bench_records.FIRST_EPOCH
    assert first.extra == 4.0
    assert first.explained == pytest.approx(3.95)


@pytest.mark.parametrize(
    ("others", "names"),
    [
        ([{}], ["cpu"]),
        ([{}, {"platform": "gpu"}], ["cpu", "gpu"]),
        ([{}, {"backend": "torch"}], ["cpu", "cpu torch"]),
        (
            [{"device": Device("gpu", "A")}, {"device": Device("gpu", "B")}, {}],
            ["gpu (A)", "gpu (B)", "cpu"],
        ),
        ([{}, {"precision": "mixed_bfloat16"}], ["cpu (float32)", "cpu (mixed_bfloat16)"]),
        (
            [{}, {"date": "2026-11-22T08:30:00+00:00"}],
            ["cpu (2026-11-21 20:00)", "cpu (2026-11-22 08:30)"],
        ),
    ],
)
def test_runs_are_told_apart_by_what_differs(others, names):
    assert labels([bench_records.run(**other) for other in others]) == names
