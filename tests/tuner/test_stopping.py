"""Rules that end a whole search before its last trial."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import optuna
import pytest

import paceline
import toys
from commands import command
from paceline.errors import UsageError
from paceline.report.summary import search_summary
from paceline.study.objectives import Objective
from paceline.study.trials import trial_codec
from paceline.study.trials.table import TrialTable
from paceline.study.trials.trial import Trial
from paceline.tuner.search.running_trials import UnfinishedTrials
from paceline.tuner.search.stopping import SearchEnd, StoppingCheck, StoppingRules
from stopping import all_of, hears_signals, same, stopped_after, trials_of  # noqa: F401 - a fixture

X, Y = toys.data()
CALL: dict[str, Any] = {**toys.CALL, "epochs": 3}


def values_of(tuner: paceline.Tuner) -> list[float | None]:
    """Values of the trials from 0 up to the first that has not ended."""
    found = []
    for trial in trials_of(tuner):
        if trial.state not in ("complete", "pruned", "failed"):
            break
        found.append(trial.value if trial.state == "complete" else None)
    return found


def stops_at(values: list[float | None], most: int) -> int | None:
    """The number of the trial at which ``patience_trials`` ends a search, as its text says it."""
    best, without = None, 0
    for number, value in enumerate(values):
        if value is not None and (best is None or value > best):
            best, without = value, 0
        else:
            without += 1
        if without == most:
            return number
    return None


# -- a target --------------------------------------------------------------------------------------


def test_a_search_ends_as_soon_as_a_trial_reaches_the_target(make, notes) -> None:
    whole = make(study="whole")
    whole.search(X, Y, n_trials=8, **CALL)
    everything = [value for t in trials_of(whole) for value in t.history["val_accuracy"]]
    target = sorted(everything)[len(everything) // 2]
    tuner = make()
    tuner.search(X, Y, n_trials=8, target_value=target, **CALL)
    best = tuner.best_trial
    assert best.value >= target and best.state == "complete"
    # It is complete with the epochs up to that one, and they are those of the whole search.
    reached = [e for e, v in enumerate(whole.history(best.number)["val_accuracy"]) if v >= target]
    assert best.epochs == best.best_epoch == reached[0] + 1
    assert best.history["loss"] == whole.history(best.number)["loss"][: best.epochs]
    assert tuner.summary()["ended"]["by"] == "target_value"
    assert f"trial {best.number} has val_accuracy" in tuner.summary()["ended"]["text"]
    assert len(values_of(tuner)) < 8
    metrics = tuner.best_model().evaluate(*CALL["validation_data"], verbose=0, return_dict=True)
    assert metrics["accuracy"] == pytest.approx(best.value, abs=1e-6)  # one mean in two orders
    # The same search ends again at once; without the target it ends as the whole one, but for the
    # trials that reached the target.
    before = all_of(tuner)
    again = make()
    again.search(X, Y, n_trials=8, target_value=target, **CALL)
    assert all_of(again) == before
    again = make()
    again.search(X, Y, n_trials=8, **CALL)
    assert again.summary()["ended"] == {"by": "n_trials", "text": ""}
    others = [t.number for t in trials_of(again) if t.value is not None and t.epochs == 3]
    assert len(others) > 3
    assert [again.history(n) for n in others] == [whole.history(n) for n in others]


@pytest.mark.parametrize("executor", [pytest.param("packed", marks=pytest.mark.slow), "fit"])
def test_a_loss_reaches_its_target_from_above(make, executor: str) -> None:
    tuner = make(objective="val_loss", executor=executor)
    tuner.search(X, Y, n_trials=12, target_value=10.0, **CALL)
    first = tuner.trial(0)
    assert (first.state, first.epochs) == ("complete", 1)
    assert tuner.summary()["ended"]["by"] == "target_value"


@pytest.mark.slow
def test_a_value_that_is_the_target_reaches_it(make) -> None:
    whole = make(study="whole")
    whole.search(X, Y, n_trials=2, **CALL)
    best = whole.best_trial
    tuner = make()
    tuner.search(X, Y, n_trials=2, target_value=best.value, **CALL)
    assert tuner.best_trial.value == best.value
    assert tuner.summary()["ended"]["by"] == "target_value"


@pytest.mark.slow
def test_members_reach_a_target_by_their_mean(make) -> None:
    tuner = make()
    tuner.search(X, Y, n_trials=4, repeats=2, target_value=0.0, **CALL)
    trial = tuner.best_trial
    assert trial.epochs == 1 and len(trial.runs[0]) == 2


# -- no gain ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pruner", [pytest.param(None, marks=pytest.mark.slow), "median"])
def test_a_search_ends_where_trials_stop_gaining(make, pruner: str | None) -> None:
    tuner = make(pruner=pruner, parallel_trials=4)
    tuner.search(X, Y, n_trials=60, patience_trials=5, **CALL)
    at = stops_at(values_of(tuner), 5)
    assert at is not None
    text = tuner.summary()["ended"]["text"]
    assert re.fullmatch(
        rf"no better trial in 5 trials up to trial {at}: the best is trial \d+", text
    )
    assert len(tuner.results()) < 60
    # A search that goes on stops at the same trial, and trains nothing.
    before = all_of(tuner)
    again = make(pruner=pruner, parallel_trials=4)
    again.search(X, Y, n_trials=60, patience_trials=5, **CALL)
    assert again.summary()["ended"]["text"] == text
    assert all_of(again) == before


@pytest.mark.slow
def test_a_search_that_was_interrupted_stops_at_the_same_trial(make, monkeypatch) -> None:
    whole = make(study="whole")
    whole.search(X, Y, n_trials=60, patience_trials=5, **CALL)
    with monkeypatch.context() as patch:
        stopped_after(patch, 4)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            make().search(X, Y, n_trials=60, patience_trials=5, **CALL)
    again = make()
    again.search(X, Y, n_trials=60, patience_trials=5, **CALL)
    assert again.summary()["ended"] == whole.summary()["ended"]
    # How many more are built and wait for a slot depends on how fast the device is.
    n = len(values_of(whole))
    assert n > 5 and all_of(again)[:n] == all_of(whole)[:n]


def test_failed_trials_are_no_gain(make) -> None:
    def build(hp: Any) -> keras.Model:
        if hp.Float("lr", 1e-3, 1e-1, sampling="log") > 1e-3:
            raise ValueError("no")
        return toys.compiled(keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)]))

    tuner = make(build, sampler="random", seed=3)
    tuner.enqueue([{"lr": 1e-3}])
    tuner.search(X, Y, n_trials=4, patience_trials=2, **CALL)
    assert [t.state for t in trials_of(tuner)][:3] == ["complete", "failed", "failed"]
    text = "no better trial in 2 trials up to trial 2: the best is trial 0"
    assert tuner.summary()["ended"] == {"by": "patience_trials", "text": text}


def test_a_trial_that_another_program_never_ended_holds_nothing_up() -> None:
    theirs = optuna.create_study(direction="maximize")
    theirs.ask()
    left = trial_codec.from_frozen(theirs.trials[0])
    assert left is not None
    trials = TrialTable("s")
    trials.set_direction("maximize")
    for trial in [left, *(Trial(n, "complete", value=0.5) for n in range(1, 7))]:
        trials.add(trial)
    running = UnfinishedTrials(trials)
    check = StoppingCheck(
        StoppingRules(patience_trials=5), trials, running, Objective("v", "maximize"), 3
    )
    text = "no better trial in 5 trials up to trial 6: the best is trial 1"
    assert check.verdict == SearchEnd("patience_trials", text)
    # One of this search, or of another worker of it, may still gain.
    trials.add(Trial(0))
    check = StoppingCheck(
        StoppingRules(patience_trials=5), trials, running, Objective("v", "maximize"), 3
    )
    assert check.verdict is None


# -- epochs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [pytest.param(9, marks=pytest.mark.slow), 11])
def test_no_trial_begins_that_would_exceed_the_epochs(make, most: int) -> None:
    tuner = make(parallel_trials=4)
    tuner.search(X, Y, max_total_epochs=most, **CALL)
    assert [t.epochs for t in trials_of(tuner)] == [3, 3, 3]
    assert tuner.summary()["ended"]["by"] == "max_total_epochs"
    assert tuner.summary()["ended"]["text"] == f"9 of {most} epochs are trained (max_total_epochs)"
    more = make(parallel_trials=4)
    more.search(X, Y, max_total_epochs=15, **CALL)
    assert sum(t.epochs for t in trials_of(more)) == 15


def test_epochs_before_the_initial_one_do_not_count(make) -> None:
    tuner = make(parallel_trials=4)
    call = {**CALL, "epochs": 10, "initial_epoch": 8}
    tuner.search(X, Y, max_total_epochs=5, **call)
    assert [t.epochs for t in trials_of(tuner)] == [2, 2]
    text = "4 of 5 epochs are trained (max_total_epochs)"
    assert tuner.summary()["ended"] == {"by": "max_total_epochs", "text": text}


def test_trials_that_wait_do_not_begin_where_no_epochs_are_left(make) -> None:
    make().search(X, Y, n_trials=3, **CALL)
    study = make().optuna_study()
    study.enqueue_trial({"lr": 0.01})
    tuner = make()
    tuner.search(X, Y, n_trials=8, max_total_epochs=11, **CALL)
    assert sum(t.epochs for t in trials_of(tuner)) == 9
    assert tuner.summary()["ended"]["by"] == "max_total_epochs"
    assert tuner.optuna_study().get_trials(states=[optuna.trial.TrialState.WAITING])


@pytest.mark.slow
def test_epochs_that_callbacks_save_go_to_other_trials(make) -> None:
    def callbacks(hp: Any) -> list[Any]:
        return [keras.callbacks.EarlyStopping("val_loss", min_delta=1.0, patience=2)]

    tuner = make(parallel_trials=2)
    tuner.search(X, Y, max_total_epochs=18, callbacks=callbacks, **{**CALL, "epochs": 6})
    trained = [t.epochs for t in trials_of(tuner)]
    assert len(trained) > 3 and 12 < sum(trained) <= 18


def test_asha_trains_up_to_the_total(make) -> None:
    tuner = make(parallel_trials=4, pruner="asha")
    tuner.search(X, Y, n_trials=100, max_total_epochs=60, **{**CALL, "epochs": 9})
    total = sum(t.epochs for t in trials_of(tuner))
    assert 60 - 9 < total < 60 + 4  # a round trains one epoch of each slot
    assert tuner.summary()["ended"]["by"] == "max_total_epochs"
    assert len(tuner.results()) > 7  # more than would fit without pruning


@pytest.mark.slow
def test_an_interrupted_search_trains_the_same_trials(make, monkeypatch) -> None:
    call = {**CALL, "max_total_epochs": 24}
    whole = make(study="whole")
    whole.search(X, Y, **call)
    with monkeypatch.context() as patch:
        stopped_after(patch, 5)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            make().search(X, Y, **call)
    again = make()
    again.search(X, Y, **call)
    same(again, whole)
    assert sum(t.epochs for t in trials_of(again)) == 24


# -- what else ends a search -----------------------------------------------------------------------


@pytest.mark.slow
def test_the_end_says_what_ended_the_search(make, monkeypatch) -> None:
    def small(hp: Any) -> keras.Model:
        return toys.compiled(
            keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, activation="softmax")]),
            hp.Choice("lr", [0.1, 0.01]),
        )

    tuner = make(small)
    tuner.search(X, Y, n_trials=9, **CALL)
    assert tuner.summary()["ended"]["by"] == "space"
    assert "Ended: every configuration" in search_summary(tuner.summary(), "val_accuracy", [])
    with monkeypatch.context() as patch:
        stopped_after(patch, 2)
        tuner = make(study="signal")
        with pytest.raises(KeyboardInterrupt, match="^$"):
            tuner.search(X, Y, n_trials=9, **CALL)
    assert tuner.summary()["ended"] == {"by": "interrupted", "text": ""}
    tuner = make(study="time")
    tuner.search(X, Y, timeout=1e-6, **CALL)
    assert tuner.summary()["ended"]["by"] == "timeout"
    tuner = make(study="progress", on_progress=lambda _: False)
    tuner.search(X, Y, n_trials=4, **CALL)
    assert tuner.summary()["ended"]["by"] == "progress"


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"target_value": "0.9"}, "target_value must be .* got '0.9'"),
        ({"target_value": float("nan")}, "target_value must be .* got nan"),
        ({"target_value": True}, "target_value must be .* got True"),
        ({"patience_trials": 0}, "patience_trials must be a positive integer, got 0"),
        ({"max_total_epochs": 2}, "max_total_epochs: 2 is below epochs, 3"),
        ({"max_total_epochs": 2.5}, "max_total_epochs must be a positive integer, got 2.5"),
        (
            {"epochs": 10, "initial_epoch": 8, "max_total_epochs": 1},
            "max_total_epochs: 1 is below the 2 epochs of a trial, 10 less initial_epoch, 8",
        ),
        (
            {"epochs": lambda hp: hp.Int("epochs", 1, 10), "max_total_epochs": 12},
            "max_total_epochs=12 needs epochs as a number",
        ),
        (
            {"initial_epoch": lambda hp: hp.Int("first", 0, 2), "max_total_epochs": 12},
            "max_total_epochs=12 needs initial_epoch as a number",
        ),
        (
            {"continue_best": 2, "max_total_epochs": 12},
            r"continue_best: the best 2 .* max_total_epochs \(12\)",
        ),
        (
            {"target_value": 0.5, "n_trials": None},
            "n_trials is missing. Pass n_trials, timeout",
        ),
    ],
)
def test_a_rule_that_cannot_work_is_an_error_before_the_search(make, given, match) -> None:
    with pytest.raises(UsageError, match=match):
        make().search(X, Y, **{"n_trials": 4, **CALL, **given})
    assert not Path("runs").exists()


def test_a_target_may_be_a_number_of_numpy(make) -> None:
    tuner = make()
    tuner.search(X, Y, n_trials=2, target_value=np.float32(0.0), **CALL)
    assert tuner.summary()["ended"]["by"] == "target_value"


# -- from the command line -------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = command(*words)
    return code, *capsys.readouterr()


@pytest.mark.slow
def test_the_command_stops_by_rules_and_goes_on_without(fresh_folder, capsys) -> None:
    Path("model.py").write_text(toys.MODEL_FILE)
    options = ["--trials", "6", "--epochs", "2", "--sampler", "random", "--quiet"]
    code, out, _ = run(capsys, "search", "model.py", *options, "--target-value", "0.0")
    assert code == 0
    assert re.search(r"\nEnded: target 0.0000 reached: trial \d has val_accuracy 0\.\d{4}\.\n", out)
    assert "paceline resume model --target-value none" in out
    code, out, _ = run(capsys, "resume", "model", "--quiet")  # the study remembers its rules
    assert code == 0 and "Ended: target" in out
    code, _, _ = run(capsys, "report", "model")
    assert code == 0 and "target 0.0000 reached: trial" in Path("report.html").read_text()
    code, out, _ = run(capsys, "resume", "model", "--target-value", "none", "--quiet")
    assert code == 0 and "Ended" not in out and "model: 6 trials (6 complete)" in out
    code, _, err = run(capsys, "search", "model.py", *options, "--patience-trials", "soon")
    assert code == 2 and "--patience-trials must be an integer of at least 1, or" in err


def numbered(capsys: pytest.CaptureFixture[str], study: str) -> list[dict[str, Any]]:
    """A study's trials as the command line gives them, in the order of their numbers."""
    code, out, _ = run(capsys, "trials", study, "--sort", "number", "--json")
    assert code == 0
    return json.loads(out.splitlines()[-1])


def test_the_command_stops_where_trials_stop_gaining(fresh_folder, capsys) -> None:
    Path("model.py").write_text(toys.MODEL_FILE)
    call = ["search", "model.py", "--trials", "40", "--epochs", "1", "--sampler", "random"]
    code, out, _ = run(capsys, *call, "--parallel-trials", "2", "--quiet", "--patience-trials", "3")
    assert code == 0
    trials = numbered(capsys, "model")
    ended = [t["value"] for t in trials if t["state"] == "complete"]
    at = stops_at(ended, 3)
    assert at is not None and len(trials) < 40
    assert re.search(
        rf"\nEnded: no better trial in 3 trials up to trial {at}: the best is trial \d+", out
    )
    code, again, _ = run(capsys, "resume", "model", "--quiet")  # the study remembers its rules
    assert code == 0 and f"no better trial in 3 trials up to trial {at}:" in again
    assert numbered(capsys, "model") == trials


@pytest.mark.slow
def test_the_command_stops_where_no_epochs_are_left(fresh_folder, capsys) -> None:
    Path("model.py").write_text(toys.MODEL_FILE)
    call = ["search", "model.py", "--trials", "40", "--epochs", "2", "--sampler", "random"]
    code, out, _ = run(
        capsys, *call, "--parallel-trials", "2", "--quiet", "--max-total-epochs", "7"
    )
    assert code == 0 and "\nEnded: 6 of 7 epochs are trained (max_total_epochs)" in out
    assert [t["epochs"] for t in numbered(capsys, "model")] == [2, 2, 2]
    code, out, _ = run(capsys, "resume", "model", "--max-total-epochs", "10", "--quiet")
    assert code == 0 and "\nEnded: 10 of 10 epochs are trained (max_total_epochs)" in out
    assert [t["epochs"] for t in numbered(capsys, "model")] == [2] * 5


@pytest.mark.slow
def test_a_budget_is_spent_on_any_number_of_trials(fresh_folder, capsys) -> None:
    Path("model.py").write_text(toys.MODEL_FILE)
    options = ["--quiet", "--json", "--epochs", "5"]
    code, out, err = run(capsys, "search", "model.py", "--budget", "4s", *options)
    assert code == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert summary["ended"]["by"] == "timeout"
    assert sum(summary["n_trials"].values()) > 32  # more than without a budget
    assert 3.0 < summary["seconds"]["total"] < 6.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--objective", "params", "--target-value", "0.9"],
            "target_value=0.9 needs a best trial",
        ),
        (["--objective", "params", "--keep-best", "3"], "keep_best=3 needs one objective"),
        (["--warm-start-from", "nosuch"], "warm_start_from: there is no study 'nosuch'"),
        (
            ["--patience-trials", "0"],
            "--patience-trials must be an integer of at least 1, or none",
        ),
        (["--target-value", "nan"], "target_value must be a value"),
        (["--epochs", "4", "--max-total-epochs", "3"], "max_total_epochs: 3 is below epochs, 4"),
    ],
)
def test_what_a_search_refuses_takes_nothing_of_a_budget(
    fresh_folder, capsys, options: list[str], said: str
) -> None:
    Path("model.py").write_text(toys.MODEL_FILE)
    call = ["search", "model.py", "--budget", "2m", "--quiet", "--objective", "val_accuracy"]
    code, _, err = run(capsys, *call, *options)
    assert code == 2 and said in err
    assert not Path("runs").exists()
