"""The beginning of a planned search, really run: what it says is what the search then takes."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace

import pytest

import toys
from bench_records import run
from paceline.benchmark.measure import pilot_search
from paceline.benchmark.measure.pilot_search import _pace, _PilotProgress, _program_apart, run_pilot
from paceline.benchmark.measure.subject import BenchModel
from paceline.benchmark.presentation.result import Bench
from paceline.benchmark.records import PlannedSearch
from paceline.data.arrays import prepare
from paceline.pack.plan import VectorizedProgram
from paceline.report.forecast import Pace, predict
from paceline.report.progress import Progress

X, Y = toys.data(40)


def subject(build=toys.dense):
    return BenchModel(build, {}, prepare(X, Y), prepare(*toys.data(8)))


def rehearsed(build=toys.dense, n_trials=4, epochs=3, left=lambda: 1e9):
    return run_pilot(subject(build), 8, n_trials, epochs, left)


@pytest.fixture(scope="module")
def run_in(tmp_path_factory):
    """A search so short that it is run to its end, and the folder in which it ran."""
    folder = tmp_path_factory.mktemp("pilot")
    with contextlib.chdir(folder):
        return rehearsed(), folder


@pytest.fixture
def whole(run_in):
    return run_in[0]


def test_a_short_search_is_run_to_its_end(whole):
    assert whole.trial_epochs == 12
    assert whole.programs == 1.0
    assert whole.ready > 0 and whole.finish > 0
    # Two threads train two trials each. A round is an epoch of both, but where the search stops
    # for a moment, which it does each second, one of an epoch that the other thread has not ended.
    assert 2 <= whole.pace.at_once <= 4
    assert {"build", "trace", "compile", "train", "validate", "storage"} <= set(whole.parts)


def test_nothing_is_left_behind(run_in):
    assert list(run_in[1].iterdir()) == []


@pytest.mark.slow
def test_a_long_search_is_stopped_once_its_pace_is_known(monkeypatch):
    monkeypatch.setattr(pilot_search, "SECONDS", 0.0)
    monkeypatch.setattr(pilot_search, "LONG", 0.0)
    found = rehearsed(n_trials=4, epochs=1000)
    assert 2 < found.trial_epochs < 4 * 1000
    assert 2 <= found.pace.at_once <= 4
    assert 1000 <= predict(found, 4, 1000).n_rounds <= 2 * 1000


def told(rounds, pace=(4.0, 1.0), phase="training"):
    return Progress(
        *("s", phase, 8, 0, 0, 0, 4, 4 * rounds, 1.0, None, None, "val_loss"),
        rounds=rounds,
        round_epochs=4 * rounds,
        pace=pace if rounds else None,
    )


@pytest.mark.parametrize(
    ("left", "rounds", "ends"),
    [(9.0, 0, False), (0.0, 0, True), (0.0, 1, True), (9.0, 1, False), (9.0, 3, False)],
)
def test_the_budget_ends_it(left, rounds, ends):
    pilot = _PilotProgress(lambda: left, 10)
    assert pilot(told(rounds)) is not ends
    assert (pilot.last is None) is (rounds == 0)


def test_two_waves_end_it(monkeypatch):
    monkeypatch.setattr(pilot_search, "SECONDS", 0.0)
    pilot = _PilotProgress(lambda: 9.0, 10)
    assert pilot(told(1))
    assert pilot(told(19))
    assert not pilot(told(20))


def test_so_do_two_rounds_that_take_long(monkeypatch):
    monkeypatch.setattr(pilot_search, "LONG", 0.0)
    pilot = _PilotProgress(lambda: 9.0, 10)
    assert pilot(told(1))
    assert not pilot(told(2))


def test_the_end_changes_no_pace():
    pilot = _PilotProgress(lambda: 9.0, 10)
    pilot(told(3))
    pilot(told(6, pace=(4.0, 99.0), phase="done"))
    assert (pilot.last[1].rounds, pilot.trial_epochs) == (3, 24)
    assert _pace(pilot) == Pace(4.0, 1.0)


def test_the_pace_is_that_of_all_rounds_seen(monkeypatch):
    pilot = _PilotProgress(lambda: 9.0, 10)
    now = pilot._began
    for seconds, rounds in ((5.0, 2), (6.0, 6), (8.5, 7)):
        monkeypatch.setattr("time.perf_counter", lambda at=now + seconds: at)
        pilot(told(rounds, pace=(4.0, 0.5)))
    assert pilot.ready == pytest.approx(4.0)
    # Five rounds in 3.5 s, with what lay between the sixth and the seventh.
    assert _pace(pilot) == Pace(4.0, pytest.approx(0.7))


def test_trials_that_have_not_reported_yet_are_in_their_round():
    """The trials of a pack report one after another, and any look may fall between two of them."""
    pilot = _PilotProgress(lambda: 9.0, 10)
    pilot(replace(told(1), trial_epochs=1))
    pilot(replace(told(3), trial_epochs=11))
    assert _pace(pilot).at_once == 4


def test_a_build_that_would_not_end_in_time_is_not_begun(monkeypatch):
    left = [10.0]
    pilot = _PilotProgress(lambda: left[0], 10)
    now = pilot._began
    for seconds, rest, goes_on in ((1.0, 10.0, True), (4.0, 7.0, True), (8.5, 2.5, False)):
        monkeypatch.setattr("time.perf_counter", lambda at=now + seconds: at)
        left[0] = rest
        assert pilot(told(0, phase="building")) is goes_on


@pytest.mark.parametrize(
    ("programs", "seconds"),
    [
        ((2, 6), Pace(4.0, 0.5)),  # compiled while trials trained: 4 of the 6 s of 3 rounds
        ((6, 6), Pace(4.0, 2.0)),
    ],
)
def test_what_compiling_takes_is_no_time_of_rounds(monkeypatch, programs, seconds):
    pilot = _PilotProgress(lambda: 99.0, 10)
    now = pilot._began
    for rounds, compiled in zip((1, 4), programs, strict=True):
        monkeypatch.setattr("time.perf_counter", lambda at=now + 2.0 + 2 * rounds: at)
        spent = {"compiles": (compiled, 6), "trial_seconds": 0.5 * rounds}
        pilot(replace(told(rounds, pace=(4.0, 1.0)), **spent))
    found, of_program = _program_apart(pilot, _pace(pilot))
    assert found == seconds
    assert of_program == pytest.approx((10 - 4 * seconds.round) / 6)


def test_a_compile_that_takes_long_does_not_hold_the_pilot(monkeypatch):
    compiling, ended = threading.Event(), threading.Event()

    def ready(self):
        compiling.set()
        return ended.is_set()

    monkeypatch.setattr(VectorizedProgram, "ready", ready)
    assert rehearsed(left=lambda: -1.0 if compiling.is_set() else 9.0) is None
    assert not ended.is_set()


def test_an_epoch_that_does_not_end_in_time_says_nothing(monkeypatch):
    from paceline.tuner.search.progress import ProgressReporter

    monkeypatch.setattr(ProgressReporter, "_pace", lambda self, now: None)
    assert rehearsed(n_trials=4, epochs=1000, left=lambda: 0.0) is None


@pytest.mark.slow
def test_several_programs_are_seen():
    """A layer more or less is another program, another activation is not."""

    def build(hp):
        if hp.Boolean("deeper"):
            return toys.dense(hp)
        return toys.dense_with(hp, hp.Choice("activation", ["relu", "tanh"]))

    found = rehearsed(build, n_trials=6, epochs=1)
    assert 1.5 < found.programs < 4
    assert found.compile > 0


@pytest.mark.slow
def test_where_trials_end_early_the_pace_is_that_of_the_slots_in_use(monkeypatch):
    """Of 6 trials, 2 go on after the first epoch: their rounds are not full."""
    monkeypatch.setattr("paceline.tuner.search.progress.BETWEEN_LOOKS", 0.0)
    found = run_pilot(subject(), 8, 6, 4, lambda: 1e9, pruner="asha:1:3")
    assert found.trial_epochs < 6 * 4
    assert 1 <= found.pace.at_once < 6


def test_in_fit_trials_go_one_by_one():
    found = run_pilot(subject(), 8, 1, 1, lambda: 1e9, "fit")
    assert found.pace.at_once == 1
    assert (found.programs, found.trial_epochs) == (1.0, 1)


def costs(**more):
    from dataclasses import asdict

    from paceline.report.forecast import Costs

    return asdict(Costs(32, 5.0, Pace(16, 0.5), **more))


def test_a_result_predicts_the_planned_search(tmp_path):
    bench = Bench([run(costs=costs()), run(platform="gpu")], plan=PlannedSearch(64, 10))
    assert bench.predicted(bench.runs[0]).total == 25.0
    assert bench.predicted(bench.runs[1]) is None
    assert [p and p["total"] for p in bench.to_json()["prediction"]] == [25.0, None]
    assert len(bench.outlook) == 1
    bench.save(tmp_path / "a.json")
    from paceline.benchmark.presentation.result import load

    again = load(tmp_path / "a.json")
    assert (again.plan, again.outlook) == (bench.plan, bench.outlook)
    assert bench.outlook[0] in " ".join(bench.text(100).replace("\n  ", " ").split("\n"))


@pytest.mark.parametrize(
    ("pruner", "share"),
    [(None, 1.0), ("median", 1.0), ("asha", (1 + 2 / 3) / 3), ("asha:1:2", (1 + 0.5 + 0.25) / 3)],
)
def test_what_a_pruner_spares(pruner, share):
    assert PlannedSearch(8, 3, pruner).share == pytest.approx(share)
