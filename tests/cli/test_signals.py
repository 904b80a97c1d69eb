"""Ctrl-C, SIGTERM and SIGHUP, at any moment of a command: it saves what there is, and ends."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from paceline.study.study import Study
from stopping import hears_signals  # noqa: F401 - a fixture

TESTS = Path(__file__).resolve().parents[1]
FILE = """\
import gc, os, signal, sys
sys.path.insert(0, {tests!r})
import toys

def send(where):
    if where == {where!r}:
        def callback(phase, info):
            if phase == "start":
                os.kill(os.getpid(), signal.{number})
                list(map(str, range(10)))
        gc.callbacks.append(callback)
        gc.collect()
        gc.callbacks.remove(callback)

send("file")

def build(hp):
    send("build")
    return toys.dense(hp)

def data():
    send("data")
    return toys.data(), toys.data(23, seed=1)
"""
SEARCH = ("search", "model.py", "--trials", "2", "--epochs", "1", "--parallel-trials", "2")


@pytest.mark.parametrize(
    ("where", "number"), [("file", "SIGINT"), ("data", "SIGHUP"), ("build", "SIGTERM")]
)
def test_a_signal_that_python_drops_ends_the_command(paceline, user_modules, where, number):
    """Sent where JAX's callback of the garbage collector runs, in which no interrupt arrives."""
    Path("model.py").write_text(FILE.format(tests=str(TESTS), where=where, number=number))
    done = paceline(*SEARCH)
    assert (done.code, done.out) == (130, "")
    assert "interrupted" in done.err
    assert "Traceback" not in done.err
    assert not Path("runs").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_command_begins(paceline, monkeypatch, number):
    """Typer makes all commands first; nothing of a command catches an interrupt yet."""
    get_command = typer.main.get_command

    def signalled(app: typer.Typer) -> object:
        os.kill(os.getpid(), number)
        return get_command(app)

    monkeypatch.setattr(typer.main, "get_command", signalled)
    done = paceline(*SEARCH)
    assert (done.code, done.out, done.err) == (130, "", "paceline: interrupted\n")


@pytest.mark.parametrize("number", ["SIGTERM", pytest.param("SIGHUP", marks=pytest.mark.slow)])
def test_a_signal_before_a_study_goes_on_leaves_it_as_it_was(paceline, user_modules, number):
    model = Path("model.py")
    model.write_text(FILE.format(tests=str(TESTS), where="", number=number))
    assert paceline(*SEARCH).code == 0
    model.write_text(FILE.format(tests=str(TESTS), where="build", number=number))
    done = paceline("resume", "model", "--trials", "4")
    assert done.code == 130
    assert "nothing was written" in done.err
    assert [trial.state for trial in Study("model").trials] == ["complete"] * 2


# -- real processes --------------------------------------------------------------------------------

#: The process says when the command begins, so that moments are counted from there; before, it is
#: Python that reads the signal.
PROCESS = """\
import sys
from paceline.cli.app import main
sys.stdout.write("begun\\n")
sys.stdout.flush()
main()
"""
#: As above; a signal comes in the moment in which the process begins again, with large pages.
BEGINS_AGAIN = """\
import os, signal, sys
from paceline.cli.app import main
if "PACELINE_SIGNALS_HELD" not in os.environ:
    execve = os.execve
    def signalled(*given):
        os.kill(os.getpid(), signal.{number})
        execve(*given)
    os.execve = signalled
    from paceline.cli import restart
    restart.with_large_pages = lambda environment: dict(environment)
main()
"""


@pytest.mark.parametrize(
    "number", ["SIGHUP", *(pytest.param(n, marks=pytest.mark.slow) for n in ("SIGINT", "SIGTERM"))]
)
def test_a_signal_while_the_process_begins_again(child_environment, fresh_folder, number):
    Path("model.py").write_text(FILE.format(tests=str(TESTS), where="", number=number))
    done = subprocess.run(
        [sys.executable, "-c", BEGINS_AGAIN.format(number=number), *SEARCH],
        env=child_environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "paceline: interrupted\n")
    assert not Path("runs").exists()


MOMENTS = 14
CHECKPOINTS = Path("runs/model/checkpoints")


@contextlib.contextmanager
def searching(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A search that does not end by itself, in a process that has just begun."""
    words = ["search", "model.py", "--trials", "4", "--epochs", "100000", "--parallel-trials", "2"]
    with subprocess.Popen(
        [sys.executable, "-c", PROCESS, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        try:
            yield process
        finally:
            process.kill()


def first_checkpoint() -> None:
    for _ in range(2400):
        if CHECKPOINTS.exists() and list(CHECKPOINTS.glob("*.safetensors")):
            return
        time.sleep(0.05)
    pytest.fail("the search has not begun")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_at_many_moments_from_the_start(child_environment, fresh_folder, capsys, number):
    """None of them is lost, and what was begun is there to go on with."""
    Path("model.py").write_text(FILE.format(tests=str(TESTS), where="", number="SIGINT"))
    for _ in range(2):  # the first compiles
        shutil.rmtree("runs", ignore_errors=True)
        with searching(child_environment):
            began = time.monotonic()
            first_checkpoint()
            until_then = time.monotonic() - began
    saved = 0
    for moment in range(MOMENTS):
        shutil.rmtree("runs", ignore_errors=True)
        seconds = 1.5 * until_then * moment / MOMENTS
        with searching(child_environment) as process:
            time.sleep(seconds)
            process.send_signal(number)
            _, said = process.communicate(timeout=120)
        code = process.returncode
        with capsys.disabled():
            sys.stdout.write(f"{signal.Signals(number).name} at {seconds:.2f} s: {code}\n")
        if moment == 0 and code in (-number, 1):
            continue  # Python itself, before any code of ours
        assert code == 130, f"at {seconds:.2f} s: {said}"
        assert not re.search("Traceback|Exception ignored", said), f"at {seconds:.2f} s: {said}"
        assert Path("runs").exists() == ("paceline resume model" in said), said
        if re.search(r"interrupted with \d+ unfinished trials", said):
            saved += 1
            assert list(CHECKPOINTS.glob("*.safetensors"))
    assert 0 < saved < MOMENTS - 3, "signals came in one phase only"


@pytest.mark.slow
def test_a_connection_that_drops_saves(child_environment, fresh_folder):
    """The terminal goes: SIGHUP comes, and nothing can be written to stdout and stderr any more."""
    Path("model.py").write_text(FILE.format(tests=str(TESTS), where="", number="SIGINT"))
    main, terminal = os.openpty()
    words = ["search", "model.py", "--trials", "4", "--epochs", "4000", "--parallel-trials", "2"]
    # The process that trains runs this code again, and has the terminal already.
    code = (
        "import fcntl, os, sys, termios\n"
        "if os.getsid(0) == os.getpid():\n    fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code + PROCESS, *words],
        env={**child_environment, "PACELINE_CHECKPOINT_SECONDS": "1000"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    ) as process:
        os.close(terminal)
        first_checkpoint()
        before = set(CHECKPOINTS.glob("*.safetensors"))
        os.close(main)
        try:
            assert process.wait(120) == 130
        finally:
            process.kill()
    assert set(CHECKPOINTS.glob("*.safetensors")) != before
