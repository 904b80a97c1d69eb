"""A search of a session whose Keras does not run on JAX; NumPy's backend stands for all others.

Keras cannot train on NumPy, so whatever is trained here was trained in the other process.
``tests/sessions`` has sessions on TensorFlow and PyTorch.
"""

from __future__ import annotations

import json
import os
import re
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
    print(f"build {count}")
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
    for one in (there, here):  # all that is printed, in its order
        printed = re.findall(r"^build (\d+)$", one["stdout"], re.MULTILINE)
        assert list(map(int, printed)) == list(range(1, one["count"] + 1))
    # One process, kept for the second search; and what it counts is known here.
    assert there["pids"][0] == there["pids"][1] and len(there["pids"][0]) == 1
    assert not here["pids"][0] and 5 <= here["count"] <= there["count"]
    assert there["best"] == here["best"] and there["again"] == here["again"]
    # 3e-8 measured: one float32 product on each backend.
    np.testing.assert_allclose(there["probabilities"], here["probabilities"], atol=1e-5)
    assert "one after another in Keras' fit" not in there["stderr"]


@pytest.mark.slow
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
    same, notes = type(error.__cause__) is Odd, error.__cause__.__notes__
    print("FOUND" + json.dumps({"text": str(error), "same": same, "notes": notes}))
"""
    found = run_script(code, "numpy")
    assert "Odd: not so many" in found["text"] and found["same"]
    (trace,) = found["notes"]
    assert trace.startswith("Raised in the process that trains on JAX:")
    assert "script_numpy.py" in trace and "in build" in trace


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
    assert any("was killed (SIGKILL)" in note for note in there["notes"])
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


@pytest.mark.slow
def test_what_callbacks_change_print_and_display_is_seen_while_they_search(
    fresh_folder: Path,
) -> None:
    pytest.importorskip("IPython")
    code = """
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import HTML, clear_output, display
from traitlets.config import Config

quiet = Config()
quiet.HistoryManager.enabled = False
shell = InteractiveShell.instance(config=quiet)
shell.kernel = shell  # as in a notebook
shown, seen, looks = [], [], []


class Publisher(DisplayPublisher):
    def publish(self, data, metadata=None, **more):
        shown.append(data.get("text/html"))

    def clear_output(self, wait=False):
        shown.append("clear")


shell.display_pub = Publisher(parent=shell, shell=shell)


class Draws(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        seen.append(epoch)
        clear_output(wait=True)
        display(HTML(f"epoch {epoch}"))


def build(hp):
    return head(hp, keras.layers.Dense(4))


def look(progress):
    looks.append([len(seen), len(shown)])


tuner = paceline.Tuner(
    build, study="s", sampler="random", on_note=lambda text: None, on_progress=look
)
tuner.search(X, Y, **{**CALL, "epochs": 40}, n_trials=2, callbacks=[Draws()])
found(tuner, seen=len(seen), shown=shown, looks=looks)
"""
    there = run_script(code, "numpy")
    assert there["states"] == ["complete"] * 2 and there["seen"] == 80
    assert there["shown"].count("epoch 39") == 2 and there["shown"].count("clear") == 80
    assert any(0 < seen < 80 and shown for seen, shown in there["looks"])


@pytest.mark.slow
def test_bench_measures_packs_in_the_process(fresh_folder: Path) -> None:
    code = """
def build(hp):
    return head(hp, keras.layers.Dense(4))


def fails(hp):
    raise LookupError("of the user")


notes = []
sizes = dict(batch_sizes=[10], parallel_trials=[4], measure_for=20.0, on_note=notes.append)
found = paceline.bench(build, X, Y, **sizes)
(run,) = found.runs
plans = [cell.config.plan for cell in run.measured]
error = None
try:
    paceline.bench(fails, X, Y, **sizes)
except paceline.BuildError as raised:
    error = str(raised)
print("FOUND" + json.dumps([run.backend, plans, notes, error]))
"""
    path = Path("bench.py")
    path.write_text(BEGIN + code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "bench.py"],
        env=environment("numpy"),
        capture_output=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr.decode()
    line = done.stdout.decode().splitlines()[-1]
    backend, plans, notes, error = json.loads(line.removeprefix("FOUND"))
    assert backend == "jax" and {"vectorized", "sequential"} & {*plans}
    assert error == "build(hp) failed: LookupError: of the user"
    assert any("a step, " in note for note in notes)
    assert "cannot train in packs: LookupError" in notes[-1]


@pytest.mark.slow
def test_trackers_log_in_the_session_and_storages_may_be_objects(fresh_folder: Path) -> None:
    code = """
import optuna


class Log:
    where = "look here"

    def begin(self, study):
        told.append([os.getpid(), "begin", study.name])

    def log_trial(self, trial):
        told.append([os.getpid(), "trial", trial.number])

    def end(self, best, model):
        told.append([os.getpid(), "end", str(model)])


class Fails(Log):
    def log_trial(self, trial):
        raise LookupError("of the tracker")


def build(hp):
    return head(hp, keras.layers.Dense(4))


told, notes = [], []
storage = optuna.storages.RDBStorage("sqlite:///trials.db")
tuner = paceline.Tuner(
    build,
    study="s",
    storage=storage,
    sampler="random",
    trackers=[Log(), Fails()],
    on_note=notes.append,
)
tuner.search(X, Y, **CALL, n_trials=3)
ours = [each[1:] for each in told if each[0] == os.getpid()]
loaded = optuna.load_study(study_name="s", storage=storage)
found(tuner, told=ours, others=len(told) - len(ours), notes=notes, stored=len(loaded.trials))
"""
    there = run_script(code, "numpy")
    assert there["states"] == ["complete"] * 3 and "fit" not in there["plans"]
    assert there["others"] == 0 and there["stored"] == 3
    assert there["told"].count(["begin", "s"]) == 2
    assert sorted(each for each in there["told"] if each[0] == "trial") == [
        ["trial", 0],
        ["trial", 1],
        ["trial", 2],
    ]
    (end,) = [each for each in there["told"] if each[0] == "end"]
    assert end[1].endswith(".keras")
    assert "Log: look here" in there["notes"]
    (failed,) = [note for note in there["notes"] if note.startswith("Fails no longer logs")]
    assert "LookupError: of the tracker" in failed


@pytest.mark.slow
@pytest.mark.parametrize("first", ["jax", "numpy"])
def test_a_search_goes_on_in_a_session_of_the_other_kind(first: str, fresh_folder: Path) -> None:
    code = """
import signal, time


class Slow(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        time.sleep(0.05 if os.environ.get("STOP") else 0)  # until the search is looked at


def build(hp):
    return head(hp, keras.layers.Dense(hp.Int("units", 4, 8)), keras.layers.Dropout(0.2))


def look(progress):
    if os.environ.get("STOP") and progress.trial_epochs >= 12:
        os.environ.pop("STOP")
        os.kill(os.getpid(), signal.SIGINT)


tuner = paceline.Tuner(
    build, study="s", sampler="random", on_progress=look, on_note=lambda text: notes.append(text)
)
notes = []
try:
    tuner.search(X, Y, **{**CALL, "epochs": 40}, n_trials=6, callbacks=[Slow()])
except KeyboardInterrupt:
    notes.append("interrupted")
found(tuner, notes=notes)
"""
    stopped = run_script(code, first, STOP="yes")
    assert "running" in stopped["states"] and stopped["notes"][-1] == "interrupted"
    second = run_script(code, {"jax": "numpy", "numpy": "jax"}[first])
    assert any("resuming from the last checkpoint" in note for note in second["notes"])
    assert second["states"] == ["complete"] * 6
    Path("runs").rename("others")
    assert second["histories"] == run_script(code, first)["histories"]
