"""Ctrl-C while a session and its process talk: nobody waits for an answer that never comes."""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from paceline.executor.process import StopSignal
from paceline.executor.session.channel import ANSWER, Channel
from paceline.executor.session.child import SessionLink
from paceline.executor.session.messages import Answered, CallEnded, ProcessCall, Told
from paceline.executor.session.outside import OutsideState
from paceline.executor.session.process import JaxProcess, ProcessDiedError


class Process(JaxProcess):
    """A process whose part a thread of the test plays; it counts the signals that it is sent."""

    def __init__(self, end: socket.socket, other: Channel) -> None:
        self.other = other  # the end of the process
        self.signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._child = SimpleNamespace(send_signal=self.signals.put)
        self._running, self.busy, self._channel = None, False, Channel(end)
        self._inbox = queue.SimpleQueue()
        threading.Thread(target=self._receive, daemon=True).start()


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
    process.other.close()
    process._channel.close()


def _ctrl_c(process, thread_says, functions=None) -> object:
    """Runs a call whose process says what a generator yields, which may press Ctrl-C."""

    wrong: list[BaseException] = []

    def play() -> None:
        try:
            for message in thread_says:
                process.other.send(message)
        except BaseException as error:
            wrong.append(error)
        process.other.send(CallEnded("value"))

    call = ProcessCall(len, {}, OutsideState())
    with StopSignal() as stop:
        threading.Thread(target=play, daemon=True).start()
        try:
            return process.call(call, functions or {}, lambda *_: None, stop)
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
    process._child.wait = lambda: -9
    process.other.close()
    for _ in range(2):
        with pytest.raises(ProcessDiedError, match="SIGKILL"):
            process.receive(5.0)
