"""``paceline.optimize``: Optuna's meanings, with fits that train in packs."""

from __future__ import annotations

import _thread
import collections
import copy
import functools
import pickle  # noqa: TID251 - users pickle their studies
import subprocess
import sys
import threading
import time

import keras
import optuna
import pytest
from optuna.samplers import (
    BruteForceSampler,
    CmaEsSampler,
    GridSampler,
    NSGAIISampler,
    RandomSampler,
    TPESampler,
)
from optuna.study import MaxTrialsCallback
from optuna.trial import TrialState

import paceline
from compat.functions.pruning_callback import Prunes
from compat.interception.alone import ATOL, RTOL, alone
from compat.interception.functions import X_VAL, Y_VAL, X, Y, network
from paceline.errors import UsageError


@pytest.fixture(autouse=True)
def _quiet_optuna():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


def fit(trial, epochs=2, **arguments):
    model = network(0, optimizer=keras.optimizers.Adam(trial.suggest_float("lr", 1e-3, 1e-1)))
    arguments = {"verbose": 0, "validation_data": (X_VAL, Y_VAL), **arguments}
    return model.fit(X, Y, epochs=epochs, **arguments)


def loss(trial, **arguments):
    return fit(trial, **arguments).history["val_loss"][-1]


def states(study):
    return [trial.state.name for trial in study.trials]


# -- trials ----------------------------------------------------------------------------------------


def test_a_trial_is_that_trial_alone(monkeypatch):
    study = optuna.create_study(sampler=RandomSampler(seed=0))
    seeds = iter([11, 12])
    monkeypatch.setattr("random.getrandbits", lambda bits: next(seeds))
    paceline.optimize(study, loss, n_trials=2)
    monkeypatch.undo()
    assert states(study) == ["COMPLETE"] * 2
    for trial, seed in zip(study.trials, [11, 12], strict=True):
        fixed = optuna.trial.FixedTrial(trial.params)
        expected = alone(functools.partial(loss, fixed), seed)
        assert trial.value == pytest.approx(expected, rel=RTOL, abs=ATOL)


@pytest.mark.parametrize("make", [RandomSampler, TPESampler, CmaEsSampler, NSGAIISampler])
def test_an_objective_without_a_fit_gives_what_optuna_gives(make):
    def objective(trial):
        x = trial.suggest_float("x", -1, 1)
        return x**2 + (trial.suggest_int("n", 1, 3) if x > 0 else 0)

    ours = optuna.create_study(sampler=make(seed=3))
    paceline.optimize(ours, objective, n_trials=15)
    theirs = optuna.create_study(sampler=make(seed=3))
    theirs.optimize(objective, n_trials=15)
    assert [t.params for t in ours.trials] == [t.params for t in theirs.trials]
    assert [t.values for t in ours.trials] == [t.values for t in theirs.trials]


def test_attributes_and_values_suggested_while_training_are_kept():
    class Suggests(keras.callbacks.Callback):
        def __init__(self, trial):
            super().__init__()
            self.trial = trial

        def on_epoch_end(self, epoch, logs=None):
            self.trial.report(logs["val_loss"], epoch)
            if epoch == 0:
                self.trial.suggest_int("late", 1, 5)

    def objective(trial):
        history = fit(trial, callbacks=[Suggests(trial)])
        trial.set_user_attr("epochs", len(history.epoch))
        return history.history["val_loss"][-1]

    study = optuna.create_study(sampler=RandomSampler(seed=0))
    paceline.optimize(study, objective, n_trials=3)
    for trial in study.trials:
        assert trial.user_attrs == {"epochs": 2}
        assert list(trial.intermediate_values) == [0, 1]
        assert set(trial.params) == {"lr", "late"}


def test_trials_are_pruned_while_others_train_on():
    study = optuna.create_study(
        sampler=RandomSampler(seed=0),
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2),
    )
    paceline.optimize(study, lambda t: loss(t, epochs=4, callbacks=[Prunes(t)]), n_trials=6)
    assert set(states(study)) == {"COMPLETE", "PRUNED"}
    for trial in study.trials:
        last = max(trial.intermediate_values)
        assert trial.value == trial.intermediate_values[last]
        assert (last == 3) == (trial.state == TrialState.COMPLETE)


@pytest.mark.filterwarnings("ignore:.*constraints_func:FutureWarning")  # since Optuna 5
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")  # before
def test_several_objectives_and_constraints():
    def constraints(trial):
        return (trial.params["lr"] - 0.05,)

    def objective(trial):
        history = fit(trial).history
        return history["val_loss"][-1], history["loss"][-1]

    study = optuna.create_study(
        directions=["minimize", "minimize"],
        sampler=NSGAIISampler(seed=0, constraints_func=constraints),
    )
    study.enqueue_trial({"lr": 0.01})
    paceline.optimize(study, objective, n_trials=4)
    assert states(study) == ["COMPLETE"] * 4
    assert all(len(trial.values) == 2 for trial in study.trials)
    assert study.best_trials
    assert all(trial.params["lr"] <= 0.05 for trial in study.best_trials)


def test_enqueued_trials_come_first():
    study = optuna.create_study(sampler=RandomSampler(seed=0))
    study.enqueue_trial({"lr": 0.02})
    study.enqueue_trial({"lr": 0.03})
    paceline.optimize(study, loss, n_trials=3)
    assert [trial.params["lr"] for trial in study.trials[:2]] == [0.02, 0.03]
    assert states(study) == ["COMPLETE"] * 3


def test_a_value_that_is_none_fails_its_trial():
    study = optuna.create_study()
    paceline.optimize(study, lambda trial: [None, float("nan"), 1][trial.number], n_trials=3)
    assert states(study) == ["FAIL", "FAIL", "COMPLETE"]


# -- what ends it ----------------------------------------------------------------------------------


def test_stop_in_an_objective_and_in_a_callback():
    def objective(trial):
        if trial.number == 2:
            trial.study.stop()
        return float(trial.number)

    study = optuna.create_study()
    paceline.optimize(study, objective, n_trials=10)
    assert len(study.trials) == 3
    paceline.optimize(study, loss, n_trials=10, in_flight=2, callbacks=[MaxTrialsCallback(5, None)])
    assert 5 <= len(study.trials) <= 6
    with pytest.raises(RuntimeError, match="inside an objective function or a callback"):
        study.stop()


def test_after_the_timeout_no_trial_begins_and_running_ones_are_finished():
    def objective(trial):
        value = loss(trial)
        time.sleep(0.2)
        return value

    study = optuna.create_study(sampler=RandomSampler(seed=0))
    paceline.optimize(study, objective, timeout=0.1, in_flight=2)
    assert 1 <= len(study.trials) <= 2
    assert set(states(study)) == {"COMPLETE"}


def test_an_error_that_is_caught_fails_its_trial_alone():
    def objective(trial):
        value = loss(trial)
        if trial.number == 1:
            raise ValueError("no good")
        return value

    seen = []
    study = optuna.create_study(sampler=RandomSampler(seed=0))
    paceline.optimize(
        study,
        objective,
        n_trials=3,
        catch=ValueError,
        callbacks=[lambda study, trial: seen.append(trial.number)],
    )
    assert states(study) == ["COMPLETE", "FAIL", "COMPLETE"]
    assert sorted(seen) == [0, 1, 2]


def test_an_error_that_is_not_caught_is_raised_when_running_trials_are_finished(capsys):
    def objective(trial):
        value = loss(trial, epochs=1 if trial.number == 0 else 3)
        if trial.number == 0:
            raise ValueError("no good")
        return value

    study = optuna.create_study(sampler=RandomSampler(seed=0))
    with pytest.raises(ValueError, match="no good"):
        paceline.optimize(study, objective, n_trials=9, in_flight=3)
    assert states(study) == ["FAIL", "COMPLETE", "COMPLETE"]
    assert "ValueError: no good. No further trial begins; 2 that train" in capsys.readouterr().err


def test_an_error_of_a_callback_is_raised():
    def callback(study, trial):
        raise KeyError("callback")

    study = optuna.create_study()
    with pytest.raises(KeyError, match="callback"):
        paceline.optimize(study, lambda trial: 1.0, n_trials=3, callbacks=[callback])
    assert states(study) == ["COMPLETE"]


def test_ctrl_c_fails_the_trials_that_run():
    def objective(trial):
        value = loss(trial, epochs=1 if trial.number == 0 else 50)
        if trial.number == 0:
            raise KeyboardInterrupt("by the user")
        return value

    study = optuna.create_study(sampler=RandomSampler(seed=0))
    with pytest.raises(KeyboardInterrupt, match="by the user"):
        paceline.optimize(study, objective, n_trials=9, in_flight=3)
    assert states(study) == ["FAIL"] * 3
    paceline.optimize(study, loss, n_trials=1)
    assert states(study)[3:] == ["COMPLETE"]


@pytest.mark.slow
def test_an_interrupt_while_packs_train_fails_the_trials_that_run():
    class Interrupts(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 3:
                threading.Timer(0.05, _thread.interrupt_main).start()

    study = optuna.create_study(sampler=RandomSampler(seed=0))
    with pytest.raises(KeyboardInterrupt, match="^$"):
        paceline.optimize(
            study, lambda t: loss(t, epochs=5000, callbacks=[Interrupts()]), n_trials=2
        )
    assert states(study) == ["FAIL"] * 2


@pytest.mark.slow
def test_a_killed_script_goes_on_with_its_study(tmp_path):
    script = f"""
import sys, os
import paceline, keras, numpy as np
from paceline.compat import optuna
x = np.ones((64, 4), "float32")
def objective(trial):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(trial.suggest_float("lr", 1e-3, 1e-2)), "mse")
    value = model.fit(x, x[:, :1], epochs=2, verbose=0).history["loss"][-1]
    if sys.argv[1] == "die" and trial.number == 1:
        os._exit(9)
    return value
study = optuna.create_study(
    study_name="s", storage="sqlite:///{tmp_path}/study.db", load_if_exists=True
)
study.optimize(objective, n_trials=3)
"""
    for end, code in (("die", 9), ("live", 0)):
        command = [sys.executable, "-c", script, end]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done.stderr
    study = optuna.load_study(study_name="s", storage=f"sqlite:///{tmp_path}/study.db")
    # As with Optuna: what ran when the process died stays as it was.
    assert states(study)[1] == "RUNNING"
    assert states(study)[3:] == ["COMPLETE"] * 3


def test_an_objective_cannot_optimize_its_own_study():
    study = optuna.create_study()

    def objective(trial):
        paceline.optimize(study, lambda trial: 1.0, n_trials=1)
        return 1.0

    with pytest.raises(RuntimeError, match="Nested invocation"):
        paceline.optimize(study, objective, n_trials=1)


# -- samplers and storages -------------------------------------------------------------------------


def test_a_grid_ends_when_each_place_was_tried_once():
    grid = {"lr": [0.001, 0.01, 0.1], "n": [1, 2]}

    def objective(trial):
        trial.suggest_int("n", 1, 2)
        return loss(trial)

    study = optuna.create_study(sampler=GridSampler(grid, seed=0))
    paceline.optimize(study, objective)
    assert len(study.trials) == 6
    assert len({tuple(trial.params.items()) for trial in study.trials}) == 6


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_brute_force_tries_each_configuration():
    def objective(trial):
        n = trial.suggest_int("n", 1, 4)
        return fit(optuna.trial.FixedTrial({"lr": 0.01 * n})).history["loss"][-1]

    study = optuna.create_study(sampler=BruteForceSampler(seed=0))
    paceline.optimize(study, objective, n_trials=4)
    assert sorted(trial.params["n"] for trial in study.trials) == [1, 2, 3, 4]


def test_the_users_sampler_is_left_as_it_is():
    sampler = TPESampler(seed=0, constant_liar=False)
    before = copy.deepcopy(vars(sampler))
    study = optuna.create_study(sampler=sampler)
    paceline.optimize(study, loss, n_trials=2)
    assert study.sampler is sampler
    assert vars(sampler)["_constant_liar"] == before["_constant_liar"]
    assert vars(sampler).keys() == before.keys()


def journal(path):
    backend = optuna.storages.journal.JournalFileBackend(str(path / "journal.log"))
    return optuna.storages.JournalStorage(backend)


@pytest.mark.parametrize(
    "storage", [lambda path: f"sqlite:///{path}/study.db", journal], ids=["sqlite", "journal"]
)
def test_a_storage_on_disk_goes_on(tmp_path, storage):
    for n_trials in (2, 4):
        study = optuna.create_study(study_name="s", storage=storage(tmp_path), load_if_exists=True)
        paceline.optimize(study, loss, n_trials=2)
        assert states(study) == ["COMPLETE"] * n_trials


def test_sqlite_in_memory_is_optimized_by_optuna_with_a_note(capsys):
    study = optuna.create_study(storage="sqlite:///:memory:")
    paceline.optimize(study, lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    assert states(study) == ["COMPLETE"] * 2
    assert "SQLite in memory, which only one thread sees" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")  # RetryFailedTrialCallback, since Optuna 4.9
@pytest.mark.slow  # Optuna compares heartbeats with the clock of the database
def test_heartbeats_are_recorded_and_stale_trials_are_tried_again(tmp_path, monkeypatch):
    from optuna.storages import RetryFailedTrialCallback

    name = "failed_trial_callback"
    if optuna.__version__ >= "4.9":
        name = "heartbeat_stale_trial_callback"
    storage = optuna.storages.RDBStorage(
        f"sqlite:///{tmp_path}/study.db",
        heartbeat_interval=1,
        grace_period=2,
        **{name: RetryFailedTrialCallback(max_retry=1)},
    )
    study = optuna.create_study(storage=storage, sampler=RandomSampler(seed=0))
    with pytest.warns(UserWarning, match="[Hh]eartbeat"):
        dead = study.ask()
    dead.suggest_float("lr", 1e-3, 1e-1)
    storage.record_heartbeat(dead._trial_id)
    time.sleep(3.1)

    def objective(trial):
        value = loss(trial)
        time.sleep(1.2)
        return value

    record, beats = storage.record_heartbeat, collections.Counter()

    def recorded(trial_id):
        beats[trial_id] += 1
        record(trial_id)

    monkeypatch.setattr(storage, "record_heartbeat", recorded)
    paceline.optimize(study, objective, n_trials=2, in_flight=2)
    assert states(study)[0] == "FAIL"
    # At its beginning, and while it runs.
    assert {trial._trial_id: beats[trial._trial_id] > 1 for trial in study.trials} == {
        trial._trial_id: trial.number > 0 for trial in study.trials
    }
    retried = [trial for trial in study.trials if trial.system_attrs.get("failed_trial") == 0]
    assert [trial.state.name for trial in retried] == ["COMPLETE"]
    assert retried[0].params == study.trials[0].params


# -- what people see -------------------------------------------------------------------------------


def test_a_line_for_each_trial_and_a_summary(capsys, caplog):
    optuna.logging.set_verbosity(optuna.logging.INFO)
    optuna.logging.enable_propagation()
    study = optuna.create_study(sampler=RandomSampler(seed=0))
    paceline.optimize(study, loss, n_trials=2, n_jobs=2)
    optuna.logging.disable_propagation()
    assert "Trial 0 finished with value: " in caplog.text
    assert "Best is trial" in caplog.text
    told = capsys.readouterr().err
    assert "2 trials, 2 fits in packs (1 program), " in told
    assert "n_jobs=2 has no effect: trials train at once" in told


def test_optunas_progress_bar_is_the_only_one(capsys):
    optuna.logging.set_verbosity(optuna.logging.INFO)
    study = optuna.create_study(sampler=RandomSampler(seed=0))
    paceline.optimize(study, loss, n_trials=3, show_progress_bar=True)
    printed = capsys.readouterr()
    assert "3/3" in printed.err
    best = study.best_trial
    assert f"Best trial: {best.number}. Best value: {best.value:.6g}" in printed.err
    assert "paceline:" not in printed.out + printed.err


def test_a_study_can_be_pickled_in_a_callback():
    study = optuna.create_study()
    kept = []
    callback = lambda study, trial: kept.append(pickle.dumps(study))  # noqa: E731
    paceline.optimize(study, lambda trial: 1.0, n_trials=1, callbacks=[callback])
    assert kept


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"objective": 3}, "objective must be a function of a trial, got int"),
        ({"n_trials": 2.5}, "n_trials must be an integer or None, got 2.5"),
        ({"in_flight": 0}, "in_flight must be at least 1, got 0"),
        ({"concurrent": "no"}, "concurrent: 'no' is not True"),
    ],
)
def test_bad_arguments_are_refused(arguments, text):
    study = optuna.create_study()
    with pytest.raises(UsageError, match=text):
        paceline.optimize(study, **{"objective": loss, "n_trials": 1, **arguments})
    assert study.trials == []


def test_a_study_must_be_optunas():
    with pytest.raises(TypeError, match=r"study must be an optuna\.Study, got str"):
        paceline.optimize("study", loss)
