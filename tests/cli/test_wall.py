"""The command behind its wall: the process that trains dies, is stopped, or ends with the other."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from marks import slow_where
from paceline.study.study import Study
from stopping import hears_signals  # noqa: F401 - a fixture

TESTS = Path(__file__).resolve().parents[1]
#: A command that trains nothing. ``box`` is the black box of the process that trains, ``n`` how
#: many such processes there were before.
COMMAND = """
import ctypes, json, os, pathlib, signal, sys, time
from paceline.cli import output, restart, wall
from paceline.executor.process import StopSignal
from paceline.executor.wall.black_box import BlackBox

restart.own = True
watcher = os.getpid()


@output.exit_codes()
def command():
    wall.take_process()
    box, file = BlackBox.current, pathlib.Path("pids")
    n = len(file.read_text().split()) if file.exists() else 0
    with file.open("a") as pids:
        pids.write(f"{os.getpid()}\\n")
    assert os.getpid() != watcher == os.getppid() or n
    try:
        trains(box, n)
    except KeyboardInterrupt:
        print("saved", flush=True)
        raise


with StopSignal.of_process():
    restart.release_signals()
    command()
"""
WAITS = """
def trains(box, n):
    print("begun", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def as_it_is(child_environment: dict[str, str], fresh_folder: Path) -> dict[str, str]:
    """The environment of a process that is not started again for large pages."""
    return {**child_environment, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}


def words(code: str) -> list[str]:
    Path("command.py").write_text(code.strip() + "\n" + COMMAND)
    return [sys.executable, "command.py"]


def run(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words(code), env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def pids() -> list[int]:
    return [*map(int, Path("pids").read_text().split())]


@contextlib.contextmanager
def begun(code: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        words(code), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        try:
            yield process
        finally:
            process.kill()


def is_gone(pid: int) -> bool:
    for _ in range(100):
        with contextlib.suppress(OSError):
            if ") Z " in Path(f"/proc/{pid}/stat").read_text():  # nobody waits for it
                return True
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("end", ["sys.exit(7)", "raise output.CommandFailed('why')", "pass"])
def test_the_end_of_the_process_is_that_of_the_command(as_it_is, end: str) -> None:
    done = run(f"def trains(box, n):\n    print('said')\n    {end}", as_it_is)
    code = {"sys.exit(7)": 7, "pass": 0}.get(end, 1)
    assert (done.returncode, done.stdout) == (code, "said\n")
    assert done.stderr == ("paceline: failed: why\n" if code == 1 else "")


def test_another_process_knows_what_was_under_way(as_it_is) -> None:
    code = """
def trains(box, n):
    if n == 0:
        box.begin(24)
        box.ends_at(time.time() + 1000)
        box.trains([1, 2])
        print("first", flush=True)
        ctypes.string_at(0)
    goes_on, left = restart.inherited()
    print(json.dumps([n, box.begun, goes_on, 900 < left < 1000, box.deaths[0]["trials"]]))
"""
    done = run(code, as_it_is)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "first"
    assert json.loads(second) == [1, {"n_trials": 24}, True, True, [[1, {}], [2, {}]]]
    assert done.stderr == (
        "paceline: the training process crashed (SIGSEGV). A new process continues from the last "
        "checkpoint with one trial at a time\n"
    )


def test_a_process_that_is_stuck_is_followed_by_another_one(as_it_is) -> None:
    code = """
def trains(box, n):
    if n == 0:
        box.begin(24)
        box.ends_at(time.time() + 1000)
        wall.start_again("a step hangs")
    continues, left = restart.inherited()
    print(json.dumps([n, box.begun, continues, 900 < left < 1000, box.deaths]))
    box.ends_at(time.time() - 1)
    wall.start_again("too late")
    print("returned")
"""
    done = run(code, as_it_is)
    assert done.returncode == 0, done.stderr
    second, last = done.stdout.splitlines()
    assert json.loads(second) == [1, {"n_trials": 24}, True, True, []]
    assert last == "returned"
    assert done.stderr == "paceline: a step hangs; continuing in a new process\n"


def test_a_process_that_dies_again_and_again_is_given_up(as_it_is) -> None:
    """Before a search has begun twice; later so often that five trials are found guilty."""
    kills = "os.kill(os.getpid(), signal.SIGKILL)"
    done = run(f"def trains(box, n):\n    {kills}", as_it_is)
    assert done.returncode == 1 and len(pids()) == 2
    assert "It died 2 times in this search, which stops now. No trial had started" in done.stderr
    Path("pids").unlink()
    done = run(f"def trains(box, n):\n    box.begin(9)\n    {kills}", as_it_is)
    assert done.returncode == 1 and len(pids()) == 12


@pytest.mark.parametrize(
    ("number", "to"),
    slow_where(
        itertools.product([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ["watcher", "both"]),
        lambda case: case not in [(signal.SIGINT, "both"), (signal.SIGTERM, "watcher")],
    ),
)
def test_a_signal_is_heard_once_whomever_it_is_sent_to(as_it_is, number: int, to: str) -> None:
    """Ctrl-C reaches both; ``kill`` one. Heard twice, it would end the search at once."""
    code = """
heard = []


def hears(number, frame):
    heard.append(number)


def trains(box, n):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, hears)
    print("begun", flush=True)
    until = time.monotonic() + 60
    while not heard and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.6)
    print(len(heard))
    sys.exit(130)
"""
    with begun(code, as_it_is) as process:
        (child,) = pids()
        for pid in [process.pid] if to == "watcher" else [process.pid, child]:
            os.kill(pid, number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "1\n", "")


def test_a_search_that_is_stopped_saves_and_ends(as_it_is) -> None:
    with begun(WAITS, as_it_is) as process:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "saved\n", "paceline: interrupted\n")


def test_who_is_stopped_and_killed_is_not_started_again(as_it_is) -> None:
    code = """
def trains(box, n):
    signal.signal(signal.SIGTERM, lambda *_: None)
    print("begun", flush=True)
    for _ in range(600):
        time.sleep(0.1)
"""
    with begun(code, as_it_is) as process:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        os.kill(pids()[0], signal.SIGKILL)
        process.communicate(timeout=60)
    assert process.returncode == 130 and len(pids()) == 1


def test_the_process_ends_with_its_watcher(as_it_is) -> None:
    with begun(WAITS, as_it_is) as process:
        (child,) = pids()
        process.kill()
        process.wait()
        assert is_gone(child)


def test_a_process_of_the_users_code_has_no_part_in_the_wall(as_it_is) -> None:
    """It inherits the variable, and nobody watches it: ``paceline`` in it has a wall of its own."""
    code = """
import subprocess


def trains(box, n):
    if n == 0:
        sys.exit(subprocess.run([sys.executable, "command.py"], check=False).returncode)
    print(restart.own, os.environ["PACELINE_WALL"].split(",")[2] == str(os.getppid()))
"""
    done = run(code, as_it_is)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True True\n", "")


def test_a_command_of_another_program_has_no_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.cli import wall

    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a process was started"))
    wall.take_process()


def test_where_no_process_can_be_started_the_command_trains_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from paceline.cli import restart, wall

    def refuses() -> int:
        raise BlockingIOError("too many processes")

    began: list[bool] = []
    monkeypatch.setattr(os, "fork", refuses)
    monkeypatch.setattr(restart, "own", True)
    monkeypatch.setattr(restart, "take_large_pages", lambda: began.append(True))
    wall.take_process()
    assert began == [True] and wall.BlackBox.current is None


def test_what_loads_before_the_wall_is_light(as_it_is) -> None:
    """The process that watches holds its memory as long as the search runs."""
    code = "import sys\nfrom paceline.cli import app, wall\n"
    code += "print(*sorted({n.split('.')[0] for n in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=as_it_is, capture_output=True, text=True, check=True
    )
    assert not {"jax", "keras", "optuna", "numpy", "rich"} & {*done.stdout.split()}


# -- searches --------------------------------------------------------------------------------------

FILE = """\
import ctypes, os, pathlib, signal, sys
sys.path.insert(0, {tests!r})
import keras, toys


def once(name):
    path = pathlib.Path(name)
    if path.exists():
        return False
    path.touch()
    return True


class Kill(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and once("killed"):
            os.kill(os.getpid(), signal.SIGKILL)


def build(hp):
    units = hp.Int("units", 4, 400)
    print("a line of build", flush=True)
    {kill}
    return toys.compiled(
        keras.Sequential([keras.Input((toys.FEATURES,)), keras.layers.Dense(min(units, 16)),
                          keras.layers.Dense(toys.CLASSES, activation="softmax")]),
        hp.Float("lr", 1e-3, 1e-1, sampling="log"),
    )


def data():
    return toys.data(), toys.data(23, seed=1)
"""
SEARCH = ("search", "model.py", "--epochs", "3", "--sampler", "random", "--share-widths", "no")


def search(environment: dict[str, str], kill: str, *more: str) -> subprocess.CompletedProcess[str]:
    Path("model.py").write_text(FILE.format(tests=str(TESTS), kill=kill))
    return subprocess.run(
        [sys.executable, "-m", "paceline", *SEARCH, *more],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def trials() -> list[tuple[object, ...]]:
    return [(t.state, t.hparams, t.seed, t.history) for t in Study("model").trials]


@pytest.mark.slow
def test_a_kill_costs_the_search_nothing(child_environment, fresh_folder) -> None:
    """Nothing but time: the same trials to the bit, each as often as asked for, none anew."""
    more = ("--trials", "+6", "--overwrite", "--timeout", "200s", "--pruner", "none")
    once = 'if units > 90 and once("killed"): os.kill(os.getpid(), signal.SIGKILL)'
    done = search(child_environment, once, *more)
    assert done.returncode == 0, done.stderr
    assert "was killed (SIGKILL)" in done.stderr and Path("killed").exists()
    found = trials()
    assert [trial[0] for trial in found] == ["complete"] * 6
    outlook = Study("model").metadata.meta["outlook"]
    assert search(child_environment, "pass", *more).returncode == 0
    assert trials() == found
    assert Study("model").metadata.meta["outlook"] == outlook


@pytest.mark.slow
def test_trials_that_fit_alone_only_are_trained(child_environment, fresh_folder) -> None:
    """Two models in memory kill here; none of them is the reason, and none fails."""
    kill = """
    from paceline.executor.wall.black_box import BlackBox
    if BlackBox.current is not None and BlackBox.current.state().get("beside"):
        os.kill(os.getpid(), signal.SIGKILL)"""
    done = search(child_environment, kill, "--trials", "4")
    assert done.returncode == 0, done.stderr
    found = [t.state for t in Study("model").trials if t.error is None]
    assert found == ["complete"] * 4
    assert "with one trial at a time" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kill", ["os.kill(os.getpid(), signal.SIGKILL)", "ctypes.string_at(0)"])
def test_a_trial_that_always_kills_has_failed(child_environment, fresh_folder, kill: str) -> None:
    enqueued = [{"units": 390, "lr": 0.01}, {"units": 8, "lr": 0.02}]
    Path("first.json").write_text(json.dumps(enqueued))
    done = search(
        child_environment, f"if units >= 390: {kill}", "--trials", "4", "--enqueue", "first.json"
    )
    assert done.returncode == 0, done.stderr
    found = {t.hparams["units"]: (t.state, t.error) for t in Study("model").trials}
    state, error = found.pop(390)
    assert state == "failed" and error is not None
    assert "times with only this trial in the process" in error and "units=390" in error
    assert [state for state, _ in found.values()] == ["complete"] * 3
    assert f"failed: {error}" in done.stderr.replace("\n", "")
