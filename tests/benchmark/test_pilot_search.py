"""The beginning of a planned search, really run: what it says is what the search then takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import keras
import pytest

import toys
from bench_records import run
from paceline.benchmark import pilot_search
from paceline.benchmark.pilot_search import _pace, _PilotProgress, _programs, run_pilot
from paceline.benchmark.result import Bench, Plan
from paceline.benchmark.subject import Subject
from paceline.data.arrays import prepare
from paceline.executor.local import LocalExecutor
from paceline.pack.plan import StackedProgram
from paceline.report.forecast import Pace, predict
from paceline.report.progress import Progress

X, Y = toys.data(40)


def subject(build=toys.dense):
    return Subject(build, {}, prepare(X, Y), prepare(*toys.data(8)))


def rehearsed(build=toys.dense, n_trials=4, epochs=3, left=lambda: 1e9):
    return run_pilot(subject(build), 8, n_trials, epochs, left)


@pytest.fixture(scope="module")
def whole():
    """A search so short that it is run to its end."""
    return rehearsed()


def test_a_short_search_is_run_to_its_end(whole):
    assert whole.trial_epochs == 12
    assert whole.programs == 1.0
    assert whole.ready > 0 and whole.finish > 0
    assert whole.pace.at_once == 4
    assert {"build", "trace", "compile", "train", "validate", "storage"} <= set(whole.parts)


def test_nothing_is_left_behind(whole, fresh_folder):
    rehearsed(n_trials=1, epochs=1)
    assert list(Path(fresh_folder).iterdir()) == []


class HearsWholeRounds(_PilotProgress):
    """Hears of rounds of four trials as if each look fell behind all their reports.

    Looks may always fall between the reports of one round, which are counted one by one.
    """

    def __call__(self, progress):
        if self.last is None and (progress.pace is None or progress.pace[0] < 4):
            return True
        return super().__call__(replace(progress, trial_epochs=4 * progress.rounds))


def four_are_built_first(monkeypatch):
    """The first round waits for four trials: else it has those that were built in time."""
    submit, ready, taken = LocalExecutor.submit, StackedProgram.ready, []

    def submitting(self, job):
        submit(self, job)
        taken.append(job.number)

    monkeypatch.setattr(LocalExecutor, "submit", submitting)
    monkeypatch.setattr(StackedProgram, "ready", lambda self: len(taken) >= 4 and ready(self))


@pytest.mark.slow
def test_a_long_search_is_stopped_once_its_pace_is_known(monkeypatch):
    four_are_built_first(monkeypatch)
    monkeypatch.setattr(pilot_search, "SECONDS", 0.0)
    monkeypatch.setattr(pilot_search, "LONG", 0.0)
    monkeypatch.setattr(pilot_search, "_PilotProgress", HearsWholeRounds)
    found = rehearsed(n_trials=4, epochs=1000)
    assert 2 * 4 <= found.trial_epochs < 4 * 1000
    assert predict(found, 4, 1000).n_rounds == 1000


def told(rounds, pace=(4.0, 1.0), phase="training"):
    return Progress(
        *("s", phase, 8, 0, 0, 0, 4, 4 * rounds, 1.0, None, None, "val_loss"),
        rounds=rounds,
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
    assert (pilot.last.rounds, pilot.trial_epochs) == (3, 24)
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


def test_an_epoch_that_does_not_end_in_time_says_nothing(monkeypatch):
    from paceline.tuner.progress import ProgressReporter

    monkeypatch.setattr(ProgressReporter, "_pace", lambda self, now: None)
    assert rehearsed(n_trials=4, epochs=1000, left=lambda: 0.0) is None


@pytest.mark.slow
def test_several_programs_are_seen():
    def build(hp):
        return toys.dense_with(hp, hp.Choice("activation", ["relu", "tanh"]))

    found = rehearsed(build, n_trials=6, epochs=1)
    assert 1.5 < found.programs < 4
    assert found.compile > 0


def programs(build, constraints=None):
    return _programs(subject(build), 8, 6, lambda: 1e9, constraints)


def inputless(hp):
    layers = [keras.layers.Dense(hp.Int("units", 2, 8)), keras.layers.Dense(toys.CLASSES)]
    return toys.compiled(keras.Sequential(layers))


@pytest.mark.parametrize(
    ("build", "constraints"),
    [
        (toys.wide, lambda model, hparams: hparams["units"] <= 4),
        (inputless, {"params": ("<=", toys.n_params(4))}),
    ],
)
def test_models_that_constraints_forbid_are_no_programs_of_the_search(
    build, constraints, monkeypatch
):
    monkeypatch.setattr(pilot_search, "PATIENCE", 1e9)
    traced = []

    def fingerprint(self, model, batch_size):  # as good as the real one here, and quick
        traced.append(model.layers[0].units)
        return str(traced[-1])

    monkeypatch.setattr(Subject, "fingerprint", fingerprint)
    assert programs(build, constraints) < 6
    assert len(traced) == pilot_search.TRIED
    assert set(traced) <= {2, 3, 4}


def test_configurations_that_are_rejected_or_fail_are_no_programs_of_the_search():
    def build(hp):
        units = hp.Int("units", 2, 8)
        if units > 5:
            hp.reject("too wide")
        if units < 5:
            raise ValueError("too narrow")
        return toys.wide(hp)

    assert programs(build) == 1


def test_drawing_configurations_ends_where_all_are_rejected(monkeypatch):
    monkeypatch.setattr(pilot_search, "PATIENCE", 1e9)
    asked = []

    def build(hp):
        asked.append(hp.Int("units", 2, 8))
        hp.reject("no")

    assert programs(build) == 1
    assert len(asked) == pilot_search.DRAWN


@pytest.mark.slow
def test_where_trials_end_early_the_pace_is_that_of_the_slots_in_use(monkeypatch):
    """Of 6 trials, 2 go on after the first epoch: their rounds are not full."""
    monkeypatch.setattr("paceline.tuner.progress.BETWEEN_LOOKS", 0.0)
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
    bench = Bench([run(costs=costs()), run(platform="gpu")], plan=Plan(64, 10))
    assert bench.predicted(bench.runs[0]).total == 25.0
    assert bench.predicted(bench.runs[1]) is None
    assert [p and p["total"] for p in bench.to_json()["prediction"]] == [25.0, None]
    assert len(bench.outlook) == 1
    bench.save(tmp_path / "a.json")
    from paceline.benchmark.result import load

    again = load(tmp_path / "a.json")
    assert (again.plan, again.outlook) == (bench.plan, bench.outlook)
    assert bench.outlook[0] in " ".join(bench.text(100).replace("\n  ", " ").split("\n"))


@pytest.mark.parametrize(
    ("pruner", "share"),
    [(None, 1.0), ("median", 1.0), ("asha", (1 + 2 / 3) / 3), ("asha:1:2", (1 + 0.5 + 0.25) / 3)],
)
def test_what_a_pruner_spares(pruner, share):
    assert Plan(8, 3, pruner).share == pytest.approx(share)
