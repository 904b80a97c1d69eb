"""Messages between a session and its process, and arrays in memory that both see."""

from __future__ import annotations

import os
import signal
import socket
import threading

import numpy as np
import pytest

from paceline.executor.session import channel
from paceline.executor.session.channel import ANSWER, Channel


@pytest.fixture
def ends():
    ours, theirs = map(Channel, socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def test_a_message_comes_as_it_was_sent(ends) -> None:
    ours, theirs = ends
    ours.send({"a": [1, None, "text"]}, ANSWER)
    frame = theirs.receive()
    assert frame.kind == ANSWER and frame.memory is None
    assert frame.message() == {"a": [1, None, "text"]}


def test_large_arrays_travel_in_memory_and_each_only_once(ends) -> None:
    ours, theirs = ends
    large = np.arange(100_000, dtype="float32").reshape(100, 1000)
    odd = np.arange(70_001, dtype="uint8")
    message = {"x": large, "again": large, "odd": odd, "small": odd[:5], "part": large[:, ::2]}
    ours.send(message)
    frame = theirs.receive()
    assert frame.memory is not None and frame.n_bytes < large.nbytes + odd.nbytes + 128
    assert len(frame.body) < 300_000  # the part, which is not contiguous
    came = frame.message()
    for name, array in message.items():
        np.testing.assert_array_equal(came[name], array)
        assert came[name].dtype == array.dtype
    assert came["again"] is came["x"]
    came["x"][0, 0] = 7.0  # of the receiver's own
    assert large[0, 0] == 0.0
    assert came["odd"].ctypes.data % channel._ALIGNED == 0


def test_functions_are_sent_by_value(ends) -> None:
    ours, theirs = ends
    factor = 3
    ours.send(lambda number: factor * number)
    assert theirs.receive().message()(5) == 15


def test_what_cannot_be_sent_is_an_error_and_the_connection_stays(ends) -> None:
    ours, theirs = ends
    with pytest.raises(TypeError, match="cannot pickle"):
        ours.send(threading.Lock())
    ours.send("next")
    assert theirs.receive().message() == "next"


def test_the_end_of_the_other_process_is_seen(ends) -> None:
    ours, theirs = ends
    theirs.close()
    with pytest.raises(EOFError, match="has ended|peer|closed|descriptor"):
        ours.receive()
    with pytest.raises(OSError, match="pipe|descriptor|reset"):
        ours.send("nobody hears it")


@pytest.fixture
def handler():
    """Sets a handler of SIGINT, as the search's is."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handle: signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGINT, before)


def _received_after(handled: threading.Event, end: Channel, found: list) -> threading.Thread:
    """A thread that interrupts this one, which sends more than the socket holds, and "next"."""

    def receive() -> None:
        while not handled.wait(0.05):
            os.kill(os.getpid(), signal.SIGINT)
        while found[-1:] != ["next"]:
            found.append(end.receive().message())

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    return thread


def test_the_handler_of_a_signal_sends_while_its_thread_sends(ends, handler) -> None:
    """The first Ctrl-C sends a note; a lock that its thread held would never be free again."""
    ours, theirs = ends
    handled, found = threading.Event(), []

    def note(number, frame) -> None:
        if not handled.is_set():
            handled.set()
            ours.send("note")

    handler(note)
    thread = _received_after(handled, theirs, found)
    for _ in range(1000):
        ours.send("a" * 4000)
    ours.send("next")
    thread.join(20)
    assert sorted(map(len, found)) == [4, 4] + [4000] * 1000


def test_an_interrupt_leaves_no_half_message(ends, handler) -> None:
    ours, theirs = ends
    handled, found = threading.Event(), []

    def interrupt(number, frame) -> None:
        if not handled.is_set():
            handled.set()
            raise KeyboardInterrupt

    def send() -> None:
        for _ in range(1000):
            ours.send("a" * 4000)

    handler(interrupt)
    thread = _received_after(handled, theirs, found)
    with pytest.raises(KeyboardInterrupt, match="^$"):
        send()
    ours.send("next")
    thread.join(20)
    assert {*map(len, found[:-1])} == {4000}
    assert found[-1] == "next"


def test_a_forked_process_which_has_no_thread_to_write_sends(ends) -> None:
    """The user's code may fork, and print there."""
    ours, theirs = ends
    ours._owner = -1
    ours.send(np.zeros(100_000))
    assert theirs.receive().message().shape == (100_000,)
    theirs.close()
    with pytest.raises(OSError, match="pipe|descriptor|reset"):
        ours.send("nobody hears it")


def test_a_long_message_without_arrays_keeps_no_descriptor(ends) -> None:
    """Hundreds may wait to be read."""
    ours, theirs = ends
    ours.send("a" * 1_000_000)
    frame = theirs.receive()
    assert frame.memory is None
    assert frame.message() == "a" * 1_000_000


@pytest.mark.filterwarnings("ignore:os.fork")  # which JAX says wherever it was imported before
def test_processes_of_one_fork_send_whole_messages(ends) -> None:
    """Header and body in two writes would mix with those of the other process."""
    ours, theirs = ends

    def send(who: str) -> None:
        for number in range(200):
            ours.send((who, number, "x" * (number * 40)))  # short ones and long ones

    if (forked := os.fork()) == 0:
        send("forked")
        os._exit(0)
    thread = threading.Thread(target=send, args=["own"], daemon=True)
    thread.start()
    found = [theirs.receive().message()[:2] for _ in range(400)]
    assert sorted(found) == [(who, n) for who in ("forked", "own") for n in range(200)]
    thread.join(20)
    assert os.waitpid(forked, 0)[1] == 0


def test_a_message_whose_memory_does_not_come_says_so(ends) -> None:
    frame = channel.Frame(b"", None, 0, ANSWER)
    with pytest.raises(OSError, match="too many files are open"):
        frame.message()


def test_a_message_without_memory_is_no_end_of_the_connection(ends, monkeypatch) -> None:
    """The session would take it for the end of its process, and wait for that."""
    ours, theirs = ends

    def full(name: str = "") -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(channel, "nameless_file", full)
    with pytest.raises(MemoryError, match="no shared memory for a message.*Too many open files"):
        ours.send("a" * 5000)
    ours.send("next")
    assert theirs.receive().message() == "next"
