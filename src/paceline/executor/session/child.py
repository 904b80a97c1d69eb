"""What the session's own process does: it runs functions that it is sent, on JAX.

The process ends as soon as its session is gone, whatever it does then: like a session that is
killed, it leaves a checkpoint from which another one goes on.
"""

from __future__ import annotations

import io
import os
import pickle
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from paceline.executor.session.channel import ANSWER, SETTINGS, Channel, Frame

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
        self._answers: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._asking = threading.Lock()  # one question at a time
        self.watch: OutsideWatch | None = None  # of the call that runs

    def tell(self, name: str, *arguments: Any) -> None:
        """Has the session call the function of a name; what it returns is not waited for."""
        from paceline.executor.session.messages import Told

        self._channel.send(Told(name, arguments))

    def ask(self, name: str, *arguments: Any) -> Any:
        """Has the session call the function of a name, and returns what that returns.

        Raises SessionError if it raises: the session knows what, and raises it in the end.
        """
        from paceline.executor.session.messages import Told

        with self._asking:
            self._channel.send(Told(name, arguments, asked=True))
            answer = self._answers.get().message()
        if answer.failed:
            raise SessionError
        return answer.value

    def share(self) -> None:
        """Has what the user's functions have changed here be so in the session, too."""
        if self.watch is None or not (changes := self.watch.take_changes()):
            return
        try:
            self.tell("outside", changes)
        except Exception:  # an object may raise anything when it is pickled
            self.watch.put_back(changes)  # the end of the call says what

    def take_shared(self, pickled: bytes) -> None:
        """Has what the user's functions have changed in the session be so here, too."""
        if self.watch is not None:
            self.watch.bring_back(pickle.loads(pickled))

    def take_answer(self, frame: Frame) -> None:
        """Takes in what answers the question that waits."""
        self._answers.put(frame)


class _SessionStream(io.TextIOBase):
    """A stream whose text the session writes; ``name`` is that of the session's stream."""

    encoding = "utf-8"

    def __init__(self, name: str, say: Callable[[str, str], None]) -> None:
        self._name, self._say = name, say

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        if text:
            with suppress(OSError):
                self._say(self._name, str(text))
        return len(text)


def main(descriptor: int, box: int) -> None:
    """Serves the session at the other end of a socket until it is gone; ``box`` is a black box."""
    from paceline.executor.session.user_modules import ReturningPickler  # loads Keras, as below

    channel, parent = Channel(socket.socket(fileno=descriptor), ReturningPickler), os.getppid()
    link, calls = SessionLink(channel, box), queue.SimpleQueue[Frame]()

    def receive() -> None:
        with suppress(EOFError):
            while True:  # unpickled by the thread that needs it: code of the user's may run then
                frame = channel.receive()
                (link.take_answer if frame.kind == ANSWER else calls.put)(frame)
        os._exit(1)

    def look() -> None:
        # A process that the session has forked may hold the socket open when the session is gone.
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os._exit(1)

    for target in (receive, look):
        threading.Thread(target=target, daemon=True).start()
    from paceline.executor.session.messages import CallEnded, Said

    def say(stream: str, text: str) -> None:
        channel.send(Said(stream, text))

    sys.stdout, sys.stderr = _SessionStream("stdout", say), _SessionStream("stderr", say)
    while True:
        with suppress(KeyboardInterrupt):  # it came after the end of what it was meant for
            ended = _ended(calls.get(), link)
            if ended is None:
                continue
            try:
                channel.send(ended)
            except OSError:
                os._exit(1)
            except Exception as error:
                channel.send(CallEnded(unread=f"{type(error).__name__}: {error}"))


#: Why the last settings could not be applied; None: they were.
_unapplied: str | None = None


def _ended(frame: Frame, link: SessionLink) -> Any:
    """Does what was sent, and says what came of a call; None for settings."""
    global _unapplied
    from paceline.executor.session.messages import CallEnded, RaisedError, SessionSettings
    from paceline.executor.session.outside import OutsideWatch

    link.watch = watch = None
    try:
        message = frame.message()
        if isinstance(message, SessionSettings):
            message.apply()
        else:
            link.watch = watch = OutsideWatch(message.outside)
    except Exception as error:  # what the user's classes raise when they are read, among others
        why = f"{type(error).__name__}: {error}"
        if frame.kind == SETTINGS:
            _unapplied = why
            return None
        return CallEnded(unread=_unapplied or why)
    if isinstance(message, SessionSettings):
        _unapplied = None
        return None
    if _unapplied is not None:
        return CallEnded(unread=_unapplied)
    value = failed = None
    try:
        value = message.function(link, **message.arguments)
    except BaseException as error:
        failed = RaisedError.of(error)
    assert watch is not None
    return CallEnded(value, failed, watch.take_changes())
