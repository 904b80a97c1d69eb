"""The benchmarks that wait for other machines: they run, and what they conclude follows."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from paceline.search_space import HyperParameters

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.mark.slow
def test_plans_has_a_row_for_each_plan(child_environment, results):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "plans.py", "digits", "--quick", "--slots", "2"],
        env={**child_environment, "PACELINE_BENCH_RESULTS": str(results)},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((results / "plans.json").read_text())
    assert [(row["plan"], row["slots"]) for row in report["rows"]] == [
        ("fit", 1),
        ("sequential", 1),
        ("vectorized", 2),
        ("looped", 2),
    ]
    for row in report["rows"]:
        assert row["agrees"]
        assert row["ms_per_trial_step"] > 0
    assert report["machine"]["device"].endswith("(cpu)")
    assert {"commit", "versions", "packs_at_once"} <= set(report["machine"])
    assert "| dense 64-64-64-10, batch 32 |" in done.stdout


def test_another_history_is_seen(benchmark_module):
    plans = benchmark_module("plans")
    right = [{"loss": 2.0}, {"loss": 1.0}]
    assert plans.deviation(right, right) == 0.0
    assert plans.deviation([{"loss": 2.0}, {"loss": 1.5}], right) == 0.5
    lost = plans.deviation([{"loss": float("nan")}, {"loss": 1.5}], right)
    assert not lost <= 1e9


@pytest.mark.slow
def test_a_cell_that_fails_leaves_the_others(benchmark_module, monkeypatch):
    plans = benchmark_module("plans")

    def fail(self, program):
        raise MemoryError("no room\nfor that")

    fit = {"ms_per_trial_step": 1.0}
    monkeypatch.setattr(plans, "fitted", lambda *_, **__: (fit, [{"loss": 1.0}, {"loss": 2.0}]))
    monkeypatch.setattr(plans.steps.TracedStep, "history", fail)
    rows = list(plans.cells("digits", [1, 2], quick=True))
    assert [row.get("error") for row in rows] == [None, *["MemoryError: no room"] * 4]
    assert "failed" in plans.table([{"model": "digits", **row} for row in rows])


@pytest.mark.slow
def test_trials_that_are_mixed_up_do_not_agree(benchmark_module, monkeypatch):
    plans = benchmark_module("plans")
    right = [{"loss": 1.0}, {"loss": 1.1}]
    step = plans.steps.TracedStep
    monkeypatch.setattr(plans, "fitted", lambda *_, **__: ({"ms_per_trial_step": 1.0}, right))
    monkeypatch.setattr(step, "compile", lambda *_: (None, 0.0))
    monkeypatch.setattr(step, "milliseconds", lambda *_: 1.0)
    for found, agrees in ((right, True), (right[::-1], False)):
        monkeypatch.setattr(step, "history", lambda *_, found=found: found)
        _, *rows = plans.cells("digits", [2], quick=True)
        assert [row["agrees"] for row in rows] == [agrees] * len(rows)


def test_a_piece_of_a_work_is_some_of_its_trials(benchmark_module):
    works = benchmark_module("works")
    piece, whole = works.find("scan:4:6"), works.find("scan")
    assert piece.given() == whole.given()[4:6]
    assert (piece.n_trials, piece.name) == (2, "scan:4:6")
    with pytest.raises(ValueError, match="scan: no trials 4:9; it has 8"):
        works.find("scan:4:9")


def test_what_is_for_a_card_is_not_run_by_default(benchmark_module):
    speed = benchmark_module("search_speed")
    assert "fashion" in speed._usual()
    assert not {"scan", "scan_tiny", "translation"} & set(speed._usual())


def test_searches_that_were_stopped_go_on_after_the_last_whole_one(
    benchmark_module, monkeypatch, tmp_path, capsys
):
    speed = benchmark_module("search_speed")
    facts = {**speed.machine.facts(), "commit": "abc1234"}
    monkeypatch.setattr(speed.machine, "ROOT", tmp_path)
    monkeypatch.setattr(speed.machine, "facts", lambda: facts)
    measured, stop_at = [], ["gru"]

    def run(side, work, seed, cache, tensorflow=None):
        if work.name in stop_at:
            raise KeyboardInterrupt("stopped")
        measured.append(work.name)
        found = dict.fromkeys(("seconds", "best", "cpu_seconds", "load"), 1.0)
        counts = dict.fromkeys(("peak_bytes", "cache_misses", "cache_hits"), 1)
        return {
            **found,
            **counts,
            "complete": work.n_trials,
            "device": "d",
            "summary": {"seconds": {}, "programs": {}, "plans": []},
        }

    monkeypatch.setattr(speed, "run", run)
    command = ["search_speed.py", "--works", "digits16", "gru", "--sides", "paceline"]
    monkeypatch.setattr(speed.sys, "argv", [*command, "--rounds", "1"])
    here = dataclasses.replace(speed.WORKS["gru"], data=lambda: None)
    monkeypatch.setitem(speed.WORKS, "gru", here)
    with pytest.raises(KeyboardInterrupt, match="stopped"):
        speed.main()
    assert measured == ["digits16"] * 2  # cold and warm
    stop_at.clear()
    assert speed.main() == 0
    assert measured == ["digits16"] * 2 + ["gru"] * 2
    assert "measured before this command was stopped" in capsys.readouterr().out
    assert speed.main() == 0  # all of it was kept, so it begins anew
    assert measured[4:] == ["digits16"] * 2 + ["gru"] * 2
    facts["commit"] = "abc1235"
    stop_at.append("gru")
    with pytest.raises(KeyboardInterrupt, match="stopped"):
        speed.main()
    facts["commit"] = "abc1236"
    with pytest.raises(KeyboardInterrupt, match="stopped"):
        speed.main()
    assert measured[8:] == ["digits16"] * 4  # another commit's are not taken


def test_the_faster_peer_counts_and_one_that_did_not_run_is_no_proof(benchmark_module):
    examples = benchmark_module("examples")
    assert examples.EXAMPLES == ("cifar10_cnn", "translation", "language_lstm")
    ratios = {
        "keras_tuner": {"cold": 3.0, "warm": 2.0},
        "keras_tuner_tf": {"cold": 2.6, "warm": 9.0},
    }
    claims = {"cold": 2.5, "warm": 2.5}
    entry = {"ratios": ratios, "floor": claims, "goal": claims}
    assert [examples.least(entry, state) for state in claims] == [2.6, 2.0]
    assert examples.missed_by("a", entry) == ["floor missed: a, warm: 2.00 times, promised 2.5"]
    del ratios["keras_tuner_tf"]
    assert ["not judged" in line for line in examples.missed_by("a", entry)] == [True, True]


def test_guessing_is_the_most_frequent_answer_at_each_place(
    benchmark_module, monkeypatch, tmp_path
):
    runs = benchmark_module("example_runs")
    monkeypatch.setattr(runs, "data_file", lambda name: tmp_path / name)
    monkeypatch.setenv("PACELINE_DATA", "")
    words = [[3, 4, 0], [3, 5, 0], [6, 5, 7]], [[3, 5, 0], [3, 4, 0], [8, 5, 7]]
    kinds = [2, 2, 1], [2, 1, 1, 1]

    def data(parts):
        return lambda: [(None, part) for part in parts]

    for parts, value in ((words, 5 / 7), (kinds, 1 / 4)):
        monkeypatch.setattr(
            runs, "example", lambda file, p=parts: types.SimpleNamespace(data=data(p))
        )
        assert runs.guessing("translation") == pytest.approx(value)


def test_a_piece_that_is_not_there_is_wrong(benchmark_module, monkeypatch, capsys):
    gpu = benchmark_module("gpu")
    for trials in ("4:9", "4", "a:b"):
        monkeypatch.setattr(sys, "argv", ["gpu.py", "scan", "--trials", trials])
        with pytest.raises(SystemExit, match="2"):
            gpu.parse()
        assert f"--trials {trials}: " in capsys.readouterr().err


def test_each_run_of_a_search_is_kept_at_once(benchmark_module, monkeypatch, results):
    gpu = benchmark_module("gpu")
    outcome = {"best": 0.5, "seconds": 2.0}

    def measure(work, sides, states, rounds, failed, done):
        done(sides[0], states[0], outcome)
        raise RuntimeError("ended here")

    monkeypatch.setattr(gpu.search_speed, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "layers", "--quick", "--trials", "0:1"])
    with pytest.raises(RuntimeError, match="ended here"):
        gpu.searches("layers", gpu.parse(), "a card")
    report = json.loads((results / "gpu_scan_tiny.json").read_text())
    kept = {"side": "paceline", "state": "cold", "trials": [0, 1], **outcome}
    assert report["entries"] == {"paceline cold 0:1": kept}


def test_a_benchmark_that_is_ended_takes_its_child_along(benchmark_module, tmp_path):
    code = """
import subprocess, sys
import machine
machine.end_children_when_told()
subprocess.run([sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)"])
"""
    machine = Path(benchmark_module("machine").__file__).parent
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=machine, stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"begun\n"
        parent.terminate()
        assert parent.wait(timeout=30) == 143
        assert parent.stdout.read() == b""  # at its end, since the child has closed it too


def test_pieces_add_up_to_a_whole_search(benchmark_module):
    gpu = benchmark_module("gpu")

    def entries(*pieces):
        return {
            str(i): {"side": "s", "state": "cold", "trials": list(trials), "seconds": seconds}
            for i, (trials, seconds) in enumerate(pieces)
        }

    assert gpu.total(entries(((4, 8), 2.0), ((0, 4), 1.0)), "s", 8) == 3.0
    assert gpu.total(entries(((0, 8), 5.0), ((0, 4), 1.0)), "s", 8) == 5.0
    assert gpu.total(entries(((0, 4), 1.0)), "s", 8) is None
    assert gpu.total(entries(((0, 4), 1.0), ((5, 8), 1.0)), "s", 8) is None
    assert gpu.total(entries(((0, 8), 5.0)), "other", 8) is None


def test_pieces_of_one_commit_gather(benchmark_module, results):
    gather = benchmark_module("machine").gather
    found = {"commit": "a", "versions": {}, "cpu": "c"}
    gather("gpu_part", found, {"one": 1})
    assert gather("gpu_part", found, {"two": 2}) == {"one": 1, "two": 2}
    assert gather("gpu_part", {**found, "commit": "b"}, {"three": 3}) == {"three": 3}
    report = json.loads((results / "gpu_part.json").read_text())
    assert report["entries"] == {"three": 3}


def test_searches_are_measured_and_failures_kept(benchmark_module, monkeypatch, results):
    figures = benchmark_module("figures")
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(results))  # put back afterwards
    work = dict(figures.cases(quick=True, n_images=0, on_cpu=True))["dense"]
    rows = {"good": (work, {"precision": "bfloat16"}), "bad": (work, {"precision": "float8"})}
    assert figures.measured("part", rows, quick=True) == 1
    entries = json.loads((results / "gpu_part_tiny.json").read_text())["entries"]
    assert entries["good"]["n_examples"] == 64
    assert entries["good"]["examples_per_second"] > 0
    assert entries["good"]["plans"] == ["vectorized"]
    assert entries["bad"]["error"].startswith("UsageError: precision must be one of")


def test_trials_of_the_large_cnn_share_a_structure(benchmark_module):
    figures = benchmark_module("figures")
    work = dict(figures.cases(quick=False, n_images=64, on_cpu=True))["cnn"]
    hp = HyperParameters(values={"conv_dropout": 0.3})
    model = work.build()(hp)
    assert hp.hparams == {"conv_dropout": 0.3}
    assert [layer.rate for layer in model.layers if hasattr(layer, "rate")] == [0.3] * 3
    assert model.layers[-2].units == 256


def test_without_a_gpu_it_says_so(child_environment, results):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "gpu.py"],
        env=child_environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "JAX finds no GPU or TPU, only 1 x cpu (cpu); --quick tries" in done.stderr


def test_a_prediction_is_judged_by_its_errors(benchmark_module, capsys):
    prediction = benchmark_module("prediction")

    def rows(*errors):
        return [{"error": error} for error in errors]

    assert prediction.verdict(rows(0.1, -0.2, 0.35)) == 0
    assert prediction.verdict(rows(0.1, -0.25, 0.35)) == 1  # the median
    assert prediction.verdict(rows(0.1, -0.1, -0.45)) == 1  # one of them
    assert "median 10% (at most 20%), largest 45%" in capsys.readouterr().out


def test_the_time_left_line_is_judged_at_a_quarter_and_a_half(benchmark_module):
    errors_of = benchmark_module("prediction").errors_of
    said = [(10.0, 50.0), (26.0, 74.0), (50.0, 40.0), (99.0, 1.0)]
    assert errors_of(said, 100.0) == {"quarter": 0.0, "half": pytest.approx(-0.1)}
    assert errors_of([], 100.0) == {}


def test_a_search_is_predicted_and_then_run(benchmark_module, monkeypatch):
    prediction = benchmark_module("prediction")
    asked = []

    def child(name, part, options):
        asked.append((name, part, options))
        if part == "predict":
            return {"total": 12.0, "ready": 2.0, "rounds": 10.0}
        return {"seconds": 10.0, "said": {"half": 0.1}, "parts": {}}

    monkeypatch.setattr(prediction, "child", child)
    found = prediction.row("digits", prediction.SEARCHES["digits"], ["--quick"])
    assert found["error"] == pytest.approx(0.2)
    assert [part for _, part, _ in asked] == ["predict", "measure"]
    assert "error +20%" in prediction.line(found)


def test_checkouts_are_compared_by_the_ratio_of_their_medians(benchmark_module):
    commits = benchmark_module("commits")
    ratio, (low, high) = commits.ratio_of_medians([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert ratio == 2.0
    assert 2 / 3 <= low < 2.0 < high <= 6.0
    same, interval = commits.ratio_of_medians([5.0] * 7, [5.25] * 7)
    assert (same, *interval) == (1.05, 1.05, 1.05)


# Optuna 4.x warns of the liar, and of trials that constraints were not asked about.
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.filterwarnings("ignore:.*does not have constraint values")
def test_tpe_is_searched_with_and_without_the_liar_and_seeing_few_trials(benchmark_module):
    asking = benchmark_module("asking")
    seed, found = asking.liar_once(("sphere", 3, 14))
    assert seed == 3
    assert set(found) == {"liar, 4 open", "plain, 4 open"}
    assert all(0 <= loss < 10 for loss in found.values())
    _, seen = asking.seen_once(("sphere", 3, 24))
    assert set(seen) == {"begun", "plain", "seen"}
    assert all(seen[way] <= seen["begun"] for way in seen)
    _, again = asking.again_once(("sphere", 3, 24))
    assert again["again"] <= seen["begun"]
    assert again["again"] != seen["plain"]


def test_auto_is_searched_beside_others_with_one_objective_and_two(benchmark_module):
    auto = benchmark_module("auto")
    found = auto.auto(1, quick=True)["grid24, 24 trials"]
    assert found["auto"] == "grid"
    assert {way: row["median"] for way, row in found["loss"].items()} == {
        "tpe": 0.0,
        "random": 0.0,
        "grid": 0.0,
    }
    assert auto.choose_sampler(auto.outline_of(auto.layered, 10**6)).sampler == "tpe"
    assert auto.outline_of(auto.costly, 64).n_objectives == 2
    assert 0 < auto.auto_once(auto.costly, 0, 8, "random")["loss"] < 1
    assert auto.area([(3.0, 1.0), (2.0, 0.2), (3.5, 0.1)]) == pytest.approx(2 * 1.0 + 0.5 * 0.1)


def test_what_an_open_ended_search_promises(benchmark_module):
    open_ended = benchmark_module("open_ended")
    row = {"seconds": 61.5, "complete": [10.0, 40.0, 59.0], "model": True, "untrained": 2}
    fine = {case: dict(row) for case in open_ended.CASES}
    assert open_ended.missed_claims(fine, 60.0) == []
    # All trials of the bounded search were complete after 20 s: what came later does not count.
    early = {"seconds": 20.0, "complete": [10.0, 15.0]}
    assert open_ended.missed_claims({**fine, "bounded": {**row, **early}}, 60.0) == []
    bad = {"seconds": 70.0, "complete": [], "model": False, "why_no_model": "none", "untrained": 3}
    missed = open_ended.missed_claims({**fine, "asha": bad, "open": bad}, 60.0)
    assert [line.partition(":")[0] for line in missed[:5]] == ["open"] * 2 + ["asha"] * 3
    assert missed[5:] == [
        "after 60 s 3 trials were complete with n_trials=24, and 0 with n_trials=100_000"
    ]


def test_a_replay_trains_what_the_policy_says(benchmark_module):
    policies = benchmark_module("policies")
    best = np.array([[0.1, 0.2, 0.3], [0.5, 0.6, 0.9], [0.3, 0.4, 0.5]])
    recorded = policies.Recorded([{"units": n} for n in range(3)], best, 1.0, 2.0)

    class InOrder(policies.RandomOrder):
        def __init__(self, recorded, seed):
            self._order = iter(range(3))

    def after(seconds, ladder=None, leaders=False):
        replay = policies.Replay(recorded, InOrder(recorded, 0), ladder, leaders, 0.0, seconds)
        return replay.run(), replay.epochs

    begin = policies.BEGIN
    assert after(begin + 1.5) == (0.5, {0: 1, 1: 1})  # two cores, an epoch a second
    assert after(begin + 5.5) == (0.9, {0: 3, 1: 3, 2: 2})
    # One in three goes on from epoch 1: trial 0 as the first one there, and 1, which is better.
    rungs = policies.ASHA(min_epochs=1)
    ladder = policies.RungLadder(rungs, None, by_time=True)
    assert after(begin + 9.5, ladder) == (0.9, {0: 3, 1: 3, 2: 1})
    # Trial 2 goes on where leaders do.
    ladder = policies.RungLadder(rungs, None, by_time=True)
    assert after(begin + 9.5, ladder, leaders=True)[1] == {0: 3, 1: 3, 2: 1}
    policies.CLOSING = 0.6
    ladder = policies.RungLadder(rungs, None, by_time=True)
    assert after(begin + 9.5, ladder, leaders=True)[1] == {0: 3, 1: 3, 2: 3}


def test_what_the_replays_promise(benchmark_module):
    policies = benchmark_module("policies")

    def row(scheduler, programs, *medians):
        return {"work": "w", "policy": ["random", scheduler, programs], "medians": medians}

    ours = row(*policies.DEFAULTS, 0.8, 0.85, 0.9)
    level = row("to the end", "own", 0.8, 0.854, 0.9)
    assert policies.missed_claims([ours, level]) == []
    ahead = row("asha 1:2, leaders", "own", 0.8, 0.8, 0.91)
    assert policies.missed_claims([ours, level, ahead]) == [
        "w, 40 s: random, asha 1:2, leaders, own is 0.0100 ahead"
    ]


def test_recorded_curves_are_whole(benchmark_module):
    policies = benchmark_module("policies")
    for work, n_epochs in (("digits", 20), ("table", 12)):
        recorded = policies.Recorded.of(work)
        assert recorded.best.shape == (300, n_epochs)
        assert np.all(np.diff(recorded.best, axis=1) >= 0)
        assert 0.5 < recorded.best.max() <= 1.0
        space = policies.space_of(recorded.hparams)
        assert space["lr"].log
        assert len(set(_all(policies.NearestToTpe(recorded, 0), 12))) == 12


def _all(sampler, n):
    for _ in range(n):
        trial = sampler.ask()
        sampler.tell(trial, 1, 0.5, "paused")
        yield trial


def test_batch_sizes_are_compared_after_epochs_and_after_time(benchmark_module):
    sizes = benchmark_module("batch_sizes")
    curve = [[0.1 * epoch, 0.1 * epoch + 0.02] for epoch in range(1, 5)]
    entries = {
        "1024": {"seconds": 5.0, "accuracies": curve},
        "32": {"seconds": 1.0, "accuracies": curve},
        "64": {"seconds": 2.0, "accuracies": curve},
    }
    assert sizes.epochs_within(entries["32"], 100.0) == 4, "no more than were trained"
    assert sizes.accuracy(entries["32"], 0) is sizes.accuracy(entries["32"], 5) is None
    assert sizes.table(entries)[2:] == [
        "| 32 | 1.00 | 0.410 ± 0.010 | 0.410 ± 0.010 | 4 |",
        "| 64 | 2.00 | 0.410 ± 0.010 | 0.210 ± 0.010 | 2 |",
        "| 1,024 | 5.00 | 0.410 ± 0.010 | none | 0 |",
    ]


def test_the_whole_scan_of_the_article_is_of_one_side(benchmark_module, monkeypatch):
    """Talos would take hours for it on a CPU, so no ratio is worked out."""
    scan = benchmark_module("talos_scan")
    run = {"seconds": 2.0, "rounds": 8, "epochs": 80, "best": 0.9, "mean": 0.8, "load": 0.0}
    monkeypatch.setattr(scan, "run", lambda *_: run)
    entry = scan.compare("article", 1, False, ["paceline"], {})
    assert entry["seconds"] == {"paceline": 2.0} and "ratio" not in entry
    both = scan.compare("fashion", 1, False, ["paceline", "talos"], {"paceline": [run]})
    assert (len(both["runs"]["paceline"]), both["ratio"], both["same_work"]) == (2, 1.0, True)
