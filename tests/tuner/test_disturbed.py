"""What happens around a search: the clock is set, checkpoints go, the folder turns read-only."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy
import pytest

import paceline
import toys
from marks import slow_where
from paceline.executor.local import LocalExecutor
from stopping import hears_signals, same, stopped_after  # noqa: F401 - a fixture

TESTS = Path(__file__).resolve().parents[1]
X, Y = toys.data()
CALL: dict[str, Any] = {**toys.CALL, "epochs": 4, "n_trials": 6}


@pytest.fixture(autouse=True)
def saved_at_every_round(monkeypatch) -> None:
    monkeypatch.setenv("PACELINE_CHECKPOINT_SECONDS", "0")


@pytest.mark.slow
def test_a_clock_that_is_set_back_and_forth(make, monkeypatch) -> None:
    whole = make(study="whole")
    whole.search(X, Y, **CALL)
    now, jumps = time.time, itertools.cycle([0, 3600, -7200, 86400])
    monkeypatch.setattr(time, "time", lambda: now() + next(jumps))
    with monkeypatch.context() as patch:
        stopped_after(patch, 5)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            make().search(X, Y, **CALL)
    again = make()
    again.search(X, Y, **CALL)
    same(again, whole)


@pytest.mark.slow
def test_checkpoints_that_are_removed_while_the_search_runs(make, monkeypatch) -> None:
    whole = make(study="whole")
    whole.search(X, Y, **CALL)
    advance = LocalExecutor.advance

    def removing(self: LocalExecutor, *arguments: Any) -> None:
        shutil.rmtree("runs/s/checkpoints", ignore_errors=True)
        advance(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(LocalExecutor, "advance", removing)
        stopped_after(patch, 5)  # its checkpoint is written after the last one was removed
        with pytest.raises(KeyboardInterrupt, match="^$"):
            make().search(X, Y, **CALL)
        make().search(X, Y, **CALL)
    same(make(), whole)


@pytest.mark.parametrize(
    "storage",
    slow_where(
        [None, "journal:own.log", "sqlite:///own.db"], lambda storage: storage == "journal:own.log"
    ),
)
def test_a_working_directory_that_a_users_function_changes(storage, monkeypatch, tmp_path) -> None:
    """In ``build`` and between calls: the study and its models stay in one place."""
    here, elsewhere = Path.cwd(), tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(here)  # the test's folder is back at its end

    def build(hp: Any) -> Any:
        os.chdir(elsewhere)
        return toys.compiled(toys.softmax(), hp.Float("lr", 1e-3, 1e-1, sampling="log"))

    tuner = paceline.Tuner(build, study="s", storage=storage, parallel_trials=2)
    tuner.search(X, Y, **CALL)
    assert Path.cwd() == elsewhere
    model = tuner.best_model()
    assert len(tuner.results()) == CALL["n_trials"]
    assert not list(elsewhere.iterdir())
    assert (here / "runs/s/best").is_dir()

    os.chdir(here)
    assert (here / "own.log").is_file() or (here / "own.db").is_file() or storage is None
    again = paceline.Tuner(build, study="s", storage=storage, parallel_trials=2)
    assert list(again.results()["state"]) == ["complete"] * CALL["n_trials"]
    numpy.testing.assert_array_equal(again.best_model().predict(X), model.predict(X))


#: Root may write everywhere, so a process of root's gives that right up.
_UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
READ_ONLY = """\
import os, sys
sys.path.insert(0, {tests!r})
import paceline, toys
from paceline.executor.training import stream
from paceline.executor.local import LocalExecutor

def turn(writable):
    for where, _, files in os.walk("runs/s"):
        os.chmod(where, 0o755 if writable else 0o555)
        for name in files:
            os.chmod(os.path.join(where, name), 0o644 if writable else 0o444)

stream._SLICE = 0.0  # it trains one epoch, where packs stream, too
advance, rounds = LocalExecutor.advance, []

def noted(self, *arguments):
    rounds.append(1)
    if len(rounds) == 5:
        turn(writable=False)
    advance(self, *arguments)

def tuner(study):
    return paceline.Tuner(
        toys.dense, study=study, storage={storage!r}, sampler="random", parallel_trials=2,
        on_note=notes.append,
    )

notes, call = [], {{**toys.CALL, "epochs": 4, "n_trials": 6}}
tuner("whole").search(*toys.data(), **call)
LocalExecutor.advance = noted
try:
    tuner("s").search(*toys.data(), **call)
except paceline.StorageError as error:
    sys.stdout.write(f"{{error}}\\n")
sys.stdout.write("\\n".join(notes) + "\\n")
turn(writable=True)
tuner("s").search(*toys.data(), **call)
columns = ["number", "state", "value", "epochs", "seed"]
assert tuner("s").results()[columns].equals(tuner("whole").results()[columns])
"""


@pytest.mark.slow
@pytest.mark.parametrize("storage", [None, "sqlite:///runs/s/s.db"])
def test_a_folder_that_turns_read_only(storage, child_environment) -> None:
    """Training goes on, the user is told, and when the folder may be written nothing is lost."""
    unprivileged = _UNPRIVILEGED if os.geteuid() == 0 else []
    if unprivileged and shutil.which(unprivileged[0]) is None:
        pytest.skip("root may write everywhere, and there is no setpriv")
    Path("runs/s").mkdir(parents=True)
    done = subprocess.run(
        [*unprivileged, sys.executable, "-c", READ_ONLY.format(tests=str(TESTS), storage=storage)],
        env=child_environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cannot be written" in done.stdout


@pytest.mark.slow
def test_a_policy_that_some_builds_set_is_that_of_their_models(make) -> None:
    seen: list[tuple[bool, str]] = []

    def build(hp: Any) -> Any:
        half = hp.Boolean("half")
        if half:
            keras.config.set_dtype_policy("mixed_bfloat16")
        model = toys.softmax()
        seen.append((half, model.layers[-1].compute_dtype))
        return toys.compiled(model, hp.Float("lr", 1e-2, 1e-1))

    tuner = make(build=build, sampler="random", seed=3)
    try:
        tuner.search(X, Y, **CALL)
        assert {*seen} == {(True, "bfloat16"), (False, "float32")}
        assert keras.config.dtype_policy().name == "float32"
        tuner.best_model()
        assert keras.config.dtype_policy().name == "float32"
    finally:
        keras.config.set_dtype_policy("float32")
