"""What a cluster makes of a planned search, and whether it pays."""

from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace

import pytest

from bench_records import measurement, run
from paceline.benchmark.measure.pilot_search import startup_seconds
from paceline.benchmark.presentation.cluster import predict_cluster, sentence
from paceline.benchmark.presentation.result import Bench, load
from paceline.benchmark.records import PlannedSearch
from paceline.report.forecast import Costs, Pace, predict

#: 100 trials of 10 epochs take 10 hours and 6 minutes on one device.
COSTS = Costs(32, ready=300.0, pace=Pace(10, 360.0), finish=60.0, startup=20.0)


def test_each_worker_starts_builds_and_trains_its_share():
    found = predict_cluster(COSTS, PlannedSearch(100, 10, workers=8))
    # 13 trials at most on a worker, 10 at once: two waves of 10 rounds.
    assert found.rounds == 20 * 360.0
    assert (found.startup, found.ready, found.finish) == (20.0, 300.0, 60.0)
    assert found.total == 20.0 + 300.0 + 7200.0 + 60.0
    assert found.alone == predict(COSTS, 100, 10).total
    assert found.pays


def test_one_worker_is_one_device_that_starts_later():
    found = predict_cluster(COSTS, PlannedSearch(100, 10, workers=1))
    assert found.total == found.alone + COSTS.startup
    assert not found.pays


def test_a_pruner_and_programs_are_shared_among_workers():
    costs = Costs(32, 10.0, Pace(10, 6.0), programs=16.0, compile=5.0, startup=20.0)
    plan = PlannedSearch(160, 100, "asha:20:5", workers=8)  # 36 epochs of a trial, on average
    found = predict_cluster(costs, plan)
    assert found.compiling == 5.0  # two programs on each, of which one is part of ``ready``
    assert found.rounds == 2 * 36 * 6.0


def test_of_devices_that_were_measured_together_a_worker_has_one():
    found = predict_cluster(COSTS, PlannedSearch(100, 10, workers=4), n_devices=5)
    assert found.rounds == 13 * 10 * 360.0  # 25 trials of a worker, 2 at once
    assert found.alone == 300.0 + 500 * 360.0 + 60.0


def test_what_pays_is_said():
    text = sentence(predict_cluster(COSTS, PlannedSearch(100, 10, workers=8)), "gpu")
    assert text == (
        "On 8 Ray workers with one such device each: about 2:06:20 (20.0 s until a worker has "
        "loaded JAX and Keras; 5:00 building, tracing and compiling on each; 2:00:00 of rounds; "
        "1:00 at the end), compared with 10:06:00 on one gpu device. Ray is worth it: 4.8 times as "
        "fast."
    )


def test_what_does_not_pay_is_said():
    short = Costs(32, 10.0, Pace(10, 0.1), startup=20.0)
    text = sentence(predict_cluster(short, PlannedSearch(100, 10, workers=8)), "cpu")
    assert "Ray isn't worth it, because each worker would train for less than 1:00" in text
    assert "executor='auto'" in text
    late = sentence(predict_cluster(COSTS, PlannedSearch(10, 10, workers=8)), "cpu")
    assert "Ray isn't worth it, because it wouldn't be faster." in late


def planned(workers):
    found = run(measurement(32, 1000.0), costs={"batch_size": 32, "ready": 300.0, "finish": 60.0,
        "pace": {"at_once": 10, "round": 360.0}, "startup": 20.0})  # fmt: skip
    return Bench([found], plan=PlannedSearch(100, 10, workers=workers))


def test_it_stands_in_the_text_the_json_and_what_is_read_again(tmp_path):
    bench = planned(8)
    assert "On 8 Ray workers" in " ".join(bench.text().split())
    (found,) = bench.to_json()["cluster"]
    assert (found["workers"], found["pays"]) == (8, True)
    assert found["total"] == pytest.approx(7580.0)
    bench.save(tmp_path / "bench.json")
    again = load(tmp_path / "bench.json")
    assert again.to_json()["cluster"] == [found]
    assert again.plan == bench.plan
    assert "On 8 Ray workers" in bench.html()


def test_nothing_is_said_of_a_cluster_that_was_not_asked_for(tmp_path):
    bench = planned(None)
    assert bench.to_json()["cluster"] == [None]
    assert "Ray" not in bench.text()
    bench.save(tmp_path / "bench.json")
    before = json.loads((tmp_path / "bench.json").read_text())  # as earlier versions wrote it
    del before["plan"]["workers"], before["cluster"], before["runs"][0]["costs"]["startup"]
    (tmp_path / "bench.json").write_text(json.dumps(before))
    assert load(tmp_path / "bench.json").to_json()["cluster"] == [None]


def test_the_start_of_a_worker_is_timed():
    called = []

    def done(words, **how):
        called.append((words, how["env"]["JAX_PLATFORMS"]))
        return SimpleNamespace(returncode=0)

    times = iter([1.0, 9.5])
    assert startup_seconds(done, lambda: next(times)) == 8.5
    ((words, platform),) = called
    assert (words[-1], platform) == ("import paceline.executor.remote.host", "cpu")
    assert startup_seconds(lambda *_, **__: SimpleNamespace(returncode=1)) is None

    def late(*_, **__):
        raise subprocess.TimeoutExpired("python", 1.0)

    assert startup_seconds(late) is None
