"""A search of a session whose Keras does not run on JAX; NumPy's backend stands for all others.

Keras cannot train on NumPy, so whatever is trained here was trained in the other process.
``tests/sessions`` has sessions on TensorFlow and PyTorch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from session_scripts import BEGIN, environment, run_script

SEARCH = """
seen, pids = [], set()
count = 0


class Scale(keras.layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.factor


class Notes(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        seen.append(round(logs["val_loss"], 6))


def build(hp):
    global count
    count += 1
    pids.add(os.getpid())
    if count == 3:
        print("from build")
    units = hp.Int("units", 4, 8, step=4)
    return head(hp, Scale(), keras.layers.Dense(units), keras.layers.Dropout(0.2))


tuner = paceline.Tuner(build, study="s", sampler="random", seed=3)
tuner.search(X, Y, **CALL, n_trials=3, callbacks=[Notes()])
first = set(pids)
tuner.search(X, Y, **CALL, n_trials="+2", callbacks=[Notes()])
model = tuner.best_model()
again = tuner.reproduce(1, X, Y, **CALL, callbacks=[Notes()])
found(
    tuner,
    seen=sorted(seen),
    pids=[sorted(pids - {os.getpid()}), sorted(first - {os.getpid()})],
    count=count,
    probabilities=np.asarray(model.predict(X, verbose=0)).tolist(),
    best=tuner.best_trial.value,
    again=[again.plan, again.history],
)
"""


@pytest.mark.slow
def test_all_is_as_in_a_session_on_jax(fresh_folder: Path) -> None:
    """Histories to the bit, what callbacks and build note, what they print, the best model."""
    there = run_script(SEARCH, "numpy")
    (fresh_folder / "runs").rename("others")
    here = run_script(SEARCH, "jax")
    assert there["backend"] == "numpy" and here["backend"] == "jax"
    assert there["histories"] == here["histories"] and len(here["histories"]) == 5
    assert there["plans"] == here["plans"] and "fit" not in here["plans"]
    assert there["seen"] == here["seen"] and len(here["seen"]) >= 10
    assert there["stdout"].count("from build") == here["stdout"].count("from build") == 1
    # One process, kept for the second search; and what it counts is known here.
    assert there["pids"][0] == there["pids"][1] and len(there["pids"][0]) == 1
    assert not here["pids"][0] and 5 <= here["count"] <= there["count"]
    assert there["best"] == here["best"] and there["again"] == here["again"]
    # 3e-8 measured: one float32 product on each backend.
    np.testing.assert_allclose(there["probabilities"], here["probabilities"], atol=1e-5)
    assert "one after another in Keras' fit" not in there["stderr"]


def test_an_error_of_the_search_comes_with_its_type_and_cause(fresh_folder: Path) -> None:
    code = """
class Odd(Exception):
    pass


def build(hp):
    if hp.Int("units", 4, 64) != 4:
        raise Odd("not so many")
    return head(hp, keras.layers.Dense(4))


try:
    paceline.Tuner(build, study="s", on_note=lambda text: None).search(X, Y, **CALL, n_trials=9)
except paceline.BuildError as error:
    print("FOUND" + json.dumps({"text": str(error), "same": type(error.__cause__) is Odd}))
"""
    found = run_script(code, "numpy")
    assert "Odd: not so many" in found["text"] and found["same"]


@pytest.mark.slow
def test_a_process_that_is_killed_costs_the_search_nothing(fresh_folder: Path) -> None:
    code = """
import signal

def build(hp):
    return head(hp, keras.layers.Dense(4))


class Kill(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and os.path.exists("kill"):
            os.remove("kill")
            os.kill(os.getpid(), signal.SIGKILL)


notes = []
tuner = paceline.Tuner(build, study="s", sampler="random", on_note=notes.append)
if sys.argv[0].endswith("numpy.py"):
    open("kill", "w").close()
tuner.search(X, Y, **CALL, n_trials=3, callbacks=[Kill()])
found(tuner, notes=notes)
"""
    there = run_script(code, "numpy")
    assert there["states"] == ["complete"] * 3 and not Path("kill").exists()
    assert any("SIGKILL); another one goes on" in note for note in there["notes"])
    Path("runs").rename("others")
    assert there["histories"] == run_script(code, "jax")["histories"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_a_session_that_is_stopped_leaves_no_process_and_goes_on(
    number: signal.Signals, fresh_folder: Path
) -> None:
    code = """
def build(hp):
    return head(hp, keras.layers.Dense(4))


class Slow(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        import pathlib, time
        pathlib.Path("pid").write_text(str(os.getpid()))
        time.sleep(0.3 if os.environ.get("LONG") else 0)


tuner = paceline.Tuner(build, study="s", sampler="random", on_note=print)
CALL["epochs"] = 12
try:
    tuner.search(X, Y, **CALL, n_trials=2, callbacks=[Slow()])
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(3)
found(tuner)
"""
    Path("script.py").write_text(BEGIN + code, encoding="utf-8")
    session = subprocess.Popen(
        [sys.executable, "script.py"], env=environment("numpy", LONG="1"), stdout=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while not Path("pid").exists() or not Path("pid").read_text():
        assert session.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    pid = int(Path("pid").read_text())
    assert pid != session.pid
    session.send_signal(number)
    said = session.communicate(timeout=60)[0].decode()
    if number == signal.SIGINT:
        assert session.returncode == 3 and said.count("stopping after this epoch") == 1
        assert said.rstrip().endswith("interrupted") and "2 unfinished trials" in said
    while Path(f"/proc/{pid}").exists() if sys.platform == "linux" else _lives(pid):
        assert time.monotonic() < deadline + 60
        time.sleep(0.1)
    assert run_script(code, "jax")["states"] == ["complete"] * 2


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_the_users_function_sees_the_search_and_may_stop_it(fresh_folder: Path) -> None:
    code = """
def build(hp):
    return head(hp, keras.layers.Dense(4))


def stops(progress):
    looks.append(progress.phase)
    return len(looks) < 3


def raises(progress):
    raise LookupError("of the user")


looks, told = [], []
tuner = paceline.Tuner(build, study="s", on_progress=stops, on_note=told.append)
tuner.search(X, Y, **{**CALL, "epochs": 60}, n_trials=40)
try:
    paceline.Tuner(build, study="t", on_progress=raises, on_note=told.append).search(
        X, Y, **CALL, n_trials=4
    )
except LookupError as error:
    told.append(str(error))
print("FOUND" + json.dumps({"looks": looks, "told": told}))
"""
    found = run_script(code, "numpy")
    assert len(found["looks"]) in (3, 4)
    assert any("stopped by progress" in text for text in found["told"])
    assert found["told"][-1] == "of the user"
