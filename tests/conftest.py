"""The strict session: eight devices, no warnings, no file or random state shared with anything.

What a process reads only once (backend, devices, caches) is set here, before JAX or Keras is
imported, as environment variables: the tests of the search side need not wait for JAX to load.
Warnings are errors: pyproject.toml. Nothing may import this file, for it would run, and set all
this, a second time.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

import servers

# pytest-xdist's workers are children of the process that made the folder, and share it.
_WORKER = "PYTEST_XDIST_WORKER" in os.environ
_SESSION = Path(
    os.environ["PACELINE_TEST_SESSION"] if _WORKER else tempfile.mkdtemp(prefix="paceline-tests-")
)
os.environ["PACELINE_TEST_SESSION"] = str(_SESSION)

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_NUM_CPU_DEVICES"] = "8"  # sharding is tested on every machine
# `make test-backends` runs tests/backends on the others.
os.environ["KERAS_BACKEND"] = os.environ.get("PACELINE_TEST_BACKEND", "jax")
# All compiles in half of the time; what is compiled runs a few batches. Ours are told apart below.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
# The user's Keras settings and compilation caches are neither read nor written.
os.environ["KERAS_HOME"] = str(_SESSION / "keras")
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_SESSION / "cache" / "jax")
# Every program is cached, however small: Keras compiles the same step anew in every ``fit``.
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
# Without a limit: with one, JAX looks at every entry before it adds one, under a lock; that took
# half of the time once there were thousands. Workers share the cache all the same: who meets an
# entry that another is just writing warns (pyproject.toml says no error) and compiles.
os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = "-1"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
os.environ["PACELINE_CACHE_DIR"] = str(_SESSION / "cache" / "paceline")

# The same examples on every run; no deadline, since the first example of many compiles.
hypothesis.settings.register_profile("paceline", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("paceline")


@pytest.hookimpl(optionalhook=True)  # `make test-backends` has no pytest-xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One worker more than cores: a worker often waits for a process, a server or a signal."""
    named = "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ  # which pytest-xdist reads itself
    return None if named else (os.cpu_count() or 1) + 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports and collects without Python's collector, and sets aside for good what is there then.

    Modules and tests stay until the end. Looking for garbage among them took a third of each
    worker's start, and a tenth of the tests. Paceline leaves a collector alone whose user has set
    objects aside: ``collector_of_a_user`` is for tests of what it does with others.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 10, 5)
        gc.enable()


def pytest_unconfigure() -> None:
    if _WORKER:
        return
    shutil.rmtree(_SESSION, ignore_errors=True)


@pytest.fixture(autouse=True)
def fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run every test in an empty folder of its own; its ``runs`` goes there."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(autouse=True, scope="session")
def quickly_compiled() -> Iterator[None]:
    """Compile our programs of short runs at XLA's lowest level too, as those of long runs here.

    The level is one of LLVM's: it decides about speed, and about the last bits of a sum. Users'
    is that of ``tests/numerics`` in float32, and of whatever runs in a process of its own.
    """
    compiling = sys.modules.get("paceline.program.compile")
    with pytest.MonkeyPatch.context() as patch:
        if compiling is not None:  # tests of the search side need not load JAX
            patch.setattr(
                compiling,
                "_QUICK",
                {**compiling._QUICK, "xla_backend_optimization_level": "0"},
            )
        yield


@pytest.fixture(autouse=True)
def same_random_state() -> Iterator[None]:
    """Start every test from one state of ``random`` and NumPy, whatever ran before it."""
    outside = random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(0)
    yield
    random.setstate(outside[0])
    np.random.set_state(outside[1])


@pytest.fixture
def random_state() -> Callable[[], tuple[object, ...]]:
    """A function that returns the state of ``random`` and ``np.random`` in a form that compares."""

    def state() -> tuple[object, ...]:
        kind, keys, *rest = np.random.get_state()
        return random.getstate(), kind, np.asarray(keys).tobytes(), *rest

    return state


@pytest.fixture
def random_state_kept(
    same_random_state: None, random_state: Callable[[], tuple[object, ...]]
) -> Iterator[None]:
    """Fail a test that leaves the user's ``random`` or NumPy random state other than it was."""
    before = random_state()
    yield
    assert random_state() == before, "the user's random state was moved"


@pytest.fixture
def collector_of_a_user() -> Iterator[None]:
    """Python's collector as it is where nobody has touched it."""
    ours = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*ours)
    gc.freeze()


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for a test that counts what is compiled and what is found."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(folder / "paceline"))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder / "jax"))
    return folder


@pytest.fixture
def notes() -> list[str]:
    """What the searches of ``make`` have said."""
    return []


@pytest.fixture
def make(fresh_folder: Path, notes: list[str]) -> Callable[..., Any]:
    """A function that makes tuners of a study that is the same within one test."""
    import paceline
    import toys

    def tuner(build: Any = toys.dense, **arguments: Any) -> paceline.Tuner:
        settings: dict[str, Any] = {
            "sampler": "random",
            "parallel_trials": 2,
            "on_note": notes.append,
        }
        return paceline.Tuner(build, **({"study": "s"} | settings | arguments))

    return tuner


@pytest.fixture
def child_environment() -> dict[str, str]:
    """Environment of a process as a user would start it: one CPU device, this session's caches."""
    environment = dict(os.environ)
    del environment["JAX_NUM_CPU_DEVICES"]
    return environment


@pytest.fixture(scope="session")
def postgresql() -> Iterator[servers.PostgreSQL]:
    """A running PostgreSQL server, for this session alone."""
    if servers.found("initdb") is None or servers.found("postgres") is None:
        pytest.skip("no PostgreSQL server here; on Debian: apt-get install postgresql")
    pytest.importorskip("psycopg", reason='no driver: pip install "paceline[postgresql]"')
    server = servers.PostgreSQL()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def data_file() -> Callable[[str], Path]:
    """Find a real data set by its file name.

    Looks in the folder that PACELINE_DATA names, else in ``shared/data`` beside the checkout. A
    test whose file is missing is skipped, and says which file that was.
    """
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("PACELINE_DATA") or beside)

    def find(name: str) -> Path:
        path = folder / name
        if not path.is_file():
            pytest.skip(f"no {name} in {folder}; PACELINE_DATA names the folder that holds it")
        return path

    return find


@pytest.fixture
def results(tmp_path, monkeypatch) -> Path:
    """Where reports go, not beside those that are committed."""
    folder = tmp_path / "results"
    monkeypatch.setenv("PACELINE_BENCH_RESULTS", str(folder))
    return folder


@pytest.fixture
def benchmark_module(monkeypatch, results):
    """Import a module of the benchmarks, which import each other by name; forgotten afterwards."""
    folder = Path(__file__).resolve().parents[1] / "benchmarks"
    before = set(sys.modules)
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]
