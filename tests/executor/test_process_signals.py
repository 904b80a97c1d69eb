"""Signals from the start of a search: none is lost, and the process is left as it was."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toys
from paceline.executor import process
from paceline.executor.process import StopSignal
from stopping import hears_signals  # noqa: F401 - a fixture

X, Y = toys.data()
CALL: dict[str, Any] = {**toys.CALL, "n_trials": 4, "epochs": 2}
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def directly(number: int) -> None:
    """Sends this process a signal; the handler runs before this returns."""
    os.kill(os.getpid(), number)
    for _ in range(10):
        pass


def in_a_collection(number: int) -> None:
    """As ``directly``, in a callback of the garbage collector: Python drops what is raised."""

    def callback(phase: str, info: Any) -> None:
        if phase == "start":
            directly(number)

    gc.callbacks.append(callback)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(callback)


def handlers() -> list[Any]:
    return [*map(signal.getsignal, SIGNALS), sys.unraisablehook]


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("send", [directly, in_a_collection])
def test_before_the_search_begins_a_signal_ends_it(make, capfd, send, number) -> None:
    before = handlers()

    def build(hp: Any) -> Any:
        send(number)
        return toys.dense(hp)

    with pytest.raises(KeyboardInterrupt, match="^$"):
        make(build).search(X, Y, **CALL)
    assert handlers() == before
    assert not Path("runs").exists()
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert ("stopping after this step" in said) == (send is in_a_collection)


@pytest.mark.parametrize("send", [directly, in_a_collection])
def test_a_command_hears_signals_while_it_loads(send: Callable[[int], None]) -> None:
    """The command enters the object first, the search finds it later."""
    with StopSignal.of_process() as stop:
        try:
            send(signal.SIGTERM)
        except KeyboardInterrupt:
            assert send is directly
        with StopSignal.of_process() as again:
            assert again is stop
        with pytest.raises(KeyboardInterrupt, match="^$"):
            StopSignal.of_process().check()


def test_the_first_signal_of_a_deferred_block_is_noted_only(capfd) -> None:
    with StopSignal.of_process() as stop:
        stop.check()
        with stop.deferred():
            directly(signal.SIGHUP)
            assert stop.asked
            with pytest.raises(KeyboardInterrupt, match="^$"):
                directly(signal.SIGINT)
    assert "stopping after this epoch; press Ctrl-C again to stop now" in capfd.readouterr().err


def test_what_is_ignored_stays_ignored() -> None:
    """As under ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal.of_process():
            directly(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_errors_that_python_drops_are_told_as_before(monkeypatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    class Broken:
        def __del__(self) -> None:
            raise ValueError("dropped")

    with StopSignal.of_process():
        Broken()
    assert [str(each.exc_value) for each in told] == ["dropped"]


def test_a_search_in_another_thread_hears_nothing() -> None:
    found: list[Any] = []

    def search() -> None:
        with StopSignal.of_process() as own:
            found.append(own)

    before = handlers()
    with StopSignal.of_process() as stop:
        thread = threading.Thread(target=search)
        thread.start()
        thread.join(60)
        assert found[0] is not stop
    assert handlers() == before


def test_an_interrupt_waits_while_an_installed_module_loads(tmp_path, monkeypatch) -> None:
    """Raised in the middle of JAX's extensions it ends the process with a segmentation fault."""
    (tmp_path / "module_to_load.py").write_text(
        "import os\nos.kill(os.getpid(), 2)\nlist(map(str, range(1000)))\nwhole = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    loaded: dict[str, Any] = {}

    def load() -> None:
        loaded["module"] = importlib.import_module("module_to_load")
        time.sleep(60)

    try:
        with monkeypatch.context() as patch, StopSignal.of_process():
            patch.setattr(process, "_INSTALLED", (str(tmp_path),))
            with pytest.raises(KeyboardInterrupt, match="^$"):
                load()
        assert loaded["module"].whole
        del sys.modules["module_to_load"], loaded["module"]
        with StopSignal.of_process(), pytest.raises(KeyboardInterrupt, match="^$"):
            load()
        assert not loaded, "the user's own file is interrupted at once"
    finally:
        sys.modules.pop("module_to_load", None)
