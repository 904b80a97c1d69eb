"""``trial_timeout``: what takes too long fails alone, whatever it is that does not come back."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import keras
import pytest

import paceline
import toys
from epoch_reports import observe_reports
from paceline.cli import restart, wall
from paceline.cli.app import main
from paceline.executor.base import EpochReport
from paceline.pack.pack import Pack
from paceline.tuner.search.timeouts import run_with_timeout

TESTS = Path(__file__).resolve().parents[1]
X, Y = toys.data()
CALL: dict[str, Any] = {
    "validation_data": toys.data(23, seed=1),
    "epochs": 2,
    "batch_size": 16,
    "n_trials": 6,
}
#: A step that never ends where the rate is above 0.8; all trials share a program.
HANGS = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
import jax, keras, toys

class Hangs(keras.layers.Layer):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def call(self, x, training=False):
        if not training:
            return x
        # 0, 1, 1.5, 1.75 ...: it never comes to 2.
        i = jax.lax.while_loop(lambda i: i < 1.2 + self.rate, lambda i: 0.5 * i + 1.0, 0.0)
        return x + 1e-30 * i

def build(hp):
    layers = [
        keras.Input((toys.FEATURES,)),
        Hangs(hp.Choice("rate", [0.0, 0.1, 0.9, 0.2])),
        keras.layers.Dense(toys.CLASSES, activation="softmax"),
    ]
    return toys.compiled(keras.Sequential(layers))

def data():
    return toys.data(), toys.data(23, seed=1)
"""


# -- compiled code ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_step_that_never_returns_from_the_command_line(
    child_environment, fresh_folder, capsys
) -> None:
    """One of four does, side by side with another: it fails, and the search ends by itself."""
    Path("model.py").write_text(HANGS)
    python = [sys.executable, "-c", "from paceline.cli.app import main; main()"]
    words = ["search", "model.py", "--sampler", "grid", "--trials", "4", "--epochs", "2"]
    done = subprocess.run(
        [*python, *words, "--parallel-trials", "2", "--trial-timeout", "6s", "--quiet", "--json"],
        env=child_environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["n_trials"] == {
        "complete": 3,
        "pruned": 0,
        "failed": 1,
        "running": 0,
    }
    assert "continuing in a new process" in done.stderr
    with pytest.raises(SystemExit, match="^0$"):
        main(["trials", "model", "--json"])
    trials = json.loads(capsys.readouterr().out)
    (failed,) = (trial for trial in trials if trial["state"] == "failed")
    assert failed["hparams"]["rate"] == 0.9
    assert failed["reason"] == "trial_timeout: epoch 1 had not finished after 6 s"
    assert all(trial["epochs"] == 2 for trial in trials if trial["state"] == "complete")
    assert not Path("runs/model/checkpoints").exists()


@pytest.mark.slow
def test_a_script_that_meets_one_ends(child_environment, fresh_folder) -> None:
    """``search`` raises, and the interpreter can end although a thread is still in there."""
    Path("script.py").write_text(
        HANGS + "import paceline\n"
        "x, y = toys.data()\n"
        "tuner = paceline.Tuner(build, sampler='grid', parallel_trials=1, plan='vectorized')\n"
        "from paceline.executor.training import rounds\n"
        "check = rounds.check_hung\n"
        "def later(packs, limit):\n"  # the clock runs on where trial 2 trains
        "    for pack in packs:\n"
        "        if pack.began and any(rider.number == 2 for rider in pack.live):\n"
        "            pack.began -= 100.0\n"
        "    check(packs, limit)\n"
        "rounds.check_hung = later\n"
        "tuner.search(x, y, validation_split=0.2, epochs=1, n_trials=4, trial_timeout=60.0)\n"
    )

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "script.py"],
            env=child_environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )

    first = run()
    assert first.returncode == 1
    assert "TrialHangError: trial_timeout: an epoch of trial 2 has not finished" in first.stderr
    second = run()
    assert second.returncode == 0, second.stderr


@pytest.fixture
def blocked(monkeypatch):
    """Epochs of packs that hold a trial named here do not end before the test does."""
    release, names = threading.Event(), set()
    run_epoch = Pack.run_epoch

    def blocks(self: Pack) -> Any:
        if names & {rider.number for rider in self.live}:
            self.began = time.perf_counter() - 1000.0
            release.wait()
        return run_epoch(self)

    monkeypatch.setattr(Pack, "run_epoch", blocks)
    yield names
    release.set()


@pytest.mark.slow
def test_neighbours_of_one_that_does_not_come_back_go_on(make, blocked) -> None:
    whole = make(toys.dense, study="whole", plan="vectorized")
    whole.search(X, Y, **CALL)
    blocked.add(1)
    with pytest.raises(
        paceline.TrialHangError, match=r"trials 0, 1 has not finished.*at least one of them"
    ):
        make(toys.dense, plan="vectorized").search(X, Y, trial_timeout=60.0, **CALL)
    assert make(toys.dense).results().empty or "failed" not in set(make(toys.dense).results().state)
    with pytest.raises(
        paceline.TrialHangError, match=r"trial 1 has not finished.*\(it has failed\)"
    ):
        make(toys.dense, plan="vectorized").search(X, Y, trial_timeout=60.0, **CALL)
    again = make(toys.dense, plan="vectorized")
    again.search(X, Y, trial_timeout=60.0, **CALL)
    results = again.results().set_index("number")
    assert results.state.tolist() == ["complete", "failed", *["complete"] * 4]
    assert results.reason[1] == "trial_timeout: epoch 1 had not finished after 60 s"
    for number in (0, 2, 3, 4, 5):
        for name, values in whole.history(number).items():
            # In other slots, whose order of sums may differ: 0 measured.
            assert again.history(number)[name] == pytest.approx(values, rel=1e-5, abs=1e-6)


class Replaced(BaseException):
    """Stands for the new process, which begins where the command stood."""


@pytest.mark.slow
def test_the_command_goes_on_in_new_processes(blocked, monkeypatch, capsys) -> None:
    Path("model.py").write_text(toys.MODEL_FILE)

    def start_again(text: str) -> None:
        monkeypatch.setenv("PACELINE_ENDS_AT", "")
        raise Replaced(text)

    words = "search model.py --sampler random --trials 4 --epochs 2 --plan vectorized".split()
    monkeypatch.setattr(
        sys, "argv", ["paceline", *words, "--parallel-trials", "2", "--trial-timeout", "60s"]
    )
    monkeypatch.setattr(restart, "own", False)  # ``main`` sets it: the words are the process's
    monkeypatch.setattr(wall, "start_again", start_again)
    monkeypatch.setattr(wall, "may_watch", lambda: False)  # nor one behind the wall
    monkeypatch.setenv("GLIBC_TUNABLES", "")  # no process for large pages
    blocked.add(1)
    for text in (
        "trials 0, 1 has not finished",
        "trial 1 has not finished",
    ):  # together, then apart
        with pytest.raises(Replaced, match=text):
            main()
    with pytest.raises(SystemExit, match="^0$"):
        main()
    with pytest.raises(SystemExit, match="^0$"):
        main(["trials", "model", "--json"])
    trials = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [one["state"] for one in trials] == ["complete", "failed", "complete", "complete"]
    assert trials[1]["reason"] == "trial_timeout: epoch 1 had not finished after 60 s"


def test_the_second_signal_ends_a_search_that_waits_for_such_a_step(make, blocked) -> None:
    import os

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.get_ident()
    blocked.add(0)

    def press() -> None:
        for _ in range(2):
            time.sleep(0.2)
            signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=press)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("paceline.executor.local._PATIENCE", 0.1)
            blocks = Pack.run_epoch

            def run_epoch(self: Pack) -> Any:
                thread.start()
                return blocks(self)

            patch.setattr(Pack, "run_epoch", run_epoch)
            with pytest.raises(KeyboardInterrupt, match="^$"):
                make(toys.dense, parallel_trials=6, plan="vectorized").search(X, Y, **CALL)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert os.path.exists("runs/s/checkpoints")


def time_is_up() -> None:
    """A minute passes."""
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.1)


# -- Python code -----------------------------------------------------------------------------------


def test_a_build_that_never_returns(make) -> None:
    def build(hp: Any) -> Any:
        rate = hp.Choice("rate", [0.1, 0.2, 0.3, 0.4])
        while rate == 0.3:
            time_is_up()
            try:
                time.sleep(10.0)
            except Exception:  # even so
                continue
        return toys.softmax()

    tuner = make(build, sampler="grid")
    tuner.search(X, Y, trial_timeout=60.0, **CALL)
    results = tuner.results()
    assert results.state.tolist() == ["complete", "complete", "failed", "complete"]
    assert results.reason[2] == "trial_timeout: build(hp) had not returned after 60 s"
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


class Loops(keras.layers.Layer):
    """Cannot be traced in a lifetime where ``turns`` is large."""

    def __init__(self, turns: int) -> None:
        super().__init__()
        self.turns = turns

    def call(self, x: Any, training: bool = False) -> Any:
        if training and self.turns > 1:
            time_is_up()
        while training and self.turns:
            self.turns -= 1
        return x


def test_a_trace_that_never_ends(make) -> None:
    def build(hp: Any) -> Any:
        turns = hp.Choice("turns", [0, 2**62, 1])
        layers = [keras.Input((toys.FEATURES,)), Loops(turns), keras.layers.Dense(3)]
        return toys.compiled(keras.Sequential([*layers, keras.layers.Softmax()]))

    tuner = make(build, sampler="grid")
    tuner.search(X, Y, trial_timeout=60.0, **CALL)
    results = tuner.results()
    assert results.state.tolist() == ["complete", "failed", "complete"]
    assert results.reason[1] == "trial_timeout: tracing its steps had not finished after 60 s"


class Waits(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        slow = float(self.model.optimizer.learning_rate) > 0.05
        if slow:
            time_is_up()
        while slow:
            pass


@pytest.mark.slow
def test_fit_that_never_ends(make) -> None:
    def build(hp: Any) -> Any:
        return toys.compiled(toys.softmax(), hp.Choice("lr", [0.01, 0.1, 0.02]))

    tuner = make(build, sampler="grid", executor="fit")  # packs call it between batches
    tuner.search(X, Y, callbacks=[Waits()], trial_timeout=60.0, **CALL)
    results = tuner.results()
    assert results.state.tolist() == ["complete", "failed", "complete"]
    assert results.reason[1] == "trial_timeout: its training had not finished after 60 s"


def test_code_that_cannot_be_interrupted_is_told_of(monkeypatch) -> None:
    from paceline.tuner.search import timeouts

    monkeypatch.setattr(timeouts, "_GRACE", 0.05)
    told = threading.Event()
    monkeypatch.setattr(timeouts, "_can_interrupt", lambda: False)
    assert run_with_timeout(0.05, lambda: told.wait(10.0), "x", lambda text: told.set()) is True


# -- between epochs --------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["auto", pytest.param("fit", marks=pytest.mark.slow)])
def test_a_trial_whose_epochs_take_too_long(make, monkeypatch, executor) -> None:
    def slow(report: EpochReport) -> EpochReport:
        return dataclasses.replace(report, wall=20.0 if report.number == 2 else 1.0)

    observe_reports(monkeypatch, before=slow)
    tuner = make(toys.dense, executor=executor)
    tuner.search(X, Y, trial_timeout=30.0, **(CALL | {"epochs": 3, "n_trials": 4}))
    results = tuner.results()
    assert results.state.tolist() == ["complete", "complete", "failed", "complete"]
    assert results.reason[2] == "trial_timeout: 40 s for 2 epochs are more than 30 s"
    assert results.epochs.tolist() == [3, 3, 2, 3]


@pytest.mark.parametrize("value", [0, -1.0, "10m", True])
def test_what_is_no_time(make, value) -> None:
    with pytest.raises(paceline.UsageError, match="trial_timeout must be a number of seconds"):
        make(toys.dense).search(X, Y, trial_timeout=value, **CALL)
