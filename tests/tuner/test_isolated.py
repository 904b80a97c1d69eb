"""``isolate=True``: a search of a session on JAX, in a process whose death costs it nothing."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import paceline
import toys
from paceline import Ray
from paceline.errors import TrialCrashError, UsageError
from paceline.executor.wall.deaths import Death, DeathRecord
from paceline.tuner.search import own_process
from session_scripts import run_script

BUILD = """
import ctypes, pathlib, signal


def once(name):
    path = pathlib.Path(name)
    if path.exists():
        return False
    path.touch()
    return True


built = []


def build(hp):
    units = hp.Int("units", 4, 400)
    built.append(units)
    if pathlib.Path("always").exists() and units > 390:
        ctypes.string_at(0)
    return head(hp, keras.layers.Dense(min(units, 8)))


class Kill(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and pathlib.Path("kill").exists() and once("killed"):
            os.kill(os.getpid(), signal.SIGKILL)


notes = []
how = dict(study="s", sampler="random", share_widths=False, on_note=notes.append)
"""
SEARCH = """
isolate = sys.argv[1:] == []
tuner = paceline.Tuner(build, isolate=isolate, overwrite=True, **how)
tuner.enqueue({"units": 6, "lr": 0.05})
tuner.search(X, Y, **CALL, n_trials="+3", callbacks=[Kill()])
first = len(tuner.results())
tuner.search(X, Y, **CALL, n_trials="+1", callbacks=[Kill()])
hparams = [tuner.trial(n).hparams for n in range(4)]
found(tuner, notes=notes, first=first, built=len(built), hparams=hparams)
"""


@pytest.mark.slow
def test_all_is_as_without(fresh_folder: Path) -> None:
    """To the bit, also after a kill; and a second search of the tuner does not begin anew."""
    Path("kill").touch()
    there = run_script(BUILD + SEARCH, "jax")
    assert Path("killed").exists()
    assert any("was killed (SIGKILL)" in note for note in there["notes"])
    here = run_script(BUILD + SEARCH.replace("sys.argv[1:] == []", "False"), "jax")
    for name in ("histories", "plans", "states", "hparams", "first"):
        assert there[name] == here[name], name
    assert there["first"] == 3 and there["states"] == ["complete"] * 4
    assert there["built"] >= here["built"] >= 5  # what functions note comes back


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_a_trial_that_crashes_fails(fresh_folder: Path, backend: str) -> None:
    """Nor does a session on another backend, which builds what cannot be built there, try it."""
    Path("always").touch()
    code = """
tuner = paceline.Tuner(build, isolate=keras.backend.backend() == "jax", **how)
tuner.enqueue({"units": 395, "lr": 0.05})
tuner.search(X, Y, **CALL, n_trials=3)
found(tuner, notes=notes, error=tuner.trial(0).error)
"""
    there = run_script(BUILD + code, backend)
    assert there["states"] == ["failed", "complete", "complete"]
    assert (
        "2 times with only this trial in the process. Its hyperparameters: units=395"
        in there["error"]
    )


@pytest.mark.slow
def test_what_cannot_be_sent_is_an_error(fresh_folder: Path) -> None:
    code = """
import threading
lock = threading.Lock()
def locked(hp):
    with lock:
        return build(hp)
try:
    paceline.Tuner(locked, isolate=True, **how).search(X, Y, **CALL, n_trials=1)
except paceline.UsageError as error:
    print("FOUND" + json.dumps({"text": str(error)}))
"""
    text = run_script(BUILD + code, "jax")["text"]
    assert text.startswith("isolate: this search can't run in another process: it cannot be")
    assert "remove isolate=True" in text


def test_what_stays_in_the_session_is_an_error(fresh_folder: Path) -> None:
    tuner = paceline.Tuner(toys.dense, isolate=True, study="s", on_note=lambda text: None)
    batches = ((x[None], y[None]) for x, y in zip(*toys.data(), strict=True))
    with pytest.raises(UsageError, match="isolate: this search can't run .* generator is read in"):
        tuner.search(batches, steps_per_epoch=2, n_trials=1, epochs=1)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"isolate": "yes"}, "isolate must be one of True, False, got 'yes'"),
        (
            {"executor": Ray(), "isolate": True},
            "isolate: a cluster can't run in a separate process",
        ),
    ],
)
def test_bad_arguments(more: dict[str, Any], text: str) -> None:
    with pytest.raises(paceline.PacelineError, match=text):
        paceline.Tuner(toys.dense, **more)


def test_a_process_that_dies_again_and_again_is_an_error(
    monkeypatch: pytest.MonkeyPatch, fresh_folder: Path
) -> None:
    def dies(search: Any, process: Any) -> None:
        raise own_process.ProcessDiedError(-signal.SIGKILL)

    class Process:
        class box:
            state = staticmethod(dict)

    class Context:
        def __enter__(self) -> Any:
            return Process

        def __exit__(self, *_: object) -> None:
            pass

    notes: list[str] = []
    monkeypatch.setattr(own_process.SearchInProcess, "_once", dies)
    monkeypatch.setattr(own_process, "process_of_session", Context)
    tuner = paceline.Tuner(toys.dense, isolate=True, study="s", on_note=notes.append)
    with pytest.raises(
        TrialCrashError,
        match="It died 2 times in this search.* No trial had started",
    ):
        tuner.search(*toys.data(), n_trials=1, epochs=1)
    assert len(notes) == 1
    assert (
        DeathRecord([Death(3, memory=False)])
        .note()
        .startswith("the training process exited with status 3. A new")
    )


@pytest.mark.slow
def test_a_search_of_keras_tuner_survives_a_kill(fresh_folder: Path) -> None:
    """In a session on another backend; an isolated tuner is Paceline's own."""
    code = """
from paceline.compat import keras_tuner as kt

tuner = kt.RandomSearch(
    build, objective="val_accuracy", max_trials=4, seed=3, directory="kt", overwrite=True
)
tuner.search(X, Y, callbacks=[Kill()], verbose=0, **CALL)
trials = [tuner.oracle.trials[n] for n in sorted(tuner.oracle.trials)]
print("FOUND" + json.dumps({"status": [t.status for t in trials]}))
"""
    Path("kill").touch()
    there = run_script(BUILD + code, "numpy")
    assert Path("killed").exists() and "was killed (SIGKILL)" in there["stderr"]
    assert there["status"] == ["COMPLETED"] * 4  # with other seeds, as whenever it is retried


@pytest.mark.slow
def test_after_ctrl_c_no_other_process_continues_the_search(fresh_folder: Path) -> None:
    """Such as where memory runs out while the process saves what it has."""
    code = (
        BUILD
        + """
class Dies(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if once("pressed"):
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)


import time

signal.signal(signal.SIGINT, signal.default_int_handler)
tuner, outcome = paceline.Tuner(build, isolate=True, **how), "it ran to its end"
try:
    tuner.search(X, Y, **CALL, n_trials=2, callbacks=[Dies()])
except KeyboardInterrupt:
    outcome = "interrupted"
found(tuner, outcome=outcome)
"""
    )
    assert run_script(code, "jax")["outcome"] == "interrupted"
