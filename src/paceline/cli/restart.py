"""Continues a search in a new process, because a compiled step of this process does not return.

The process replaces itself. Terminal, pid and redirections stay, and the new process runs the same
command line.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import NoReturn

from paceline.cli import output

#: Environment variable that tells the new process when the search is to end, in seconds since 1970
#: (empty: no limit). Without it, ``--timeout`` would begin anew.
_VARIABLE = "PACELINE_ENDS_AT"
#: Environment variable that tells the new process that signals wait for it.
_HELD = "PACELINE_SIGNALS_HELD"


#: Whether the command line is that of this process. A program may call ``paceline.cli.app.main``
#: with words of its own, and then its process must not be replaced.
own = False


class Restart:
    """Replaces this process by a new one, in the folder where this process began."""

    def __init__(self) -> None:
        self._folder = os.getcwd()
        self._ends_at: float | None = None

    def ends_in(self, seconds: float | None) -> None:
        """Notes how many seconds the search may still take; None for no limit."""
        self._ends_at = None if seconds is None else time.time() + seconds

    @property
    def possible(self) -> bool:
        """Whether a new process can replace this one and has time left."""
        late = self._ends_at is not None and time.time() > self._ends_at
        return own and os.name == "posix" and not late

    def now(self) -> NoReturn:
        """Replaces this process by one that continues the search; safe in any thread."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.chdir(self._folder)
        ends_at = "" if self._ends_at is None else str(self._ends_at)
        replace({**os.environ, _VARIABLE: ends_at})


def replace(environment: Mapping[str, str]) -> NoReturn:
    """Replaces this process by one with the same command line and another environment.

    A signal that comes now waits for the new process, where ``release_signals`` lets it in.

    Raises:
        KeyboardInterrupt: A signal has come that was only noted: it would be lost.
    """
    from paceline.executor.process import StopSignal, stop_signals

    before = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
    try:
        StopSignal.of_process().check()
        words = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, words, {**environment, _HELD: "1"})
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def release_signals() -> None:
    """Lets those signals in that came while this process took the place of another one.

    Raises KeyboardInterrupt if there was one.
    """
    from paceline.executor.process import stop_signals

    if os.environ.pop(_HELD, None) is not None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stop_signals())


def end(text: str) -> NoReturn:
    """Ends the process as failed, whatever its other threads do; safe in any thread."""
    output.say(f"failed: {text}")
    sys.stdout.flush()
    os._exit(output.FAILED)


def inherited() -> tuple[bool, float | None]:
    """Return whether this process continues another one's search, and the seconds that are left.

    None: no limit.
    """
    ends_at = os.environ.pop(_VARIABLE, None)
    left = max(0.001, float(ends_at) - time.time()) if ends_at else None
    return ends_at is not None, left
