"""Devices that do not answer: what is used instead, and what is said."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest

from paceline.cli.devices import choose_devices
from paceline.errors import UsageError

LIBTPU = """\
from pathlib import Path

def get_library_path():
    return str(Path(__file__).parents[1] / "libtpu.so")
"""

MODEL = """\
import keras

LOSS = "sparse_categorical_crossentropy"

def build(hp):
    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(10, "softmax")])
    model.compile(keras.optimizers.SGD(hp.Float("lr", 0.01, 0.1)), LOSS)
    return model
"""


def cpu() -> types.SimpleNamespace:
    return types.SimpleNamespace(platform="cpu")


@pytest.fixture
def command(child_environment) -> Callable[..., subprocess.CompletedProcess]:
    """Run ``paceline WORDS...`` in a process of its own, in an environment with some changes."""

    def run(*words: str, **changes: str) -> subprocess.CompletedProcess:
        path = os.pathsep.join(filter(None, [changes.pop("first_path", ""), *sys.path]))
        return subprocess.run(
            [sys.executable, "-c", "from paceline.cli.app import main; main()", *words],
            env={**child_environment, "PYTHONPATH": path, **changes},
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.fixture
def dead_tpu(tmp_path) -> str:
    """A folder with a TPU plugin that finds no TPU."""
    package = tmp_path / "dead" / "libtpu"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBTPU, encoding="utf-8")
    (package / "libtpu.so").touch()
    return str(package.parent)


@pytest.fixture
def platforms() -> Iterator[None]:
    """What JAX's platforms are set to; put back after the test."""
    before = jax.config.jax_platforms
    yield
    jax.config.update("jax_platforms", before)


@pytest.mark.slow
def test_a_named_platform_that_is_not_there_leaves_the_cpu(command):
    done = command("devices", "--json", JAX_PLATFORMS="nosuch")
    assert done.returncode == 0
    assert '"platform": "cpu"' in done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("paceline: ")]
    assert line.startswith("paceline: JAX_PLATFORMS is 'nosuch', which does not answer (")
    assert "is not in the list of known backends" in line
    assert "; using the CPU instead. Set JAX_PLATFORMS=cpu to choose it" in line
    assert "set JAX_PLATFORMS=''" not in line  # JAX's advice; the next sentence is ours


@pytest.mark.slow
@pytest.mark.skipif(any(Path("/dev").glob("nvidia*")), reason="there may be a GPU here")
def test_cuda_without_a_gpu_has_a_reason_too(command):
    done = command("devices", "--json", JAX_PLATFORMS="cuda")
    assert done.returncode == 0
    assert "JAX_PLATFORMS is 'cuda', which does not answer (no such device is visible)" in (
        done.stderr
    )


@pytest.mark.slow
def test_a_tpu_that_jax_passes_over_is_spoken_of(command, dead_tpu):
    done = command("devices", "--json", JAX_PLATFORMS="", first_path=dead_tpu)
    assert done.returncode == 0
    assert '"platform": "cpu"' in done.stdout
    assert "JAX finds a TPU plugin, but no TPU answers (INTERNAL: Failed to open" in done.stderr
    assert "Available backends" not in done.stderr


@pytest.mark.slow
def test_a_search_goes_on_where_the_platform_does_not_answer(command, fresh_folder):
    (fresh_folder / "model.py").write_text(MODEL, encoding="utf-8")
    words = "search model.py --data digits --trials 2 --epochs 1 --json --quiet".split()
    done = command(*words, JAX_PLATFORMS="nosuch")
    assert done.returncode == 0, done.stderr
    assert '"complete": 2' in done.stdout
    assert "paceline: JAX_PLATFORMS is 'nosuch', which does not answer (" in done.stderr
    assert "Traceback" not in done.stderr


def test_whoever_insists_gets_an_error(monkeypatch, platforms):
    monkeypatch.setenv("PACELINE_FALLBACK", "no")
    monkeypatch.setattr("jax.local_devices", failing)
    with pytest.raises(UsageError, match=r"does not answer \(down\), and PACELINE_FALLBACK=no"):
        choose_devices(pytest.fail)


def test_another_word_than_no_is_wrong(monkeypatch):
    monkeypatch.setenv("PACELINE_FALLBACK", "never")
    with pytest.raises(UsageError, match="PACELINE_FALLBACK must be no, or unset, got 'never'"):
        choose_devices(pytest.fail)


def failing(**_: object) -> list[types.SimpleNamespace]:
    raise RuntimeError("down (set JAX_PLATFORMS='' to automatically choose an available backend)")


def test_where_nothing_answers_all_is_as_before(monkeypatch, platforms):
    before = jax.config.jax_platforms
    monkeypatch.setattr("jax.local_devices", failing)
    with pytest.raises(UsageError, match=r"does not answer \(down\), and no other device does"):
        choose_devices(pytest.fail)
    assert jax.config.jax_platforms == before


def test_a_gpu_comes_before_the_cpu(monkeypatch, platforms):
    asked = []

    def devices():
        asked.append(jax.config.jax_platforms)
        if len(asked) == 1:
            raise AssertionError
        return [types.SimpleNamespace(platform="gpu")]

    jax.config.update("jax_platforms", "tpu")
    monkeypatch.setattr("jax.local_devices", devices)
    notes = []
    assert choose_devices(notes.append)[0].platform == "gpu"
    assert asked == ["tpu", "cuda,cpu"]
    assert "using the GPU" in notes[0]


def test_a_gpu_plugin_without_a_gpu_is_spoken_of(monkeypatch, platforms, tmp_path):
    (tmp_path / "jax_plugins" / "xla_cuda13").mkdir(parents=True)
    (tmp_path / "jax_plugins" / "xla_cuda13" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "jax_plugins", raising=False)
    jax.config.update("jax_platforms", "")
    monkeypatch.setattr("jax.local_devices", lambda **_: [cpu()])
    notes = []
    choose_devices(notes.append)
    assert notes[0].startswith(
        "JAX finds a GPU plugin, but no GPU is visible; using the CPU instead"
    )


def test_a_device_that_answers_is_not_spoken_of(monkeypatch, platforms):
    jax.config.update("jax_platforms", "cpu")
    monkeypatch.setattr("jax.local_devices", lambda **_: [cpu()])
    assert choose_devices(pytest.fail) == [cpu()]


def test_waiting_is_explained(monkeypatch, platforms):
    told = threading.Event()

    def slow(**_):
        assert told.wait(timeout=60)
        return [cpu()]

    jax.config.update("jax_platforms", "cpu")
    monkeypatch.setattr("jax.local_devices", slow)
    notes = []

    def note(text: str) -> None:
        notes.append(text)
        told.set()

    choose_devices(note, patience=0.0)
    assert "press Ctrl-C and set JAX_PLATFORMS=cpu" in notes[0]
