"""The time that is left, as the running search says it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import paceline
import toys
from paceline.report.forecast import Pace
from paceline.tuner.search.progress import ProgressReporter


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What a search of two waves told, every time it could."""
    from paceline.tuner.search import progress as outlook

    found, folder = [], tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outlook, "BETWEEN_LOOKS", 0.0)
        patch.setattr(outlook, "BETWEEN_TABLES", 0.0)
        tuner = paceline.Tuner(
            toys.dense,
            sampler="random",
            parallel_trials=4,
            on_progress=found.append,
            on_note=lambda text: None,
            directory=folder,
        )
        # The second wave is ahead of the first one before it is complete.
        tuner.enqueue([{"lr": lr, "dropout": 0.1} for lr in [1e-3] * 4 + [5e-2] * 4])
        x, y = toys.data(40)
        tuner.search(x, y, validation_data=(x, y), epochs=3, batch_size=8, n_trials=8)
    return found


def test_before_the_first_round_nothing_is_said(said):
    before = [p for p in said if p.trial_epochs == 0]
    assert before
    assert {(p.seconds_left, p.pace) for p in before} == {(None, None)}


def test_what_is_left_are_rounds_at_the_pace_of_the_last(said):
    after = [p for p in said if p.pace is not None and p.phase == "training"]
    assert after[-1].rounds == 6  # two waves of three epochs
    for progress in after:
        at_once, seconds = progress.pace
        assert at_once == 4
        rounds = progress.seconds_left / seconds
        assert rounds == pytest.approx(round(rounds))
        # Within a round some of its trials have reported, and the others not yet.
        assert 6 - progress.rounds <= round(rounds) <= 7 - progress.rounds


def test_at_the_end_nothing_is_left(said):
    assert said[-1].phase == "done"
    assert said[-1].seconds_left == 0


def reporter_of(timings: SimpleNamespace, trial_epochs: int = 0, *, in_fit: bool = False) -> Any:
    context = SimpleNamespace(
        study=None,
        trials=SimpleNamespace(trial_epochs=trial_epochs),
        fit=SimpleNamespace(used=in_fit),
        packs=SimpleNamespace(timings=timings),
        arguments=SimpleNamespace(n_trials=8),
        objective=SimpleNamespace(name="loss"),
        objectives=None,
        progress=None,
    )
    return ProgressReporter(context)


@pytest.mark.parametrize("in_fit", [False, True])
def test_an_epoch_that_packs_report_is_no_round_yet(in_fit):
    """A stream reports the first epoch of a pack before it has timed as many as train at once."""
    reporter = reporter_of(SimpleNamespace(rounds=[], n_rounds=0), 1, in_fit=in_fit)
    reporter._recent.append((0.0, 1))
    pace = reporter._pace(reporter._began + 2.0)
    assert pace == (Pace(1.0, 2.0) if in_fit else None)


def test_a_pause_is_no_time_of_rounds(monkeypatch):
    """Two rounds of a second, a pause of an hour, two rounds of a second."""
    from paceline.tuner.search import progress as outlook

    now = [0.0]
    monkeypatch.setattr(outlook.time, "perf_counter", lambda: now[0])
    timings = SimpleNamespace(rounds=[], n_rounds=0)
    reporter = reporter_of(timings)

    def rounds(n: int) -> float:
        for _ in range(n):
            now[0] += 1.0
            timings.rounds.append((1.0, 4))
            timings.n_rounds += 1
            pace = reporter._pace(now[0])
        return pace.round

    assert rounds(2) == 1.0
    now[0] += 3600.0
    reporter.rested(3600.0)
    assert rounds(2) == 1.0


def test_the_table_begins_with_the_trial_that_the_header_calls_best(said):
    shown = [progress for progress in said if progress.best_number is not None]
    assert all(progress.rows[0].number == progress.best_number for progress in shown)
    for progress in shown:
        if progress.n_complete:  # complete trials, the best first; then those that train
            states = [row.state == "complete" for row in progress.rows[1:]]
            assert states == sorted(states, reverse=True)
        assert max(row.value or 0.0 for row in progress.rows) == progress.best_value
    # A trial that trains may be ahead of the best complete one: it is the best.
    assert any(p.n_complete and p.rows[0].state == "running" for p in shown)


def test_another_best_trial_is_in_the_table_at_once(tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr("paceline.tuner.search.progress.BETWEEN_LOOKS", 0.0)
    tuner = paceline.Tuner(
        toys.dense,
        sampler="random",
        parallel_trials=4,
        on_progress=found.append,
        on_note=lambda text: None,
        directory=tmp_path,
    )
    tuner.enqueue([{"lr": lr, "dropout": 0.1} for lr in [1e-3] * 4 + [5e-2] * 4])
    tuner.search(*toys.data(), n_trials=8, verbose=0, **toys.CALL)
    shown = [progress for progress in found if progress.best_number is not None]
    assert len({progress.best_number for progress in shown}) > 1
    assert all(progress.rows[0].number == progress.best_number for progress in shown)


def test_trials_that_were_stopped_are_in_the_table(tmp_path):
    found = []
    tuner = paceline.Tuner(
        toys.dense,
        sampler="random",
        pruner="asha",
        on_progress=found.append,
        on_note=lambda text: None,
        directory=tmp_path,
    )
    x, y = toys.data(40)
    tuner.search(x, y, validation_data=(x, y), epochs=4, batch_size=8, n_trials=9, verbose=0)
    trials = sorted(map(tuner.trial, range(9)), key=lambda trial: (-trial.value, trial.number))
    assert [row.number for row in found[-1].rows] == [trial.number for trial in trials[:5]]
    assert any(row.state == "pruned" for row in found[-1].rows)
