"""Ctrl-C while a session and its process talk: nobody waits for an answer that never comes."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.executor.process import StopSignal
from paceline.executor.session.channel import ANSWER, Channel
from paceline.executor.session.child import SessionLink
from paceline.executor.session.messages import Answered, CallEnded, ProcessCall, Told
from paceline.executor.session.outside import OutsideState
from paceline.executor.session.process import CannotSendError, JaxProcess, ProcessDiedError


class Process(JaxProcess):
    """A process whose part a thread of the test plays; it counts the signals that it is sent."""

    def __init__(self, end: socket.socket, other: Channel) -> None:
        self.other = other  # the end of the process
        self.signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.dead = threading.Event()
        self._child = SimpleNamespace(
            send_signal=self.signals.put, wait=lambda: -9 if self.dead.wait(20) else None
        )
        self._running, self.busy, self._channel = None, False, Channel(end)
        self._inbox = queue.SimpleQueue()
        for target in (self._receive, self._look):
            threading.Thread(target=target, daemon=True).start()


@pytest.fixture(autouse=True)
def ctrl_c_is_heard():
    """A suite in the background of a shell ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def process():
    ours, theirs = socket.socketpair()
    process = Process(ours, Channel(theirs))
    yield process
    process.dead.set()
    process.other.close()
    process._channel.close()


class Unreadable(Exception):
    """It cannot be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one)


def test_what_cannot_be_read_is_said_to_be_so(process) -> None:
    process.other.send(Unreadable(1, 2))
    with pytest.raises(RuntimeError, match="cannot read what the process has sent: TypeError: "):
        process.receive(20)


def _ctrl_c(process, thread_says, functions=None, say=lambda *_: None, *, asked=False) -> object:
    """Runs a call whose process says what a generator yields, which may press Ctrl-C.

    ``asked``: it was pressed before.
    """

    wrong: list[BaseException] = []

    def play() -> None:
        try:
            for message in thread_says:
                process.other.send(message)
        except BaseException as error:
            wrong.append(error)
        with suppress(OSError):  # the test may have ended the process
            process.other.send(CallEnded("value"))

    call = ProcessCall(len, {}, OutsideState())
    with StopSignal() as stop:
        stop.asked = asked
        threading.Thread(target=play, daemon=True).start()
        try:
            return process.call(call, functions or {}, say, stop)
        finally:
            assert not wrong


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_each_ctrl_c_is_passed_on_once_the_call_has_started(process) -> None:
    begun = threading.Event()

    def says():
        yield Told("begun", ())
        assert begun.wait(20)
        _interrupt()
        time.sleep(0.3)
        assert process.signals.empty()  # it could not hear them yet
        yield Told("started", ())
        process.signals.get(timeout=20)
        _interrupt()
        process.signals.get(timeout=20)
        assert process.signals.empty()

    assert _ctrl_c(process, says(), {"begun": begun.set}) == "value"


def test_ctrl_c_in_a_function_of_the_session_is_passed_on_before_its_answer(process) -> None:
    def says():
        yield Told("started", ())
        yield Told("progress", (), asked=1)
        frames = [process.other.receive() for _ in range(3)]  # settings, the call, the answer
        assert frames[-1].message() == Answered(1, "seen")
        assert not process.signals.empty()

    def progress() -> str:
        _interrupt()
        return "seen"

    assert _ctrl_c(process, says(), {"progress": progress}) == "value"


def test_a_second_ctrl_c_ends_a_function_of_the_session_with_an_answer(process) -> None:
    def says():
        yield Told("started", ())
        yield Told("progress", (), asked=1)
        frames = [process.other.receive() for _ in range(3)]
        assert frames[-1].message() == Answered(1, failed=True)

    def progress() -> None:
        _interrupt()
        _interrupt()

    with pytest.raises(KeyboardInterrupt, match="^$"):
        _ctrl_c(process, says(), {"progress": progress})


def test_the_answer_to_a_question_that_was_interrupted_answers_no_other() -> None:
    ours, theirs = map(Channel, socket.socketpair())
    link = SessionLink(ours, 0)
    threading.Timer(0.2, _interrupt).start()
    with pytest.raises(KeyboardInterrupt, match="^$"):
        link.ask("first")
    for asked, value in ((1, "of the first"), (2, "of the second")):
        theirs.send(Answered(asked, value), ANSWER)
        link.answers.put(ours.receive())
    assert link.ask("second") == "of the second"
    ours.close()
    theirs.close()


def test_a_process_whose_call_an_interrupt_cuts_short_takes_no_other(process) -> None:
    def interrupted(message, kind) -> None:
        if isinstance(message, ProcessCall):
            raise KeyboardInterrupt

    process._channel.send = interrupted
    with pytest.raises(KeyboardInterrupt, match="^$"):
        process.begin(ProcessCall(len, {}, OutsideState()))
    assert process.busy


def test_the_end_of_the_process_is_seen_again_where_a_function_hides_it(process) -> None:
    process.dead.set()
    for _ in range(2):
        with pytest.raises(ProcessDiedError, match="SIGKILL"):
            process.receive(5.0)


def test_a_second_ctrl_c_before_the_call_has_started_ends_the_wait(process) -> None:
    """The process may load the user's modules for minutes, where no signal reaches it."""
    begun, over = threading.Event(), threading.Event()

    def says():
        yield Told("begun", ())
        assert begun.wait(20)
        _interrupt()
        time.sleep(0.2)
        _interrupt()
        assert over.wait(20)

    with pytest.raises(KeyboardInterrupt, match="^$"):
        _ctrl_c(process, says(), {"begun": begun.set})
    over.set()
    assert process.signals.empty()  # one that loads Keras would die of it
    assert process.busy  # so that it is closed


@pytest.mark.parametrize("error", [KeyboardInterrupt("of a handler"), BrokenPipeError("stdout")])
def test_an_error_in_the_session_before_the_call_has_started_ends_the_wait(process, error) -> None:
    over = threading.Event()

    def says():
        yield Told("say", ("stdout", "loading"))
        assert over.wait(20)

    def say(stream: str, text: str) -> None:
        raise error

    with pytest.raises(type(error), match=str(error)):
        _ctrl_c(process, says(), say=say)
    over.set()
    assert process.signals.empty()


def test_a_call_that_begins_after_ctrl_c_is_interrupted(process) -> None:
    def says():
        yield Told("started", ())
        process.signals.get(timeout=20)

    assert _ctrl_c(process, says(), asked=True) == "value"


def _dies(process) -> None:
    process.dead.set()


def _is_not_read(process) -> None:
    process.other.send(CallEnded(unread="ModuleNotFoundError"))


@pytest.mark.parametrize("ends", [_dies, _is_not_read])
def test_after_ctrl_c_no_other_process_takes_over(process, ends) -> None:
    """A call that dies or cannot be read is done again, by another process or by the session."""
    begun, over = threading.Event(), threading.Event()

    def says():
        yield Told("started", ())
        yield Told("begun", ())
        assert begun.wait(20)
        _interrupt()
        process.signals.get(timeout=20)
        ends(process)
        assert over.wait(20)

    with pytest.raises(KeyboardInterrupt, match="^$"):
        _ctrl_c(process, says(), {"begun": begun.set})
    over.set()


@pytest.mark.parametrize(
    ("ends", "error"), [(_dies, ProcessDiedError), (_is_not_read, CannotSendError)]
)
def test_without_ctrl_c_another_process_may_take_over(process, ends, error) -> None:
    over = threading.Event()

    def says():
        yield Told("started", ())
        ends(process)
        assert over.wait(20)

    with pytest.raises(error, match="SIGKILL|ModuleNotFoundError"):
        _ctrl_c(process, says())
    over.set()


def test_the_error_of_a_function_outlives_the_process(process) -> None:
    over = threading.Event()

    def says():
        yield Told("started", ())
        yield Told("progress", (), asked=1)
        [process.other.receive() for _ in range(3)]
        _dies(process)
        assert over.wait(20)

    def progress() -> None:
        raise ZeroDivisionError("of on_progress")

    with pytest.raises(ZeroDivisionError, match="of on_progress"):
        _ctrl_c(process, says(), {"progress": progress})
    over.set()


def test_a_dead_process_is_seen_while_a_fork_of_it_holds_the_connection(process) -> None:
    """Such are the workers of a data loader: nobody ends them, and the other end stays open."""
    process.other.send("last")
    time.sleep(0.1)
    _dies(process)
    assert process.receive(5.0) == "last"
    with pytest.raises(ProcessDiedError, match="SIGKILL"):
        process.receive(5.0)


def test_a_message_to_a_dead_process_is_an_error_while_a_fork_of_it_holds_the_connection(
    process,
) -> None:
    def send() -> None:
        for _ in range(10_000):  # more than the connection holds
            process.send("a" * 1000)

    threading.Timer(0.5, process.dead.set).start()
    with pytest.raises(ProcessDiedError, match="SIGKILL"):
        send()


def test_a_forked_process_cannot_ask_the_session() -> None:
    """The answer would come to the process that was forked, and answer its question."""
    ours, theirs = map(Channel, socket.socketpair())
    link = SessionLink(ours, 0)
    link._owner = -1
    with pytest.raises(RuntimeError, match="only the process that the session has started"):
        link.ask("first")
    ours.close()
    theirs.close()


def test_a_third_ctrl_c_ends_the_wait_for_a_process_that_is_stuck(process) -> None:
    begun, over = threading.Event(), threading.Event()

    def says():
        yield Told("started", ())
        yield Told("begun", ())
        assert begun.wait(20)
        for _ in range(2):
            _interrupt()
            process.signals.get(timeout=20)
        time.sleep(0.2)
        _interrupt()
        assert over.wait(20)

    with pytest.raises(KeyboardInterrupt, match="^$"):
        _ctrl_c(process, says(), {"begun": begun.set})
    over.set()
    assert process.signals.empty()
    assert process.busy  # so that it is closed


class _SlowToRead:
    def __reduce__(self) -> Any:
        return time.sleep, (60,)


@pytest.mark.slow
@pytest.mark.parametrize("imports", [True, False])
def test_ctrl_c_twice_ends_a_process_that_imports_keras_or_the_users_modules(imports: bool) -> None:
    process = JaxProcess()

    def press() -> None:
        while not process.busy:
            time.sleep(0.01)
        for _ in range(2):
            time.sleep(0.3)
            _interrupt()

    def nothing(*_: Any) -> None:
        """What it says is not shown."""

    with StopSignal() as stop:
        if not imports:
            process.call(ProcessCall(str, {}, OutsideState()), {}, nothing, stop)
        threading.Thread(target=press, daemon=True).start()
        call = ProcessCall(dict, {"slow": _SlowToRead()}, OutsideState())
        with pytest.raises(KeyboardInterrupt, match="^$"):
            process.call(call, {}, nothing, stop)
    process.close()


@pytest.mark.slow
def test_a_process_ends_with_a_session_that_is_killed_while_it_starts() -> None:
    """Though a process that the session has forked holds the socket open."""
    code = """if True:
        import os, signal, time
        from paceline.executor.session.process import JaxProcess
        process = JaxProcess()
        if (child := os.fork()) == 0:
            os.close(1)
            time.sleep(60)
            os._exit(0)
        print(process._child.pid, child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    out = subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.PIPE)
    process, child = map(int, out.stdout.split())
    try:
        until = time.monotonic() + 50
        while _runs(process):
            assert time.monotonic() < until
            time.sleep(0.2)
    finally:
        os.kill(child, signal.SIGKILL)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
