"""The job factory of the guide for jobs, as it is written: submitted, stopped, and gone on with."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pages
from paceline.study.view import StudyView

GUIDE = "docs/guides/cluster.md"
HEAD, FOLDER = "http://head:8265", "/shared/project"  # as the guide says
#: What a sampler that learns proposes depends, on a cluster, on the order in which results come.
HOW = "--trials 16 --epochs 300 --parallel-trials 2 --plan vectorized --sampler random"
#: A file of a user.
MODEL = """
import keras
import numpy as np

X = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
Y = (X[:, 0] + X[:, 1] > 0).astype("int64")


def build(hp):
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dropout(hp.Float("dropout", 0.1, 0.5)),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(hp.Float("rate", 1e-3, 1e-1, sampling="log")),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def data():
    return (X, Y), (X[:16], Y[:16])
"""


def command(holds: str) -> list[str]:
    """The words of a command of the guide."""
    lines = [line for b in pages.blocks(GUIDE) for line in b.text.splitlines() if not b.kind]
    (found,) = (line for line in lines if line.startswith("ray job") and holds in line)
    return shlex.split(found)


def environment() -> dict[str, str]:
    """Commands of this Python come first, and a job that is stopped has time to save."""
    there = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": there, "RAY_JOB_STOP_WAIT_TIME_S": "60"}


def run(words: list[str], folder: Path | None = None) -> str:
    """What a command prints; it must not fail."""
    done = subprocess.run(
        words, env=environment(), cwd=folder, text=True, timeout=300, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def is_up(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True  # it asks for a token
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def head() -> Iterator[str]:
    """The address of the dashboard of a head with two cores, for jobs."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        words = [
            "ray", "start", "--head", "--block", "--port=0", f"--temp-dir={folder}",
            "--dashboard-host=127.0.0.1", f"--dashboard-port={port}",
            "--dashboard-agent-listen-port=0", f"--ray-client-server-port={free_port()}",
            "--num-cpus=2", "--object-store-memory=100000000",
        ]  # fmt: skip
        log = Path(folder) / "log"
        with log.open("w") as out:
            process = subprocess.Popen(words, env=environment(), stdout=out, stderr=out)
        try:
            url, ends = f"http://127.0.0.1:{port}", time.monotonic() + 90
            while not is_up(f"{url}/api/version"):
                assert process.poll() is None and time.monotonic() < ends, log.read_text()
                time.sleep(0.2)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)  # which ends the cluster
            try:
                process.wait(60)
            finally:
                process.kill()
                process.wait()


@pytest.fixture
def project(fresh_folder: Path) -> Path:
    """The folder of the head that holds the user's file."""
    (fresh_folder / "model.py").write_text(MODEL)
    return fresh_folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """What the search finds on one machine."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "model.py").write_text(MODEL)
    run(["paceline", "search", "model.py", *HOW.split()], folder)
    return histories(folder, "model")


def submitted(head: str, project: Path, holds: str, more: str = "", *options: str) -> str:
    """What a command of the guide prints on this cluster, with further arguments."""
    words = command(holds)
    at = words.index("--")
    words = [*words[:at], *options, *words[at:], *more.split()]
    assert HEAD in words and f"--chdir={FOLDER}" in words
    here = {HEAD: head, f"--chdir={FOLDER}": f"--chdir={project}"}
    return run([here.get(word, word) for word in words])


def histories(folder: Path, study: str) -> dict[int, Any]:
    view = StudyView.open(study, directory=folder / "runs")
    found = [] if view is None else view.trials
    return {trial.number: (trial.state, trial.hparams, trial.history) for trial in found}


def some_trial_has_ended(folder: Path, study: str) -> bool:
    return any(state == "complete" for state, *_ in histories(folder, study).values())


def test_a_search_that_is_submitted_as_a_job(
    head: str, project: Path, undisturbed: dict[int, Any]
) -> None:
    said = submitted(head, project, "paceline search", HOW)
    assert "16 trials (16 complete)" in said and "succeeded" in said
    assert histories(project, "images") == undisturbed


def test_a_job_that_is_stopped_saves_and_goes_on(
    head: str, project: Path, undisturbed: dict[int, Any]
) -> None:
    submitted(head, project, "paceline search", HOW, "--no-wait", "--submission-id=stopped")
    ends = time.monotonic() + 120
    while not some_trial_has_ended(project, "images"):
        assert time.monotonic() < ends
        time.sleep(0.1)
    run(["ray", "job", "stop", "--address", head, "stopped"])
    said = run(["ray", "job", "logs", "--address", head, "stopped"])
    assert "paceline resume images" in said, said
    assert "was stopped" in run(["ray", "job", "status", "--address", head, "stopped"])
    assert list((project / "runs/images/checkpoints").glob("*.safetensors"))
    assert {state for state, *_ in histories(project, "images").values()} > {"complete"}
    said = submitted(head, project, "paceline resume")
    assert "resuming from the last checkpoint" in said
    assert histories(project, "images") == undisturbed
