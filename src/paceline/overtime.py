"""Python code that must end in time: a user's build, or Keras' ``fit``, of one trial.

What waits inside compiled code or in another library cannot be interrupted; whoever calls is told
of that by another thread, while this one is still there.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from paceline.errors import TrialTimeoutError

T = TypeVar("T")

#: Seconds between further attempts: code that catches everything may have caught the first.
_AGAIN = 0.5
#: Seconds, and share of the limit, after which code counts as one that cannot be interrupted.
_GRACE, _SHARE = 2.0, 0.1


#: Blocks entered that are not to be interrupted.
_shields: list[None] = []


@contextmanager
def shielded() -> Iterator[None]:
    """A block within such a function that is not interrupted; what comes after it is."""
    _shields.append(None)
    try:
        yield
    finally:
        _shields.pop()


class _Overtime(BaseException):
    """Raised inside the code; no ``except Exception`` catches it."""


def within(
    seconds: float | None,
    call: Callable[[], T],
    text: str,
    stuck: Callable[[str], None] | None = None,
) -> T:
    """Calls a function that may take so long.

    It is interrupted where a signal can do that: in the main thread, not on Windows, and as long as
    the program has no handler of SIGALRM of its own. Elsewhere it takes the time it takes.

    Args:
        seconds: None for no limit.
        call: The function.
        text: What the error says.
        stuck: Called in another thread with ``text`` when the function has not ended although
            there was a while to be interrupted.

    Raises:
        TrialTimeoutError: It took longer.
    """
    if seconds is None:
        return call()
    watch = None
    if stuck is not None:
        watch = threading.Timer(seconds + _GRACE + _SHARE * seconds, stuck, [text])
        watch.daemon = True
        watch.start()
    try:
        return _interrupted(seconds, call, text) if _can_interrupt() else call()
    finally:
        if watch is not None:
            watch.cancel()


def _can_interrupt() -> bool:
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    )


def _interrupted(seconds: float, call: Callable[[], T], text: str) -> T:
    armed, rung = True, False

    def ring(number: int, frame: FrameType | None) -> None:
        nonlocal rung
        if armed and not _shields:
            rung = True
            raise _Overtime

    before = signal.signal(signal.SIGALRM, ring)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
            return call()
        finally:
            armed = False
    except (Exception, _Overtime):
        armed = False
        if rung:  # whatever the code made of it
            raise TrialTimeoutError(text) from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
