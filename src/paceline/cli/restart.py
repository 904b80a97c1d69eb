"""Replaces the process of a command by one with large pages, or prepares for another one.

The process replaces itself. Terminal, pid and redirections stay, and the new process runs the same
command line.

Only environment variables can ask for large pages. A compiled step allocates its temporaries when
it begins and frees them when it ends. In a thread, glibc returns blocks of about 50 MiB and more to
the system each time. The next step must get every page of 4 KiB again. In a search with large
convolutions, that takes a fifth of the time (docs/decisions/0028). With large pages there are 512
times fewer pages.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from paceline.cli import output

#: Environment variable with the moment when the search must end, in seconds since 1970 (empty: no
#: limit). Without it, ``--timeout`` would start over in the new process.
_VARIABLE = "PACELINE_ENDS_AT"
#: Environment variable that tells the new process that signals are waiting.
_HELD = "PACELINE_SIGNALS_HELD"
_TUNABLES = "GLIBC_TUNABLES"
_LARGE_PAGES = "glibc.malloc.hugetlb=1"  # use large pages if the system lets processes choose
_SINCE = (2, 35)
_SYSTEM = Path("/sys/kernel/mm/transparent_hugepage/enabled")


#: Whether the command line is that of this process. If a program calls ``paceline.cli.app.main``
#: with its own words, its process must not be replaced.
own = False
#: Descriptors that a process that replaces this one needs, too.
kept: list[int] = []


def replace(environment: Mapping[str, str]) -> NoReturn:
    """Replaces this process by one with the same command line and another environment.

    A signal that comes now waits for the new process, where ``release_signals`` lets it in. Raises
    KeyboardInterrupt if a signal has come that was only noted: it would be lost.
    """
    from paceline.executor.process import StopSignal, stop_signals

    before = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
    try:
        StopSignal.of_process().check()
        words = [sys.executable, *sys.orig_argv[1:]]
        for descriptor in kept:
            os.set_inheritable(descriptor, True)
        os.execve(sys.executable, words, {**environment, _HELD: "1"})
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def release_signals() -> None:
    """Receives the signals that came while this process replaced another one.

    Raises KeyboardInterrupt if there was one.
    """
    from paceline.executor.process import stop_signals

    if os.environ.pop(_HELD, None) is not None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stop_signals())


def end(text: str) -> NoReturn:
    """Ends the process as failed, without waiting for other threads; safe in any thread."""
    output.say(f"failed: {text}")
    sys.stdout.flush()
    os._exit(output.FAILED)


def continue_until(moment: float | None) -> None:
    """Tells the next process to continue the search until a moment, in seconds since 1970."""
    os.environ[_VARIABLE] = "" if moment is None else str(moment)


def inherited() -> tuple[bool, float | None]:
    """Whether this process continues the search of another one, and the seconds left or None."""
    ends_at = os.environ.pop(_VARIABLE, None)
    left = max(0.001, float(ends_at) - time.time()) if ends_at else None
    return ends_at is not None, left


def take_large_pages(*, forked: bool = False) -> None:
    """Starts this process again with large pages, if the system offers them.

    ``forked``: start it again in any case, because libraries of some systems do not work after a
    fork.

    Call it before anything heavy is loaded. It does nothing on systems other than Linux with glibc.
    Nor does it if the user has set options of the allocator, or another program called the command.
    """
    environment = with_large_pages(os.environ) if own else None
    if environment is not None or forked:
        replace(environment or os.environ)


def with_large_pages(environment: Mapping[str, str]) -> dict[str, str] | None:
    """Returns the environment with large pages; None if it must stay as it is."""
    if _TUNABLES in environment or any(name.startswith("MALLOC_") for name in environment):
        return None
    if not sys.platform.startswith("linux") or _glibc() < _SINCE:
        return None
    try:
        is_ours_to_ask = "[madvise]" in _SYSTEM.read_text(encoding="ascii")
    except (OSError, UnicodeError):
        return None
    return {**environment, _TUNABLES: _LARGE_PAGES} if is_ours_to_ask else None


def _glibc() -> tuple[int, ...]:
    """The version of the C library if it is glibc, else (0,)."""
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        return tuple(int(part) for part in version.split(".")) if name == "glibc" else (0,)
    except (OSError, ValueError):
        return (0,)
