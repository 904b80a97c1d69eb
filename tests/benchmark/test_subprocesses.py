"""A process for each device and each backend."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench_records import measurement, run
from paceline.benchmark.measure import subprocesses
from paceline.benchmark.measure.subprocesses import BenchTarget, measure, places
from paceline.benchmark.presentation.result import Bench
from paceline.benchmark.records import PlannedSearch
from paceline.cli.bench import without_ours
from paceline.errors import MissingExtraError, PacelineError, UsageError


def test_every_combination_has_a_process():
    assert places(["cpu", "gpu"], None) == [BenchTarget("cpu", "jax"), BenchTarget("gpu", "jax")]
    assert places(None, ["jax"]) == [BenchTarget(None, "jax")]
    assert places(["cpu", "cpu"], None) == [BenchTarget("cpu", "jax")]


@pytest.mark.parametrize(
    ("devices", "backends", "message"),
    [
        (["npu"], None, "--devices must be one of cpu, gpu, tpu, got 'npu'"),
        (None, ["theano"], "--keras-backends must be one of jax, tensorflow, torch, got 'theano'"),
    ],
)
def test_unknown_ones_are_refused(devices, backends, message):
    with pytest.raises(UsageError, match=message):
        places(devices, backends)


def test_a_backend_that_is_not_installed_is_said(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else 1)
    with pytest.raises(MissingExtraError, match="torch is not installed; pip install torch"):
        places(None, ["jax", "torch"])
    with pytest.raises(UsageError, match="measures a TPU with jax only"):
        places(["tpu"], ["tensorflow"])


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (BenchTarget(None, "jax"), {}),
        (BenchTarget("gpu", "jax"), {"JAX_PLATFORMS": "cuda", "PACELINE_FALLBACK": "no"}),
        (BenchTarget("cpu", "jax"), {"JAX_PLATFORMS": "cpu", "PACELINE_FALLBACK": "no"}),
        (
            BenchTarget("cpu", "tensorflow"),
            {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""},
        ),
        (BenchTarget("gpu", "torch"), {"JAX_PLATFORMS": "cpu"}),
    ],
)
def test_each_process_is_told_where(place, expected):
    found = place.environment({"HOME": "/h"})
    assert found == {"HOME": "/h", "KERAS_BACKEND": place.backend, **expected}


class Started:
    """Processes that write what they are to have measured."""

    def __init__(self, *results, code=0, interrupts=()):
        self.results, self.code, self.interrupts = list(results), code, list(interrupts)
        self.commands: list[list[str]] = []
        self.environments: list[dict[str, str]] = []

    def __call__(self, command, *, env, stdout):
        assert stdout == subprocess.DEVNULL
        self.commands.append(command)
        self.environments.append(env)
        self.now = self.results.pop(0)
        return self

    def wait(self, timeout=None):
        if self.interrupts:
            raise self.interrupts.pop(0)
        if self.now is not None:
            self.now.save(Path(self.commands[-1][-1]))
        return self.code

    def kill(self):
        self.now = None


CPU = Bench([run(measurement(32, 1000.0))], target_value=0.9, plan=PlannedSearch(8, 2))
GPU = Bench([run(measurement(32, 3000.0), platform="gpu")])
WHERE = [BenchTarget("cpu", "jax"), BenchTarget("gpu", "jax")]


def test_results_are_put_together():
    started, notes = Started(CPU, GPU), []
    found = measure(WHERE, ["a.py", "--seed", "1"], 60.0, notes.append, started)
    assert found.runs == CPU.runs + GPU.runs
    assert (found.target_value, found.plan) == (0.9, PlannedSearch(8, 2))
    assert started.commands[0][3:-1] == [
        "bench",
        "a.py",
        "--seed",
        "1",
        "--measure-for",
        "30.000",
        "-o",
    ]
    assert [env["JAX_PLATFORMS"] for env in started.environments] == ["cpu", "cuda"]
    assert notes == ["measuring on cpu, jax", "measuring on gpu, jax"]


def test_a_device_that_does_not_answer_leaves_the_others():
    started, notes = Started(CPU, None, code=2), []
    assert measure(WHERE, ["a.py"], None, notes.append, started).runs == CPU.runs
    assert "nothing could be measured on gpu, jax (exit code 2)" in notes[-1]
    assert started.commands[0][-3] == "none"


def test_none_that_answers_is_an_error():
    with pytest.raises(PacelineError, match="nothing could be measured; see"):
        measure(WHERE, ["a.py"], None, lambda text: None, Started(None, None, code=2))


def test_an_interrupt_keeps_what_is_there():
    started = Started(CPU, GPU, interrupts=[KeyboardInterrupt()])
    assert measure(WHERE, ["a.py"], None, lambda text: None, started).runs == CPU.runs
    assert len(started.commands) == 1


def test_an_interrupt_of_a_process_that_hangs_ends_it():
    hang = subprocess.TimeoutExpired("x", 1.0)
    started = Started(CPU, interrupts=[KeyboardInterrupt(), hang])
    with pytest.raises(KeyboardInterrupt, match="^$"):
        measure(WHERE, ["a.py"], None, lambda text: None, started)


def test_words_for_one_place():
    words = ["bench", "a.py", "--devices", "cpu,gpu", "--measure-for=5m", "-o", "b.html", "--json"]
    assert without_ours([*words, "--seed", "3", "--keras-backends", "jax"]) == [
        "a.py",
        "--seed",
        "3",
    ]


MODEL = """\
import keras
import numpy as np

def build(hp):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model

def data():
    x = np.zeros((32, 4), "float32")
    y = np.zeros(32, "int64")
    return (x, y), (x, y)
"""


@pytest.mark.slow
def test_a_real_process(child_environment, fresh_folder):
    Path("model.py").write_text(MODEL)
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-c",
                subprocesses._MAIN,
                "bench",
                "model.py",
                "--devices",
                "cpu,tpu",
            ),
            *("--batch-sizes", "32", "--parallel-trials", "1", "--executor", "fit", "--json"),
        ],
        env=child_environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout.splitlines()[-1])
    assert [each["device"]["platform"] for each in value["runs"]] == ["cpu"]
    assert "measuring on tpu, jax" in done.stderr
    assert "nothing could be measured on tpu, jax (exit code 2); see above" in done.stderr
