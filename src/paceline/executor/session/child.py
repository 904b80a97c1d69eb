"""What the session's own process does: it runs functions that it is sent, on JAX.

The process ends as soon as its session has ended, whatever it does. Like a session that is killed,
it leaves a checkpoint from which another process continues.
"""

from __future__ import annotations

import io
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from paceline.executor.session.channel import ANSWER, SENT, SETTINGS, Channel, Frame

if TYPE_CHECKING:
    from paceline.executor.session.outside import OutsideWatch

#: Seconds between two looks whether the session still lives.
_LOOK = 1.0


class SessionError(BaseException):
    """A function of the session has raised; no ``except Exception`` of the user's catches it."""


class SessionLink:
    """The session, as the functions that run in its process see it."""

    def __init__(self, channel: Channel, box: int) -> None:
        self._channel = channel
        self.box = box  # the descriptor of the black box that the session reads
        # What the session answers, and what it sends by itself: not yet unpickled.
        self.answers: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self.sent: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._asking = threading.Lock()  # one question at a time
        self._n_asked, self._owner = 0, os.getpid()
        self.watch: OutsideWatch | None = None  # of the call that runs

    def tell(self, name: str, *arguments: Any) -> None:
        """Calls a function of the session by its name, and does not wait for the result."""
        from paceline.executor.session.messages import Told

        self._channel.send(Told(name, arguments))

    def ask(self, name: str, *arguments: Any) -> Any:
        """Calls a function of the session by its name, and returns what it returns.

        Raises SessionError if the function raises. The session itself raises that error in the end.
        Raises RuntimeError in a process that the user's code has forked.
        """
        from paceline.executor.session.messages import Told

        if self._owner != os.getpid():  # the answer would come to the other process
            raise RuntimeError("only the process that the session has started can ask it")
        with self._asking:
            self._n_asked += 1
            self._channel.send(Told(name, arguments, asked=self._n_asked))
            # An interrupt may have ended the wait for an earlier answer.
            while (answer := self.answers.get().message()).asked != self._n_asked:
                pass
        if answer.failed:
            raise SessionError
        return answer.value

    def share(self) -> None:
        """Tells the session what the user's functions have changed here."""
        if self.watch is None or not (changes := self.watch.take_changes()):
            return
        try:
            self.tell("outside", changes)
        except Exception:  # an object may raise anything when it is pickled
            self.watch.put_back(changes)  # the end of the call says what

    def take_shared(self, pickled: bytes) -> None:
        """Takes over what the user's functions have changed in the session."""
        if self.watch is not None:
            self.watch.bring_back(pickle.loads(pickled))

    def receive(self, *, wait: bool = True) -> Any:
        """What the session sends next by itself; None if there is nothing, and it does not wait."""
        try:
            return self.sent.get(block=wait).message()
        except queue.Empty:
            return None


class _SessionStream(io.TextIOBase):
    """A stream whose text the session writes; ``name`` is that of the session's stream."""

    encoding = "utf-8"

    def __init__(self, name: str, link: SessionLink) -> None:
        self._name, self._link = name, link

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        if text:
            with suppress(OSError):
                self._link.tell("say", self._name, str(text))
        return len(text)


def main(descriptor: int, box: int, parent: int) -> None:
    """Serves the session at the other end of a socket until it ends; ``box`` is a black box.

    ``parent`` is the session's process, which may have ended before this one looks.
    """
    from paceline.executor.session.user_modules import ReturningPickler  # loads Keras, as below

    channel = Channel(socket.socket(fileno=descriptor), ReturningPickler)
    link, calls = SessionLink(channel, box), queue.SimpleQueue[Frame]()

    def receive() -> None:
        with suppress(EOFError):
            while True:  # unpickled by the thread that needs it: code of the user's may run then
                frame = channel.receive()
                {ANSWER: link.answers, SENT: link.sent}.get(frame.kind, calls).put(frame)
        os._exit(1)

    def look() -> None:
        # A process that the session has forked may hold the socket open when the session has ended.
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os._exit(1)

    for target in (receive, look):
        threading.Thread(target=target, daemon=True).start()
    from paceline.executor.session.messages import CallEnded

    sys.stdout, sys.stderr = _SessionStream("stdout", link), _SessionStream("stderr", link)
    settings: Frame | None = None
    _hear_nothing()
    while True:
        frame = calls.get()
        if frame.kind == SETTINGS:  # of the next call
            settings = frame
            continue
        assert settings is not None
        ended = _ended(settings, frame, link)
        try:
            channel.send(ended)
        except OSError:
            os._exit(1)
        except Exception as error:
            channel.send(CallEnded(unread=f"{type(error).__name__}: {error}"))


def _hear_nothing() -> None:
    # Not SIG_IGN, which processes that are started would inherit.
    signal.signal(signal.SIGINT, lambda number, frame: None)


def _ended(settings: Frame, frame: Frame, link: SessionLink) -> Any:
    """Does a call as the session's settings want it, and says what came of it."""
    from paceline.executor.session.messages import CallEnded, RaisedError
    from paceline.executor.session.outside import OutsideWatch

    link.watch = None
    try:
        settings.message().apply()
        call = frame.message()
        call.outside.load_modules()
        link.watch = watch = OutsideWatch(call.outside)
    except Exception as error:  # what the user's classes raise when they are read, among others
        return CallEnded(unread=f"{type(error).__name__}: {error}")
    value = failed = None
    try:
        # The session interrupts what has started, and nothing else: no message gets lost.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        link.tell("started")
        value = call.function(link, **call.arguments)
        _hear_nothing()
    except BaseException as error:
        _hear_nothing()
        failed = RaisedError.of(error)
    return CallEnded(value, failed, watch.take_changes())
