"""A search in its own process: whatever ends that process, the command continues.

The user's process loads neither JAX nor Keras. It waits for the process that trains, passes signals
on to it, and starts another one if it dies. Both have the same terminal, folder, streams and group,
so the search looks and asks as if it were alone.
"""

from __future__ import annotations

import itertools
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from paceline.cli import output, restart
from paceline.executor.process import StopSignal, stop_signals
from paceline.executor.wall.black_box import BlackBox
from paceline.executor.wall.deaths import DeathRecord, OutOfMemoryKills, is_fault, may_watch

#: Environment variable of the process that trains: descriptors of its black box and of its
#: connection, and the process that watches it.
_VARIABLE = "PACELINE_WALL"
#: Seconds that a signal takes to reach both processes, if it was sent to both.
_BOTH = 0.2
#: Seconds between two looks at the process that trains.
_LOOK = 1.0


def take_process() -> None:
    """Returns in the process that trains; this process waits for it, and then raises SystemExit.

    If another program has called the command, and on systems without ``fork``, this process trains
    itself. Raises CommandFailed if processes die again and again.
    """
    can_watch = restart.own and may_watch()
    inherited = (_inherited() or _start()) if can_watch else None
    if inherited is None:
        restart.take_large_pages()
        return
    box, connection = inherited
    BlackBox.current = box
    # Each signal that this process gets is reported to the other one, which need not pass it on.
    connection.setblocking(False)
    signal.set_wakeup_fd(connection.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()


def start_again(text: str) -> None:
    """Ends this process, which is stuck as ``text`` says, so that another one continues the search.

    Safe in any thread. Returns if no process watches this one, or the time of the search is over.
    Raises KeyboardInterrupt if a signal has come that was only noted: it would be lost.
    """
    box = BlackBox.current
    moment = None if box is None else box.state().get("ends_at")
    if box is None or (moment is not None and time.time() > moment):
        return
    StopSignal.of_process().check()
    output.say(f"{text}; continuing in a new process")
    sys.stdout.flush()
    sys.stderr.flush()
    box.again()
    os._exit(output.INTERRUPTED)  # the code of the command if a signal stops it now


def _inherited() -> tuple[BlackBox, socket.socket] | None:
    """What a process that trains got from the one that watches it; None in other processes."""
    numbers = os.environ.get(_VARIABLE, "").split(",")
    if len(numbers) != 3 or numbers[2] != str(os.getppid()):
        return None  # a process of the user's code may have the variable, too
    box, connection = map(int, numbers[:2])
    for descriptor in (box, connection):
        os.set_inheritable(descriptor, False)
    restart.kept = [box, connection]
    return BlackBox(box), socket.socket(fileno=connection)


def _end_with(connection: socket.socket) -> None:
    """Ends this process as soon as the one that watches it ends."""
    try:
        select.select([connection], [], [])
        connection.recv(1)  # nothing is ever sent
    except ConnectionResetError:
        pass
    except OSError:  # the user's code has closed all files
        return
    os._exit(output.FAILED)


def _start() -> tuple[BlackBox, socket.socket] | None:
    """Starts processes until one ends and needs no other; returns only in these processes.

    None: no process can be started, so this one must train.
    """
    box, kills = BlackBox(), OutOfMemoryKills()
    record = DeathRecord()
    for number in itertools.count():
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        with _signals_wait():
            try:
                child = os.fork()
            except OSError:  # the system allows no more processes, or has no memory for them
                for end in (ours, theirs):
                    end.close()
                if number:
                    raise
                box.close()
                return None
            if child == 0:
                ours.close()
                break
            theirs.close()
            watch = _Watch(child, ours)
        code = watch.wait()
        ours.close()
        is_stuck = "again" in box.state()
        if watch.stopped or not (is_stuck or is_fault(code)):
            raise SystemExit(_exit_code(code, stopped=watch.stopped))
        if not is_stuck:
            record.add(code, box.state(), memory=kills.happened())
            _mend_terminal()
            if record.hopeless:
                raise output.CommandFailed(f"{record.note()}. {record.what_to_do}")
            output.say(record.note())
        _hand_over(box, record)
    parts = box.descriptor, theirs.fileno(), os.getppid()
    os.environ[_VARIABLE] = ",".join(map(str, parts))
    restart.kept = [*parts[:2]]
    restart.take_large_pages(forked=sys.platform == "darwin")
    return BlackBox(box.descriptor), theirs


def _hand_over(box: BlackBox, record: DeathRecord) -> None:
    """Leaves the facts that the next process needs."""
    state = box.state()
    if "ends_at" in state:
        restart.continue_until(state["ends_at"])
    box.clear()
    box.deaths = record.to_json()


def _exit_code(code: int, *, stopped: bool) -> int:
    """The command's exit code for that of the process, which is negative after a signal."""
    if code >= 0:
        return code
    if stopped or -code in stop_signals():
        return output.INTERRUPTED
    output.say(f"failed: the training process was stopped by signal {-code}")
    return output.FAILED


def _mend_terminal() -> None:
    """Shows the cursor again, below the drawing of a view that hid it and died."""
    with suppress(OSError, ValueError):
        if sys.stderr.isatty():
            sys.stderr.write("\x1b[?25h\n")
            sys.stderr.flush()


@contextmanager
def _signals_wait() -> Iterator[None]:
    """A block that delays signals that stop the command."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Watch:
    """Waits for a process, and passes on the signals that the process did not get itself.

    Ctrl-C and signals to the group reach both processes. A signal to one process reaches only that
    one. Handlers are set from the constructor on, until ``wait`` ends.
    """

    def __init__(self, child: int, connection: socket.socket) -> None:
        self._child, self._connection = child, connection
        connection.setblocking(False)
        self._wake, self._woken = socket.socketpair()
        for end in (self._wake, self._woken):
            end.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._woken.fileno(), warn_on_full_buffer=False)
        hears = [n for n in stop_signals() if signal.getsignal(n) != signal.SIG_IGN]
        self._stops = set(hears)
        self._before: dict[int, Any] = {
            number: signal.signal(number, lambda number, frame: None)
            for number in (*hears, signal.SIGCHLD)
        }
        self.stopped = False  # whether somebody has asked the command to stop
        self._due: tuple[float, int] | None = None  # when to pass on a signal, and which
        self._closed = False  # whether the process has closed its end
        self._theirs = 0.0  # when the process last got a signal

    def wait(self) -> int:
        """The exit status of the process, as of ``subprocess``."""
        try:
            while True:
                pid, status = os.waitpid(self._child, os.WNOHANG)
                if pid:
                    return os.waitstatus_to_exitcode(status)
                self._listen()
        finally:
            with _signals_wait():
                signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=True)
                for number, handler in self._before.items():
                    signal.signal(number, handler)
                self._wake.close()
                self._woken.close()

    def _listen(self) -> None:
        now = time.monotonic()
        seconds = _LOOK if self._due is None else max(0.0, self._due[0] - now)
        ends = [self._wake, self._connection]
        ready, _, _ = select.select(ends if not self._closed else [self._wake], [], [], seconds)
        now = time.monotonic()
        if self._wake in ready:
            for number in set(self._wake.recv(4096)) & self._stops:
                self.stopped = True
                if self._due is None:
                    self._due = now + _BOTH, number
        if self._connection in ready:
            self._hear_theirs(now)
        if self._due is not None and now >= self._due[0]:
            (when, number), self._due = self._due, None
            if self._theirs < when - 2 * _BOTH:
                with suppress(ProcessLookupError):
                    os.kill(self._child, number)

    def _hear_theirs(self, now: float) -> None:
        heard = b""
        with suppress(OSError):
            heard = self._connection.recv(4096)
        if not heard:
            self._closed = True
        elif set(heard) & {*map(int, stop_signals())}:
            self._theirs = now
            self.stopped = True
