"""The session's own process, as the session sees it: started when needed, ended with the session.

The process is kept for later calls. It hears no Ctrl-C of the terminal: the session does, and
passes it on.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import keras

from paceline.executor.process import StopSignal
from paceline.executor.session.channel import ANSWER, CALL, SENT, SETTINGS, Channel, Frame
from paceline.executor.session.messages import (
    OWN,
    Answered,
    CallEnded,
    ProcessCall,
    SessionSettings,
)
from paceline.executor.session.outside import OutsideWatch
from paceline.executor.session.user_modules import (
    SendingPickler,
    returned,
    send_classes_anew,
    sent_by_value,
    why_no_classes,
)
from paceline.executor.wall.black_box import BlackBox

#: Run in the process: modules are found where the session finds them.
_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from paceline.executor.session.child import main; main(*map(int, sys.argv[2:]))"
)
#: Seconds between two looks whether a signal has come while the process works.
_LOOK = 0.1


class CannotSendError(Exception):
    """The process cannot run a call: the message says what stands in the way."""


class ProcessDiedError(Exception):
    """The process has ended in the middle of a call; ``code`` is its exit status."""

    def __init__(self, code: int | None) -> None:
        how = f"exit status {code}"
        if code is not None and code < 0:
            with suppress(ValueError):
                how = signal.Signals(-code).name
        super().__init__(f"the process that trains on JAX has ended ({how})")
        self.code = code


class CallIsOver(BaseException):
    """The call has ended while a function of the session, which it has called, was running."""


@dataclass(eq=False)
class _RunningCall:
    """What the session does for a call while it runs."""

    functions: Mapping[str, Callable[..., Any]]
    stop: StopSignal
    watch: OutsideWatch
    hears: bool = False  # whether a signal interrupts the process, as far as is known
    heard: bool = False  # whether the process knows of the signal
    in_function: bool = False  # whether a function of the session runs
    asked: int | None = None  # the question that waits for an answer
    raised: list[BaseException] = field(default_factory=list)  # by functions of the session
    ended: CallEnded | None = None  # once a function of the session has seen the end


def why_none(*, isolate: bool = False) -> str | None:
    """Why this session can have no process of its own; None: it can, and has use for it.

    ``isolate``: it has use for it in any case.
    """
    if keras.backend.backend() == "jax" and not isolate:
        return "Keras runs on JAX here"
    if not hasattr(socket, "send_fds") or not hasattr(socket, "AF_UNIX") or os.name == "nt":
        return "this system has no sockets that pass memory between processes"
    if not sys.executable:
        return "there is no Python interpreter to start (sys.executable is empty)"
    return why_no_classes()


class JaxProcess:
    """A process on JAX, of this session alone; it starts at once, and takes one call at a time.

    ``box`` holds what it does, also when it has died.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.box = BlackBox()
        with theirs:
            given = theirs.fileno(), self.box.descriptor
            words = json.dumps(sys.path), *map(str, given), str(os.getpid())
            self._child = subprocess.Popen(
                [sys.executable, "-c", _MAIN, *words],
                pass_fds=given,
                # TensorFlow's log has told in the session what it would tell again.
                env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, **OWN},
                start_new_session=True,  # Ctrl-C in a terminal reaches the session alone
                stdin=subprocess.DEVNULL,
            )
        self._owner, self._is_closed = os.getpid(), False
        self._running: _RunningCall | None = None
        self.busy = False  # whether a call has begun whose end nobody has seen
        self._channel = Channel(ours, SendingPickler)
        self._inbox: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()  # None: the end
        for target in (self._receive, self._look):
            threading.Thread(target=target, daemon=True).start()
        atexit.register(self.close)

    @property
    def alive(self) -> bool:
        """Whether the process takes calls; never in a process that the session has forked."""
        return self._owner == os.getpid() and self._child.poll() is None

    def begin(self, call: ProcessCall) -> None:
        """Sends a call; ``send`` and ``receive`` serve it until a ``CallEnded`` comes.

        Raises as ``call``, which does all of it.
        """
        with sent_by_value():
            send_classes_anew()
            self._send(SessionSettings.of_session(), SETTINGS)
            self.busy = True
            try:
                self._send(call, CALL)
            except CannotSendError:
                self.busy = False
                raise

    def send(self, value: Any) -> None:
        """Sends what the function that runs in the process takes by ``SessionLink.receive``."""
        self._send(value, SENT)

    def refuse(self, asked: int) -> None:
        """Answers a thread of an earlier call, whose function of the session no longer exists."""
        self._send(Answered(asked, failed=True), ANSWER)

    def receive(self, seconds: float) -> Any:
        """The next ``Told`` or ``CallEnded`` of the process; None if nothing comes in time.

        Raises RuntimeError if it cannot be read; the process may then wait for an answer.
        """
        try:
            frame = self._inbox.get(timeout=seconds)
        except queue.Empty:
            return None
        if frame is None:
            self._inbox.put(None)  # a function of the session may hide the error
            raise ProcessDiedError(self._child.wait())
        try:
            message = frame.message()
        except Exception as error:  # an object may raise anything when it is unpickled
            text = f"{type(error).__name__}: {error}"
            raise RuntimeError(f"cannot read what the process has sent: {text}") from error
        self.busy = self.busy and not isinstance(message, CallEnded)
        return message

    def call(
        self,
        call: ProcessCall,
        functions: Mapping[str, Callable[..., Any]],
        say: Callable[[str, str], None],
        stop: StopSignal,
    ) -> Any:
        """Runs a function in the process, and returns what it returns, or raises what it raises.

        Meanwhile it may call ``functions``, by name, and what it prints is passed to ``say``, the
        name of the stream first. A signal that ``stop`` hears interrupts the function, which may
        save what it has first.

        Raises:
            CannotSendError: The call cannot be sent, or not be read there; it has not begun.
            ProcessDiedError: The process has ended, and nothing has asked it to stop.
            KeyboardInterrupt: Also if a signal comes twice before the function has begun, or three
                times. Then the process takes no other call.
        """
        running: _RunningCall | None = None

        def outside(changes: Any) -> None:
            with suppress(Exception):  # of an object's; the end of the call reports it once more
                watch.bring_back(changes)

        def started() -> None:
            assert running is not None
            running.hears = True

        functions = {**functions, "say": say, "outside": outside, "started": started}
        try:
            self.begin(call)
            watch = OutsideWatch(call.outside)
            self._running = running = _RunningCall(functions, stop, watch)
            ended = self._serve(running)
            if ended.unread is not None:
                raise CannotSendError(ended.unread)
        except (CannotSendError, ProcessDiedError):
            # Whoever calls would do the same in another process, or here.
            if running is not None and running.raised:
                raise running.raised[0] from None
            stop.check()
            raise
        watch.bring_back(ended.outside)
        for text in watch.notes():
            say("stderr", f"paceline: {text}\n")
        if running.raised:
            raise running.raised[0]
        if ended.error is not None:
            raise ended.error.again()
        return ended.value

    def reply(self, value: Any) -> Any:
        """Answers the function of the process that waits, and returns what it answers in turn.

        For a function of the session which the process has called, and which has more than one
        answer. The process answers by asking for "answer".
        """
        assert self._running is not None
        self._answer(self._running, value)
        message = self._serve(self._running, until="answer")
        if isinstance(message, CallEnded):
            self._running.ended = message
            raise CallIsOver
        return message.arguments[0]

    def returned(self) -> bytes:
        """What functions have changed here meanwhile, for the other process, pickled."""
        assert self._running is not None
        with sent_by_value():
            return returned(self._running.watch.take_changes())

    def _send(self, message: Any, kind: int) -> None:
        try:
            self._channel.send(message, kind)
        except OSError:
            raise ProcessDiedError(self._child.wait()) from None
        except Exception as error:  # an object may raise anything when it is pickled
            raise CannotSendError(f"{type(error).__name__}: {error}") from error

    def _serve(self, running: _RunningCall, until: str | None = None) -> Any:
        """Does what the process asks until its call ends, or until it asks for a name."""
        was_in_function, running.in_function = running.in_function, False

        def again() -> None:
            if running.in_function:
                raise KeyboardInterrupt
            self._interrupt(running)
            running.hears = False  # if it is stuck, a third signal ends it

        # The process tells what happens next.
        with running.stop.deferred(lambda text: None, again):
            while running.ended is None:
                try:
                    self._pass_on(running)
                    message = self.receive(_LOOK)
                    if isinstance(message, CallEnded):
                        return message
                    if message is None:
                        continue
                    running.asked = message.asked or running.asked
                    if message.name == until:
                        running.in_function = was_in_function
                        return message
                    self._called(message, running)
                except KeyboardInterrupt as error:  # of a handler of the user's
                    running.in_function = False
                    running.raised.append(error)
                    self._answer(running, failed=True)
                    self._interrupt(running)
        return running.ended

    def _called(self, message: Any, running: _RunningCall) -> None:
        function = running.functions.get(message.name)
        value, failed = None, function is None  # None: asked by a thread of an earlier call
        try:
            if function is not None:
                running.in_function = True
                value = function(*message.arguments)
                running.in_function = False
        except CallIsOver:
            return
        except BaseException as error:
            running.in_function, failed = False, True
            running.raised.append(error)
        if message.asked is not None:
            self._answer(running, value, failed=failed)
        elif failed and function is not None:
            self._interrupt(running)

    def _answer(self, running: _RunningCall, value: Any = None, *, failed: bool = False) -> None:
        """Answers the last question, if it has no answer yet."""
        self._pass_on(running)  # as on JAX, where the search hears it before the function returns
        asked, running.asked = running.asked, None
        if asked is not None:
            self._send(Answered(asked, value, failed), ANSWER)

    def _pass_on(self, running: _RunningCall) -> None:
        if running.stop.asked and running.hears and not running.heard:
            running.heard = True
            self._interrupt(running)

    def _interrupt(self, running: _RunningCall) -> None:
        if not running.hears:
            # At first it loads modules, Keras too: a signal would end it, or not be heard.
            raise running.raised[0] if running.raised else KeyboardInterrupt
        with suppress(ProcessLookupError):
            self._child.send_signal(signal.SIGINT)

    def _receive(self) -> None:
        with suppress(EOFError):
            while True:
                self._inbox.put(self._channel.receive())
        self._inbox.put(None)

    def _look(self) -> None:
        # A process that the user's code has forked there may hold the socket open.
        self._child.wait()
        self._channel.shut_down()

    def close(self) -> None:
        """Ends the process, whatever it does."""
        atexit.unregister(self.close)
        if self._owner != os.getpid() or self._is_closed:
            return
        self._is_closed = True
        self._channel.close()
        try:
            self._child.wait(2.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self.box.close()


#: The processes of this session that nobody uses now.
_free: list[JaxProcess] = []


@contextmanager
def process_of_session() -> Iterator[JaxProcess]:
    """A process that nobody else uses meanwhile, started if there is none; it is kept for later."""
    process = None
    while process is None and _free:
        process = _free.pop()
        if not process.alive:
            process.close()
            process = None
    process = process or JaxProcess()
    try:
        yield process
    finally:
        if process.alive and not process.busy:  # busy: an interrupt came while the call was sent
            _free.append(process)
        else:
            process.close()
