"""``timeout`` and ``trial_timeout``: how long a search, and each of its trials, may take.

A trial's time is that of its build, of tracing its steps, and of its training on the clock, with
its neighbours in the pack. The time for which it waits for a slot or a compiler does not count.
Python code that takes too long is interrupted (``run_with_timeout``). A trial that takes too long
to train fails after the epoch.

A compiled step that runs cannot be stopped from inside its process. The process must end, and
another one continues from the last checkpoint, without the trial whose step did not come back.
``StuckTrials`` remembers that trial in a file. If several trials trained in the pack, any of them
may be the cause. These suspects train one by one through the epoch that did not end.
"""

from __future__ import annotations

import contextlib
import json
import signal
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from paceline.errors import PacelineError, TrialHangError, TrialTimeoutError, UsageError
from paceline.executor.base import PackTimeout
from paceline.program.files import write_atomically
from paceline.study.storage.schema import UNREADABLE
from paceline.study.study import Study
from paceline.study.trials.trial_codec import plain

T = TypeVar("T")

#: Called with why this process cannot continue, and whether another one can; it may end the
#: process.
WhenStuck = Callable[[str, bool], None]


def check_seconds(value: Any, name: str) -> float:
    """Checks a time that a user gave."""
    if isinstance(value, (bool, str)) or not value > 0:
        raise UsageError(f"{name} must be a number of seconds above 0, got {value!r}.")
    return float(value)


#: Trials whose time to the first epoch tells that of the next one.
_LATEST = 8
#: Part of the time in which the best trials continue and none begins, at least: that is best in the
#: replays of benchmarks/policies.py.
_CLOSING = 0.05
#: Part of the time after which no new structure is worth compiling (docs/decisions/0056).
_LATE = 0.5


class SearchTimeout:
    """``timeout``: the limit of one search, which begins now; None for no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds, self._began = seconds, time.perf_counter()
        self._round = 0.0
        self._begun: dict[int, float] = {}  # trials without an epoch -> when they began
        # Seconds that the latest trials took to their first epoch: to compile, and to wait.
        self._to_first: deque[float] = deque(maxlen=_LATEST)

    @property
    def over(self) -> bool:
        """Whether time is up, or would be before another round has ended and been saved."""
        if self._seconds is None:
            return False
        return time.perf_counter() - self._began + self._round > self._seconds

    @property
    def late(self) -> bool:
        """Whether so little time is left that no new structure is worth a program."""
        elapsed = time.perf_counter() - self._began
        return self._seconds is not None and elapsed > _LATE * self._seconds

    @property
    def closing(self) -> bool:
        """Whether it is too late for new trials: they would probably not end an epoch in time."""
        if self._seconds is None or not self._to_first:
            return False
        needed = max(statistics.median(self._to_first), _CLOSING * self._seconds)
        return time.perf_counter() - self._began + needed > self._seconds

    def trial_begins(self, number: int) -> None:
        """Says that a trial is built from now on, and then compiled."""
        self._begun[number] = time.perf_counter()

    def trial_has_epoch(self, number: int) -> None:
        """Says that a trial has ended an epoch."""
        if number in self._begun:
            self._to_first.append(time.perf_counter() - self._begun.pop(number))

    def round_took(self, seconds: float) -> None:
        """Says how long the last round trained: time is up when another one would not end in it."""
        self._round = seconds


@dataclass(eq=False, repr=False)
class TrialTimeout:
    """``trial_timeout``: the limit of each trial of one search; None for no limit."""

    seconds: float | None
    stuck_trials: StuckTrials  # did not come back, in this process and those before
    study: Study
    # Called in a thread of its own when the main thread neither comes back nor can be interrupted.
    on_hang: WhenStuck

    def known_stuck(self, number: int) -> TrialTimeoutError | None:
        """Why a trial must not be trained again; None for a trial that did not get stuck."""
        return self.stuck_trials.error(number, self.study.trials.by_number(number).hparams)

    def build(self, call: Callable[[], T]) -> T:
        """Calls the user's build; raises TrialTimeoutError where it does not return in time."""
        return self._code(call, "build(hp) had not returned")

    def trace(self, call: Callable[[], T]) -> T:
        """Traces a trial; raises TrialTimeoutError where that does not end in time."""
        return self._code(call, "tracing its steps had not finished")

    def fit(self, number: int, call: Callable[[], T]) -> T:
        """Trains a trial in Keras' ``fit``; raises TrialTimeoutError where it takes too long."""

        def stuck(text: str) -> None:
            self.stuck_trials.add(number, self.study.trials.by_number(number).hparams, text)
            with contextlib.suppress(PacelineError):
                self.study.writer.flush()
            self.on_hang(f"trial {number}: {text}", True)

        return run_with_timeout(
            self.seconds, call, self._text("its training had not finished"), stuck
        )

    def late(self, wall: float, epochs: int) -> TrialTimeoutError | None:
        """Why a trial must end between two epochs, after ``wall`` seconds; None if it has time."""
        if self.seconds is None or wall <= self.seconds:
            return None
        return TrialTimeoutError(
            f"trial_timeout: {wall:.3g} s for {epochs} epochs are more than {self.seconds:g} s"
        )

    def packs_stuck(
        self, stuck: PackTimeout, trial_of: Callable[[int], int]
    ) -> Sequence[tuple[int, str]]:
        """Remembers packs whose epoch does not end, for the next process.

        Returns the trials that are the reason for certain, each with the text of its error.
        """
        certain = []
        for pack in stuck.packs:
            trials = {trial_of(job): epoch for job, epoch in pack.items()}
            if len(trials) > 1 and self.stuck_trials.suspect(pack):
                continue
            for number, epoch in trials.items():
                text = self._text(f"epoch {epoch + 1} had not finished")
                self.stuck_trials.add(number, self.study.trials.by_number(number).hparams, text)
                certain.append((number, text))
        return certain

    def error(self, stuck: PackTimeout, trial_of: Callable[[int], int]) -> TrialHangError:
        """The error that the search ends with after ``packs_stuck``."""
        trials = sorted({trial_of(job) for pack in stuck.packs for job in pack})
        names = ", ".join(map(str, trials))
        each = "it has failed" if len(trials) == 1 else "at least one of them is the cause"
        return TrialHangError(
            f"trial_timeout: an epoch of trial{'s' if len(trials) > 1 else ''} {names} has not "
            f"finished after {self.seconds:g} s ({each})",
            "Python cannot stop a running step. End this process (restart the kernel) and search "
            "again. The search resumes from its last checkpoint without the hanging trials.",
        )

    def _code(self, call: Callable[[], T], what: str) -> T:
        return run_with_timeout(
            self.seconds, call, self._text(what), lambda text: self.on_hang(text, False)
        )

    def _text(self, what: str) -> str:
        return f"trial_timeout: {what} after {self.seconds or 0:g} s"


class StuckTrials:
    """Trials whose compiled step or ``fit`` did not come back, in a file once there is one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._trials: dict[int, tuple[dict[str, Any], str]] = {}
        # Number of a job -> epochs it had trained when its pack did not come back.
        self.suspects: dict[int, int] = {}
        try:
            held = json.loads(path.read_text())
            self._trials = {int(n): (dict(h), str(text)) for n, (h, text) in held["trials"].items()}
            self.suspects = {int(n): int(epoch) for n, epoch in held["suspects"].items()}
        except (OSError, ArithmeticError, AttributeError, LookupError, TypeError, *UNREADABLE):
            pass  # there is no file, or another program has written it

    def add(self, number: int, hparams: Mapping[str, Any], text: str) -> None:
        """Remembers that a trial must not be trained again, and why."""
        self._trials[number] = plain(dict(hparams)), text
        self._write()

    def suspect(self, epochs: Mapping[int, int]) -> bool:
        """Remembers the jobs of a pack that did not come back, and the epochs they had trained.

        Returns whether some job was not under suspicion before; if all were, each trained alone,
        and to suspect them again does not help.
        """
        new = any(self.suspects.get(job) != epoch for job, epoch in epochs.items())
        self.suspects.update(epochs)
        self._write()
        return new

    def error(self, number: int, hparams: Mapping[str, Any]) -> TrialTimeoutError | None:
        """Why a trial must not be trained; None if the file says nothing of it."""
        held, text = self._trials.get(number, ({}, ""))
        return TrialTimeoutError(text) if text and held == plain(dict(hparams)) else None

    def clear(self) -> None:
        """Forgets all trials and removes the file, when the search has come to its end."""
        self._trials.clear()
        self.suspects.clear()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _write(self) -> None:
        held = {
            "trials": {str(number): trial for number, trial in self._trials.items()},
            "suspects": {str(job): epoch for job, epoch in self.suspects.items()},
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, json.dumps(held).encode())


#: Seconds between attempts to interrupt: code that catches everything may have caught the first.
_AGAIN = 0.5
#: Seconds, and share of the limit, that code has after it to react to the interruption.
_GRACE, _SHARE = 2.0, 0.1


#: One entry for each ``shielded`` block that has been entered.
_shields: list[None] = []


@contextmanager
def shielded() -> Iterator[None]:
    """A block that ``run_with_timeout`` does not interrupt; the code after the block may be."""
    _shields.append(None)
    try:
        yield
    finally:
        _shields.pop()


class _TrialTimeoutInterrupt(BaseException):
    """Raised inside of the code that takes too long; no ``except Exception`` catches it."""


def run_with_timeout(
    seconds: float | None,
    call: Callable[[], T],
    text: str,
    stuck: Callable[[str], None] | None = None,
) -> T:
    """Calls a function, and interrupts it after this many seconds; raises TrialTimeoutError then.

    A signal interrupts it in the main thread, not on Windows, and only if the program has no
    handler of SIGALRM. Elsewhere the function is not interrupted. Compiled code and other libraries
    are not interrupted before they return to Python. If the function still runs some time after the
    limit, ``stuck`` is called in another thread with the error's ``text``.
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
            raise _TrialTimeoutInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
            return call()
        finally:
            armed = False
    except (Exception, _TrialTimeoutInterrupt):
        armed = False
        if rung:  # the code may have made another error of the interruption
            raise TrialTimeoutError(text) from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
